"""Validates a plan before anything is moved: the cluster may have changed, or the plan may break a rule.

A plan is not trusted: everything in it that can be looked up is.
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
"""Pod annotation: "true" also allows moves that are not made by default; any other value forbids all."""
_MAX_MOVES: Final = 1000
_MAX_SIBLINGS: Final = 64
_RECREATING: Final = frozenset(
    {
        *(("", "ReplicationController"), ("apps", "ReplicaSet"), ("apps", "StatefulSet"), ("batch", "Job")),
        ("sparkoperator.k8s.io", "SparkApplication"),
    }
)
"""API groups and kinds that recreate pods: Kubernetes' own, and sparkoperator.k8s.io, whose name looks like one."""
CROWDED: Final = f"has a controller with more than {_MAX_SIBLINGS} pods waiting already"


class RoomError(ValueError):
    """A plan that can't be carried out; says why."""

    def __init__(self, why: str, pod_uid: str = "") -> None:
        """`pod_uid` is the pod to move, if that pod or its owner is the reason."""
        super().__init__(why)
        self.pod_uid = pod_uid


class TargetError(RoomError):
    """The target is the reason."""


@dataclass(frozen=True, slots=True)
class CheckInputs:
    """What a plan is checked against."""

    running: Mapping[str, Pod]
    """Pods with a node, by UID."""
    waiting: Mapping[str, Entry]
    """Pods of the queue, by UID."""
    namespaces: Namespaces
    exempt: frozenset[str]
    """Namespaces whose pods are never moved."""
    use: QuotaUse


def check(plan: RoomPlan, inputs: CheckInputs) -> None:
    """Raises RoomError for a plan that does not match the cluster. Whether pods have room is not checked here."""
    if not plan.fits or not plan.moves:
        raise RoomError("the plan has no moves" if plan.fits else "the plan makes no room")
    if len(plan.moves) > _MAX_MOVES:
        raise RoomError(f"{len(plan.moves)} moves are more than {_MAX_MOVES}")
    steps = [move.step for move in plan.moves]
    if steps != sorted(steps) or steps[0] < 0:
        raise RoomError("the steps of the plan are out of order")
    if len({move.uid for move in plan.moves}) < len(plan.moves):
        raise RoomError("the plan moves a pod twice")
    priority = _check_target(plan, inputs)
    for move in plan.moves:
        _check_move(move, priority, inputs)
    gangs = by_gang(inputs.running.values())
    for _, moves in groupby(plan.moves, lambda move: move.step):
        _check_gangs(list(moves), inputs, gangs)


def targets_of(plan: RoomPlan, waiting: Mapping[str, Entry]) -> list[tuple[Entry, str]]:
    """The target's existing pods with their nodes. Raises RoomError if one no longer waits or can't be placed."""
    targets = []
    for pod in plan.target:
        if not pod.uid:
            continue
        entry = waiting.get(pod.uid)
        if entry is None or entry.pod.key != pod.pod:
            raise RoomError(f"pod {pod.pod} does not wait in the queue (any more): no place can be kept for it")
        if entry.planned is None:
            raise TargetError(f"pod {pod.pod} can't be placed: {entry.fault or entry.left_to_scheduler}")
        if entry.pod.spec.resource_claims:
            raise RoomError(f"pod {pod.pod} has ResourceClaims: no room is made for them")
        if not entry.stage.waits:
            raise RoomError(f"pod {pod.pod} is on its way to a node already")
        if not pod.node:
            raise RoomError(f"the plan has no node for pod {pod.pod}")
        targets.append((entry, pod.node))
    return targets


def siblings(move: PlannedMove, waiting: Mapping[str, Entry]) -> list[str]:
    """UIDs of the waiting pods of a move's controller. Raises RoomError if there are too many to record."""
    uids = [entry.uid for entry in waiting.values() if is_of(entry.pod, move)]
    if len(uids) > _MAX_SIBLINGS:
        raise RoomError(f"pod {move.pod} {CROWDED}", move.uid)
    return uids


def siblings_running(move: PlannedMove, running: Mapping[str, Pod]) -> frozenset[str]:
    """UIDs of the pods of a move's controller that have nodes."""
    return frozenset(uid for uid, pod in running.items() if is_of(pod, move))


def crowded(waiting: Mapping[str, Entry]) -> frozenset[tuple[str, str]]:
    """Namespace and UID of the controllers with too many waiting pods (see `siblings`)."""
    owners = ((entry.namespace, entry.pod.metadata.controller) for entry in waiting.values())
    counts = Counter((namespace, owner.uid) for namespace, owner in owners if owner is not None)
    return frozenset(owner for owner, count in counts.items() if count > _MAX_SIBLINGS)


def is_of(pod: Pod, move: PlannedMove) -> bool:
    """Whether a pod has the same controller as the pod of a move."""
    owner, namespace = pod.metadata.controller, move.pod.partition("/")[0]
    return owner is not None and owner.uid == move.controller and pod.metadata.namespace == namespace


def priority_at_least(pod: Pod) -> int:
    """The higher of a pod's PriorityClass and label, for pods to be moved: a label may protect its pod."""
    of_class = pod.spec.priority or 0
    try:
        return max(read_priority(pod.metadata.labels or {}, of_class), of_class)
    except RequestError:
        return of_class


