"""Checks whether a plan still fits: all moved pods and the target find room on their planned nodes, step by step.

Uses the rules of live decisions, node by node, and ignores the plan's own reservations.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from extender.core.policies.policy import Policy
from extender.core.resources.requests import RequestError
from extender.kube.background import give_way
from extender.kube.objects import Pod
from extender.ledger.ledger import Ledger
from extender.parts.defrag.places import stand_in_of
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod
from extender.queueing.node_view import NodeBook, view_of
from extender.queueing.pods.batches import GANG_TOPOLOGY, Room, plan_pod
from extender.queueing.pods.restrictions import RestrictionKinds


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that arrives on a node."""

    pod: Pod
    node: str
    step: int
    leaves: str = ""
    """Its current node, "" for none."""


@dataclass(frozen=True, slots=True)
class ProofInputs:
    """The current cluster."""

    ledger: Ledger
    nodes: NodeBook
    running: Callable[[], Iterable[Pod]]
    policies: Callable[[], Mapping[str, Policy]]
    policy: str
    """Default policy."""
    clock: Callable[[], float]


@dataclass(slots=True)
class _NodeChanges:
    arrivals: list[Arrival] = field(default_factory=list)
    leaving: list[Arrival] = field(default_factory=list)


async def why_not(inputs: ProofInputs, arrivals: Sequence[Arrival]) -> str:
    """The first pod found without room on its planned node, and why; "" if all have room.

    Pods arrive in order of their steps; what the pods of a step leave is free for all of that step.
    """
    touched: defaultdict[str, _NodeChanges] = defaultdict(_NodeChanges)
    for arrival in arrivals:
        touched[arrival.node].arrivals.append(arrival)
        touched[arrival.leaves].leaving.append(arrival)
    num_pods = Counter(pod.spec.node_name for pod in inputs.running())
    stand_ins = [stand_in_of(arrival.pod.metadata.uid) for arrival in arrivals]
    for name, changes in touched.items():
        await give_way()
        if fault := _why_not_on(inputs, name, changes, num_pods[name], stand_ins):
            return fault
    return ""


def _why_not_on(inputs: ProofInputs, name: str, changes: _NodeChanges, num_pods: int, stand_ins: Sequence[str]) -> str:
    node, kinds = inputs.nodes.get(name), RestrictionKinds()
    try:
        pods = [_planned(arrival.pod, kinds) for arrival in changes.arrivals]
        leaving = [(arrival, _planned(arrival.pod, kinds)) for arrival in changes.leaving]
    except RequestError as error:
        return str(error)
    inputs.ledger.snapshot(inputs.clock())  # drops expired reservations
    for step in sorted({arrival.step for arrival in changes.arrivals}):
        gone = [(arrival, pod) for arrival, pod in leaving if arrival.step <= step]
        uids = {*stand_ins, *(arrival.pod.metadata.uid for arrival, _ in gone)}
        cluster = inputs.ledger.rows.without(name, uids, if_open=True)
        if node is None or cluster is None:
            return f"node {name} is gone"
        left = [(name, Room(pod.cpu_milli, pod.memory_mib, 1)) for _, pod in gone]
        view = view_of(cluster, [node], kinds, pods, num_pods={name: num_pods}, left=left)
        state = PlanState(replace(view, policies=inputs.policies()), pods, inputs.policy)
        row = cluster.row_of[name]
        for position, arrival in enumerate(changes.arrivals):
            if arrival.step > step:
                continue
            if not state.has_room(position, row):
                return f"pod {arrival.pod.key} has no room on node {name}: {state.why_not(position)}"
            state.put(position, row)
    return ""


def _planned(pod: Pod, kinds: RestrictionKinds) -> PlanPod:
    """A pod's replacement for planning: not restricted to its gang's previous domain. Raises RequestError."""
    topology = (pod.metadata.annotations or {}).get(GANG_TOPOLOGY, "").strip()
    selector = dict(pod.spec.node_selector or {})
    if selector.pop(topology, None) is not None:
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector))
    try:
        return plan_pod(pod, kinds)
    except RequestError as error:
        raise RequestError(f"pod {pod.key}: {error}") from None
