"""Pools, claims and what happens to them, drawn for the plan of a run."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tests.tools.chaos.devices.plans import Ask, ClaimPlan, DevicesPlan, PoolKind, PoolPlan, RequestPlan
from tests.tools.chaos.faults import (
    CLAIM_KILLS,
    CLAIM_WRITES,
    HOSTILE,
    KILLS,
    QUEUE_KILLS,
    WINDOW_S,
    Fault,
    Kind,
    drawn_fault,
)
from tests.tools.chaos.plans import NodePlan, Plan, PodPlan

_NUM_UNITS: Final = (42, 56)
"""Pods, gangs and pairs of pods that name one claim."""
_GATED_FRAC: Final = 0.95
"""Of pods that need devices of Kerf's; the others' authors have forgotten the gate, and nobody serves them."""
_STRIPPING_PROBABILITY: Final = 0.15
_ON_NODES: Final = (
    *(Kind.NODE_CORDONED, Kind.NODE_CPU_SHORT, Kind.SLICES_REPUBLISHED, Kind.DEVICES_FEWER, Kind.DRIVER_GONE),
)
_FOR_GOOD_PROBABILITY: Final = 0.2

_GPU: Final = RequestPlan((Ask.GPU,))
_ALONE: Final[dict[tuple[tuple[RequestPlan, ...], ...], int]] = {
    ((_GPU,),): 7,
    ((replace(_GPU, count=2),),): 2,
    ((replace(_GPU, count=4),),): 1,
    ((RequestPlan((Ask.SMALL,)),),): 4,
    ((RequestPlan((Ask.MEDIUM,)),),): 3,
    ((RequestPlan((Ask.LARGE,)),),): 3,
    ((RequestPlan((Ask.SMALL,), count=2),),): 1,
    ((RequestPlan((Ask.LARGE, Ask.GPU)),),): 2,
    ((RequestPlan((Ask.MEDIUM, Ask.SMALL)),),): 2,
    ((RequestPlan((Ask.NETWORK,), gbit=30),),): 3,
    ((_GPU, RequestPlan((Ask.NETWORK,), gbit=20)),): 2,
    ((_GPU,), (RequestPlan((Ask.NETWORK,), gbit=20),)): 3,
    ((RequestPlan((Ask.SMALL,)),), (RequestPlan((Ask.MEDIUM,)),)): 2,
    ((RequestPlan((Ask.OTHER,)),),): 6,
    ((_GPU,), (RequestPlan((Ask.OTHER,)),)): 1,
    ((RequestPlan((Ask.NETWORK,), gbit=10),), (RequestPlan((Ask.OTHER,)),)): 1,
}
"""What the claims of one pod ask, with weights."""
_TOGETHER: Final = ((_GPU,), (replace(_GPU, count=2),), (RequestPlan((Ask.SMALL,)),), (RequestPlan((Ask.LARGE,)),))
"""What the claim of each member of a gang asks, or that of two pods."""


def with_devices(plan: Plan) -> Plan:
    """The same run with pools that Kerf owns and pools that it does not, and pods that name claims."""
    rng = random.Random(f"devices of {plan.seed}")
    pools = _pools(rng)
    claims: list[ClaimPlan] = []
    pods = [pod for number in range(rng.randint(*_NUM_UNITS)) for pod in _unit(rng, number, claims)]
    late_pods = [replace(pod, at_s=0.0) for number in range(3) for pod in _alone(rng, f"late-claims-{number}", claims)]
    named = dict.fromkeys(pool.node for pool in pools)
    nodes = tuple(NodePlan(node, 0, "", 0) for node in named)
    plan = replace(
        plan,
        nodes=(*plan.nodes, *nodes),
        pods=(*plan.pods, *pods),
        late_pods=(*plan.late_pods, *late_pods),
        devices=DevicesPlan(tuple(pools), tuple(claims)),
    )
    return _under_faults(plan, rng, pods, tuple(named))


def _pools(rng: random.Random) -> list[PoolPlan]:
    """Network cards are sometimes on one node alone: without its driver nobody has any."""
    pools, last_with_cards = [], rng.choice((0, 4))
    for number in range(8):
        node = f"devices-{number}"
        if number < 3:
            pools.append(PoolPlan(node, PoolKind.WHOLE, rng.choice((2, 4, 8))))
        elif number < 6:
            pools.append(PoolPlan(node, PoolKind.PARTED, rng.choice((1, 2, 3))))
        if number % 2 == 0 and number <= last_with_cards:
            pools.append(PoolPlan(node, PoolKind.NETWORK, rng.choice((1, 2))))
        if number in (0, 1, 6, 7):
            pools.append(PoolPlan(node, PoolKind.OTHER, rng.randint(2, 4)))
    return pools


def _unit(rng: random.Random, number: int, claims: list[ClaimPlan]) -> list[PodPlan]:
    name, kind = f"claims-{number:02d}", rng.random()
    if kind < 0.1:
        return _gang(rng, name, claims)
    return _pair(rng, name, claims) if kind < 0.18 else _alone(rng, name, claims)


def _alone(rng: random.Random, name: str, claims: list[ClaimPlan]) -> list[PodPlan]:
    asked = rng.choices(list(_ALONE), list(_ALONE.values()))[0]
    made = [
        ClaimPlan(f"{name}-{index}", requests, template=rng.random() < 0.55) for index, requests in enumerate(asked)
    ]
    claims += made
    other = any(Ask.OTHER in request.alternatives for requests in asked for request in requests)
    gated = rng.random() < (0.2 if other else _GATED_FRAC)
    return [replace(_pod(rng, name, made), gated=gated)]


def _pair(rng: random.Random, name: str, claims: list[ClaimPlan]) -> list[PodPlan]:
    """Two pods that name the same claim."""
    claims.append(ClaimPlan(name, rng.choice(_TOGETHER)))
    return [_pod(rng, f"{name}-{which}", claims[-1:]) for which in ("a", "b")]


def _gang(rng: random.Random, name: str, claims: list[ClaimPlan]) -> list[PodPlan]:
    size = rng.randint(2, 3)
    claims.append(ClaimPlan(name, rng.choice(_TOGETHER), template=True))
    return [
        replace(_pod(rng, f"{name}-{member}", claims[-1:]), gang=f"gang-{name}", gang_size=size)
        for member in range(size)
    ]


def _pod(rng: random.Random, name: str, claims: Iterable[ClaimPlan]) -> PodPlan:
    at_s = round(rng.uniform(0.0, WINDOW_S * 0.9), 3)
    return PodPlan(name, at_s, 0, 0, gated=True, claims=tuple(claim.name for claim in claims))


# Faults


def _under_faults(plan: Plan, rng: random.Random, pods: Sequence[PodPlan], nodes: Sequence[str]) -> Plan:
    faults = [drawn_fault(rng, kind) for kind in rng.choices(CLAIM_WRITES, k=rng.randint(4, 7))]
    faults += [drawn_fault(rng, kind) for kind in rng.choices(CLAIM_KILLS, k=rng.choice((0, 1, 1, 2)))]
    faults += [_on_node(rng, kind, nodes) for kind in rng.choices(_ON_NODES, k=rng.randint(1, 4))]
    if rng.random() < 0.4:
        faults.append(_on_node(rng, Kind.NODE_DELETED, nodes))
    of_claims = (Kind.CLAIM_DELETED, Kind.CLAIM_EDITED, Kind.POD_FINISHED)
    faults += [_on_pod(rng, kind, pods) for kind in rng.choices(of_claims, k=rng.randint(2, 6))]
    ends = (Kind.POD_DELETED, Kind.POD_RECREATED, Kind.POD_RECREATED, Kind.POD_TERMINATING)
    faults += [_on_pod(rng, kind, [pod]) for kind, pod in zip(ends * 3, rng.sample(pods, 9), strict=False)]
    without: tuple[Kind, ...] = ()
    replicas = plan.replicas
    if rng.random() < _STRIPPING_PROBABILITY:
        # What a claim had that is gone is known as long as Kerf lives, and no longer.
        faults += [_on_pod(rng, Kind.CLAIM_STRIPPED, pods) for _ in range(rng.randint(1, 3))]
        without = (*KILLS, *QUEUE_KILLS, *CLAIM_KILLS, *HOSTILE, Kind.KERF_GONE, Kind.VM_PAUSE)
        replicas = 1
    elif replicas > 1:
        faults.append(drawn_fault(rng, Kind.PAUSE_IN_ALLOCATION))
    kept = [fault for fault in (*plan.faults, *faults) if fault.kind not in without]
    return replace(plan, replicas=replicas, faults=tuple(sorted(kept, key=lambda fault: fault.at_s)))


def _on_node(rng: random.Random, kind: Kind, nodes: Sequence[str]) -> Fault:
    fault = replace(drawn_fault(rng, kind), target=rng.choice(nodes))
    if kind is Kind.NODE_DELETED:
        fault = replace(fault, for_s=round(rng.uniform(0.1, 2.0), 3))
    lasting = kind in (Kind.NODE_CPU_SHORT, Kind.DRIVER_GONE) or rng.random() > _FOR_GOOD_PROBABILITY
    return fault if lasting else replace(fault, for_s=0.0)


def _on_pod(rng: random.Random, kind: Kind, pods: Sequence[PodPlan]) -> Fault:
    """About when the pod is on its way, or later."""
    pod = rng.choice(pods)
    late = WINDOW_S + 0.5
    at_s = pod.at_s + rng.uniform(0.0, 0.4) if rng.random() < 0.6 else rng.uniform(min(pod.at_s, late), late)
    fault = drawn_fault(rng, kind)
    for_s = rng.uniform(0.2, 2.0) if kind is Kind.POD_TERMINATING else fault.for_s
    return replace(fault, at_s=round(min(at_s, late), 3), for_s=round(for_s, 3), target=pod.name)
