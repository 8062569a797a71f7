"""The policy that makes room by itself: again and again it looks for moves that pay, tells of them or has them made.

Who is left alone for a while after what was done for them came to nothing: twice as long each time in a row.

Whose turn it is to be asked about: few in a round, those of the queue first, and no namespace takes all turns.

GPUs that are sick, and since when: one that comes and goes is not worth a move.

Telling those who wait that moves would help: in an event of theirs, once for each plan and not too often.

Who waits for room: pods and gangs of the queue, and pods that kube-scheduler has refused.

What the policy works with: whom it asks, what it sees of the cluster, and when moves are worth it.

What moves the policy could have made, and which of them are the best.

What becomes of the plans that the policy has begun, and who is left alone for it afterwards.

A move that comes to nothing has its pod's owner left alone: the target is not at fault, and finds others to move. A
target that goes away or changes while room is made for it, or goes soon after it has its place, has had others moved
for nothing: its whole namespace is left alone for a while then, twice as long each time in a row.

It asks the same questions as people do, in the same process beside the loop, a few in a round. What it has made goes
the way of `kerf defrag --apply`, and is held to the same rules.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from extender.api.contributions import Kernel
from extender.core.clusters import Cluster
from extender.explain.processes import BusyError, QuestionError
from extender.kube.background import Background, give_way, repeat
from extender.kube.client import ClusterError
from extender.kube.events import EventRecorder
from extender.kube.turns import LastTurns
from extender.parts.defrag.answers import RoomAnswers
from extender.parts.defrag.applying import Mover, target_of
from extender.parts.defrag.checks import RoomError
from extender.parts.defrag.movable import priority_at_most
from extender.parts.defrag.plan import PlannedMove, RoomPlan
from extender.parts.defrag.questions import RoomAnswer
from extender.parts.defrag.record import Culprit, Phase, Stage
from extender.parts.defrag.settings import DefragSettings
from extender.parts.defrag.state import Advice, PolicyState, RoomState
from extender.planning.moves.problems import gain_gpu_s, is_worth
from extender.planning.windows import Window, are_open, window_of
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.unbound_pods import UnboundPods
from extender.settings.section import Initiative

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Rest:
    name: str
    until: float
    times: int


class _Patience:
    """Rests by name, bounded: who brings many names has their own forgotten."""

    def __init__(self, first_s: float, most_s: float, most_kept: int = 4_000) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._rests: FairCache[_Rest] = FairCache(most_kept)

    def __len__(self) -> int:
        return len(self._rests)

    def rests(self, name: str, now: float) -> bool:
        """Whether it is left alone yet."""
        known = self._rests.get(name)
        return known is not None and now < known.until

    def resting(self, now: float) -> frozenset[str]:
        """All that are left alone yet."""
        return frozenset(rest.name for rest in self._rests.values() if now < rest.until)

    def fail(self, namespace: str, name: str, now: float) -> None:
        """It came to nothing. What rests already does not rest longer for it."""
        known = self._rests.get(name)
        if known is not None and now < known.until:
            return
        times = known.times + 1 if known is not None else 0
        rest_s = min(self._first_s * 2.0 ** min(times, 32), self._most_s)
        self._rests.put(namespace, name, _Rest(name, now + rest_s, times), now)

    def forgive(self, name: str) -> None:
        """It came to something."""
        self._rests.pop(name)

    def forget_old(self, now: float) -> None:
        """Forget those that failed so long ago that it says nothing any more."""
        self._rests.expire(now - 2 * self._most_s)


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


async def _waits_of(backlog: Backlog | None, unbound: UnboundPods) -> list[Wait]:
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


_MOST_ASKED: Final = 4
"""Pods and gangs asked about in a round; each question is a search of seconds."""
_MOST_OF_NAMESPACE: Final = 2
_MOST_KEPT: Final = 4_000


class _AskingTurns:
    """When which namespace had its last turn, bounded."""

    def __init__(self) -> None:
        self._last = LastTurns(_MOST_KEPT)

    def next(self, waits: Iterable[Wait], known: Set[str], now: float) -> Iterator[Wait]:
        """Those of a round, one after the other: for whom a place can be kept, then who is only told; each by priority.

        Of equal priority a namespace comes first that was not asked about for longest: no crowd takes all turns.
        `known` are UIDs of pods about which an answer has told already, and may grow meanwhile.
        """
        asked, of_namespace = 0, Counter[str]()
        for wait in sorted(waits, key=self._order):
            if asked >= _MOST_ASKED:
                return
            if of_namespace[wait.namespace] >= _MOST_OF_NAMESPACE or not known.isdisjoint(wait.uids):
                continue
            asked, of_namespace[wait.namespace] = asked + 1, of_namespace[wait.namespace] + 1
            self._last.take(wait.namespace, now)
            yield wait

    def _order(self, wait: Wait) -> tuple[bool, int, float]:
        return not wait.queued, -wait.priority, self._last.of(wait.namespace)


class SickGpus:
    """What is sick without a break; nothing of it outlives the process, which then waits anew."""

    def __init__(self, sick_in: Callable[[Cluster], Mapping[str, tuple[int, ...]]], sick_s: float) -> None:
        """`sick_in`: indices of the sick GPUs of a cluster by node."""
        self._sick_in, self._sick_s = sick_in, sick_s
        self._since: dict[tuple[str, int, str], float] = {}

    def look(self, cluster: Cluster, now: float) -> None:
        """A moment: what is not sick in it is well, and what is gone, too."""
        found = {
            (name, gpu, cluster.gpu_uuids[cluster.row_of[name]][gpu])
            for name, gpus in self._sick_in(cluster).items()
            for gpu in gpus
        }
        self._since = {gpu: self._since.get(gpu, now) for gpu in found}

    def steady(self, now: float) -> dict[str, tuple[int, ...]]:
        """Indices of those that have been sick for long enough, by node."""
        found: dict[str, list[int]] = {}
        for (name, gpu, _), since in self._since.items():
            if now - since >= self._sick_s:
                found.setdefault(name, []).append(gpu)
        return {name: tuple(sorted(gpus)) for name, gpus in found.items()}


ROOM, HEAL, FREE_NODES = "room", "heal", "free-nodes"
PURPOSES: Final = (ROOM, HEAL, FREE_NODES)


@dataclass(frozen=True, slots=True)
class Option:
    """A plan that could be carried out."""

    purpose: str
    """ROOM, HEAL or FREE_NODES."""
    answer: RoomAnswer
    gain_gpu_s: float = 0.0
    """Not asked for where pods leave sick GPUs."""
    wait: Wait | None = None
    """For whom it makes room."""

    @property
    def net_gpu_s(self) -> float:
        """GPU-seconds gained beyond those lost."""
        return self.gain_gpu_s - self.answer.cost_gpu_s

    def pays(self, least_gain: float) -> bool:
        """Whether it gains so many times what it loses."""
        return is_worth(self.gain_gpu_s, self.answer.cost_gpu_s, least_gain)

    def advice(self, at: float, why_not: str) -> Advice:
        """The same in words."""
        answer = self.answer
        return Advice(
            purpose=self.purpose,
            target=target_of(answer),
            plan=answer.id,
            moves=len(answer.moves),
            gain_gpu_s=round(self.gain_gpu_s, 1),
            cost_gpu_s=answer.cost_gpu_s,
            at=round(at),
            why_not=why_not,
        )


def _best_first(options: Iterable[Option]) -> list[Option]:
    """First the one that gains most beyond what it loses; of equal ones the one with the fewest moves."""
    return sorted(options, key=lambda option: (-option.net_gpu_s, len(option.answer.moves)))


_TOLD_EVERY_S: Final = 3600.0
_MOST_PODS: Final = 8
"""Of a gang that hear of it."""


class Teller:
    """Writes events; of whom it has told what is kept, bounded."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._told: FairCache[float] = FairCache(_MOST_KEPT)

    def tell(self, option: Option, now: float) -> None:
        """Tell a target's pods, unless they have heard of it lately. Nothing is said of whose pods would move."""
        wait, answer = option.wait, option.answer
        if wait is None:
            return
        told_at = self._told.get(wait.name)
        if told_at is not None and now - told_at < _TOLD_EVERY_S:
            return
        self._told.put(wait.namespace, wait.name, now, now)
        moves = f"{len(answer.moves)} pod{'' if len(answer.moves) == 1 else 's'} moved"
        message = f"It would fit if {moves}, which loses {answer.cost_gpu_s:.0f} GPU-seconds of work"
        for pod in answer.target[:_MOST_PODS]:
            if pod.uid:
                namespace, _, name = pod.pod.partition("/")
                how = f"{message}: kerf defrag --for {wait.name}"
                self._events.emit(namespace, name, pod.uid, reason="MovesWouldHelp", message=how)


