"""Plans drawn from their seeds: equal seeds, equal plans."""

import random
from collections.abc import Callable, Collection
from dataclasses import replace

from tests.tools.chaos.devices.draws import with_devices
from tests.tools.chaos.faults import (
    EDITS,
    FOR_GOOD,
    HOSTILE,
    KILLS,
    LAPSES,
    QUEUE_KILLS,
    RESTARTS,
    WINDOW_S,
    Fault,
    Kind,
    drawn_fault,
)
from tests.tools.chaos.moves.draws import draw as with_moves
from tests.tools.chaos.plans import NodePlan, Plan, PodPlan
from tests.tools.chaos.refusals.draws import with_refusals

_NUM_PODS = (225, 250)
_NUM_PODS_BESIDE = (80, 100)
"""Beside those with claims."""
_RESTART_PROBABILITY = 0.15
_GATED_FRAC = 0.75
_NUM_GANGS = (6, 12)
_NUM_THIRSTY = 12
_THIRSTY_FOR_S = 1.5
_PRODUCTS = (("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-V100-SXM2-16GB", 16384))
_SIZES = ((1, 60), (2, 24), (4, 11), (8, 5))
_OF_CALLS = (Kind.KILL_FILTER_ANSWERED, Kind.KILL_BIND_CALLED, Kind.KILL_BIND_ANSWERED)
"""Faults as kube-scheduler calls Kerf."""
_DRAWN = {
    # Weights: bindings with an unknown outcome are what most often goes wrong.
    **{Kind.PAUSE: 3, Kind.PAUSE_IN_BIND: 3, Kind.LATE_BINDING: 3, Kind.LATENCY: 3, Kind.CLOCK_JUMP: 2},
    **{Kind.RESET_BEFORE_WRITE: 2, Kind.RESET_AFTER_WRITE: 5, Kind.ERROR_AFTER_WRITE: 3},
    **{Kind.CONFLICT: 3, Kind.GONE: 2, Kind.THROTTLED: 3, Kind.SERVER_ERROR: 3},
    **{Kind.WATCH_CUT: 3, Kind.WATCH_STALE: 4, Kind.WATCH_GONE: 3, Kind.UNREACHABLE: 3},
}


def draw(
    seed: int,
    *,
    queue: bool = False,
    extender: bool = True,
    dra: bool = False,
    defrag: bool = False,
    without: Collection[Kind] = (),
) -> Plan:
    """The run of a seed; with `queue` most pods of the same run wait behind Kerf's gate, some of them in gangs, and
    there are pods that no node takes.

    Without an `extender` one kube-scheduler binds by itself. With `dra` it is a smaller one, and pods with claims come
    besides. With `defrag` it is another one, in which pods are moved. Kinds of faults that it is to be `without` are
    left out, and nothing else changes.
    """
    plan = _complete(seed, queue=queue, extender=extender, dra=dra, defrag=defrag, without=without)
    return _with(plan, without=without)


def _complete(seed: int, *, queue: bool, extender: bool, dra: bool, defrag: bool, without: Collection[Kind]) -> Plan:
    if defrag:
        return with_moves(seed, extender=extender)
    plan = _under_attack(_drawn(seed, _NUM_PODS_BESIDE if dra else _NUM_PODS))
    plan = _queued(plan) if queue else plan
    plan = with_refusals(plan, without) if queue and not dra else plan
    plan = plan if extender else _unattended(plan)
    return with_devices(plan) if dra else plan


