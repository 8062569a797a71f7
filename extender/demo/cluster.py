"""The demo's sample cluster: dozens of heterogeneous nodes with running and pending pods."""

import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from extender.core.vendors.registry import DEFAULT
from extender.demo.nvidia import POOLS, SHARED, Pool
from extender.kube.memory import Manifest
from extender.plugins.kerf import ASSIGNED_BY, ASSIGNED_GPUS, format_gpus

_NUM_CPU_NODES: Final = 4
_SEED: Final = 42
_AGES_S: Final = (1800.0, 259_200.0)
"""Range of running pods' ages: half an hour to three days."""
_WAITED_S: Final = 240.0


def sample_cluster(now: float | None = None) -> Iterator[Manifest]:
    """Nodes and pods, deterministic except for ages, which are relative to the Unix time `now` (default: the clock)."""
    now = time.time() if now is None else now
    rng, ages = random.Random(_SEED), random.Random(_SEED)
    num_pods = 0
    for pool in POOLS:
        for number in range(pool.num_nodes):
            name = f"{pool.prefix}-{number}"
            yield _gpu_node(name, pool, {DEFAULT.resource: str(pool.gpus)})
            free = list(range(pool.gpus))
            while free and rng.random() < 0.75:
                taken = tuple(free[: rng.choice((1, 1, 2, 4))])
                free = free[len(taken) :]
                started = now - ages.uniform(*_AGES_S)
                yield _pod(f"job-{num_pods}", started, len(taken), node=name, gpus=taken, owner=_owner(num_pods))
                num_pods += 1
    for number in range(SHARED.num_nodes):
        slices = {DEFAULT.shared_resource: str(SHARED.gpus * SHARED.replicas)}
        yield _gpu_node(f"{SHARED.prefix}-{number}", SHARED, slices)
    for number in range(_NUM_CPU_NODES):
        yield _node(f"cpu-{number}", 64, 256, {}, {})
    created = now - _WAITED_S
    yield _pod("train-0", created, 2, annotations={"kerf.dev/gpu-memory-each": "40Gi", "kerf.dev/gpu-model": "a100"})
    yield _pod("train-1", created, 8)
    yield _pod("train-2", created, 8, annotations={"kerf.dev/gpu-model": "h100"})  # would fit if another pod moved
    yield _pod("notebook-0", created, 1)
    yield _pod("web-0", created, 0)


def _owner(number: int) -> str:
    """The ReplicaSet of a pod, which replaces the pod if it is moved; "" for every third pod, a bare one."""
    return f"serve-{number}-6b8f9c5d4b" if number % 3 else ""


def _gpu_node(name: str, pool: Pool, gpus: dict[str, str]) -> Manifest:
    labels = {
        DEFAULT.product_label: pool.product,
        DEFAULT.count_label: str(pool.gpus),
        DEFAULT.memory_label: str(pool.memory_mib),
        **({DEFAULT.replicas_label: str(pool.replicas)} if pool.replicas > 1 else {}),
    }
    return _node(name, pool.cpus, pool.memory_gib, gpus, labels)


def _node(name: str, cpus: int, memory_gib: int, gpus: dict[str, str], labels: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {
            "allocatable": {"cpu": str(cpus), "memory": f"{memory_gib}Gi", "pods": "110", **gpus},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def _pod(
    name: str,
    created: float,
    num_gpus: int,
    *,
    node: str = "",
    gpus: tuple[int, ...] = (),
    annotations: dict[str, str] | None = None,
    owner: str = "",
) -> Manifest:
    resources = {DEFAULT.resource: str(num_gpus)} if num_gpus else {}
    spec: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"requests": {"cpu": "4", **resources}, "limits": resources}}]
    }
    if node:
        spec["nodeName"] = node
        annotations = {ASSIGNED_GPUS: format_gpus(gpus), ASSIGNED_BY: "kerf sample"}
    created_at = _timestamp(created)
    metadata: dict[str, Any] = {
        **{"name": name, "namespace": "default", "uid": f"sample-{name}", "creationTimestamp": created_at}
    }
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": f"sample-{owner}"}
        metadata["ownerReferences"] = [reference | {"controller": True}]
        metadata["labels"] = {"pod-template-hash": owner.rpartition("-")[2]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata | {"annotations": annotations or {}},
        "spec": spec,
        "status": {"phase": "Running", "startTime": created_at} if node else {"phase": "Pending"},
    }


def _timestamp(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
