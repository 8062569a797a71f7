"""Checks device plugins, node labels about GPUs, GPU exporters and Prometheus."""

import contextlib
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
import numpy as np

from extender.cli.consoles import names
from extender.cli.install.findings import Finding, broken, listed, note, ok
from extender.cli.install.kerf import CheckedCluster
from extender.core.resources.nodes import LEFT_OUT_WORDS, LeftOut
from extender.core.vendors.registry import GPU_RESOURCES, PARTITION_PREFIXES, VENDORS
from extender.core.vendors.vendor import Installing
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import Lister, Page
from extender.ledger.ledger import Ledger
from extender.plugins.protocol import DevicePlugin
from extender.plugins.registry import left_behind, plugin_of, plugins
from extender.settings.telemetry import TelemetrySettings
from extender.telemetry.sources.discovery import EXPORTER_SELECTORS, find_prometheus

_HELM: Final = "helm upgrade --install"
_INSTALLING: Final = [(vendor, vendor.installing) for vendor in VENDORS if vendor.installing]
EXPORTER: Final = _INSTALLING[0][1].exporter_name
"""Name of the telemetry check."""
_OF_GKE: Final = "cloud.google.com/gke-"
"""Prefix of labels on all GKE nodes."""
_DAEMON_SETS: Final = "/apis/apps/v1/daemonsets"
_CREDENTIALS: Final = ("username", "password_file", "bearer_token_file", "cert_file", "key_file", "headers")
_PROMETHEUS: Final = (
    f"{_HELM} prometheus kube-prometheus-stack --repo https://prometheus-community.github.io/helm-charts "
    "--namespace monitoring --create-namespace"
)


