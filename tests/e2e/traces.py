"""A trace offered to a real kube-scheduler, and the same to the simulator."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from extender.core.fragmentation import ANY_MODEL, Mix, Nodes, PodClasses, TypicalPod, mix_of
from extender.core.policies.policy import Expected
from model.workloads.workloads import Workload
from tests.controlplane.objects import gpu_node, pod, steered
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until

# (cpu_milli, memory_mib, gpus, gpu_milli, per hundred): the shape of openb's mix, in fewer classes.
CLASSES = (
    (3152, 4096, 1, 810, 12), (11300, 16384, 1, 1000, 30), (8000, 16384, 1, 470, 14), (11908, 32768, 1, 650, 8),
    (4000, 8192, 1, 320, 10), (18708, 65536, 1, 1000, 10), (16000, 32768, 2, 1000, 8), (32000, 65536, 4, 1000, 5),
    (64000, 131072, 8, 1000, 3),
)  # fmt: skip
NODES = ((96, 384, 8), (104, 512, 2), (64, 256, 2), (96, 384, 4))
"""Cores, GiB, GPUs."""
TYPICAL = tuple(TypicalPod(cpu, gpus, milli, ANY_MODEL, count) for cpu, _, gpus, milli, count in CLASSES)


@dataclass(frozen=True)
class Offered:
    """A trace in both worlds."""

    workload: Workload
    node_manifests: list[dict[str, Any]]
    pod_manifests: list[dict[str, Any]]

    @property
    def pod_names(self) -> list[str]:
        """In order of arrival."""
        return [manifest["metadata"]["name"] for manifest in self.pod_manifests]


def offered(
    num_nodes: int, num_pods: int, seed: int, *, shares: bool = True, kinds: tuple[tuple[int, int, int], ...] = NODES
) -> Offered:
    """Nodes and pods drawn from the classes above; without `shares`, whole GPUs only."""
    rng = np.random.default_rng(seed)
    sizes = [kinds[kind] for kind in rng.integers(0, len(kinds), num_nodes).tolist()]
    names = [f"node-{i:05d}" for i in range(num_nodes)]
    cores, gib, gpus = (np.array([size[i] for size in sizes], dtype=np.int64) for i in range(3))
    free = np.where(np.arange(8) < gpus[:, None], 1000, 0).astype(np.int32)
    cpu, memory = cores * 1000, gib * 1024
    nodes = Nodes(cpu, memory, gpus, np.zeros(num_nodes, np.int64), cpu.copy(), memory.copy(), free)
    usable = [row for row in CLASSES if shares or row[3] == 1000]
    weights = np.array([row[4] for row in usable], float)
    columns = [np.array([row[i] for row in usable], dtype=np.int64) for i in range(4)]
    asks = PodClasses(columns[0], columns[1], columns[2], columns[3], np.full(len(usable), ANY_MODEL))
    classes = rng.choice(len(usable), num_pods, p=weights / weights.sum()).astype(np.int64)
    asked_milli = (asks.num_gpus * asks.gpu_milli)[classes]
    workload = Workload(tuple(names), nodes, (), asks, np.arange(num_pods), classes, asked_milli, mix())
    return Offered(
        workload,
        [
            # Steered, so that shares and whole GPUs may be side by side as in the simulator.
            steered(gpu_node(name, row[2], "Tesla-T4", 15360, str(row[0]), f"{row[1]}Gi", allocatable={"pods": "250"}))
            for name, row in zip(names, sizes, strict=True)
        ],
        [_pod(f"pod-{p:05d}", usable[c]) for p, c in enumerate(classes.tolist())],
    )


def mix() -> Mix:
    """What policy `fgd` expects."""
    return mix_of(TYPICAL, sum(pod.num_pods for pod in TYPICAL))


def expected() -> list[Expected]:
    """The same as Kerf takes it."""
    return [Expected(pod.cpu_milli, pod.num_gpus, pod.gpu_milli, pod.num_pods) for pod in TYPICAL]


def mix_setting() -> str:
    """The same as Kerf's setting."""
    pods = [
        f"{{cpu_milli: {pod.cpu_milli}, gpus: {pod.num_gpus}, gpu_milli: {pod.gpu_milli}, count: {pod.num_pods}}}"
        for pod in TYPICAL
    ]
    return f"decisions.typical_pods=[{', '.join(pods)}]"


def _pod(name: str, row: tuple[int, int, int, int, int]) -> dict[str, Any]:
    cpu, memory, gpus, milli, _ = row
    whole = milli == 1000
    return pod(
        name,
        gpus if whole else 0,
        annotations={} if whole else {"kerf.dev/gpu-share": str(milli)},
        cpu=f"{cpu}m",
        memory=f"{memory}Mi",
    )


def offer(
    plane: ControlPlane,
    trace: Offered,
    within_s: float,
    pods_per_s: float | None = None,
    still_s: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Create the pods in order, no faster than that; returns them once kube-scheduler has said something of each.

    With `still_s` once none was bound for so long: of pods behind a gate it says nothing.
    """
    began = time.monotonic()
    for number, manifest in enumerate(trace.pod_manifests):
        if pods_per_s is not None:
            time.sleep(max(began + number / pods_per_s - time.monotonic(), 0.0))
        plane.request("POST", "/api/v1/namespaces/default/pods", manifest)
    found: dict[str, dict[str, Any]] = {}
    num_bound, since = -1, time.monotonic()

    def all_decided() -> bool:
        nonlocal num_bound, since
        found.clear()
        items = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
        if (bound := sum(bool(item["spec"].get("nodeName")) for item in items)) != num_bound:
            num_bound, since = bound, time.monotonic()
        found.update((item["metadata"]["name"], item) for item in items if still_s is not None or _is_decided(item))
        still = still_s is None or time.monotonic() - since >= still_s
        return still and len(found) == len(trace.pod_manifests)

    between_s = len(trace.pod_manifests) / 1000  # a list of all costs the API server as much as many decisions do
    wait_until(all_decided, within_s, "all pods are bound or called unschedulable", max(between_s, 0.05))
    return found


def _is_decided(item: dict[str, Any]) -> bool:
    return bool(item["spec"].get("nodeName")) or any(
        condition["type"] == "PodScheduled" and condition["status"] == "False"
        for condition in item.get("status", {}).get("conditions", [])
    )


def nodes_of(trace: Offered, found: dict[str, dict[str, Any]]) -> list[int]:
    """Row of each pod's node, -1 for none."""
    row = {name: i for i, name in enumerate(trace.workload.node_names)}
    return [row.get(found[name]["spec"].get("nodeName", ""), -1) for name in trace.pod_names]


def gpus_of(trace: Offered, found: dict[str, dict[str, Any]]) -> list[int]:
    """The GPUs assigned to each pod, as bits."""
    texts = [
        found[name]["metadata"].get("annotations", {}).get("kerf.dev/assigned-gpus", "") for name in trace.pod_names
    ]
    return [sum(1 << int(index) for index in text.split(",")) if text else 0 for text in texts]