def _drawn(seed: int, num_pods: tuple[int, int]) -> Plan:
    rng = random.Random(seed)
    replicas = 2 if rng.random() < 0.4 else 1
    two_schedulers = rng.random() < 0.6
    pods = _pods(rng, two_schedulers, num_pods)
    late_pods = tuple(_pod(rng, f"late-{number}", 1, two_schedulers) for number in range(8))
    pod_faults = _pod_faults(rng, pods)
    deleted = {fault.target for fault in pod_faults if fault.kind in FOR_GOOD}
    nodes = _nodes(rng, sum(pod.size for pod in (*pods, *late_pods) if pod.name not in deleted))
    foreign = [
        PodPlan(f"foreign-{number}", 0.0, 0, rng.randint(1, 2), by_resource=True, node=node.name)
        for number, node in enumerate(rng.sample(nodes, rng.randint(0, 4)))
    ]
    faults = [drawn_fault(rng, kind) for kind in rng.choices(list(_DRAWN), list(_DRAWN.values()), k=rng.randint(4, 8))]
    faults += [drawn_fault(rng, kind) for kind in rng.choices(list(KILLS), k=rng.choice((0, 1, 1, 2)))]
    if rng.random() < _RESTART_PROBABILITY:
        faults.append(drawn_fault(rng, rng.choice(list(RESTARTS))))
    faults += pod_faults + _node_faults(rng, nodes)
    faults.sort(key=lambda fault: fault.at_s)
    return Plan(seed, replicas, replicas > 1, tuple(nodes), tuple(foreign + pods), late_pods, tuple(faults))


def _under_attack(plan: Plan) -> Plan:
    """The same run with faults that go together, one set of them or two."""
    rng = random.Random(f"attack of {plan.seed}")
    for attack in rng.choices(list(_ATTACKS), list(_ATTACKS.values()), k=rng.choice((1, 1, 2))):
        plan = attack(plan, rng)
    kinds = {fault.kind for fault in plan.faults}
    if not kinds & {*EDITS, *HOSTILE} or rng.random() < 0.5:
        return plan
    if not kinds & set(EDITS):
        return replace(plan, policy=False)
    # Where nobody refuses edits, Kerf knows what was written before as long as it lives and no longer.
    without = (*KILLS, *HOSTILE, Kind.KERF_GONE, Kind.VM_PAUSE)
    return replace(_with(plan, without=without), replicas=1, policy=False)


def _with(plan: Plan, *faults: Fault, without: Collection[Kind] = ()) -> Plan:
    kept = (fault for fault in plan.faults if fault.kind not in without)
    return replace(plan, faults=tuple(sorted((*kept, *faults), key=lambda fault: fault.at_s)))


def _thirsty(plan: Plan, fault: Fault, rng: random.Random) -> Plan:
    """With pods for both schedulers that come as a fault ends, and take whatever is thought to be free then."""
    ends_s = fault.at_s + fault.for_s
    pods = tuple(
        replace(
            _pod(rng, f"thirsty-{len(plan.pods) + number}", rng.choice((1, 1, 1, 2)), False),
            at_s=round(ends_s + rng.uniform(0.0, _THIRSTY_FOR_S), 3),
            scheduler=number % 2,
        )
        for number in range(_NUM_THIRSTY)
    )
    return replace(plan, pods=(*plan.pods, *pods))


def _lapsing(plan: Plan, rng: random.Random) -> Plan:
    """Nobody takes over, and nothing makes Kerf or the API server begin anew meanwhile."""
    fault = drawn_fault(rng, rng.choice(LAPSES))
    return replace(_thirsty(_with(plan, fault, without=(*RESTARTS, *KILLS)), fault, rng), elects=True)


def _pausing_machines(plan: Plan, rng: random.Random) -> Plan:
    fault = drawn_fault(rng, Kind.VM_PAUSE)
    return replace(_thirsty(_with(plan, fault), fault, rng), replicas=2, elects=True, stops_clocks=True)


def _without_kerf(plan: Plan, rng: random.Random) -> Plan:
    return _with(plan, drawn_fault(rng, Kind.KERF_GONE), without=RESTARTS)


def _edited(plan: Plan, rng: random.Random) -> Plan:
    faults = []
    for kind in rng.choices(EDITS, k=rng.randint(3, 8)):
        target = rng.choice(plan.nodes).name if kind is Kind.EDIT_CPU_HOLDER else _victim(plan, kind, rng)
        faults.append(replace(drawn_fault(rng, kind), target=target))
    return _with(plan, *faults)