async def devices(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check device plugins or DRA drivers, labels about GPUs, and nodes that offer none."""
    known = await _learn(look.transport)
    cluster = known.ledger.snapshot(time.monotonic())
    installed = cluster.gpu_model >= 0
    given = ~np.isin(cluster.left_out, [why for why in LeftOut if why not in (LeftOut.NOTHING, LeftOut.TOO_MANY)])
    rows: list[int] = np.flatnonzero(installed.any(axis=1) & given).tolist()
    cut: list[int] = np.flatnonzero(cluster.mig_installed.any(axis=1) & ~installed.any(axis=1)).tolist()
    offering = {cluster.node_names[row] for row in (*rows, *cut)} | known.otherwise.keys()
    unserved = [name for name in known.signed if name not in offering and not known.faults.get(name)]
    for vendor, installing in _INSTALLING:
        if lost := [name for name in unserved if known.signed[name] == vendor.name]:
            installed_plugins = await _installed_plugins(look.transport, installing)
            remedy = _remedy([known.nodes[name] for name in lost], offering, installed_plugins, installing)
            yield broken(f"nodes with {vendor.title} cards offer no GPUs: {names(lost)}", remedy)
    for name, sentences in known.faults.items():
        useless = cluster.left_out[cluster.row_of[name]] in (LeftOut.UNREADABLE, LeftOut.NONE_HEALTHY)
        yield broken(f"{name}: {sentences}") if useless else note(f"{name}: {sentences}")
    if known.unread:
        yield note(f"nodes that can't be read: {names(known.unread)}")
    for finding in _leftovers(known.left):
        yield finding
    if not offering:
        if not unserved and not known.faults:
            installing = _INSTALLING[0][1]
            installed_plugins = await _installed_plugins(look.transport, installing)
            remedy = _remedy(list(known.nodes.values()), offering, installed_plugins, installing)
            yield broken("no node offers GPUs", remedy)
        return
    parts = [f"{len(rows)} nodes offer GPUs"] if rows else []
    parts += [f"{len(cut)} offer only MIG devices"] if cut else []
    parts += [f"{len(known.otherwise)} offer {names(sorted({*known.otherwise.values()}))}"] if known.otherwise else []
    yield ok(", ".join(parts))
    if not rows:
        return
    nameless = [row for row in rows if not all(cluster.models[m].name for m in cluster.gpu_model[row][installed[row]])]
    sizeless = [row for row in rows if not cluster.gpu_memory_mib[row][installed[row]].all()]
    for vendor, installing in _INSTALLING:
        theirs = [row for row in rows if VENDORS[cluster.vendor[row]] is vendor]
        if missing := [cluster.node_names[row] for row in sorted({*nameless, *sizeless} & {*theirs})]:
            text = f"GPU model or memory is unknown, so pods that request either go elsewhere: {names(missing)}"
            yield note(text, installing.discovery, what=installing.discovery_name)
        elif theirs:
            yield ok("model and memory of all GPUs are known", what=installing.discovery_name)


@dataclass(slots=True)
class _Known:
    """All nodes, and what they offer."""

    ledger: Ledger
    nodes: dict[str, objects.Node] = field(default_factory=dict)
    signed: dict[str, str] = field(default_factory=dict)
    """Vendor of nodes whose labels say that they have GPUs, by node."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why some or all of a node's GPUs are not allocated, by node."""
    left: dict[DevicePlugin, dict[str, str]] = field(default_factory=dict)
    """Leftovers of removed plugins, by plugin and node."""
    otherwise: dict[str, str] = field(default_factory=dict)
    """A GPU resource that a node offers and Kerf does not allocate, by node."""
    unread: list[str] = field(default_factory=list)
    """Nodes that can't be decoded."""


async def learn(transport: Transport, ledger: Ledger) -> Page[objects.Node]:
    """Fill a ledger with what nodes and drivers offer, and return the nodes.

    Raises ClusterError, msgspec.DecodeError if nodes can't be listed.
    """
    for feed in (feed for stock in ledger.rows.stocks for feed in stock.feeds):
        with contextlib.suppress(ApiError, msgspec.DecodeError):  # most clusters have none
            for item in (await Lister(transport, feed.path, feed.kind).all()).items:
                ledger.upsert_device(item)
    nodes = await Lister(transport, NODES_PATH, objects.Node).all()
    for node in nodes.items:
        ledger.upsert_node(node)
    return nodes


async def _learn(transport: Transport) -> _Known:
    """Read all nodes and what they offer."""
    known = _Known(Ledger(reservation_ttl_s=0.0))
    nodes = await learn(transport, known.ledger)
    known.unread += [node.name for node in nodes.unread]
    for node in nodes.items:
        name, labels = node.metadata.name, node.metadata.labels or {}
        known.nodes[name] = node
        for vendor, installing in _INSTALLING:
            if any(labels.get(sign) == "true" for sign in installing.signs):
                known.signed.setdefault(name, vendor.name)
        others = (key for key, amount in (node.status.allocatable or {}).items() if _is_others(key) and amount != "0")
        if (resource := next(others, None)) is not None:
            known.otherwise[name] = resource
        offer = known.ledger.rows.offer_of(name)
        if offer.left_out:
            known.faults[name] = "; ".join(offer.warnings) or LEFT_OUT_WORDS[offer.left_out]
        else:
            for plugin, text in left_behind(node, plugin_of(node)).items():
                known.left.setdefault(plugin, {})[name] = text
    return known


def _leftovers(left: Mapping[DevicePlugin, Mapping[str, str]]) -> Iterator[Finding]:
    """A note for each removed plugin's leftovers, which Kerf ignores but which may mislead other tools."""
    for plugin, found in left.items():
        text = f"leftovers of a removed plugin, which are ignored: {next(iter(found.values()))}"
        keys = " ".join(f"{key}-" for key in plugin.leftovers)
        fix = f"kubectl annotate node NODE {keys}" if keys else ""
        yield note(f"{text}: {names(list(found))}", fix)


def _is_others(resource: str) -> bool:
    """Whether a GPU resource is for virtual machines or of a plugin that Kerf does not support."""
    given = {*GPU_RESOURCES, *(name for plugin in plugins() for name in plugin.resources)}
    others = tuple(prefix for _, installing in _INSTALLING for prefix in installing.others)
    return resource not in given and resource.startswith(others) and not resource.startswith(PARTITION_PREFIXES)


async def _installed_plugins(transport: Transport, installing: Installing) -> list[str]:
    """DaemonSets of a vendor's device plugins, as NAMESPACE/NAME; empty if they can't be read."""
    try:
        daemon_sets = await listed(transport, _DAEMON_SETS)
    except (ClusterError, msgspec.DecodeError):
        return []
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in daemon_sets
        if any(
            installing.plugins.search(str(container.get("image", "")))
            for container in item["spec"]["template"]["spec"].get("containers") or ()
        )
    ]


