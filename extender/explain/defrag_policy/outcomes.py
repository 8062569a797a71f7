"""What becomes of the plans that the policy has begun, and who is left alone for it afterwards.

A target that goes away while room is made for it, or soon after it has its place, has had others moved for nothing: its
whole namespace is left alone for a while then, twice as long each time in a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

from extender.explain.defrag_policy.patience import Patience
from extender.explain.defrag_policy.waits import Wait
from extender.queueing.defrag.record import Phase, Stage
from extender.queueing.defrag.state import RoomState

PROVEN_S = 600.0
"""Whoever has kept its place for so long has needed it."""
_MOST_WATCHED = 64


@dataclass(frozen=True, slots=True)
class Begun:
    """A plan that the policy has begun."""

    id: str
    name: str
    """Of what it is for; "" where nobody waits for it."""
    wait: Wait | None


@dataclass(frozen=True, slots=True)
class _Watched:
    wait: Wait
    until: float


class Outcomes:
    """The plan under way, and the targets of those before."""

    def __init__(self, targets: Patience, namespaces: Patience, is_there: Callable[[str], bool]) -> None:
        """`is_there`: whether a pod waits, or holds GPUs, by its UID."""
        self._targets, self._namespaces, self._is_there = targets, namespaces, is_there
        self._watched: list[_Watched] = []
        self.begun: Begun | None = None
        """None where none is under way."""

    def follow(self, state: RoomState, now: float) -> None:
        """Look at the plan that is carried out, or was last."""
        begun = self.begun
        if begun is not None and state.id != begun.id:
            self.begun = None  # another one has begun since: what became of it nobody knows any more
        elif begun is not None and state.phase not in (Phase.MOVING, Phase.PLACING):
            self.begun = None
            self._judge(begun, state, now)
        watched, self._watched = self._watched, []
        for one in watched:
            if not all(map(self._is_there, one.wait.uids)):
                self._blame(one.wait, now)
            elif now < one.until:
                self._watched.append(one)
            else:
                self._namespaces.forgive(one.wait.namespace)

    def _judge(self, begun: Begun, state: RoomState, now: float) -> None:
        wait = begun.wait
        if wait is None:
            if state.why:
                self._targets.fail("", begun.name, now)
            return
        moved = all(move.stage == Stage.DONE for move in state.moves)
        if not state.why:
            self._targets.forgive(wait.name)
            self._watched = [*self._watched, _Watched(wait, now + PROVEN_S)][-_MOST_WATCHED:]
            return
        self._targets.fail(wait.namespace, wait.name, now)
        if moved or not all(map(self._is_there, wait.uids)):  # all was done for it, and it did not come, or has gone
            self._blame(wait, now)

    def _blame(self, wait: Wait, now: float) -> None:
        self._namespaces.fail("", wait.namespace, now)
