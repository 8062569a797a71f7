"""What hands out GPUs in a cluster, and what tells of their load."""

import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from extender.cli.install.findings import HELM, Finding, Verdict, listed, names
from extender.cli.install.kerf import Installed
from extender.core.resources.nodes import LEFT_OUT_WORDS, LeftOut
from extender.core.vendors.registry import GPU_RESOURCES, PARTITION_PREFIXES, VENDORS
from extender.core.vendors.vendor import Installing
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import convert
from extender.kube.paths import NODES_PATH, PODS_PATH
from extender.ledger.ledger import Ledger
from extender.plugins.protocol import DevicePlugin
from extender.plugins.registry import left_behind, plugin_of, plugins
from extender.settings.leader_election import LeaderElectionSettings
from extender.settings.telemetry import TelemetrySettings
from extender.telemetry.sources.discovery import EXPORTER_SELECTORS, find_prometheus

_INSTALLING: Final = [(vendor, vendor.installing) for vendor in VENDORS if vendor.installing]
_OF_GKE: Final = "cloud.google.com/gke-"
"""How labels of GKE's nodes begin, whether these have GPUs or not."""
_DAEMON_SETS: Final = "/apis/apps/v1/daemonsets"
_CREDENTIALS: Final = ("username", "password_file", "bearer_token_file", "cert_file", "key_file", "headers")
_PROMETHEUS: Final = (
    f"{HELM} prometheus kube-prometheus-stack --repo https://prometheus-community.github.io/helm-charts "
    "--namespace monitoring --create-namespace"
)


async def devices(transport: Transport) -> AsyncIterator[Finding]:
    """Device plugins, or DRA drivers, what the nodes' labels tell of GPUs, and nodes of which nothing is given."""
    try:
        known = await _learn(transport)
    except (ClusterError, msgspec.DecodeError) as error:
        yield Finding("device plugin", Verdict.NOTE, f"nodes can't be read: {error}")
        return
    cluster = known.ledger.snapshot(time.monotonic())
    installed = cluster.gpu_model >= 0
    given = ~np.isin(cluster.left_out, [why for why in LeftOut if why not in (LeftOut.NOTHING, LeftOut.TOO_MANY)])
    rows: list[int] = np.flatnonzero(installed.any(axis=1) & given).tolist()
    cut: list[int] = np.flatnonzero(cluster.mig_installed.any(axis=1) & ~installed.any(axis=1)).tolist()
    offering = {cluster.node_names[row] for row in (*rows, *cut)} | known.otherwise.keys()
    unserved = [name for name in known.signed if name not in offering and not known.told.get(name)]
    for vendor, installing in _INSTALLING:
        if lost := [name for name in unserved if known.signed[name] == vendor.name]:
            told = f"nodes with {vendor.title} cards offer no GPUs: {names(lost)}"
            there = await _plugins_there(transport, installing)
            remedy = _remedy([known.nodes[name] for name in lost], offering, there, installing)
            yield Finding("device plugin", Verdict.BROKEN, told, remedy)
    for name, sentences in known.told.items():
        row = cluster.row_of[name]
        broken = cluster.left_out[row] in (LeftOut.UNREADABLE, LeftOut.NONE_HEALTHY)
        yield Finding("device plugin", Verdict.BROKEN if broken else Verdict.NOTE, f"{name}: {sentences}")
    for finding in _leftovers(known.left):
        yield finding
    if not offering:
        if not unserved and not known.told:
            installing = _INSTALLING[0][1]
            there = await _plugins_there(transport, installing)
            remedy = _remedy(list(known.nodes.values()), offering, there, installing)
            yield Finding("device plugin", Verdict.BROKEN, "no node offers GPUs", remedy)
        return
    parts = [f"{len(rows)} nodes offer GPUs"] if rows else []
    parts += [f"{len(cut)} offer MIG devices alone"] if cut else []
    parts += [f"{len(known.otherwise)} offer {names(sorted({*known.otherwise.values()}))}"] if known.otherwise else []
    yield Finding("device plugin", Verdict.OK, ", ".join(parts))
    if not rows:
        return
    nameless = [row for row in rows if not all(cluster.models[m].name for m in cluster.gpu_model[row][installed[row]])]
    sizeless = [row for row in rows if not cluster.gpu_memory_mib[row][installed[row]].all()]
    for vendor, installing in _INSTALLING:
        theirs = [row for row in rows if VENDORS[cluster.vendor[row]] is vendor]
        if missing := sorted({*nameless, *sizeless} & {*theirs}):
            told = (
                "GPU model or memory is unknown, so pods that request either go elsewhere: "
                f"{names([cluster.node_names[row] for row in missing])}"
            )
            yield Finding(installing.discovery_name, Verdict.NOTE, told, installing.discovery)
        elif theirs:
            yield Finding(installing.discovery_name, Verdict.OK, "model and memory of all GPUs are known")


