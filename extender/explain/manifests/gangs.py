"""Gangs among the pods of a question, formed as the queue does: by the pods' keys and their PodGroups."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from extender.kube.objects import Pod
from extender.planning.plans import PlanPod
from extender.planning.wait_reasons import Code, WaitReason
from extender.queueing.gangs import Group, group_key, size_of


@dataclass(frozen=True, slots=True)
class Gangs:
    """The pods of a question, checked by gang."""

    batch: list[PlanPod]
    """Pods that can be planned."""
    faults: dict[str, str] = field(default_factory=dict)
    """Why other pods can't be planned, by pod key."""
    notes: dict[str, str] = field(default_factory=dict)
    """Remarks for the author, by key of the first pod of each gang."""


def together(given: Sequence[tuple[Pod, PlanPod]], others: Sequence[PlanPod], groups: Mapping[str, Group]) -> Gangs:
    """The pods of a question's objects, prepared for planners; `others` are planned with them, `groups` are
    PodGroups by `group_key`."""
    members: dict[str, list[Pod]] = defaultdict(list)
    for pod, planned in given:
        if planned.gang:
            members[planned.gang].append(pod)
    num_others = Counter(pod.gang for pod in others if pod.gang)
    known = {gang: _group(gang, pods, groups) for gang, pods in members.items()}
    result = Gangs([])
    for gang, pods in members.items():
        if known[gang] is None:
            result.notes[pods[0].key] = f"PodGroup {gang} is not given: all pods that name it start together"
    for pod, planned in given:
        group = known.get(planned.gang)
        if group is None:
            result.batch.append(planned)
        elif not group.together:
            result.batch.append(replace(planned, gang="", topology=""))
        elif why := _missing(planned.gang, len(members[planned.gang]) + num_others[planned.gang], group):
            result.faults[pod.key] = str(why)
        else:
            result.batch.append(replace(planned, topology=planned.topology or group.topology))
    return result


def _group(gang: str, pods: Sequence[Pod], groups: Mapping[str, Group]) -> Group | None:
    """The size and topology of a gang or of a copy of one; None if its PodGroup is missing."""
    size = size_of(pods)
    return Group(size) if size else groups.get(group_key(gang.partition(", copy ")[0], pods))


def _missing(gang: str, num_pods: int, group: Group) -> WaitReason | None:
    if not group.size:
        return Code.GANG_WITHOUT_GROUP.reason(gang=gang)
    return None if num_pods >= group.size else Code.GANG_INCOMPLETE.reason(gang=gang, here=num_pods, size=group.size)
