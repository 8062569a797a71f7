"""What it costs to keep account of every GPU: one event of the watch, and filter with and without a choice of devices.

All in this process, without a control plane. `event_us` is the time from the line of a watch to the ledger that knows
it, decoding included: pods with shares that are bound, change and go, and nodes that report. `filter_ms` is the time
of the whole verb on a body that names all nodes, in turn for two clusters of the same size and load:
- `devices`: the pods have shares of GPUs by compute and memory, and so has the one that asks: its GPU is chosen;
- `counted`: the pods have time slices, which are counted on their node: which GPU gives them is the plugin's business.
"""

import asyncio
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from extender.api.app import create_app
from extender.api.service import Service
from extender.core.annotations import MEMORY_EACH, SHARE
from extender.kube import objects
from extender.kube.memory import Manifest, MemoryCluster
from extender.ledger.ledger import Ledger
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE
from extender.settings.load import load_settings
from tests.api.services import started
from tests.nvidia import COUNT_LABEL, GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL, SHARED_GPU_RESOURCE
from tests.tools.bench import reports, requests
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

_MEMORY_MIB = 81920
_SHARES = {SHARE: "300", MEMORY_EACH: "8192"}
_SLICES_PER_GPU = 4
_NUM_WARMING = 20
_PATIENCE_S = 86400.0
_SEED = 20261121


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 5000
    pods: int = 20000
    events: int = 20000
    requests: int = 1000

    num_steps: int = 3


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when Kerf answers anything but a placement."""
    if plan.pods + plan.requests + _NUM_WARMING > plan.nodes * GPUS_PER_NODE * 3:
        raise BenchError(f"{plan.pods} pods and {plan.requests} requests need more than {plan.nodes} nodes")
    names = [f"node-{number}" for number in range(plan.nodes)]
    tell(f"{plan.nodes} nodes, {plan.pods} pods")
    events = _event_us(plan, names)
    tell(f"{plan.requests} requests")
    filters = _filter_ms(plan, names)
    tell("report")
    return {
        **{"nodes": plan.nodes, "pods": plan.pods, "events": plan.events, "requests": plan.requests},
        "event_us": quantiles(events, 1e6),
        "filter_ms": {kind: quantiles(seconds, 1e3) for kind, seconds in filters.items()},
        "filter_ratio": round(statistics.median(filters["devices"]) / statistics.median(filters["counted"]), 3),
        "machine": reports.machine(),
    }


def _event_us(plan: Plan, names: Sequence[str]) -> list[float]:
    """Seconds of each event, decoded and applied."""
    ledger = Ledger(reservation_ttl_s=30.0)
    nodes = [_node(name, {GPU_RESOURCE: str(GPUS_PER_NODE)}) for name in names]
    pods = [_sharing_pod(number, names) for number in range(plan.pods)]
    for node in nodes:
        ledger.upsert_node(msgspec.convert(node, objects.Node))
    for pod in pods:
        ledger.upsert_pod(msgspec.convert(pod, objects.Pod), 0.0)
    lines = list(_events(random.Random(_SEED), nodes, pods, plan.events))
    event_decoder = msgspec.json.Decoder(objects.WatchEvent)
    pod_decoder, node_decoder = msgspec.json.Decoder(objects.Pod), msgspec.json.Decoder(objects.Node)
    seconds = []
    with no_collection():
        for kind, line in lines:
            began = time.perf_counter()
            event = event_decoder.decode(line)
            if kind == "Node":
                ledger.upsert_node(node_decoder.decode(event.object))
            elif event.type == "DELETED":
                ledger.remove_pod(pod_decoder.decode(event.object).metadata.uid)
            else:
                ledger.upsert_pod(pod_decoder.decode(event.object), 1.0)
            seconds.append(time.perf_counter() - began)
    return seconds


def _events(
    rng: random.Random, nodes: Sequence[Manifest], pods: list[Manifest], count: int
) -> Iterator[tuple[str, bytes]]:
    """Kind and line of so many events: of five, one pod that goes, one that is bound, two that change, one node."""
    waiting: list[Manifest] = []
    for number in range(count):
        kind, type_, item = "Pod", "MODIFIED", rng.choice(pods)
        if number % 5 == 0:
            type_ = "DELETED"
            position = rng.randrange(len(pods))
            pods[position], pods[-1] = pods[-1], pods[position]
            item = pods.pop()
            waiting.append(item)
        elif number % 5 == 1:
            type_, item = "ADDED", waiting.pop()
            pods.append(item)
        elif number % 5 == 2:
            kind, item = "Node", rng.choice(nodes)
        yield kind, json.dumps({"type": type_, "object": item}).encode()


def _filter_ms(plan: Plan, names: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of each call, by cluster."""
    slices = {SHARED_GPU_RESOURCE: str(GPUS_PER_NODE * _SLICES_PER_GPU)}
    devices = [_node(name, {GPU_RESOURCE: str(GPUS_PER_NODE)}) for name in names]
    devices += [_sharing_pod(number, names) for number in range(plan.pods)]
    counted = [_node(name, slices) for name in names]
    counted += [_pod(number, names[number % len(names)], {}, {SHARED_GPU_RESOURCE: "1"}) for number in range(plan.pods)]
    seconds: dict[str, list[float]] = {"devices": [], "counted": []}
    plain = {"decisions.policy": "tightest"}
    with running(devices, plain) as with_devices, running(counted, plain) as with_counts, no_collection():
        for number in range(_NUM_WARMING + plan.requests):
            bodies = {
                "devices": _body(number, names, _SHARES, {}),
                "counted": _body(number, names, {}, {SHARED_GPU_RESOURCE: "1"}),
            }
            services = {"devices": with_devices, "counted": with_counts}
            for kind in sorted(bodies, reverse=number % 2 == 0):
                began = time.perf_counter()
                answer = services[kind].verbs.filter(bodies[kind])
                taken = time.perf_counter() - began
                if not msgspec.json.decode(answer)["NodeNames"]:
                    raise BenchError(f"Kerf places no pod: {answer[:300]!r}")
                if number >= _NUM_WARMING:
                    seconds[kind].append(taken)
    return seconds


