"""Runs in which room is made, drawn from their seeds: scattered nodes, what needs whole ones, and what goes wrong."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from tests.tools.chaos.faults import (
    KILLS,
    LAPSES,
    MOVE_KILLS,
    MOVE_WRITES,
    QUEUE_KILLS,
    RESTARTS,
    USERS,
    Fault,
    Kind,
    drawn_fault,
)
from tests.tools.chaos.moves.plans import MovesPlan, Owner, OwnerPlan
from tests.tools.chaos.plans import NodePlan, Plan, PodPlan

LASTS_S: Final = 12.0
"""Moves take longer than other things: faults come in this time."""
_PRODUCT: Final = ("NVIDIA-A100-SXM4-80GB", 81920)
_NUM_NODES: Final = (6, 9)
_CALM_S: Final = 1.0
"""A plan can begin before anything goes wrong."""
_KINDS: Final = {Owner.DEPLOYMENT: 5, Owner.REPLICA_SET: 3, Owner.JOB: 2}
_FILLED_FRAC: Final = 0.97
"""Of all GPUs, before half of the controllers leave."""
_LEAVING_FRAC: Final = 0.55
_AROUND: Final = {
    **{Kind.PAUSE: 3, Kind.LATENCY: 2, Kind.CLOCK_JUMP: 2, Kind.CONFLICT: 2, Kind.GONE: 2, Kind.THROTTLED: 2},
    **{Kind.SERVER_ERROR: 3, Kind.WATCH_CUT: 3, Kind.WATCH_STALE: 4, Kind.WATCH_GONE: 2, Kind.UNREACHABLE: 3},
    **{Kind.RESET_BEFORE_WRITE: 1, Kind.RESET_AFTER_WRITE: 2, Kind.ERROR_AFTER_WRITE: 1, Kind.LATE_BINDING: 1},
    **{Kind.PAUSE_IN_BIND: 1, Kind.KERF_GONE: 1},
}
"""What happens to Kerf and its way to the API server, with weights."""
_OF_CALLS: Final = (Kind.KILL_FILTER_ANSWERED, Kind.KILL_BIND_CALLED, Kind.KILL_BIND_ANSWERED)
_OF_NODES: Final = (Kind.NODE_CORDONED, Kind.NODE_CORDONED, Kind.NODE_DELETED, Kind.NODE_SHRUNK)


def draw(seed: int, *, extender: bool) -> Plan:
    """The run of a seed."""
    rng = random.Random(f"moves of {seed}")
    per_node = rng.choice((4, 8))
    nodes = tuple(NodePlan(f"node-{number:02d}", per_node, *_PRODUCT) for number in range(rng.randint(*_NUM_NODES)))
    owners = tuple(_owners(rng, per_node, len(nodes) * per_node))
    targets, waiting = _targets(rng, per_node)
    others = [_other(rng, number, extender=extender) for number in range(rng.randint(6, 10))]
    late_pods = tuple(PodPlan(f"late-{number}", 0.0, 0, 1, by_resource=True, gated=True) for number in range(3))
    replicas = rng.choice((1, 2))
    plan = Plan(
        seed=seed,
        replicas=replicas,
        elects=replicas > 1 or rng.random() < 0.3,
        nodes=nodes,
        pods=(*waiting, *others),
        late_pods=late_pods,
        faults=(),
        moves=MovesPlan(owners, targets),
    )
    faults = [*_of_kerf(rng, extender=extender), *_of_users(rng, plan), *_of_pods(rng, others)]
    num_nodes = rng.randint(0, 2)
    kinds, hit = rng.choices(_OF_NODES, k=num_nodes), rng.sample(nodes, num_nodes)
    faults += [_on_node(rng, kind, node) for kind, node in zip(kinds, hit, strict=True)]
    return _with_machines(replace(plan, faults=_sorted(faults)), rng)


def _owners(rng: random.Random, per_node: int, gpus: int) -> Iterable[OwnerPlan]:
    """Controllers whose pods fill the cluster; about half of them leave then."""
    left, number = int(gpus * _FILLED_FRAC), 0
    while left > 0:
        size = rng.choice((1, 1, 2, 2, per_node // 2))
        replicas = min(rng.choice((1, 2, 2, 3, 4)), left // size)
        if not replicas:
            break
        left -= size * replicas
        kind = rng.choices(list(_KINDS), list(_KINDS.values()))[0]
        leaves = not number or rng.random() < _LEAVING_FRAC
        yield OwnerPlan(
            f"{'filler' if leaves else 'work'}-{number:02d}",
            kind,
            replicas,
            size,
            urgent=not leaves and rng.random() < 0.04,
            stays=not leaves and rng.random() < 0.04,
            keeps=_kept(rng, replicas) if not leaves and rng.random() < 0.35 else None,
            gang=not leaves and kind is not Owner.JOB and replicas > 1 and rng.random() < 0.1,
            leaves=leaves,
        )
        number += 1


def _kept(rng: random.Random, replicas: int) -> int:
    """How many pods a budget keeps; all of them rarely: then nobody moves."""
    return replicas if rng.random() < 0.15 else rng.randint(0, replicas - 1)


def _targets(rng: random.Random, per_node: int) -> tuple[tuple[str, ...], list[PodPlan]]:
    """Pods and gangs that need whole nodes."""
    names, pods = [], []
    for number in range(rng.randint(2, 4)):
        size, at_s = rng.choice((1, 1, 2, 2, 3)), round(number * rng.uniform(0.0, LASTS_S / 4), 3)
        name = f"target-{number}"
        for member in range(size):
            pod = PodPlan(name, at_s, 0, per_node, by_resource=True, gated=True)
            pods.append(replace(pod, name=f"{name}-{member}", gang=name, gang_size=size) if size > 1 else pod)
        names.append(name)
    return tuple(names), pods


def _other(rng: random.Random, number: int, *, extender: bool) -> PodPlan:
    """One that would like to have what is kept for others; where kube-scheduler asks Kerf, perhaps past the queue."""
    at_s = round(rng.uniform(0.0, LASTS_S), 3)
    gated = not extender or rng.random() < 0.5
    return PodPlan(f"other-{number:02d}", at_s, 0, rng.choice((1, 1, 2)), by_resource=True, gated=gated)


# Faults


def _of_kerf(rng: random.Random, *, extender: bool) -> list[Fault]:
    kinds = rng.choices(list(_AROUND), list(_AROUND.values()), k=rng.randint(2, 4))
    kinds += rng.choices(MOVE_WRITES, k=rng.randint(1, 3))
    kinds += rng.choices(MOVE_KILLS, k=rng.choice((0, 1, 1, 2)))
    kinds += rng.choices(QUEUE_KILLS, k=rng.choice((0, 1)))
    if rng.random() < 0.3:
        kinds.append(rng.choice([kind for kind in KILLS if extender or kind not in _OF_CALLS]))
    if rng.random() < 0.15:
        kinds.append(rng.choice(list(RESTARTS)))
    return [_drawn(rng, kind) for kind in kinds]


def _of_users(rng: random.Random, plan: Plan) -> list[Fault]:
    return [
        replace(_drawn(rng, kind), target=_victim(rng, kind, plan)) for kind in rng.choices(USERS, k=rng.randint(2, 6))
    ]


def _victim(rng: random.Random, kind: Kind, plan: Plan) -> str:
    """The controller or target that it is about; gangs are left whole, and Jobs as large as they are."""
    if kind is Kind.TARGET_DELETED:
        return rng.choice(plan.moves.targets)
    if kind in (Kind.PLAN_STOPPED, Kind.REPLACEMENT_FORGED):
        return ""
    owners = [owner for owner in plan.moves.owners if not owner.leaves]
    if kind is Kind.OWNER_SCALED:
        owners = [owner for owner in owners if not owner.gang and owner.kind is not Owner.JOB] or owners[:0]
    return rng.choice([owner.name for owner in owners]) if owners else ""


def _of_pods(rng: random.Random, pods: Sequence[PodPlan]) -> list[Fault]:
    kinds = (Kind.POD_DELETED, Kind.POD_RECREATED, Kind.POD_TERMINATING)
    return [
        replace(
            _drawn(rng, kind),
            at_s=round(pod.at_s + rng.uniform(0.0, 1.0), 3),
            for_s=round(rng.uniform(0.2, 2.0), 3) if kind is Kind.POD_TERMINATING else 0.0,
            target=pod.name,
        )
        for pod, kind in zip(rng.sample(pods, 3), rng.choices(kinds, k=3), strict=True)
    ]


def _on_node(rng: random.Random, kind: Kind, node: NodePlan) -> Fault:
    lasting = kind is not Kind.NODE_CORDONED and rng.random() < 0.2
    for_s = 0.0 if lasting else round(rng.uniform(0.2, 5.0), 3)
    return replace(_drawn(rng, kind), for_s=for_s, target=node.name)


def _drawn(rng: random.Random, kind: Kind) -> Fault:
    return replace(drawn_fault(rng, kind), at_s=round(rng.uniform(_CALM_S, LASTS_S), 3))


def _with_machines(plan: Plan, rng: random.Random) -> Plan:
    """Sometimes a lease lapses that nobody takes over, or a machine is paused with its clock."""
    if any(fault.kind is Kind.KERF_GONE for fault in plan.faults):
        plan = replace(plan, faults=tuple(fault for fault in plan.faults if fault.kind not in RESTARTS))
    chance = rng.random()
    if chance < 0.1:
        without = (*RESTARTS, *KILLS, *QUEUE_KILLS, *MOVE_KILLS)
        kept = [fault for fault in plan.faults if fault.kind not in without]
        lapse = _drawn(rng, rng.choice(LAPSES))
        return replace(plan, elects=True, faults=_sorted([*kept, lapse]))
    if chance < 0.2:
        faults = _sorted([*plan.faults, _drawn(rng, Kind.VM_PAUSE)])
        return replace(plan, replicas=2, elects=True, stops_clocks=True, faults=faults)
    return plan


def _sorted(faults: Iterable[Fault]) -> tuple[Fault, ...]:
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
