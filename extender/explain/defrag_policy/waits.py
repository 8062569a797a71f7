"""Who waits for room: pods and gangs of the queue, and pods that kube-scheduler has refused."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from extender.explain.defrag.movable.residents import priority_at_most
from extender.kube.background import give_way
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.scheduling.waking.unbound_pods import UnboundPods

_PORTION: Final = 500


@dataclass(frozen=True, slots=True)
class Wait:
    """A pod or gang that waits, as `RoomQuestion.for_` names it."""

    name: str
    namespace: str
    priority: int
    """The lowest of its pods."""
    since: float
    """Unix time since which all of its pods wait, for nothing but room: nobody waits longer for what has come later."""
    uids: tuple[str, ...]
    """Of its pods."""
    queued: bool
    """Whether it waits in the queue: only then its place can be kept."""


async def waits_of(backlog: Backlog | None, unbound: UnboundPods) -> list[Wait]:
    """All who wait for nothing but room, those of the highest priority first, then who waits for longest.

    In portions: thousands may wait.
    """
    entries = backlog.entries if backlog is not None else {}
    units: dict[str, list[Entry]] = {}
    for number, entry in enumerate(list(entries.values())):
        planned = entry.planned
        units.setdefault(planned.gang or entry.pod.key if planned is not None else entry.pod.key, []).append(entry)
        await _in_portions(number)
    found = []
    for number, (name, unit) in enumerate(units.items()):
        if all(entry.lacks_only_room for entry in unit):
            found.append(_of_queue(name, unit))
        await _in_portions(number)
    for number, pod in enumerate(unbound.all()):
        if pod.uid not in entries and pod.refused:
            found.append(Wait(pod.key, pod.namespace, pod.least_priority, pod.refused_since, (pod.uid,), queued=False))
        await _in_portions(number)
    return sorted(found, key=lambda wait: (-wait.priority, wait.since, wait.name))


async def _in_portions(number: int) -> None:
    if number % _PORTION == _PORTION - 1:
        await give_way()


def _of_queue(name: str, unit: Iterable[Entry]) -> Wait:
    pods = [entry.pod for entry in unit]
    since = max(entry.lacks_room_since for entry in unit)
    uids = tuple(pod.metadata.uid for pod in pods)
    return Wait(name, pods[0].metadata.namespace, min(map(priority_at_most, pods)), since, uids, queued=True)
