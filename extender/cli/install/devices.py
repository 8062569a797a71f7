"""What hands out GPUs in a cluster, and what tells of their load."""

import time
from collections.abc import AsyncIterator
from typing import Final

import msgspec
import numpy as np

from extender.cli.install.findings import HELM, Finding, Verdict, listed, names
from extender.cli.install.kerf import Installed
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import convert
from extender.kube.paths import NODES_PATH, PODS_PATH
from extender.ledger.ledger import Ledger
from extender.telemetry.sources.discovery import EXPORTER_APP_SELECTOR, EXPORTER_SELECTOR, find_prometheus

_SIGNS_OF_NVIDIA: Final = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
"""Labels that Node Feature Discovery and the GPU operator give to nodes with cards of NVIDIA."""

_PLUGIN: Final = (
    f"{HELM} nvidia-device-plugin nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin "
    "--namespace nvidia-device-plugin --create-namespace --set gfd.enabled=true"
)
_DCGM: Final = (
    f"{HELM} dcgm-exporter dcgm-exporter --repo https://nvidia.github.io/dcgm-exporter/helm-charts "
    "--namespace monitoring --create-namespace"
)
_CREDENTIALS: Final = ("username", "password_file", "bearer_token_file", "cert_file", "key_file", "headers")
_PROMETHEUS: Final = (
    f"{HELM} prometheus kube-prometheus-stack --repo https://prometheus-community.github.io/helm-charts "
    "--namespace monitoring --create-namespace"
)


async def devices(transport: Transport) -> AsyncIterator[Finding]:
    """Device plugins, or DRA drivers, and what the nodes' labels tell of GPUs."""
    try:
        ledger, unserved = await _learn(transport)
    except (ClusterError, msgspec.DecodeError) as error:
        yield Finding("device plugin", Verdict.NOTE, f"nodes can't be read: {error}")
        return
    cluster = ledger.snapshot(time.monotonic())
    rows: list[int] = np.flatnonzero((cluster.gpu_model >= 0).any(axis=1)).tolist()
    if unserved:
        told = f"nodes with NVIDIA cards offer no GPUs: {names(unserved)}"
        yield Finding("device plugin", Verdict.BROKEN, told, _PLUGIN)
    if not rows:
        if not unserved:
            yield Finding("device plugin", Verdict.BROKEN, "no node offers GPUs", _PLUGIN)
        return
    yield Finding("device plugin", Verdict.OK, f"{len(rows)} nodes offer GPUs")
    installed = cluster.gpu_model >= 0
    nameless = [row for row in rows if not all(cluster.models[m].name for m in cluster.gpu_model[row][installed[row]])]
    sizeless = [row for row in rows if not cluster.gpu_memory_mib[row][installed[row]].all()]
    if missing := sorted({*nameless, *sizeless}):
        told = (
            "GPU model or memory is unknown, so pods that request either go elsewhere: "
            f"{names([cluster.node_names[row] for row in missing])}"
        )
        yield Finding("GPU Feature Discovery", Verdict.BROKEN, told, _PLUGIN)
    else:
        yield Finding("GPU Feature Discovery", Verdict.OK, "model and memory of all GPUs are known")


async def _learn(transport: Transport) -> tuple[Ledger, list[str]]:
    """All nodes with what they offer, and the names of those that should offer GPUs and don't."""
    ledger = Ledger(reservation_ttl_s=0.0)
    unserved: list[str] = []
    for feed in (feed for stock in ledger.rows.stocks for feed in stock.feeds):
        try:
            for item in await listed(transport, feed.path):
                ledger.upsert_device(convert(item, feed.kind))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
    for item in await listed(transport, NODES_PATH):
        node = convert(item, objects.Node)
        ledger.upsert_node(node)
        labels = node.metadata.labels or {}
        if any(labels.get(sign) == "true" for sign in _SIGNS_OF_NVIDIA):
            unserved.append(node.metadata.name)
    cluster = ledger.snapshot(time.monotonic())
    offering = {cluster.node_names[row] for row in np.flatnonzero((cluster.gpu_model >= 0).any(axis=1))}
    return ledger, [name for name in unserved if name not in offering]


async def telemetry(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """dcgm-exporter, and a Prometheus that has its metrics."""
    settings = (installed.settings if installed else {}).get("telemetry") or {}
    if settings.get("source") == "off":
        yield Finding("telemetry", Verdict.OK, "is off (telemetry.source)")
        return
    try:
        pods = {
            item["metadata"]["name"]: item["spec"].get("nodeName")
            for selector in (EXPORTER_SELECTOR, EXPORTER_APP_SELECTOR)
            for item in await listed(transport, PODS_PATH, selector)
        }
    except ClusterError as error:
        yield Finding("DCGM", Verdict.NOTE, f"pods can't be read: {error}")
        return
    if pods:
        yield Finding("DCGM", Verdict.OK, f"dcgm-exporter on {len(set(pods.values()) - {None})} nodes")
    else:
        told = "no dcgm-exporter pod: GPU load is unknown, policies that observe rank by bookings"
        yield Finding("DCGM", Verdict.NOTE, told, _DCGM)
    if address := settings.get("url") or settings.get("exporters") or settings.get("addresses"):
        yield Finding("Prometheus", Verdict.OK, f"configured: {address}; `kerf doctor` reads it")
        return
    addresses, fault = await find_prometheus(transport)
    if addresses and any(settings.get(name) for name in _CREDENTIALS):
        told = f"found: {addresses[0]}; telemetry's credentials and headers are sent only to a configured address"
        yield Finding("Prometheus", Verdict.NOTE, told, f"set config.telemetry.url={addresses[0]}, if you trust it")
    elif addresses:
        yield Finding("Prometheus", Verdict.OK, f"found: {addresses[0]}; `kerf doctor` reads it")
    else:
        told = fault or "no Service looks like Prometheus"
        yield Finding("Prometheus", Verdict.NOTE, told, f"{_PROMETHEUS}    # or configure one: config.telemetry.url")