@dataclass(slots=True)
class _Known:
    """All nodes, with what they offer."""

    ledger: Ledger
    nodes: dict[str, objects.Node] = field(default_factory=dict)
    signed: dict[str, str] = field(default_factory=dict)
    """Those that should offer GPUs, by their labels, and whose."""
    told: dict[str, str] = field(default_factory=dict)
    """Why nothing of a node's GPUs is given, or not all, by its name."""
    left: dict[DevicePlugin, dict[str, str]] = field(default_factory=dict)
    """What plugins that are gone have left on nodes of others, by the nodes' names."""
    otherwise: dict[str, str] = field(default_factory=dict)
    """A resource of GPUs that a node offers, and that is not Kerf's to give."""


async def _learn(transport: Transport) -> _Known:
    """All nodes with what they offer, as Kerf reads them."""
    known = _Known(Ledger(reservation_ttl_s=0.0))
    for feed in (feed for stock in known.ledger.rows.stocks for feed in stock.feeds):
        try:
            for item in await listed(transport, feed.path):
                known.ledger.upsert_device(convert(item, feed.kind))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
    for item in await listed(transport, NODES_PATH):
        node = convert(item, objects.Node)
        name, labels = node.metadata.name, node.metadata.labels or {}
        known.nodes[name] = node
        known.ledger.upsert_node(node)
        for vendor, installing in _INSTALLING:
            if any(labels.get(sign) == "true" for sign in installing.signs):
                known.signed.setdefault(name, vendor.name)
        others = (key for key, amount in (node.status.allocatable or {}).items() if _is_others(key) and amount != "0")
        if (resource := next(others, None)) is not None:
            known.otherwise[name] = resource
        offer = known.ledger.rows.offer_of(name)
        if offer.left_out:
            known.told[name] = "; ".join(offer.warnings) or LEFT_OUT_WORDS[offer.left_out]
        else:
            for plugin, told in left_behind(node, plugin_of(node)).items():
                known.left.setdefault(plugin, {})[name] = told
    return known


def _leftovers(left: Mapping[DevicePlugin, Mapping[str, str]]) -> Iterator[Finding]:
    """What plugins that are gone have left, plugin by plugin; it takes nothing, and may mislead others."""
    for plugin, found in left.items():
        told = f"a plugin that is gone has left something behind, which does not count: {next(iter(found.values()))}"
        keys = " ".join(f"{key}-" for key in plugin.leftovers)
        fix = f"kubectl annotate node NODE {keys}" if keys else ""
        yield Finding("device plugin", Verdict.NOTE, f"{told}: {names(list(found))}", fix)


def _is_others(resource: str) -> bool:
    """Whether a resource is of GPUs, for virtual machines or by a plugin that Kerf does not serve."""
    given = {*GPU_RESOURCES, *(name for plugin in plugins() for name in plugin.resources)}
    others = tuple(prefix for _, installing in _INSTALLING for prefix in installing.others)
    return resource not in given and resource.startswith(others) and not resource.startswith(PARTITION_PREFIXES)