def _remedy(
    nodes: Sequence[objects.Node], offering: Collection[str], plugins: Sequence[str], installing: Installing
) -> str:
    """The fix for nodes that should offer GPUs: install a device plugin, unless one is there already.

    `plugins` are the DaemonSets of device plugins."""
    labels = [node.metadata.labels or {} for node in nodes]
    if any(key.startswith(_OF_GKE) for found in labels for key in found):
        return "GKE runs its own device plugin, which waits for the driver: kubectl get pods -n kube-system -o wide"
    if installing.operator_label and any(installing.operator_label in found for found in labels):
        pods = f"kubectl get pods -A -l app={installing.operator_pods} -o wide"
        return f"the GPU operator runs its own device plugin: {pods}"
    if plugins:
        namespace, _, name = plugins[0].partition("/")
        why = f"kubectl -n {namespace} describe daemonset {name}"
        return (
            f"{why}    # a device plugin is installed, {names(plugins)}: check its node selector, taints and the driver"
        )
    if offering:
        return "a device plugin serves other nodes: check its pods, node selectors and taints here"
    return installing.plugin


async def telemetry(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check GPU exporters, and find a Prometheus."""
    settings = look.installed.settings.telemetry
    if settings.source == "off":
        yield ok("is off (telemetry.source)", what="telemetry")
        return
    pods = {
        item["metadata"]["name"]: item
        for selector in EXPORTER_SELECTORS
        for item in await listed(look.transport, PODS_PATH, selector)
    }
    for vendor, installing in _INSTALLING:
        if vendor.exporter is None or not vendor.exporter.names:
            continue
        name = vendor.exporter.names[0]
        nodes = [item["spec"].get("nodeName") for item in pods.values() if _is_named(item, vendor.exporter.names)]
        if nodes:
            yield ok(f"{name} on {len(set(nodes) - {None})} nodes", what=installing.exporter_name)
        else:
            text = f"no {name} pod: GPU load is unknown, so policies that use it rank by bookings"
            yield note(text, installing.exporter, what=installing.exporter_name)
    yield replace(await _prometheus(look, settings), what="Prometheus")


async def _prometheus(look: CheckedCluster, settings: TelemetrySettings) -> Finding:
    if address := settings.url or settings.exporters or settings.addresses:
        return ok(f"configured: {address}; `kerf doctor` reads it")
    own = look.installed.namespace or look.installed.settings.leader_election.namespace
    prometheus = await find_prometheus(look.transport, {*settings.namespaces, own})
    if prometheus.addresses and any(getattr(settings, name) for name in _CREDENTIALS):
        address = prometheus.addresses[0]
        text = f"found: {address}; telemetry's credentials and headers are sent only to a configured address"
        return note(text, f"set config.telemetry.url={address}, if you trust it")
    if prometheus.addresses:
        return ok(f"found: {prometheus.addresses[0]}; `kerf doctor` reads it")
    if passed_over := prometheus.passed_over:
        text = "a Service looks like Prometheus, but its namespace is not in telemetry.namespaces: "
        return note(text + ", ".join(passed_over), f"set config.telemetry.url={passed_over[0]}, if it is yours")
    text = prometheus.fault or "no Service looks like Prometheus"
    return note(text, f"{_PROMETHEUS}    # or configure one: config.telemetry.url")


def _is_named(pod: Mapping[str, Any], names: Sequence[str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/name") in names or labels.get("app") in names
