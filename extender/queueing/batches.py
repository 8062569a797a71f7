"""Kubernetes objects as what planners take: pods of a batch, and the view of the cluster they are planned on."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor
from typing import Final

import numpy as np

from extender.cluster.pods import read_pod_request, requested
from extender.core.clusters import Cluster, Longs
from extender.core.policies import POLICIES
from extender.core.quantities import MIB, parse_quantity
from extender.core.requests import POLICY, RequestError, read_priority
from extender.queueing.manifests import Node, Pod
from extender.queueing.plans import PlanPod, View
from extender.queueing.restrictions import Kinds, Terrain

GANG: Final = "kerf.dev/gang"
GANG_SIZE: Final = "kerf.dev/gang-size"
GANG_TOPOLOGY: Final = "kerf.dev/gang-topology"
"""Node label of which all pods of the gang must find one value."""
POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
"""Label of scheduler-plugins' coscheduling."""
FUNCTION_SPEC: Final = "com.openfaas.function.spec"
"""OpenFaaS's own description of a function: `{"limits": {"cpu": "200m", "memory": "128Mi"}}`."""

_DEFAULT_PODS: Final = 110  # the kubelet's
_MAX_GANG: Final = 100_000
_MAX_GANG_DIGITS: Final = 9
_MAX_QUANTITY: Final = 2**60


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has beside its GPUs."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0


def room_of(node: Node) -> Room:
    """A node's allocatable CPU, memory and pods; what can't be read is none."""
    allocatable = node.status.allocatable or {}

    def quantity(name: str, default: int = 0) -> Fraction:
        try:
            return parse_quantity(str(allocatable[name])) if name in allocatable else Fraction(default)
        except ValueError:
            return Fraction(0)

    cpu, memory, pods = quantity("cpu"), quantity("memory"), quantity("pods", _DEFAULT_PODS)
    return Room(_bounded(floor(cpu * 1000)), _bounded(floor(memory / MIB)), _bounded(floor(pods)))


def asked_of(pod: Pod) -> Room:
    """A pod's CPU and memory as kube-scheduler counts them, or what its OpenFaaS function says.

    Raises RequestError with a sentence for the pod's author.
    """
    text = (pod.metadata.annotations or {}).get(FUNCTION_SPEC)
    if text is not None:
        return _function_limits(text)
    cpu, memory = (requested(pod.spec, name) for name in ("cpu", "memory"))
    return Room(_bounded(ceil(cpu * 1000)), _bounded(ceil(memory / MIB)), 1)


def plan_pod(pod: Pod, kinds: Kinds) -> PlanPod:
    """A pod as planners take it. Raises RequestError with a sentence for the pod's author."""
    request = read_pod_request(pod)
    if request.policy and request.policy not in POLICIES:
        raise RequestError(f'{POLICY}: "{request.policy[:80]}" is no policy; write one of {", ".join(POLICIES)}')
    asked = asked_of(pod)
    annotations = pod.metadata.annotations or {}
    name, _ = gang_of(pod)
    containers = pod.spec.containers or ()
    return PlanPod(
        key=pod.key,
        cpu_milli=asked.cpu_milli,
        memory_mib=asked.memory_mib,
        gpus=request.gpus,
        policy=request.policy,
        priority=read_priority(pod.metadata.labels or {}, pod.spec.priority),
        gang=name,
        topology=annotations.get(GANG_TOPOLOGY, "").strip() if name else "",
        kind=kinds.kind_of(pod.spec),
        image=containers[0].image if containers else "",
    )


def gang_of(pod: Pod) -> tuple[str, int]:
    """Name of a pod's gang within the whole cluster and its size, 0 for what only its PodGroup says; ("", 0) for none.

    Raises RequestError with a sentence for the pod's author.
    """
    annotations, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    name = annotations.get(GANG, "").strip()
    if not name:
        group = labels.get(POD_GROUP_LABEL, "").strip() or pod.spec.pod_group
        return (f"{pod.metadata.namespace}/{group}", 0) if group else ("", 0)
    text = annotations.get(GANG_SIZE, "").strip()
    # No int() of thousands of digits: it raises what no caller expects, and a round would end for everybody.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_GANG_DIGITS and 1 <= int(text) <= _MAX_GANG):
        raise RequestError(f'{GANG_SIZE}: "{text[:80]}" is no size of a gang; write the number of its pods such as "4"')
    return f"{pod.metadata.namespace}/{name}", int(text)


def view_of(
    cluster: Cluster,
    nodes: Sequence[Node],
    kinds: Kinds,
    *,
    num_pods: Mapping[str, int] | None = None,
    reserve_frac: float = 0.0,
    topologies: Iterable[str] = (),
    terrain: Terrain | None = None,
) -> View:
    """The view of a cluster; `num_pods` run on each node, `reserve_frac` is the part of CPU and memory to keep."""
    terrain = terrain or Terrain(cluster, nodes)
    cpu, memory, slots = (np.zeros(cluster.num_nodes, np.int64) for _ in range(3))
    for node in nodes:
        row = cluster.row_of.get(node.metadata.name)
        if row is None:
            continue
        room = room_of(node)
        cpu[row], memory[row] = room.cpu_milli, room.memory_mib
        slots[row] = room.pods - (num_pods or {}).get(node.metadata.name, 0)
    return View(
        cluster=cluster,
        cpu_allocatable_milli=cpu,
        memory_allocatable_mib=memory,
        cpu_free_milli=_left(cluster.cpu_free_milli, cpu, reserve_frac),
        memory_free_mib=_left(cluster.memory_free_mib, memory, reserve_frac),
        pods_free=np.maximum(slots, 0),
        allowed=kinds.masks(terrain),
        domains={topology: terrain.domains(topology) for topology in topologies},
    )


def _left(free: Longs, allocatable: Longs, reserve_frac: float) -> Longs:
    left: Longs = np.maximum(free - np.ceil(allocatable * reserve_frac).astype(np.int64), 0)
    return left


def _function_limits(text: str) -> Room:
    try:
        limits = json.loads(text)["limits"]
        cpu, memory = (parse_quantity(str(limits.get(name, "0"))) for name in ("cpu", "memory"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(
            f"{FUNCTION_SPEC}: can't be read ({type(error).__name__}: {str(error)[:80]}); write JSON such as "
            '{"limits": {"cpu": "200m", "memory": "128Mi"}}'
        ) from None
    if cpu < 0 or memory < 0:
        raise RequestError(f"{FUNCTION_SPEC}: limits are negative; write sizes such as 200m and 128Mi")
    return Room(_bounded(ceil(cpu * 1000)), _bounded(ceil(memory / MIB)), 1)


def _bounded(number: int) -> int:
    """Within what an array's cell holds and sums up: sizes beyond it fit no node anyway."""
    return max(0, min(number, _MAX_QUANTITY // 1024))