class Asks(Protocol):
    """What answers how room could be made."""

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        resting: frozenset[str] = frozenset(),
    ) -> bytes:
        """Raises QuestionError, BusyError, ClusterError."""

    def kept(self, plan: str) -> RoomPlan | None:
        """A plan that was answered, by its id."""


@dataclass(frozen=True, slots=True)
class Terms:
    """When moves are worth it; as the settings of the same names."""

    mode: str
    acts: bool
    every_s: float
    after_s: float
    least_gain: float
    rest_s: float
    free_nodes: int
    heal: bool
    moves_an_hour: int
    windows: tuple[Window, ...] = ()


@dataclass(eq=False)
class Around:
    """What the policy sees of the cluster."""

    cluster: Callable[[], Cluster]
    waits: Callable[[], Awaitable[list[Wait]]]
    is_there: Callable[[str], bool]
    """Whether a pod waits, or holds GPUs, by its UID."""
    standby: Callable[[], str]
    """Why nothing is to be decided now, "" where it is."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    sick: SickGpus


@dataclass
class _Counts:
    """What has happened since the start."""

    rounds: int = 0
    begun: int = 0
    """Plans."""
    refused: int = 0
    """Plans that the mover would not begin."""


_PROVEN_S = 600.0
"""Whoever has kept its place for so long has needed it."""
_MOST_WATCHED = 64
_STILL_THERE: Final = (Stage.PLANNED, Stage.LEFT)


@dataclass(frozen=True, slots=True)
class _Begun:
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


class _Outcomes:
    """The plan under way, and the targets of those before."""

    def __init__(
        self, targets: _Patience, namespaces: _Patience, owners: _Patience, is_there: Callable[[str], bool]
    ) -> None:
        """`owners` are controllers by UID; `is_there`: whether a pod waits, or holds GPUs, by its UID."""
        self._targets, self._namespaces, self._owners, self._is_there = targets, namespaces, owners, is_there
        self._watched: list[_Watched] = []
        self.begun: _Begun | None = None
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

    def _judge(self, begun: _Begun, state: RoomState, now: float) -> None:
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

    def _owners_at_fault(self, begun: _Begun, state: RoomState) -> list[PlannedMove]:
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
        self._targets = _Patience(2 * terms.every_s, max(_MOST_REST_S, 2 * terms.every_s))
        self._namespaces = _Patience(2 * terms.every_s, _MOST_BLAMED_REST_S)
        self._owners = _Patience(2 * terms.every_s, _MOST_BLAMED_REST_S)
        self._outcomes = _Outcomes(self._targets, self._namespaces, self._owners, around.is_there)
        self._turns = _AskingTurns()
        self._asked_at: float | None = None  # while this process does not lead
        self._fault = ""
        self.counts = _Counts()
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
        return [*_best_first(of_queue)[:1], *_best_first(past_it)]

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
        self._outcomes.begun = _Begun(begun, name, wait, plan.moves)
        logger.info("making room by itself: plan %s, %s: %d moves", begun, target_of(plan), len(plan.moves))
        return ""


def build_policy(kernel: Kernel, wanted: DefragSettings, room: RoomAnswers, mover: Mover | None) -> MovePolicy | None:
    """What makes room by itself, or says how; None where it is only asked."""
    base, queue, unbound = kernel.base, kernel.queue, kernel.unbound
    if wanted.mode is Initiative.OFF:
        return None
    backlog = queue.backlog if queue is not None else None

    def is_there(uid: str) -> bool:
        waits = backlog is not None and uid in backlog.entries
        return waits or unbound.get(uid) is not None or base.ledger.claim(uid) is not None

    def standby() -> str:
        return base.fence.fault() or base.mirror.fault() or (queue.fault() if queue is not None else "")

    def cluster() -> Cluster:
        return base.ledger.snapshot(base.clock())

    around = Around(
        cluster,
        lambda: _waits_of(backlog, unbound),
        is_there,
        standby,
        base.clock,
        time.time,
        SickGpus(room.sick, wanted.sick_s),
    )
    return MovePolicy(room, mover, Teller(base.events), around, _terms(wanted))


def _terms(wanted: DefragSettings) -> Terms:
    return Terms(
        mode=wanted.mode.value,
        acts=wanted.mode is Initiative.ACT,
        every_s=wanted.every_s,
        after_s=wanted.after_s,
        least_gain=wanted.least_gain,
        rest_s=wanted.rest_s,
        free_nodes=wanted.free_nodes,
        heal=wanted.heal,
        moves_an_hour=wanted.moves_an_hour,
        windows=tuple(window_of(text) for text in wanted.windows),
    )
