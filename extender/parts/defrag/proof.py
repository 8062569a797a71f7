"""Whether a plan still holds: every pod that moves, and the target, find room where the plan says, in its order.

Node by node, by the same rules as a live decision. What is reserved for the plan itself is not in its way.
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
from extender.queueing.pods.restrictions import Kinds


@dataclass(frozen=True, slots=True)
class Arrival:
    """A pod that comes to a node."""

    pod: Pod
    node: str
    step: int
    leaves: str = ""
    """The node that it is on before, "" for none."""


@dataclass(frozen=True, slots=True)
class Around:
    """The cluster as it is."""

    ledger: Ledger
    nodes: NodeBook
    running: Callable[[], Iterable[Pod]]
    policies: Callable[[], Mapping[str, Policy]]
    policy: str
    """Of pods that choose none."""
    clock: Callable[[], float]


@dataclass(slots=True)
class _OfNode:
    arrivals: list[Arrival] = field(default_factory=list)
    leaving: list[Arrival] = field(default_factory=list)


async def why_not(around: Around, arrivals: Sequence[Arrival]) -> str:
    """Who finds no room where the plan says, and why; "" where all do. Pods come in the order of their steps, and what
    one of a step leaves is free for all of it."""
    touched: defaultdict[str, _OfNode] = defaultdict(_OfNode)
    for arrival in arrivals:
        touched[arrival.node].arrivals.append(arrival)
        touched[arrival.leaves].leaving.append(arrival)
    num_pods = Counter(pod.spec.node_name for pod in around.running())
    stand_ins = [stand_in_of(arrival.pod.metadata.uid) for arrival in arrivals]
    for name, of_node in touched.items():
        await give_way()
        if fault := _why_not_on(around, name, of_node, num_pods[name], stand_ins):
            return fault
    return ""


def _why_not_on(around: Around, name: str, of_node: _OfNode, num_pods: int, stand_ins: Sequence[str]) -> str:
    node, kinds = around.nodes.get(name), Kinds()
    try:
        pods = [_planned(arrival.pod, kinds) for arrival in of_node.arrivals]
        leaving = [(one, _planned(one.pod, kinds)) for one in of_node.leaving]
    except RequestError as error:
        return str(error)
    around.ledger.snapshot(around.clock())  # what has run out is held for nobody
    for step in sorted({arrival.step for arrival in of_node.arrivals}):
        gone = [(one, pod) for one, pod in leaving if one.step <= step]
        uids = {*stand_ins, *(one.pod.metadata.uid for one, _ in gone)}
        cluster = around.ledger.rows.without(name, uids, if_open=True)
        if node is None or cluster is None:
            return f"node {name} is gone"
        left = [(name, Room(pod.cpu_milli, pod.memory_mib, 1)) for _, pod in gone]
        view = view_of(cluster, [node], kinds, pods, num_pods={name: num_pods}, left=left)
        state = PlanState(replace(view, policies=around.policies()), pods, around.policy)
        row = cluster.row_of[name]
        for position, arrival in enumerate(of_node.arrivals):
            if arrival.step > step:
                continue
            if not state.has_room(position, row):
                return f"pod {arrival.pod.key} has no room on node {name}: {state.why_not(position)}"
            state.put(position, row)
    return ""


def _planned(pod: Pod, kinds: Kinds) -> PlanPod:
    """A pod as its replacement will be planned: not kept to the domain that its gang had. Raises RequestError."""
    topology = (pod.metadata.annotations or {}).get(GANG_TOPOLOGY, "").strip()
    selector = dict(pod.spec.node_selector or {})
    if selector.pop(topology, None) is not None:
        pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_selector=selector))
    try:
        return plan_pod(pod, kinds)
    except RequestError as error:
        raise RequestError(f"pod {pod.key}: {error}") from None