def _victim(plan: Plan, kind: Kind, rng: random.Random) -> str:
    """A pod that such an edit makes sense of."""
    fits: dict[Kind, Callable[[PodPlan], bool | int]] = {
        Kind.EDIT_SHRUNK: lambda pod: pod.milli,
        Kind.EDIT_SHARE_FORGED: lambda pod: not pod.milli and pod.by_resource,
        Kind.EDIT_PLUGIN_FORGED: lambda pod: not pod.milli and pod.by_resource,
        Kind.EDIT_DROPPED: lambda pod: not pod.by_resource,
    }
    fit = fits.get(kind)
    deleted = {fault.target for fault in plan.faults}
    return rng.choice(
        [pod.name for pod in plan.pods if (fit is None or fit(pod)) and not pod.node and pod.name not in deleted]
    )


def _hostile(plan: Plan, rng: random.Random) -> Plan:
    kinds = rng.sample(HOSTILE, rng.randint(1, 3))
    faults = [replace(drawn_fault(rng, kind), at_s=round(rng.uniform(0.1, WINDOW_S / 2), 3)) for kind in kinds]
    faults.append(drawn_fault(rng, rng.choice(KILLS)))  # who takes over, or starts, has to cope with them
    return _with(plan, *faults)


def _with_mirrors(plan: Plan, rng: random.Random) -> Plan:
    free = [node for node in plan.nodes if node.name not in {pod.node for pod in plan.pods}]
    mirrors = tuple(
        PodPlan(f"mirror-{node.name}", 0.0, 0, rng.randint(1, 2), by_resource=True, node=node.name, mirror=True)
        for node in rng.sample(free, min(2, len(free)))
    )
    if not mirrors:
        return plan
    faults = [replace(drawn_fault(rng, Kind.MIRROR_DELETED), target=rng.choice(mirrors).name) for _ in range(2)]
    return replace(_with(plan, *faults), pods=(*mirrors, *plan.pods))


def _with_groups(plan: Plan, rng: random.Random) -> Plan:
    """Gangs of pods that come at about the same time: more than there is room for."""
    pods = list(plan.pods)
    deleted = {fault.target for fault in plan.faults}
    for number in range(rng.randint(3, 6)):
        size, gpus, at_s = rng.randint(2, 4), rng.choice((1, 2, 4)), round(rng.uniform(0.0, WINDOW_S * 0.9), 3)
        whole = [at for at, pod in enumerate(pods) if not (pod.milli or pod.node or pod.group or pod.name in deleted)]
        scheduler = pods[whole[0]].scheduler
        for at in rng.sample(whole, size):
            name = pods[at].name
            pods[at] = PodPlan(
                name, at_s, scheduler, gpus, by_resource=True, gang_size=size, group=f"group-{plan.seed}-{number}"
            )
    groups = [Fault(Kind.GANG_CYCLES, 0.0, target=group) for group in sorted({pod.group for pod in pods} - {""})]
    return replace(_with(plan, *groups), pods=tuple(pods))


_ATTACKS: dict[Callable[[Plan, random.Random], Plan], int] = {
    **{_lapsing: 5, _pausing_machines: 3, _without_kerf: 3, _edited: 5, _hostile: 5, _with_mirrors: 1, _with_groups: 3}
}
"""Weights."""


def _queued(plan: Plan) -> Plan:
    rng = random.Random(f"queue of {plan.seed}")
    pods, late_pods = (
        [replace(pod, gated=not (pod.node or pod.group) and rng.random() < _GATED_FRAC) for pod in drawn]
        for drawn in (plan.pods, plan.late_pods)
    )
    for number in range(rng.randint(*_NUM_GANGS)):
        size, gpus = rng.randint(2, 4), rng.choice((1, 1, 2, 4))
        alone = [
            at
            for at, pod in enumerate(pods)
            if pod.gated and not (pod.gang or pod.group) and (pod.gpus, pod.milli) == (gpus, 0)
        ]
        if len(alone) < size:
            continue
        members = rng.sample(alone, size)
        first = replace(pods[members[0]], gang=f"gang-{number}", gang_size=size)
        for at in members:
            pods[at] = replace(first, name=pods[at].name, at_s=pods[at].at_s)
    policy = plan.policy or any(fault.kind in EDITS for fault in plan.faults)  # kills and edits
    kills = [drawn_fault(rng, kind) for kind in rng.choices(QUEUE_KILLS, k=rng.choice((1, 1, 2)))]
    faults = sorted((*plan.faults, *kills), key=lambda fault: fault.at_s)
    return replace(plan, pods=tuple(pods), late_pods=tuple(late_pods), faults=tuple(faults), policy=policy)


