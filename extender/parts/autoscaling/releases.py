"""Letting pods go that have no room, so that autoscalers see them: one unit at a time.

An autoscaler looks at pods that kube-scheduler has refused for want of a node. One behind a gate is none, nor is one
with a nomination. So the first unit in the order that has no room is let go without a node: kube-scheduler refuses it,
an autoscaler may add a node for it, and it waits for a plan as a pod does that has lost its nomination.

A gate can't be closed again: a unit for which no node comes stays open and pending. The next is let go when it has a
node in view, or after a time limit; for some of those limits one that asks for the same is not, as it would tell an
autoscaler nothing new. No longer: what the first asks beside GPUs may be what nobody has.

What is out is read from the pods each time: a Kerf that starts knows it, and counts the time limit anew. Whose turn it
was is remembered, as authors may delete their pods; that is forgotten by a Kerf that starts.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from extender.core.vendors.registry import PRODUCT_LABELS
from extender.kube.background import all_of
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
_UNKNOWN: Final = "the queue is not known yet"
_ASKED_LIMITS: Final = 4
"""Time limits for which others that ask for the same are not let go."""
_TOGETHER_S: Final = 60.0
"""A Kerf that starts finds what is open pod by pod."""
_MAX_TURNS: Final = 10_000
_MAX_CONCURRENT: Final = 64


@dataclass(eq=False)
class AutoscalerReleases:
    """Lets units go for autoscalers."""

    backlog: Backlog
    dispatcher: Dispatcher
    clock: Callable[[], float]
    after_s: float
    """They have waited for so long."""
    limit_s: float = 900.0
    """For so long the next one waits for the last one's node."""
    num: int = field(default=0, init=False)
    """Pods let go."""
    _turns: LastTurns = field(default_factory=lambda: LastTurns(_MAX_TURNS))
    _writes: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_MAX_CONCURRENT), init=False)

    def refusal(self, uid: str, *, known: bool) -> str:
        """Why a pod gets no node yet although it may have room, "" when it may have one: a gang that was let go for
        autoscalers starts whole, when it is nominated. `known` says whether the queue is known."""
        if not known:
            return _UNKNOWN
        entry = self.backlog.entries.get(uid)
        held = entry is not None and entry.awaits_new_node and entry.planned and entry.planned.gang
        return _GANG_HELD if held else ""

    async def release(self, units: Sequence[Unit], plan: Plan, batch: Sequence[Entry]) -> None:
        """Let the first unit go that has no room in a plan, and that it is the turn of; `batch` are the plan's pods."""
        now, limit_s = self.clock(), self.limit_s
        out: dict[str, list[Entry]] = {}
        for entry in self.backlog.entries.values():
            if entry.awaits_new_node:
                out.setdefault(_gang_of(entry) or entry.pod.key, []).append(entry)
        begun = {name: min(entry.opened for entry in entries) for name, entries in out.items()}
        recent = any(now - entry.opened < limit_s for entries in out.values() for entry in entries)
        asked = {_asks(out[name]) for name, opened in begun.items() if now - opened < _ASKED_LIMITS * limit_s}
        roomless = {batch[at].uid for at, why in plan.unassigned.items() if why.code in _NO_NODE}
        num_out = Counter(entries[0].namespace for entries in out.values())
        for half_out, unit in self._by_turns(units, num_out, begun):
            gated = _gated(unit)
            if not gated or not all(entry.uid in roomless for entry in unit.entries) or not self._may_go(unit, now):
                continue
            if half_out or not (recent or _asks(unit.entries) in asked):
                self._turns.take(unit.namespace, now)
                await all_of(self._open(entry) for entry in gated)
                return

    async def _open(self, entry: Entry) -> None:
        async with self._writes:
            if not _gated_among([entry]):
                return
            await self.dispatcher.open_without_node(entry, FOR_AUTOSCALERS, by_kerf=False)
            self.num += entry.stage is Stage.OPENED

    def _by_turns(
        self, units: Sequence[Unit], num_out: Counter[str], begun: dict[str, float]
    ) -> list[tuple[bool, Unit]]:
        """Those first that are half out: all were there when the first was opened, and whoever did it was stopped in
        between. Whoever asks for what nobody has takes no more turns than others do."""
        never = float("-inf")
        until = {name: opened + _TOGETHER_S for name, opened in begun.items()}
        found = [(all(entry.seen <= until.get(unit.key, never) for entry in _gated(unit)), unit) for unit in units]

        def turn(found: tuple[bool, Unit]) -> tuple[bool, float, int]:
            half_out, unit = found
            return not half_out, self._turns.of(unit.namespace), num_out[unit.namespace]

        return sorted(found, key=turn)

    def _may_go(self, unit: Unit, now: float) -> bool:
        """Whether a unit has waited for long enough, and will not start in parts or on the wrong GPUs."""
        if now - min(entry.seen for entry in unit.entries) < self.after_s:
            return False
        pods = unit.pods
        if len(pods) != len(unit.entries) or any(pod.gpus is None or pod.claims for pod in pods):
            return False  # of those without GPUs kube-scheduler does not ask Kerf
        if self.dispatcher.mode.is_asked:
            return True
        entry, request = unit.entries[0], pods[0].gpus
        return not pods[0].gang and (request is None or not is_picky(request) or _names_product(entry.pod))


def _gated(unit: Unit) -> list[Entry]:
    return _gated_among(unit.entries)


def _gated_among(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.stage is Stage.GATED]


def _gang_of(entry: Entry) -> str:
    return entry.planned.gang if entry.planned is not None else ""


def _asks(entries: Iterable[Entry]) -> frozenset[tuple[object, int]]:
    """Equal for units that ask for the same."""
    return frozenset(Counter(entry.planned.alike for entry in entries if entry.planned is not None).items())


def _names_product(pod: Pod) -> bool:
    """Whether a pod itself says which products will do."""
    if any(label in (pod.spec.node_selector or ()) for label in PRODUCT_LABELS):
        return True
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = (affinity.required.node_selector_terms if affinity and affinity.required else None) or []
    return bool(terms) and all(
        any(item.key in PRODUCT_LABELS for item in term.match_expressions or ()) for term in terms
    )
