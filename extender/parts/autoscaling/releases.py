"""Releases units (pods or gangs) that fit no node, one at a time, so that autoscalers see them.

An autoscaler only looks at pods that kube-scheduler marked unschedulable: not at gated pods, nor at pods with a
nominated node. So the first unit in queue order that fits no node is released without a node. kube-scheduler refuses
it, an autoscaler may add a node, and the unit waits for a plan like one that lost its nomination.

Gates can't be closed again: a unit for which no node arrives stays open and pending. The next unit is released when the
last one has a node in view, or after a time limit. A unit with the same requests waits for several time limits, as an
autoscaler would learn nothing new from it, but not forever: another of the first unit's demands may be unmet.

Released pods are recognised by their state, so a restarted Kerf knows them, and starts the time limit over. Turns of
namespaces are remembered, as users may delete their pods, but not across restarts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.vendors.registry import PRODUCT_LABELS
from extender.kube.background import gather_all
from extender.kube.objects import Pod
from extender.kube.turns import LastTurns
from extender.planning.plans import Plan
from extender.planning.wait_reasons import Code
from extender.queueing.direct.writer import is_picky
from extender.queueing.dispatch import Dispatcher
from extender.queueing.gangs import Unit
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.nominations import FOR_AUTOSCALERS

_NO_NODE: Final = frozenset(
    {Code.FORBIDDEN, Code.NODES_TOO_SMALL, Code.NODES_BUSY, Code.NO_GPU_ROOM, Code.GANG_TOO_LARGE}
)
_GANG_HELD: Final = "its gang waits until all its pods have room"
_UNKNOWN: Final = "the queue is not synced yet"
_SAME_REQUEST_LIMITS: Final = 4
"""Time limits during which no unit with the same requests is released."""
_TOGETHER_S: Final = 60.0
"""Pods of a unit that were first seen within this time of its release belong to the release."""
_MAX_TURNS: Final = 10_000
_MAX_CONCURRENT: Final = 64


@dataclass(eq=False)
class AutoscalerReleases:
    """Releases units for autoscalers."""

    backlog: Backlog
    dispatcher: Dispatcher
    clock: Callable[[], float]
    after_s: float
    """Seconds that a unit waits before it is released."""
    limit_s: float = 900.0
    """Longest wait for the node of the last released unit, in seconds."""
    num: int = field(default=0, init=False)
    """Pods released."""
    _turns: LastTurns = field(default_factory=lambda: LastTurns(_MAX_TURNS))
    _writes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    def refusal(self, uid: str, *, known: bool) -> str:
        """Why a pod must not get a node yet, "" if it may: a released gang starts only as a whole, when nominated.

        `known`: whether the queue's watches are synced.
        """
        if not known:
            return _UNKNOWN
        entry = self.backlog.entries.get(uid)
        held = entry is not None and entry.awaits_new_node and entry.planned and entry.planned.gang
        return _GANG_HELD if held else ""

    async def release(self, units: Sequence[Unit], plan: Plan, batch: Sequence[Entry]) -> None:
        """Release the next unit, if any, that fits no node in a plan; `batch` are the plan's pods."""
        now, limit_s = self.clock(), self.limit_s
        released: dict[str, list[Entry]] = {}
        for entry in self.backlog.entries.values():
            if entry.awaits_new_node:
                released.setdefault(_gang_of(entry) or entry.pod.key, []).append(entry)
        released_at = {name: min(entry.opened for entry in entries) for name, entries in released.items()}
        recent = any(now - entry.opened < limit_s for entries in released.values() for entry in entries)
        requested = {
            _requests(released[name])
            for name, opened in released_at.items()
            if now - opened < _SAME_REQUEST_LIMITS * limit_s
        }
        roomless = {batch[at].uid for at, why in plan.unassigned.items() if why.code in _NO_NODE}
        num_released = Counter(entries[0].namespace for entries in released.values())
        for interrupted, unit in self._by_turns(units, num_released, released_at):
            gated = _gated(unit)
            if not gated or not all(entry.uid in roomless for entry in unit.entries):
                continue
            if not self._may_release(unit, now):
                continue
            if interrupted or not (recent or _requests(unit.entries) in requested):
                self._turns.take(unit.namespace, now)
                await gather_all(self._open(entry) for entry in gated)
                return

    async def _open(self, entry: Entry) -> None:
        async with self._writes:
            if not _gated_among([entry]):
                return
            await self.dispatcher.open_without_node(entry, FOR_AUTOSCALERS, by_kerf=False)
            self.num += entry.stage is Stage.OPENED

    def _by_turns(
        self, units: Sequence[Unit], num_released: Counter[str], released_at: dict[str, float]
    ) -> list[tuple[bool, Unit]]:
        """The units in the order of release, each with whether its release was interrupted.

        Interrupted ones come first: all their pods existed when the first was released, and Kerf was stopped in
        between. Then namespaces take turns, so that one with unsatisfiable requests does not delay others.
        """
        never = float("-inf")
        until = {name: opened + _TOGETHER_S for name, opened in released_at.items()}
        found = [(all(entry.seen <= until.get(unit.key, never) for entry in _gated(unit)), unit) for unit in units]

        def turn(found: tuple[bool, Unit]) -> tuple[bool, float, int]:
            interrupted, unit = found
            return not interrupted, self._turns.of(unit.namespace), num_released[unit.namespace]

        return sorted(found, key=turn)

    def _may_release(self, unit: Unit, now: float) -> bool:
        """Whether a unit has waited for long enough, and can't start in parts or on wrong GPUs once released."""
        if now - min(entry.seen for entry in unit.entries) < self.after_s:
            return False
        pods = unit.pods
        if len(pods) != len(unit.entries) or any(pod.gpus is None or pod.claims for pod in pods):
            return False  # kube-scheduler does not call Kerf for pods without GPUs
        if self.dispatcher.mode.has_extender:
            return True
        entry, request = unit.entries[0], pods[0].gpus
        return not pods[0].gang and (request is None or not is_picky(request) or _names_product(entry.pod))


def _gated(unit: Unit) -> list[Entry]:
    return _gated_among(unit.entries)


def _gated_among(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.stage is Stage.GATED]


def _gang_of(entry: Entry) -> str:
    return entry.planned.gang if entry.planned is not None else ""


def _requests(entries: Iterable[Entry]) -> frozenset[tuple[object, int]]:
    """A key that is equal for units with the same requests."""
    return frozenset(Counter(entry.planned.alike for entry in entries if entry.planned is not None).items())


def _names_product(pod: Pod) -> bool:
    """Whether a pod itself selects GPU products."""
    if any(label in (pod.spec.node_selector or ()) for label in PRODUCT_LABELS):
        return True
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or []
    return bool(terms) and all(
        any(item.key in PRODUCT_LABELS for item in term.match_expressions or ()) for term in terms
    )