@contextmanager
def running(manifests: Sequence[Manifest], flags: Mapping[str, object] | None = None) -> Iterator[Service]:
    """Kerf in this process on a cluster in memory. Its background work stands still between the calls: for as long as
    it takes, it need not have heard of anything."""
    app = create_app(load_settings(flags={"cluster.max_age_s": _PATIENCE_S, **(flags or {})}), MemoryCluster(manifests))
    service: Service = app.state.service
    with started(app) as runner:
        while service.fault():
            runner.run(asyncio.sleep(0.01))
        runner.run(service.rank.round())
        yield service


@contextmanager
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _body(number: int, names: Sequence[str], annotations: dict[str, str], limits: dict[str, str]) -> bytes:
    pod = requests.pending_pod(f"asking-{number}", 0)
    pod["metadata"]["annotations"] |= annotations
    container = pod["spec"]["containers"][0]
    container["resources"] = {"limits": limits, "requests": {"cpu": "4", "memory": "16Gi"} | limits}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def _node(name: str, gpus: dict[str, str]) -> Manifest:
    labels = {
        PRODUCT_LABEL: "NVIDIA-A100-SXM4-80GB",
        COUNT_LABEL: str(GPUS_PER_NODE),
        MEMORY_LABEL: str(_MEMORY_MIB),
        "nvidia.com/gpu.replicas": str(_SLICES_PER_GPU if SHARED_GPU_RESOURCE in gpus else 1),
    }
    return {
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
        "status": {"allocatable": {"cpu": "128", "memory": "1024Gi", "pods": "110", **gpus}},
    }


def _sharing_pod(number: int, names: Sequence[str]) -> Manifest:
    """A bound pod; those of one node have two on each GPU."""
    gpu = number // len(names) // 2 % GPUS_PER_NODE
    assigned = {ASSIGNED_GPUS: str(gpu), ASSIGNED_SHARE: _SHARES[SHARE], ASSIGNED_MEMORY: _SHARES[MEMORY_EACH]}
    return _pod(number, names[number % len(names)], _SHARES | assigned, {})


def _pod(number: int, node: str, annotations: dict[str, str], limits: dict[str, str]) -> Manifest:
    pod: dict[str, Any] = requests.pending_pod(f"running-{number}", 0)
    pod["metadata"]["annotations"] |= annotations
    container = pod["spec"]["containers"][0]
    container["resources"] = {"limits": limits, "requests": {"cpu": "4", "memory": "16Gi"} | limits}
    pod["spec"]["nodeName"] = node
    return {"kind": "Pod", **pod, "status": {"phase": "Running"}}


def quantiles(seconds: list[float], unit: float) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": round(cuts[49] * unit, 3), "p99": round(cuts[98] * unit, 3)}