async def _plugins_there(transport: Transport, installing: Installing) -> list[str]:
    """DaemonSets of a vendor's device plugins, as NAMESPACE/NAME; none where they can't be read."""
    try:
        found = await listed(transport, _DAEMON_SETS)
    except (ClusterError, msgspec.DecodeError):
        return []
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in found
        if any(
            installing.plugins.search(str(container.get("image", "")))
            for container in item["spec"]["template"]["spec"].get("containers") or ()
        )
    ]


def _remedy(
    nodes: Sequence[objects.Node], offering: Collection[str], there: Sequence[str], installing: Installing
) -> str:
    """What helps nodes that should offer GPUs: a device plugin, unless somebody else's is there already.

    `there` are the DaemonSets of such."""
    labels = [node.metadata.labels or {} for node in nodes]
    if any(key.startswith(_OF_GKE) for found in labels for key in found):
        return "GKE has a device plugin of its own, which waits for the driver: kubectl get pods -n kube-system -o wide"
    if installing.operator_label and any(installing.operator_label in found for found in labels):
        pods = f"kubectl get pods -A -l app={installing.operator_pods} -o wide"
        return f"the GPU operator has a device plugin of its own: {pods}"
    if there:
        namespace, _, name = there[0].partition("/")
        why = f"kubectl -n {namespace} describe daemonset {name}"
        return f"{why}    # a device plugin is there, {names(there)}: see its node selector, taints, and the driver"
    if offering:
        return "a device plugin serves other nodes: see its pods here, node selectors and taints"
    return installing.plugin


async def telemetry(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """Exporters, and a Prometheus that has their metrics."""
    settings = (installed.settings if installed else {}).get("telemetry") or {}
    if settings.get("source") == "off":
        yield Finding("telemetry", Verdict.OK, "is off (telemetry.source)")
        return
    try:
        pods = {
            item["metadata"]["name"]: item
            for selector in EXPORTER_SELECTORS
            for item in await listed(transport, PODS_PATH, selector)
        }
    except ClusterError as error:
        yield Finding(_INSTALLING[0][1].exporter_name, Verdict.NOTE, f"pods can't be read: {error}")
        return
    for vendor, installing in _INSTALLING:
        if vendor.exporter is None or not vendor.exporter.names:
            continue
        theirs = [item["spec"].get("nodeName") for item in pods.values() if _is_named(item, vendor.exporter.names)]
        name = vendor.exporter.names[0]
        if theirs:
            yield Finding(installing.exporter_name, Verdict.OK, f"{name} on {len(set(theirs) - {None})} nodes")
        else:
            told = f"no {name} pod: GPU load is unknown, policies that observe rank by bookings"
            yield Finding(installing.exporter_name, Verdict.NOTE, told, installing.exporter)
    if address := settings.get("url") or settings.get("exporters") or settings.get("addresses"):
        yield Finding("Prometheus", Verdict.OK, f"configured: {address}; `kerf doctor` reads it")
        return
    namespaces = settings.get("namespaces", TelemetrySettings().namespaces)
    found = await find_prometheus(
        transport, {*namespaces, installed.namespace if installed else LeaderElectionSettings().namespace}
    )
    addresses = found.addresses
    if addresses and any(settings.get(name) for name in _CREDENTIALS):
        told = f"found: {addresses[0]}; telemetry's credentials and headers are sent only to a configured address"
        yield Finding("Prometheus", Verdict.NOTE, told, f"set config.telemetry.url={addresses[0]}, if you trust it")
    elif addresses:
        yield Finding("Prometheus", Verdict.OK, f"found: {addresses[0]}; `kerf doctor` reads it")
    elif found.passed_over:
        told = f"looks like one, in a namespace that telemetry.namespaces does not name: {', '.join(found.passed_over)}"
        remedy = f"set config.telemetry.url={found.passed_over[0]}, if it is yours"
        yield Finding("Prometheus", Verdict.NOTE, told, remedy)
    else:
        told = found.fault or "no Service looks like Prometheus"
        yield Finding("Prometheus", Verdict.NOTE, told, f"{_PROMETHEUS}    # or configure one: config.telemetry.url")


def _is_named(pod: Mapping[str, Any], names: Sequence[str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return labels.get("app.kubernetes.io/name") in names or labels.get("app") in names
