"""Pods of gangs that have a node, and what gangs have lost to preemption.

That kube-scheduler has evicted a pod for another one is written on the pod, in its status, before it is deleted; Kerf
writes it on the others of its gang before it ends the first of them. Both take the right to write `pods/status`, which
authors of pods don't have, and both outlive whoever has read them.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from math import floor
from typing import Final, Self

from extender.core.resources.requests import RequestError
from extender.kube.indexes import Index
from extender.kube.objects import Condition, Pod, unix_time
from extender.queueing.pods.batches import gang_of

GANG_PREEMPTED: Final = "kerf.dev/GangPreempted"
"""Condition of a pod that ends because others of its gang were preempted."""
_TARGET: Final = "DisruptionTarget"
_BY_SCHEDULER: Final = "PreemptionByScheduler"
_MAX_LOSSES: Final = 4096


@dataclass(frozen=True, slots=True)
class Loss:
    """A pod of a gang was evicted for another one of a higher priority."""

    gang: str
    """`namespace/name`."""
    source: str
    """By what it is known: the pod's UID, or the mark that tells of it."""
    at: int
    """Unix time at which that was asked for: pods made since are of a later start of the gang."""
    why: str
    """Which pod, and where."""
    node: str = ""
    priority: int | None = None
    """Of the pod; None where somebody has looked at that already."""
    beside: frozenset[str] = frozenset()
    """UIDs of those that had a node when it was seen to go: the API server's times are whole seconds."""

    @property
    def key(self) -> tuple[str, str]:
        """Of no other loss."""
        return self.gang, self.source

    def concerns(self, pod: Pod) -> bool:
        """Whether a pod of the gang is of the same start of it as the one that was lost."""
        mark = condition_of(pod, GANG_PREEMPTED)
        marked = mark is not None and mark.message == self.mark
        return unix_time(pod.metadata.creation_timestamp) < self.at or pod.metadata.uid in self.beside or marked

    @property
    def mark(self) -> str:
        """Message of the condition that is written on the others."""
        return f"{datetime.fromtimestamp(self.at, UTC):%Y-%m-%dT%H:%M:%SZ}: {self.why}"

    @classmethod
    def of_mark(cls, gang: str, message: str) -> Self | None:
        """What a mark tells, None where that can't be read."""
        at, _, why = message.partition(": ")
        return cls(gang, message, int(unix_time(at)), why) if unix_time(at) else None


class GangMembers:
    """The pods of gangs that have a node, and what gangs have lost."""

    def __init__(self, wall_clock: Callable[[], float]) -> None:
        self._wall_clock = wall_clock
        self._gang_of: dict[str, str] = {}
        """By UID: of which gang a pod is stays as it was read first, whatever its author writes later."""
        self._by_gang: Index[Pod] = Index()
        self.losses: OrderedDict[tuple[str, str], Loss] = OrderedDict()
        """What is not settled yet."""
        self._settled: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.news = asyncio.Event()
        """Set when a gang has lost somebody."""

    def gangs(self) -> dict[str, list[Pod]]:
        """The pods by their gang."""
        return {gang: self.of(gang) for gang in self._by_gang.groups()}

    def gang_of(self, uid: str) -> str:
        """The gang of a pod, "" for none."""
        return self._gang_of.get(uid, "")

    def of(self, gang: str) -> list[Pod]:
        """The pods of a gang."""
        return list(self._by_gang.of(gang).values())

    def settle(self, loss: Loss) -> None:
        """There is nothing to do about a loss any more."""
        self.losses.pop(loss.key, None)
        self._settled[loss.key] = None
        if len(self._settled) > _MAX_LOSSES:
            self._settled.popitem(last=False)

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod has its node, has changed, or is gone: a pod that has no time to end was not seen to leave."""
        if new is not None:
            self._upsert(old, new)
        elif old is not None and (gang := self._gang_of.pop(old.metadata.uid, "")):
            self._by_gang.pop(gang, old.metadata.uid)
            if not old.metadata.deletion_timestamp:
                self._note(_preempted(old, gang, floor(self._wall_clock()), self._by_gang.of(gang)))

    def _upsert(self, old: Pod | None, new: Pod) -> None:
        uid = new.metadata.uid
        if not (gang := self._gang_of.get(uid) or _gang_of(new)):
            return
        if new.metadata.deletion_timestamp:
            seen_to_go = old is not None and not old.metadata.deletion_timestamp
            self._note(_preempted(new, gang, None, self._by_gang.of(gang) if seen_to_go else ()))
        elif (mark := condition_of(new, GANG_PREEMPTED)) is not None and mark.status == "True":
            self._note(Loss.of_mark(gang, mark.message))
        self._gang_of[uid] = gang
        self._by_gang.put(gang, uid, new)

    def _note(self, loss: Loss | None) -> None:
        if loss is None or loss.key in self._settled or loss.key in self.losses:
            return
        self.losses[loss.key] = loss
        if len(self.losses) > _MAX_LOSSES:
            self.losses.popitem(last=False)
        self.news.set()


def condition_of(pod: Pod, kind: str) -> Condition | None:
    """A condition of a pod, None where it has none of the kind."""
    return next((item for item in pod.status.conditions or () if item.type == kind), None)


def _gang_of(pod: Pod) -> str:
    try:
        return gang_of(pod)[0]
    except RequestError:
        return ""


def _preempted(pod: Pod, gang: str, at: int | None, beside: Iterable[str]) -> Loss | None:
    """What a gang has lost with a pod that is leaving; at that time where the API server tells of none. `beside` as of
    `Loss`."""
    target, metadata = condition_of(pod, _TARGET), pod.metadata
    if target is None or target.status != "True" or target.reason != _BY_SCHEDULER:
        return None
    if at is None:
        at = int(unix_time(metadata.deletion_timestamp)) - (metadata.deletion_grace_period_seconds or 0)
    node = pod.spec.node_name or ""
    return Loss(
        gang=gang,
        source=metadata.uid,
        at=at,
        why=f"{metadata.name} was preempted on {node}",
        node=node,
        priority=pod.spec.priority or 0,
        beside=frozenset(beside),
    )
