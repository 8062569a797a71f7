"""Looks again and again for moves that pay, tells of them, and has them made where it may.

It asks the same questions as people do, in the same process beside the loop, a few in a round (see `turns`). What it
has made goes the way of `kerf defrag --apply`, and is held to the same rules.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from extender.explain.defrag.applying import Mover, target_of
from extender.explain.defrag.room_answers import RoomAnswer
from extender.explain.defrag_policy.options import FREE_NODES, HEAL, ROOM, Option, best_first
from extender.explain.defrag_policy.outcomes import Begun, Outcomes
from extender.explain.defrag_policy.patience import Patience
from extender.explain.defrag_policy.surroundings import Around, Asks, Counts, Terms
from extender.explain.defrag_policy.telling import Teller
from extender.explain.defrag_policy.turns import AskingTurns
from extender.explain.defrag_policy.waits import Wait
from extender.explain.processes import BusyError, QuestionError
from extender.kube.background import Background, repeat
from extender.kube.client import ClusterError
from extender.planning.moves.gains import gain_gpu_s
from extender.planning.windows import are_open
from extender.queueing.defrag.checks import RoomError
from extender.queueing.defrag.record import Phase
from extender.queueing.defrag.state import Advice, PolicyState

logger = logging.getLogger(__name__)

_LOOKS_EVERY_S: Final = 5.0
_NODE_FREE_S: Final = 3600.0
"""For so long an autoscaler is taken to do without a node that it is given back."""
_MOST_REST_S: Final = 3600.0
_MOST_BLAMED_REST_S: Final = 24 * 3600.0
_answer: Final = msgspec.json.Decoder(RoomAnswer)


@dataclass(eq=False)
class _Round:
    """What a round may do."""

    moves: int
    """Most."""
    waits: list[Wait] = field(default_factory=list)


class MovePolicy(Background):
    """Works from `start` to `stop`, while this process leads."""

    def __init__(self, asks: Asks, mover: Mover | None, teller: Teller, around: Around, terms: Terms) -> None:
        """`mover` None: nobody is moved here."""
        super().__init__("making room by itself", needed=False)
        self._asks, self._mover, self._teller, self._around, self._terms = asks, mover, teller, around, terms
        self._targets = Patience(2 * terms.every_s, max(_MOST_REST_S, 2 * terms.every_s))
        self._namespaces = Patience(2 * terms.every_s, _MOST_BLAMED_REST_S)
        self._owners = Patience(2 * terms.every_s, _MOST_BLAMED_REST_S)
        self._outcomes = Outcomes(self._targets, self._namespaces, self._owners, around.is_there)
        self._turns = AskingTurns()
        self._asked_at: float | None = None  # while this process does not lead
        self._fault = ""
        self.counts = Counts()
        self.advice: list[Advice] = []
        """Of the last round; and what those past the queue were told, as long as they rest for it."""
        self._told: dict[str, Advice] = {}  # those past the queue, by name

    def state(self) -> PolicyState:
        """For whoever asks."""
        fault = self._around.standby() or self._fault
        return PolicyState(self._terms.mode, self._is_open(), self.advice, self.counts.begun, fault)

    def told(self) -> dict[str, Any]:
        """For the page: for whom room would be made."""
        found = next((advice for advice in self.advice if advice.purpose == ROOM), None)
        keys = ("target", "moves", "cost_gpu_s", "why_not")
        return {} if found is None else {key: getattr(found, key) for key in keys}

    async def run(self) -> None:
        """Look, again and again."""
        await repeat(self.look, min(_LOOKS_EVERY_S, self._terms.every_s), "making room by itself")

    async def look(self) -> None:
        """Follow what was begun, and look for moves where it is time to."""
        around = self._around
        if around.standby():
            self.advice, self._told, self._outcomes.begun, self._asked_at = [], {}, None, None
            return
        now = around.clock()
        if self._asked_at is None:  # what was under way when the last leader ended comes first
            self._asked_at = now
        if self._terms.heal:
            around.sick.look(around.cluster(), now)
        if self._mover is not None:
            self._follow(self._mover, now)
        if now - self._asked_at < self._terms.every_s or self._is_busy():
            return
        self._asked_at = now
        self._targets.forget_old(now)
        self._namespaces.forget_old(now)
        self._owners.forget_old(now)
        await self._round(now)

    def _is_busy(self) -> bool:
        return self._mover is not None and self._mover.state().phase in (Phase.MOVING, Phase.PLACING)

    def _is_open(self) -> bool:
        return are_open(self._terms.windows, self._around.wall_clock())

    def _follow(self, mover: Mover, now: float) -> None:
        state = mover.state()
        begun = self._outcomes.begun
        goes_on = begun is not None and begun.id == state.id and state.phase == Phase.MOVING and not state.why
        if goes_on and not self._is_open():
            mover.give_up("the time for moves is over (setting defrag.windows)")
        self._outcomes.follow(state, now)

    async def _round(self, now: float) -> None:
        """Ask, tell, and begin the first plan that may be begun."""
        self.counts.rounds += 1
        self._fault = ""
        waits = await self._around.waits()
        mine = _Round(self._moves_left(), [wait for wait in waits if self._is_due(wait, now)])
        found = await self._options(mine, now, nobody_waits=not waits) if mine.moves > 0 else []
        there = {wait.name for wait in waits}
        self._told = {
            name: advice for name, advice in self._told.items() if name in there and self._targets.rests(name, now)
        }
        self.advice = []
        begun = False
        for option in found:
            only_told = self._why_not(option)
            why_not = only_told or ("another plan is carried out first" if begun else await self._begin(option, now))
            begun = begun or not why_not
            advice = option.advice(self._around.wall_clock(), why_not)
            if option.wait is None or option.wait.queued:
                self.advice.append(advice)
            else:
                self._told[option.wait.name] = advice
            if only_told or (why_not and not begun):
                self._teller.tell(option, now)
        self.advice += sorted(self._told.values(), key=lambda advice: advice.cost_gpu_s - advice.gain_gpu_s)

    async def _options(self, mine: _Round, now: float, *, nobody_waits: bool) -> list[Option]:
        """What would be worth it, in the order in which it would be begun."""
        found = [await self._healing(mine, now), *await self._room(mine, now)]
        if nobody_waits and self._terms.free_nodes:
            found.append(await self._nodes(mine, now))
        return [option for option in found if option is not None]

    async def _healing(self, mine: _Round, now: float) -> Option | None:
        sick = self._around.sick.steady(now)
        if not sick or self._targets.rests(HEAL, now):
            return None
        answer = await self._ask({"heal": True, "maxMoves": mine.moves}, ("", HEAL), now, sick)
        return Option(HEAL, answer) if answer is not None and answer.id else None

    async def _room(self, mine: _Round, now: float) -> list[Option]:
        """The best plan for those of the queue whose turn it is, and all for those past it: these are only told, and
        rest as if it had been in vain, so that others have their turns."""
        of_queue, past_it, known = list[Option](), list[Option](), set[str]()
        for wait in self._turns.next(mine.waits, known, now):
            answer = await self._ask({"for": wait.name, "maxMoves": mine.moves}, (wait.namespace, wait.name), now)
            if answer is None:
                continue
            known |= {pod.uid for pod in answer.target}
            waited_s = self._around.wall_clock() - wait.since
            option = Option(ROOM, answer, gain_gpu_s(answer.gpus, max(waited_s, 0.0)), wait)
            pays = bool(answer.id) and option.pays(self._terms.least_gain)
            if pays:
                (of_queue if wait.queued else past_it).append(option)
            if not (pays and wait.queued):
                self._targets.fail(wait.namespace, wait.name, now)
        return [*best_first(of_queue)[:1], *best_first(past_it)]

    async def _nodes(self, mine: _Round, now: float) -> Option | None:
        """As many empty nodes as are wanted, or half of them, and so on."""
        number = self._terms.free_nodes
        while number and not self._targets.rests(FREE_NODES, now):
            answer = await self._ask({"freeNodes": number, "maxMoves": mine.moves}, ("", FREE_NODES), now)
            if answer is None:
                return None
            if answer.fits:
                option = Option(FREE_NODES, answer, gain_gpu_s(answer.gpus, _NODE_FREE_S))
                return option if answer.id and option.pays(self._terms.least_gain) else None
            number //= 2
        self._targets.fail("", FREE_NODES, now)
        return None

    async def _ask(
        self,
        question: Mapping[str, Any],
        whose: tuple[str, str],
        now: float,
        sick: Mapping[str, tuple[int, ...]] | None = None,
    ) -> RoomAnswer | None:
        """None where there is no answer: then who is asked about, by namespace and name, rests, and others go on."""
        body = msgspec.json.encode(question)
        try:
            resting = self._owners.resting(now)
            return _answer.decode(await self._asks.answer(body, rest_s=self._terms.rest_s, sick=sick, resting=resting))
        except QuestionError as error:  # it has its node by now, is gone, or can't be asked about
            logger.debug("making room by itself: %s: %s", whose[1], error)
        except (BusyError, ClusterError, msgspec.DecodeError) as error:
            self._fault = f"{whose[1]}: {error}"
            logger.warning("making room by itself: no answer about %s", self._fault)
        self._targets.fail(*whose, now)
        return None

    def _is_due(self, wait: Wait, now: float) -> bool:
        if self._around.wall_clock() - wait.since < self._terms.after_s:
            return False
        return not (self._targets.rests(wait.name, now) or self._namespaces.rests(wait.namespace, now))

    def _moves_left(self) -> int:
        """Of an hour."""
        evicted = self._mover.state().evicted if self._mover is not None else 0
        return max(self._terms.moves_an_hour - evicted, 0)

    def _why_not(self, option: Option) -> str:
        """Why a plan is only told of, "" where it is to be begun."""
        if not self._terms.acts or self._mover is None:
            return "it only tells (setting defrag.mode)"
        if not self._is_open():
            return "it is not the time for moves (setting defrag.windows)"
        if option.wait is not None and not option.wait.queued:
            return "it does not wait in the queue: no place can be kept for it"
        return ""

    async def _begin(self, option: Option, now: float) -> str:
        """Have a plan carried out; why that can't be, "" where it can."""
        plan, wait = self._asks.kept(option.answer.id), option.wait
        name = option.purpose if wait is None else wait.name
        if plan is None or self._mover is None:
            return "the plan is not kept any more"
        try:
            begun = await self._mover.begin(plan, target_of(plan))
        except RoomError as error:
            self.counts.refused += 1
            logger.warning("making room by itself: %s: %s", target_of(plan), error)
            at_fault = [move for move in plan.moves if move.uid == error.of]
            self._outcomes.leave_alone(at_fault, now)
            if not at_fault:
                self._targets.fail("" if wait is None else wait.namespace, name, now)
            return str(error)
        self.counts.begun += 1
        self._outcomes.begun = Begun(begun, name, wait, plan.moves)
        logger.info("making room by itself: plan %s, %s: %d moves", begun, target_of(plan), len(plan.moves))
        return ""
