"""What speaks against a plan before anything is moved: the cluster may have changed, or it asks what must not be.

Whoever sends a plan is believed in nothing that can be looked up.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from extender.core.annotations import GENIUS_PRIORITY, read_priority
from extender.core.resources.requests import RequestError
from extender.kube.objects import OwnerReference, Pod
from extender.parts.defrag.plan import PlannedMove, RoomPlan
from extender.queueing.pods.batches import by_gang
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import DISABLED, ENABLED, QUEUE_LABEL, Namespaces
from extender.queueing.shares import QuotaUse

MOVABLE: Final = "kerf.dev/movable"
"""Annotation of pods: "false" has them left where they are."""
_MOST_MOVES: Final = 1000
_MOST_SIBLINGS: Final = 64
_RENEWING: Final = frozenset(
    {
        *(("", "ReplicationController"), ("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("batch", "Job")),
        ("sparkoperator.k8s.io", "SparkApplication"),
    }
)
"""API groups and kinds of Kubernetes' own groups, and of one that calls itself so."""
CROWDED: Final = f"has a controller of which more than {_MOST_SIBLINGS} pods wait already"


class RoomError(ValueError):
    """A plan that is not carried out; says why."""

    def __init__(self, why: str, of: str = "") -> None:
        """`of` is the UID of the pod that would move, where it is for something of that pod or its owner."""
        super().__init__(why)
        self.of = of


class TargetError(RoomError):
    """It is the target's own doing."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a plan is held against."""

    running: Mapping[str, Pod]
    """Pods with a node, by UID."""
    waiting: Mapping[str, Entry]
    """Pods of the queue, by UID."""
    namespaces: Namespaces
    exempt: frozenset[str]
    """Namespaces whose pods are left alone."""
    use: QuotaUse


def check(plan: RoomPlan, facts: Facts) -> None:
    """Raises RoomError for a plan that does not fit the cluster as it is; of room itself nothing is said here."""
    if not plan.fits or not plan.moves:
        raise RoomError("the plan has no moves" if plan.fits else "the plan makes no room")
    if len(plan.moves) > _MOST_MOVES:
        raise RoomError(f"{len(plan.moves)} moves are more than {_MOST_MOVES}")
    steps = [move.step for move in plan.moves]
    if steps != sorted(steps) or steps[0] < 0:
        raise RoomError("the steps of the plan are not in their order")
    if len({move.uid for move in plan.moves}) < len(plan.moves):
        raise RoomError("the plan moves a pod twice")
    priority = _check_target(plan, facts)
    for move in plan.moves:
        _check_move(move, priority, facts)
    gangs = by_gang(facts.running.values())
    for _, moves in groupby(plan.moves, lambda move: move.step):
        _check_gangs(list(moves), facts, gangs)


def targets_of(plan: RoomPlan, waiting: Mapping[str, Entry]) -> list[tuple[Entry, str]]:
    """The target's pods that are there, with their nodes. Raises RoomError where one is not, or waits no more."""
    found = []
    for pod in plan.target:
        if not pod.uid:
            continue
        entry = waiting.get(pod.uid)
        if entry is None or entry.pod.key != pod.pod:
            raise RoomError(f"pod {pod.pod} does not wait in the queue (any more): no place can be kept for it")
        if entry.planned is None:
            raise TargetError(f"pod {pod.pod} can't be placed: {entry.fault or entry.left}")
        if entry.pod.spec.resource_claims:
            raise RoomError(f"pod {pod.pod} has ResourceClaims: no room is made for them")
        if not entry.stage.waits:
            raise RoomError(f"pod {pod.pod} is on its way to a node already")
        if not pod.node:
            raise RoomError(f"the plan has no node for pod {pod.pod}")
        found.append((entry, pod.node))
    return found


def siblings(move: PlannedMove, waiting: Mapping[str, Entry]) -> list[str]:
    """UIDs of the pods of a move's controller that wait. Raises RoomError where these are too many to be remembered."""
    found = [entry.uid for entry in waiting.values() if is_of(entry.pod, move)]
    if len(found) > _MOST_SIBLINGS:
        raise RoomError(f"pod {move.pod} {CROWDED}", move.uid)
    return found


def siblings_running(move: PlannedMove, running: Mapping[str, Pod]) -> frozenset[str]:
    """UIDs of the pods of a move's controller that have a node."""
    return frozenset(uid for uid, pod in running.items() if is_of(pod, move))


def crowded(waiting: Mapping[str, Entry]) -> frozenset[tuple[str, str]]:
    """Namespaces and UIDs of the controllers of which too many pods wait: see `siblings`."""
    owners = ((entry.namespace, entry.pod.metadata.controller) for entry in waiting.values())
    number = Counter((namespace, owner.uid) for namespace, owner in owners if owner is not None)
    return frozenset(of for of, waits in number.items() if waits > _MOST_SIBLINGS)


