"""What becomes of the plans that the policy has begun, and who is left alone for it afterwards.

A move that comes to nothing has its pod's owner left alone: the target is not at fault, and finds others to move. A
target that goes away or changes while room is made for it, or goes soon after it has its place, has had others moved
for nothing: its whole namespace is left alone for a while then, twice as long each time in a row.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from extender.explain.defrag_policy.patience import Patience
from extender.explain.defrag_policy.waits import Wait
from extender.queueing.defrag.plan import PlannedMove
from extender.queueing.defrag.record import Culprit, Phase, Stage
from extender.queueing.defrag.state import RoomState

_PROVEN_S = 600.0
"""Whoever has kept its place for so long has needed it."""
_MOST_WATCHED = 64
_STILL_THERE: Final = (Stage.PLANNED, Stage.LEFT)


@dataclass(frozen=True, slots=True)
class Begun:
    """A plan that the policy has begun."""

    id: str
    name: str
    """Of what it is for."""
    wait: Wait | None
    """None where nobody waits for it."""
    moves: Sequence[PlannedMove]


@dataclass(frozen=True, slots=True)
class _Watched:
    wait: Wait
    until: float


class Outcomes:
    """The plan under way, and the targets of those before."""

    def __init__(
        self, targets: Patience, namespaces: Patience, owners: Patience, is_there: Callable[[str], bool]
    ) -> None:
        """`owners` are controllers by UID; `is_there`: whether a pod waits, or holds GPUs, by its UID."""
        self._targets, self._namespaces, self._owners, self._is_there = targets, namespaces, owners, is_there
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
        wait, at_fault = begun.wait, self._owners_at_fault(begun, state)
        self.leave_alone(at_fault, now)
        if wait is None:
            if state.why and not at_fault:
                self._targets.fail("", begun.name, now)
            return
        moved = all(move.stage == Stage.DONE for move in state.moves)
        if not state.why:
            self._targets.forgive(wait.name)
            self._watched = [*self._watched, _Watched(wait, now + _PROVEN_S)][-_MOST_WATCHED:]
            return
        if not at_fault:
            self._targets.fail(wait.namespace, wait.name, now)
        in_vain = state.culprit == Culprit.TARGET and any(move.stage not in _STILL_THERE for move in state.moves)
        # All was done for it and it did not come, or has gone; or others have moved, and it wants something else now.
        if moved or in_vain or not all(map(self._is_there, wait.uids)):
            self._blame(wait, now)

    def _owners_at_fault(self, begun: Begun, state: RoomState) -> list[PlannedMove]:
        """Moves that came to nothing by who was to move: all that were lost, or the first that could not be evicted;
        all that were made where they took too long. What has moved as it should is forgiven its owner."""
        stages = {move.pod: move.stage for move in state.moves}
        of_stage: dict[str, list[PlannedMove]] = {}
        for move in begun.moves:
            of_stage.setdefault(stages.get(move.pod, ""), []).append(move)
        if state.culprit == Culprit.MOVED:
            return of_stage.get(Stage.DONE, []) + of_stage.get(Stage.LOST, [])
        for move in of_stage.get(Stage.DONE, ()):
            self._owners.forgive(move.controller)
        return of_stage.get(Stage.LOST) or of_stage.get(Stage.LEFT, [])[:1]

    def leave_alone(self, moves: Iterable[PlannedMove], now: float) -> None:
        """Nobody of the owners of these is moved for a while."""
        for move in moves:
            self._owners.fail(move.pod.partition("/")[0], move.controller, now)

    def _blame(self, wait: Wait, now: float) -> None:
        self._namespaces.fail("", wait.namespace, now)
