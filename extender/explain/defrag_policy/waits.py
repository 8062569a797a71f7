"""Who waits for room: pods and gangs of the queue, and pods that kube-scheduler has refused."""

from collections.abc import Iterable
from dataclasses import dataclass

from extender.explain.defrag.residents import priority_at_most
from extender.planning.wait_reasons import FOR_WANT_OF_ROOM
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.scheduling.waking.unbound_pods import UnboundPods


@dataclass(frozen=True, slots=True)
class Wait:
    """A pod or gang that waits, as `RoomQuestion.for_` names it."""

    name: str
    namespace: str
    priority: int
    """The lowest of its pods."""
    since: float
    """Unix time since which all of its pods wait: nobody waits longer for what has come later."""
    uids: tuple[str, ...]
    """Of its pods."""
    queued: bool
    """Whether it waits in the queue: only then its place can be kept."""


def waits_of(backlog: Backlog | None, unbound: UnboundPods) -> list[Wait]:
    """All who wait for nothing but room, those of the highest priority first, then who waits for longest."""
    entries = backlog.entries if backlog is not None else {}
    units: dict[str, list[Entry]] = {}
    for entry in entries.values():
        planned = entry.planned
        units.setdefault(planned.gang or entry.pod.key if planned is not None else entry.pod.key, []).append(entry)
    found = [_of_queue(name, unit) for name, unit in units.items() if _lacks_room(unit)]
    found += [
        Wait(pod.key, pod.namespace, pod.priority, pod.created, (pod.uid,), queued=False)
        for pod in unbound.all()
        if pod.uid not in entries and pod.refused
    ]
    return sorted(found, key=lambda wait: (-wait.priority, wait.since, wait.name))


def _of_queue(name: str, unit: Iterable[Entry]) -> Wait:
    pods = [entry.pod for entry in unit]
    since = max(entry.created for entry in unit)
    uids = tuple(pod.metadata.uid for pod in pods)
    return Wait(name, pods[0].metadata.namespace, min(map(priority_at_most, pods)), since, uids, queued=True)


def _lacks_room(unit: Iterable[Entry]) -> bool:
    """Whether each of a unit's pods waits for a plan, and for want of room alone, as far as the last round knows."""
    return all(
        entry.stage.waits
        and entry.planned is not None
        and (entry.skips.reason is None or entry.skips.reason.code in FOR_WANT_OF_ROOM)
        for entry in unit
    )