def is_of(pod: Pod, move: PlannedMove) -> bool:
    """Whether a pod is of the controller whose pod moves."""
    owner, namespace = pod.metadata.controller, move.pod.partition("/")[0]
    return owner is not None and owner.uid == move.controller and pod.metadata.namespace == namespace


def _check_target(plan: RoomPlan, facts: Facts) -> int:
    """The target's priority: the plan's own word where none of its pods is there. Raises RoomError."""
    entries = [entry for entry, _ in targets_of(plan, facts.waiting)]
    pods = [entry.planned for entry in entries if entry.planned is not None]
    if not pods:
        return plan.priority
    uids, gangs = {entry.uid for entry in entries}, {pod.gang for pod in pods if pod.gang}
    for entry in facts.waiting.values():
        if entry.stage.waits and entry.planned and entry.planned.gang in gangs and entry.uid not in uids:
            raise TargetError(f"pod {entry.pod.key} is of the target's gang, and the plan does not know it")
    asked = Counter[str]()
    for entry in entries:
        asked[entry.namespace] += entry.num_gpus
    used = facts.use.by_namespace()
    for namespace, gpus in asked.items():
        if excess := facts.use.quotas.excess(namespace, used.get(namespace, 0.0), float(gpus)):
            raise TargetError(f"the target is over its quota: {excess}")
    return min(pod.priority for pod in pods)


def _check_move(move: PlannedMove, priority: int, facts: Facts) -> None:
    pod = facts.running.get(move.uid)
    if pod is None or pod.key != move.pod:
        raise RoomError(f"pod {move.pod} runs no more, or is another one by now", move.uid)
    if fault := why_stays(pod, facts.namespaces.names, facts.exempt):
        raise RoomError(f"pod {move.pod} {fault}", move.uid)
    if pod.spec.node_name != move.from_node or not is_of(pod, move):
        why = f"is not on node {move.from_node}, or not of the controller that the plan names"
        raise RoomError(f"pod {move.pod} {why}", move.uid)
    try:
        own = read_priority(pod.metadata.labels or {}, pod.spec.priority)
    except RequestError as error:
        raise RoomError(f"pod {move.pod}: {error}", move.uid) from None
    if own > priority:
        why = f"has priority {own}, the target {priority}: nobody of a higher one moves"
        raise RoomError(f"pod {move.pod} {why}", move.uid)
    siblings(move, facts.waiting)


def why_stays(pod: Pod, enabled: Collection[str] | None, exempt: frozenset[str]) -> str:
    """Why a pod can't be moved, "" where it can: its replacement has to come back, and to wait behind the gate.

    All pods of the namespaces `enabled` do; None: it need not.
    """
    metadata, owner = pod.metadata, pod.metadata.controller
    if metadata.deletion_timestamp or pod.finished:
        return "is going already"
    if metadata.namespace in exempt:
        return f"is left alone: namespace {metadata.namespace} is exempt"
    if (said := (metadata.annotations or {}).get(MOVABLE, "").strip().lower()) not in ("", "true"):
        return f"is left alone: {MOVABLE} is {said[:40]!r}"
    if owner is None:
        return "has no controller that would replace it"
    if metadata.belongs_to_a_node:
        return "belongs to its node"
    if not _renews_pods(owner):
        return f"has no controller that would replace it: {owner.kind[:40]} makes no pods anew"
    if pod.spec.resource_claims:
        return "has ResourceClaims: it is not known what its replacement would get"
    if enabled is not None and not _waits_anew(pod, enabled):
        return f"would not wait in the queue once it is made anew: {QUEUE_LABEL} is not enabled for it"
    return ""


def _renews_pods(owner: OwnerReference) -> bool:
    """Whether it is of a kind that makes a pod anew which is gone. Of custom kinds all are believed to: which of
    Kubernetes' own do is known, and anyone may name any object as the controller of a pod of theirs."""
    group = owner.api_version.rpartition("/")[0]
    own = "." not in group or group.endswith(".k8s.io")
    return not own or (group, owner.kind) in _RENEWING


def _waits_anew(pod: Pod, enabled: Collection[str]) -> bool:
    """Whether what is made in a pod's place waits behind the gate; all pods of the namespaces `enabled` do."""
    labels = pod.metadata.labels or {}
    label = labels.get(QUEUE_LABEL)
    gated = label == ENABLED or labels.get(GENIUS_PRIORITY, "").strip() or pod.metadata.namespace in enabled
    return label != DISABLED and bool(gated)


def _check_gangs(moves: Sequence[PlannedMove], facts: Facts, gangs: Mapping[str, Iterable[Pod]]) -> None:
    """Raises RoomError where a step moves a part of a gang."""
    uids = {move.uid for move in moves}
    for gang in by_gang(facts.running[uid] for uid in uids):
        left = [pod for pod in gangs[gang] if pod.metadata.uid not in uids and not pod.finished]
        if left:
            moved = next(pod for pod in gangs[gang] if pod.metadata.uid in uids)
            raise RoomError(f"gang {gang} would be moved in part: pod {left[0].key} stays", moved.metadata.uid)
