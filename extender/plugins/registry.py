"""The device plugins: Kerf's own, and those of other packages (entry point group `kerf.plugins`)."""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final, TypeVar

from extender.core.clusters import WHOLE_MILLI
from extender.core.entry_points import Installed, describe_error
from extender.core.resources.nodes import NodeOffer, NodeReading
from extender.core.resources.requests import PodRequest, RequestError
from extender.kube import objects
from extender.kube.client import Transport
from extender.plugins.dra import Dra
from extender.plugins.formats import asks_any
from extender.plugins.holdings import Holding
from extender.plugins.native import Native
from extender.plugins.nvidia.gpushare import GpuShare
from extender.plugins.nvidia.hami import Hami
from extender.plugins.protocol import AssignedGpu, DevicePlugin, Handover, Locks, UnreadableError

logger = logging.getLogger(__name__)

NATIVE: Final = Native()
_BUILT_IN: Final[tuple[DevicePlugin, ...]] = (Hami(), GpuShare(), Dra())

_T = TypeVar("_T")


@cache
def plugins() -> tuple[DevicePlugin, ...]:
    """All device plugins. The first whose `owns` is true of a node owns it; the last one owns every node."""
    return (*_BUILT_IN, *_load_installed(), NATIVE)


def plugin_of(node: objects.Node) -> DevicePlugin:
    """Return the plugin that owns a node's GPUs."""
    return next(plugin for plugin in plugins() if plugin.owns(node))


def left_behind(node: objects.Node, owner: DevicePlugin) -> dict[DevicePlugin, str]:
    """Return a sentence for each plugin but the owner that has left annotations or labels on a node."""
    others = (plugin for plugin in plugins() if plugin is not owner)
    return {plugin: sentence for plugin in others if (sentence := plugin.left_behind(node))}


def assigned_gpus(offer: NodeOffer, holding: Holding) -> tuple[AssignedGpu, ...]:
    """Return the GPUs of a decision for `DevicePlugin.handover`."""
    return tuple(
        AssignedGpu(
            part.gpu,
            offer.gpus[part.gpu].uuid,
            offer.gpus[part.gpu].memory_mib,
            WHOLE_MILLI if part.whole else part.milli,
            part.mib,
        )
        for part in holding.parts
        if 0 <= part.gpu < len(offer.gpus)
    )


# Plugins of other packages


def _load_installed() -> list[DevicePlugin]:
    """Return the plugins by name; logs why others can't be loaded."""
    installed = Installed("kerf.plugins", "device plugin")
    installed.load(())
    names = {plugin.name for plugin in (*_BUILT_IN, NATIVE)}
    loaded: list[DevicePlugin] = []
    for name, entry in sorted(installed.found.items()):
        try:
            plugin = _plugin(entry)
            if plugin.name in names:
                raise ValueError(f"there is another device plugin {plugin.name!r}")
        except Exception as error:
            installed.faults[name] = f"device plugin {name} could not be loaded: {describe_error(error)}"
            continue
        names.add(plugin.name)
        loaded.append(_Guarded(plugin))
        logger.info("device plugin %s is loaded", plugin.name)
    for fault in installed.faults.values():
        logger.error(fault)
    return loaded


def _plugin(entry: Any) -> DevicePlugin:
    plugin = entry() if isinstance(entry, type) else entry
    if not isinstance(plugin, DevicePlugin) or not isinstance(getattr(plugin, "name", None), str):
        raise TypeError("it is not an extender.plugins.protocol.DevicePlugin with a name")
    return plugin


class _Guarded(DevicePlugin):
    """A plugin of another package, whose unexpected errors affect its own nodes and pods only."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin = plugin
        self._logged = False
        self.name, self.told, self.led, self.parts = plugin.name, plugin.told, plugin.led, plugin.parts
        self.resources, self.written = tuple(plugin.resources), frozenset(plugin.written)
        self.leftovers = tuple(plugin.leftovers)

    def owns(self, node: objects.Node) -> bool:
        return self._call(lambda: self._plugin.owns(node)) or False

    def left_behind(self, node: objects.Node) -> str:
        return self._call(lambda: self._plugin.left_behind(node)) or ""

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        return self._call(lambda: self._plugin.offer(node, reading), UnreadableError)

    def request(self, pod: objects.Pod) -> PodRequest | None:
        return self._call(lambda: self._plugin.request(pod), RequestError, only=asks_any(pod.spec, self.resources))

    def concerns(self, pod: objects.Pod) -> bool:
        return self._call(lambda: self._plugin.concerns(pod)) or False

    def holding(self, pod: objects.Pod) -> Holding | None:
        return self._call(lambda: self._plugin.holding(pod), UnreadableError)

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        return self._call(lambda: self._plugin.handover(pod, gpus, node, decided_at), RequestError) or Handover()

    def locks(self, transport: Transport, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Locks | None:
        return self._plugin.locks(transport, clock, wall_clock)

    def _call(self, call: Callable[[], _T], fault: type[ValueError] | None = None, *, only: bool = True) -> _T | None:
        """Call the plugin; unexpected errors become `fault`, which the method may raise, or None."""
        try:
            return call()
        except (RequestError, UnreadableError) as error:
            if fault is not None and isinstance(error, fault):
                raise
            unexpected: Exception = error
        except Exception as error:
            unexpected = error
        if not self._logged:
            self._logged = True
            logger.error("device plugin %s has failed; this is logged only once", self.name, exc_info=unexpected)
        if fault is None or not only:
            return None
        raise fault(f"device plugin {self.name} has failed: {unexpected!r}") from unexpected