def priority_at_most(pod: Pod) -> int:
    """The lower of a pod's PriorityClass and label, for targets: anyone may set a label, which must not move others."""
    of_class = pod.spec.priority or 0
    try:
        return min(read_priority(pod.metadata.labels or {}, of_class), of_class)
    except RequestError:
        return of_class


def _check_target(plan: RoomPlan, inputs: CheckInputs) -> int:
    """The target's lowest priority, or the plan's if none of its pods exists. Raises RoomError."""
    entries = [entry for entry, _ in targets_of(plan, inputs.waiting)]
    pods = [entry.planned for entry in entries if entry.planned is not None]
    if not pods:
        return plan.priority
    uids, gangs = {entry.uid for entry in entries}, {pod.gang for pod in pods if pod.gang}
    for entry in inputs.waiting.values():
        if entry.stage.waits and entry.planned and entry.planned.gang in gangs and entry.uid not in uids:
            raise TargetError(f"pod {entry.pod.key} is in the target's gang, but not in the plan")
    requested = Counter[str]()
    for entry in entries:
        requested[entry.namespace] += entry.num_gpus
    used = inputs.use.by_namespace()
    for namespace, gpus in requested.items():
        if excess := inputs.use.quotas.excess(namespace, used.get(namespace, 0.0), float(gpus)):
            raise TargetError(f"the target is over its quota: {excess}")
    return min(priority_at_most(entry.pod) for entry in entries if entry.planned is not None)


def _check_move(move: PlannedMove, priority: int, inputs: CheckInputs) -> None:
    pod = inputs.running.get(move.uid)
    if pod is None or pod.key != move.pod:
        raise RoomError(f"pod {move.pod} no longer runs, or was recreated", move.uid)
    if fault := why_stays(pod, inputs.namespaces.names, inputs.exempt):
        raise RoomError(f"pod {move.pod} {fault}", move.uid)
    if pod.spec.node_name != move.from_node or not is_of(pod, move):
        why = f"is not on node {move.from_node}, or not of the controller that the plan names"
        raise RoomError(f"pod {move.pod} {why}", move.uid)
    if (own := priority_at_least(pod)) > priority:
        raise RoomError(f"pod {move.pod} has priority {own}, above the target's {priority}", move.uid)
    siblings(move, inputs.waiting)


def why_stays(pod: Pod, enabled: Collection[str] | None, exempt: frozenset[str]) -> str:
    """Why a pod can't be moved, "" if it can: its controller has to replace it, and the replacement has to be gated.

    All pods of namespaces in `enabled` are gated; None: they need not be.
    """
    metadata, owner = pod.metadata, pod.metadata.controller
    if metadata.deletion_timestamp or pod.finished:
        return "is terminating or has finished"
    if metadata.namespace in exempt:
        return f"is left alone: namespace {metadata.namespace} is exempt"
    if (movable := (metadata.annotations or {}).get(MOVABLE, "").strip().lower()) not in ("", "true"):
        return f"is left alone: {MOVABLE} is {movable[:40]!r}"
    if owner is None:
        return "has no controller that would replace it"
    if metadata.belongs_to_a_node:
        return "belongs to its node"
    if not _recreates_pods(owner):
        return f"has no controller that would replace it: {owner.kind[:40]} does not recreate pods"
    if pod.spec.resource_claims:
        return "has ResourceClaims: it is not known what its replacement would get"
    if enabled is not None and not _replacement_waits(pod, enabled):
        return f"would not wait in the queue once it is recreated: {QUEUE_LABEL} is not enabled for it"
    return ""


def _recreates_pods(owner: OwnerReference) -> bool:
    """Whether a controller's kind recreates pods: known for Kubernetes' own kinds, assumed for all custom ones.

    Anyone may name any object as the controller of their pods.
    """
    group = owner.api_version.rpartition("/")[0]
    builtin = "." not in group or group.endswith(".k8s.io")
    return not builtin or (group, owner.kind) in _RECREATING


def _replacement_waits(pod: Pod, enabled: Collection[str]) -> bool:
    """Whether a pod's replacement would be gated; all pods of namespaces in `enabled` are."""
    labels = pod.metadata.labels or {}
    label = labels.get(QUEUE_LABEL)
    gated = label == ENABLED or labels.get(GENIUS_PRIORITY, "").strip() or pod.metadata.namespace in enabled
    return label != DISABLED and bool(gated)


def _check_gangs(moves: Sequence[PlannedMove], inputs: CheckInputs, gangs: Mapping[str, Iterable[Pod]]) -> None:
    """Raises RoomError if a step moves only part of a gang."""
    uids = {move.uid for move in moves}
    for gang in by_gang(inputs.running[uid] for uid in uids):
        staying = [pod for pod in gangs[gang] if pod.metadata.uid not in uids and not pod.finished]
        if staying:
            moved = next(pod for pod in gangs[gang] if pod.metadata.uid in uids)
            raise RoomError(f"gang {gang} would be moved in part: pod {staying[0].key} stays", moved.metadata.uid)
