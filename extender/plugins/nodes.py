"""What a node offers, merged from all sources.

Kerf's own annotation wins, then the node's device plugin, then the kubelet's resources with the vendor's labels and
the report of Kerf's agent. If a source other than the agent is present but can't be read, the node offers nothing: a
GPU that it marks as unhealthy or taken must not be allocated.
"""

from dataclasses import replace
from fractions import Fraction

from extender.core.resources.nodes import GpuUnit, LeftOut, NodeOffer, NodeReading, read_node
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.vendors.registry import GPU_RESOURCES
from extender.kube import objects
from extender.plugins.kerf import GPUS, read_gpus, with_annotated_gpus, with_report
from extender.plugins.protocol import DevicePlugin, PluginGoneError, UnreadableError
from extender.plugins.registry import left_behind, plugin_of
from extender.plugins.set_aside import SET_ASIDE, num_failed


def read_offer(node: objects.Node, reading: NodeReading) -> NodeOffer:
    """Return what a node offers; never fails, and `warnings` say what could not be read."""
    allocatable = node.status.allocatable or {}
    kubelet = read_node(
        allocatable,
        node.metadata.labels or {},
        capacity=node.status.capacity,
        memory_tolerance_frac=reading.memory_tolerance_frac,
        aliases=reading.aliases,
    )
    plugin = plugin_of(node)
    if plugin.led and not reading.extender:
        warning = f"its device plugin, {plugin.name}, takes pods one by one from an extender: its GPUs are not offered"
        return _without_gpus(kubelet, warning, LeftOut.ONE_BY_ONE)
    try:
        own = plugin.offer(node, reading)
        annotations = node.metadata.annotations or {}
        offer = with_report(kubelet, annotations, reading) if own is None else replace(own, mig=own.mig or kubelet.mig)
        text = annotations.get(GPUS)
        offer = offer if text is None else with_annotated_gpus(read_gpus(text, reading), offer, allocatable)
    except PluginGoneError as error:
        return _without_gpus(kubelet, str(error), LeftOut.PLUGIN_GONE)
    except UnreadableError as error:
        return _without_gpus(kubelet, f"{error}; the node offers no GPUs until it can be read", LeftOut.UNREADABLE)
    return _with_reason(offer, node, plugin) if offer.unit is GpuUnit.NONE and not offer.mig else offer


def _without_gpus(kubelet: NodeOffer, warning: str, left_out: LeftOut) -> NodeOffer:
    """Return the kubelet's offer with nothing allocatable."""
    return replace(kubelet, allocatable_units=0, mig=(), warnings=(*kubelet.warnings, warning), left_out=left_out)


def _with_reason(offer: NodeOffer, node: objects.Node, plugin: DevicePlugin) -> NodeOffer:
    """Add to an offer without GPUs why a node that has, or had, some offers none."""
    if leftovers := left_behind(node, plugin):
        return replace(offer, warnings=(*offer.warnings, *leftovers.values()), left_out=LeftOut.PLUGIN_GONE)
    capacity = node.status.capacity or {}
    if any(str(capacity.get(name, "0")) != "0" for name in GPU_RESOURCES):
        return replace(offer, left_out=LeftOut.NONE_HEALTHY)
    return offer


def as_noted(offer: NodeOffer, node: objects.Node, reading: NodeReading) -> NodeOffer:
    """Add the node's quarantine to its offer."""
    annotations = node.metadata.annotations or {}
    if not reading.sets_aside or SET_ASIDE not in annotations:
        return offer
    try:
        return replace(offer, set_aside=num_failed(annotations))
    except UnreadableError as error:
        return replace(offer, warnings=(*offer.warnings, f"{error}; the node takes pods"))


def read_capacity(node: objects.Node) -> tuple[int, int]:
    """Return a node's allocatable CPU in milli and main memory in MiB, 0 where unreadable."""

    def amount(resource: str) -> Fraction | int:
        try:
            return parse_quantity(str((node.status.allocatable or {}).get(resource, 0)))
        except ValueError:
            return 0

    return int(amount("cpu") * 1000), int(amount("memory") // MIB)
