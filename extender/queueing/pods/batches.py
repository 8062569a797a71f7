"""Converts Kubernetes objects for planners: pods of a batch, and nodes' CPU, memory and pod slots."""

import contextlib
import json
from collections.abc import Iterable
from fractions import Fraction
from math import ceil, floor
from typing import Final, NamedTuple

from msgspec import structs

from extender.core.annotations import POLICY, read_priority
from extender.core.dra.asks import DeviceClaims
from extender.core.policies.registry import POLICIES, names
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.objects import Node, Pod
from extender.planning.plans import PlanPod
from extender.plugins.nodes import read_capacity
from extender.plugins.pod_demands import read_demands
from extender.plugins.pod_resources import requested
from extender.plugins.pods import cached_on_pod, read_pod_request, read_policy
from extender.queueing.pods.objects import check_bounds
from extender.queueing.pods.restrictions import RestrictionKinds

GANG: Final = "kerf.dev/gang"
GANG_SIZE: Final = "kerf.dev/gang-size"
GANG_TOPOLOGY: Final = "kerf.dev/gang-topology"
"""Annotation with a node label for which all pods of the gang must have nodes of one value."""
POD_GROUP_LABEL: Final = "scheduling.x-k8s.io/pod-group"
"""Label of scheduler-plugins' coscheduling."""
_FUNCTION_SPEC: Final = "com.openfaas.function.spec"
"""OpenFaaS's own description of a function: `{"limits": {"cpu": "200m", "memory": "128Mi"}}`."""

_DEFAULT_PODS: Final = 110  # the kubelet's
_MAX_GANG: Final = 100_000
_MAX_GANG_DIGITS: Final = 9
_MAX_QUANTITY: Final = 2**60


class Room(NamedTuple):
    """CPU, memory and pod slots, of a node or taken by a pod."""

    cpu_milli: int = 0
    memory_mib: int = 0
    pods: int = 0


def room_of(node: Node) -> Room:
    """Return a node's allocatable CPU, memory and pods, 0 where unreadable."""
    cpu_milli, memory_mib = read_capacity(node)
    try:
        pods = floor(parse_quantity(str((node.status.allocatable or {}).get("pods", _DEFAULT_PODS))))
    except ValueError:
        pods = 0
    return Room(_bounded(cpu_milli), _bounded(memory_mib), _bounded(pods))


def asked_of(pod: Pod) -> Room:
    """Return a pod's CPU and memory as kube-scheduler counts them, or those of its OpenFaaS function.

    Raises RequestError with a sentence for the pod's author.
    """
    text = (pod.metadata.annotations or {}).get(_FUNCTION_SPEC)
    cpu, memory = (
        (requested(pod.spec, "cpu"), requested(pod.spec, "memory")) if text is None else _function_limits(text)
    )
    return Room(_bounded(ceil(cpu * 1000)), _bounded(ceil(memory / MIB)), 1)


def plan_pod(pod: Pod, kinds: RestrictionKinds, claims: PodClaims = NO_CLAIMS) -> PlanPod:
    """Convert a pod with its ResourceClaims for planners. Raises RequestError with a sentence for its author."""
    request = read_pod_request(pod)
    if claims.asked is not None:
        if request.gpus is not None:
            raise RequestError("requests GPUs by resource and devices by ResourceClaim: use only one of the two")
        request = structs.replace(request, gpus=devices_of(claims.asked), policy=read_policy(pod))
    if request.policy and request.policy not in POLICIES:
        raise RequestError(f'{POLICY}: "{request.policy[:80]}" is not a policy; use one of {names(POLICIES)}')
    check_bounds(pod.spec)
    room = asked_of(pod)
    annotations = pod.metadata.annotations or {}
    name, _ = gang_of(pod)
    containers = pod.spec.containers or ()
    return PlanPod(
        key=pod.key,
        cpu_milli=room.cpu_milli,
        memory_mib=room.memory_mib,
        gpus=request.gpus,
        policy=request.policy,
        priority=read_priority(pod.metadata.labels or {}, pod.spec.priority),
        gang=name,
        topology=annotations.get(GANG_TOPOLOGY, "").strip() if name else "",
        kind=kinds.kind_of(pod.spec, claims.places),
        image=containers[0].image if containers else "",
        claims=tuple(claim.metadata.uid for claim in claims.unallocated),
        demands=read_demands(pod),
        labels=pod.metadata.labels or {},
    )


def devices_of(asked: DeviceClaims) -> GpuRequest:
    """Convert a request by ResourceClaims for decisions."""
    return GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked)


@cached_on_pod
def gang_of(pod: Pod) -> tuple[str, int]:
    """Return `namespace/name` of a pod's gang and its size, 0 if only its PodGroup states that; ("", 0) for no gang.

    Raises RequestError with a sentence for the pod's author.
    """
    annotations, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
    name = annotations.get(GANG, "").strip()
    if not name:
        group = labels.get(POD_GROUP_LABEL, "").strip() or pod.spec.pod_group
        return (f"{pod.metadata.namespace}/{group}", 0) if group else ("", 0)
    text = annotations.get(GANG_SIZE, "").strip()
    # int() of thousands of digits raises a ValueError that no caller expects, which would fail the round.
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_GANG_DIGITS and 1 <= int(text) <= _MAX_GANG):
        raise RequestError(f'{GANG_SIZE}: "{text[:80]}" is not a gang size; write the number of pods, such as "4"')
    return f"{pod.metadata.namespace}/{name}", int(text)


def by_gang(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    """Group pods by gang, leaving out those without one or with an invalid one."""
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        with contextlib.suppress(RequestError):
            if gang := gang_of(pod)[0]:
                gangs.setdefault(gang, []).append(pod)
    return gangs


def _function_limits(text: str) -> tuple[Fraction, Fraction]:
    try:
        limits = json.loads(text)["limits"]
        cpu, memory = (parse_quantity(str(limits.get(name, "0"))) for name in ("cpu", "memory"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RequestError(
            f"{_FUNCTION_SPEC}: can't be read ({type(error).__name__}: {str(error)[:80]}); write JSON such as "
            '{"limits": {"cpu": "200m", "memory": "128Mi"}}'
        ) from None
    if cpu < 0 or memory < 0:
        raise RequestError(f"{_FUNCTION_SPEC}: limits are negative; write sizes such as 200m and 128Mi")
    return cpu, memory


def _bounded(number: int) -> int:
    """Clip to what arrays can hold and sum; larger sizes fit no node anyway."""
    return max(0, min(number, _MAX_QUANTITY // 1024))