def _unattended(plan: Plan) -> Plan:
    """The same run with pods that kube-scheduler counts, and no faults of calls that nobody makes.

    Whoever goes past the queue gets any GPU: he asks for no special one. Authors could write assignments themselves,
    if nobody refused that; and kube-scheduler takes a mirror that is deleted for a pod that has ended.
    """

    def counted(pod: PodPlan) -> PodPlan:
        pod = replace(pod, scheduler=0, by_resource=True, milli=0)
        return pod if pod.gated else replace(pod, memory_mib=0, model="")

    pods, late_pods = (tuple(map(counted, drawn)) for drawn in (plan.pods, plan.late_pods))
    without = (*_OF_CALLS, Kind.EDIT_SHRUNK, Kind.EDIT_DROPPED, Kind.MIRROR_DELETED)
    return replace(_with(plan, without=without), pods=pods, late_pods=late_pods, policy=True)


def _pods(rng: random.Random, two_schedulers: bool, num_pods: tuple[int, int]) -> list[PodPlan]:
    sizes, weights = zip(*_SIZES, strict=True)
    wanted = rng.choices(sizes, weights, k=rng.randint(*num_pods))
    return [_pod(rng, f"pod-{number:03d}", gpus, two_schedulers) for number, gpus in enumerate(wanted)]


def _pod(rng: random.Random, name: str, gpus: int, two_schedulers: bool) -> PodPlan:
    picky = rng.random()
    planned = PodPlan(
        name,
        at_s=round(rng.uniform(0.0, WINDOW_S * 0.9), 3),
        scheduler=rng.randint(0, 1) if two_schedulers else 0,
        gpus=gpus,
        model=rng.choice(("a100", "v100")) if picky > 0.9 else "",
    )
    if gpus == 1 and rng.random() < 0.4:
        return replace(planned, milli=rng.choice((200, 300, 500, 700)), memory_mib=rng.choice((0, 4096, 12288)))
    memory_mib = rng.choice((16384, 40960, 81920)) if picky < 0.2 else 0
    return replace(planned, by_resource=rng.random() < 0.5, memory_mib=memory_mib)


def _nodes(rng: random.Random, asked: float) -> list[NodePlan]:
    """As many as make a load of 80 % and more."""
    capacity = asked / rng.uniform(0.85, 1.15)
    nodes: list[NodePlan] = []
    while sum(node.gpus for node in nodes) < capacity:
        product, memory_mib = rng.choice(_PRODUCTS)
        nodes.append(NodePlan(f"node-{len(nodes):02d}", rng.choice((8, 8, 4)), product, memory_mib))
    return nodes


def _node_faults(rng: random.Random, nodes: list[NodePlan]) -> list[Fault]:
    kinds = rng.choices((Kind.NODE_DELETED, Kind.NODE_SHRUNK), k=rng.randint(0, 2))
    faults = []
    for kind, node in zip(kinds, rng.sample(nodes, len(kinds)), strict=True):
        for_s = 0.0 if rng.random() < 0.33 else rng.uniform(0.1, 2.0)
        faults.append(Fault(kind, round(rng.uniform(0.2, WINDOW_S), 3), round(for_s, 3), target=node.name))
    return faults


def _pod_faults(rng: random.Random, pods: list[PodPlan]) -> list[Fault]:
    """Pods deleted at every moment: before, during and after their binding."""
    kinds = (Kind.POD_DELETED, Kind.POD_RECREATED, Kind.POD_TERMINATING)
    faults = []
    for pod in rng.sample(pods, rng.randint(8, 24)):
        kind = rng.choices(kinds, (1, 4, 2))[0]
        soon = rng.random() < 0.6  # about when it is being bound
        at_s = pod.at_s + rng.uniform(0.0, 0.15) if soon else rng.uniform(pod.at_s, WINDOW_S + 0.5)
        for_s = rng.uniform(0.2, 2.0) if kind is Kind.POD_TERMINATING else 0.0
        faults.append(Fault(kind, round(at_s, 3), round(for_s, 3), target=pod.name))
    return faults
