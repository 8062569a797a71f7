"""The policy of `defrag.mode`: periodically searches for moves that pay, and reports them or has them made.

Each round plans for a few waiting pods and gangs, queued ones first, with turns for namespaces. It uses the same
planning process as users, and its plans follow the same rules as `kerf defrag --apply`.

Failures back off exponentially. If a move fails, its pod's owner backs off, and the target gets other moves. If the
target disappears or changes while room is made for it, or disappears soon after it is placed, its namespace backs off.
"""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, cast

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
from extender.parts.defrag.checks import RoomError, priority_at_most
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
class _BackOff:
    name: str
    until: float
    times: int


class _BackOffs:
    """Exponential back-off by name. Bounded: a namespace with many names evicts its own entries."""

    def __init__(self, first_s: float, most_s: float, most_kept: int = 4_000) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._by_name: FairCache[_BackOff] = FairCache(most_kept)

    def __len__(self) -> int:
        return len(self._by_name)

    def is_active(self, name: str, now: float) -> bool:
        """Whether a name is backing off."""
        known = self._by_name.get(name)
        return known is not None and now < known.until

    def active(self, now: float) -> frozenset[str]:
        """All names that are backing off."""
        return frozenset(back_off.name for back_off in self._by_name.values() if now < back_off.until)

    def fail(self, namespace: str, name: str, now: float) -> None:
        """Begin the next back-off after a failure, unless one is running."""
        known = self._by_name.get(name)
        if known is not None and now < known.until:
            return
        times = known.times + 1 if known is not None else 0
        back_off_s = min(self._first_s * 2.0 ** min(times, 32), self._most_s)
        self._by_name.put(namespace, name, _BackOff(name, now + back_off_s, times), now)

    def reset(self, name: str) -> None:
        """Reset a name's back-off."""
        self._by_name.pop(name)

    def expire(self, now: float) -> None:
        """Forget names whose back-off ended long ago."""
        self._by_name.expire(now - 2 * self._most_s)


_BATCH_SIZE: Final = 500


@dataclass(frozen=True, slots=True)
class Wait:
    """A waiting pod or gang."""

    name: str
    """As in `RoomQuestion.for_`."""
    namespace: str
    priority: int
    """Lowest priority of its pods."""
    since: float
    """Unix time since which all of its pods wait for nothing but room."""
    uids: tuple[str, ...]
    """UIDs of its pods."""
    queued: bool
    """Whether it waits in the queue: only then can its place be kept."""


async def _waits_of(backlog: Backlog | None, unbound: UnboundPods) -> list[Wait]:
    """Pods and gangs that wait for nothing but room, by priority, then by waiting time.

    Yields to the event loop in between, since thousands may wait.
    """
    entries = backlog.entries if backlog is not None else {}
    units: dict[str, list[Entry]] = {}
    for number, entry in enumerate(list(entries.values())):
        planned = entry.planned
        units.setdefault(planned.gang or entry.pod.key if planned is not None else entry.pod.key, []).append(entry)
        await _yield_sometimes(number)
    waits = []
    for number, (name, unit) in enumerate(units.items()):
        if all(entry.lacks_only_room for entry in unit):
            waits.append(_of_queue(name, unit))
        await _yield_sometimes(number)
    for number, pod in enumerate(unbound.all()):
        if pod.uid not in entries and pod.refused:
            waits.append(Wait(pod.key, pod.namespace, pod.least_priority, pod.refused_since, (pod.uid,), queued=False))
        await _yield_sometimes(number)
    return sorted(waits, key=lambda wait: (-wait.priority, wait.since, wait.name))


async def _yield_sometimes(number: int) -> None:
    if number % _BATCH_SIZE == _BATCH_SIZE - 1:
        await give_way()


def _of_queue(name: str, unit: Iterable[Entry]) -> Wait:
    pods = [entry.pod for entry in unit]
    since = max(entry.lacks_room_since for entry in unit)
    uids = tuple(pod.metadata.uid for pod in pods)
    return Wait(name, pods[0].metadata.namespace, min(map(priority_at_most, pods)), since, uids, queued=True)


_MAX_PER_ROUND: Final = 4
"""Most pods and gangs planned for in a round; each plan is a search of seconds."""
_MAX_PER_NAMESPACE: Final = 2
_MAX_REMEMBERED: Final = 4_000


class _NamespaceTurns:
    """Chooses the pods and gangs of a round fairly among namespaces; remembers their last turns, bounded."""

    def __init__(self) -> None:
        self._last = LastTurns(_MAX_REMEMBERED)

    def next(self, waits: Iterable[Wait], known: Set[str], now: float) -> Iterator[Wait]:
        """The round's pods and gangs: queued ones first, each by priority; ties break by the namespace's last turn.

        `known` are UIDs of pods that earlier answers covered, and may grow during the iteration.
        """
        num_asked, of_namespace = 0, Counter[str]()
        for wait in sorted(waits, key=self._order):
            if num_asked >= _MAX_PER_ROUND:
                return
            if of_namespace[wait.namespace] >= _MAX_PER_NAMESPACE or not known.isdisjoint(wait.uids):
                continue
            num_asked, of_namespace[wait.namespace] = num_asked + 1, of_namespace[wait.namespace] + 1
            self._last.take(wait.namespace, now)
            yield wait

    def _order(self, wait: Wait) -> tuple[bool, int, float]:
        return not wait.queued, -wait.priority, self._last.of(wait.namespace)


class SickGpus:
    """Since when GPUs are unhealthy without a break. In memory only: a restart begins again."""

    def __init__(self, sick_in: Callable[[Cluster], Mapping[str, tuple[int, ...]]], sick_s: float) -> None:
        """`sick_in` returns the indices of a cluster's unhealthy GPUs, by node."""
        self._sick_in, self._sick_s = sick_in, sick_s
        self._since: dict[tuple[str, int, str], float] = {}

    def look(self, cluster: Cluster, now: float) -> None:
        """Update from a snapshot; GPUs that are healthy or missing in it are reset."""
        unhealthy = {
            (name, gpu, cluster.gpu_uuids[cluster.row_of[name]][gpu])
            for name, gpus in self._sick_in(cluster).items()
            for gpu in gpus
        }
        self._since = {gpu: self._since.get(gpu, now) for gpu in unhealthy}

    def steady(self, now: float) -> dict[str, tuple[int, ...]]:
        """Indices of the GPUs that have been unhealthy for long enough, by node."""
        by_node: dict[str, list[int]] = {}
        for (name, gpu, _), since in self._since.items():
            if now - since >= self._sick_s:
                by_node.setdefault(name, []).append(gpu)
        return {name: tuple(sorted(gpus)) for name, gpus in by_node.items()}


ROOM, HEAL, FREE_NODES = "room", "heal", "free-nodes"
PURPOSES: Final = (ROOM, HEAL, FREE_NODES)


@dataclass(frozen=True, slots=True)
class Option:
    """A plan that could be carried out."""

    purpose: str
    """ROOM, HEAL or FREE_NODES."""
    answer: RoomAnswer
    gain_gpu_s: float = 0.0
    """0 for HEAL."""
    wait: Wait | None = None
    """The pod or gang that it makes room for."""

    @property
    def net_gpu_s(self) -> float:
        """GPU-seconds gained less those lost."""
        return self.gain_gpu_s - self.answer.cost_gpu_s

    def pays(self, least_gain: float) -> bool:
        """Whether it gains at least `least_gain` times what it loses."""
        return is_worth(self.gain_gpu_s, self.answer.cost_gpu_s, least_gain)

    def advice(self, at: float, why_not: str) -> Advice:
        """The option as reported."""
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
    """Options by net gain, highest first; ties break by fewest moves."""
    return sorted(options, key=lambda option: (-option.net_gpu_s, len(option.answer.moves)))


_EVENT_EVERY_S: Final = 3600.0
_MAX_EVENT_PODS: Final = 8
"""Most pods of a gang that get the event."""


class Teller:
    """Writes events on targets, at most one per `_EVENT_EVERY_S`; its memory is bounded."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._last_event: FairCache[float] = FairCache(_MAX_REMEMBERED)

    def tell(self, option: Option, now: float) -> None:
        """Write an event on the target's pods, unless there was one recently. It does not name the pods to move."""
        wait, answer = option.wait, option.answer
        if wait is None:
            return
        last = self._last_event.get(wait.name)
        if last is not None and now - last < _EVENT_EVERY_S:
            return
        self._last_event.put(wait.namespace, wait.name, now, now)
        moves = f"{len(answer.moves)} pod{'' if len(answer.moves) == 1 else 's'} moved"
        message = f"It would fit if {moves}, which loses {answer.cost_gpu_s:.0f} GPU-seconds of work"
        for pod in answer.target[:_MAX_EVENT_PODS]:
            if pod.uid:
                namespace, _, name = pod.pod.partition("/")
                how = f"{message}: kerf defrag --for {wait.name}"
                self._events.emit(namespace, name, pod.uid, reason="MovesWouldHelp", message=how)


class _RoomPlanner(Protocol):
    """Plans moves."""

    async def answer(
        self,
        body: bytes,
        *,
        rest_s: float = 0.0,
        sick: Mapping[str, tuple[int, ...]] | None = None,
        backing_off: frozenset[str] = frozenset(),
    ) -> bytes:
        """Raises QuestionError, BusyError, ClusterError."""

    def kept(self, plan: str) -> RoomPlan | None:
        """An earlier plan by its ID, None if it has expired."""


@dataclass(frozen=True, slots=True)
class DefragConfig:
    """The settings of the same names."""

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
class PolicyInputs:
    """What the policy reads of the cluster."""

    cluster: Callable[[], Cluster]
    waits: Callable[[], Awaitable[list[Wait]]]
    is_there: Callable[[str], bool]
    """Whether a pod, by its UID, waits or holds GPUs."""
    standby: Callable[[], str]
    """Why nothing may be decided now, "" if it may."""
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    sick: SickGpus


@dataclass
class _Counts:
    """Counts since the start."""

    rounds: int = 0
    begun: int = 0
    """Plans begun."""
    refused: int = 0
    """Plans that the mover refused."""


_PROVEN_S = 600.0
"""A target that stays for this long needed its room."""
_MAX_WATCHED = 64
_NOT_EVICTED: Final = (Stage.PLANNED, Stage.LEFT)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A plan that the policy has begun."""

    id: str
    name: str
    """Name of its target or purpose."""
    wait: Wait | None
    """The pod or gang that it makes room for, None for none."""
    moves: Sequence[PlannedMove]


@dataclass(frozen=True, slots=True)
class _Watched:
    wait: Wait
    until: float


class _Outcomes:
    """Judges the policy's plans and their targets, and begins back-offs."""

    def __init__(
        self, targets: _BackOffs, namespaces: _BackOffs, owners: _BackOffs, is_there: Callable[[str], bool]
    ) -> None:
        """`owners` are controllers by UID; `is_there`: whether a pod, by its UID, waits or holds GPUs."""
        self._targets, self._namespaces, self._owners, self._is_there = targets, namespaces, owners, is_there
        self._watched: list[_Watched] = []
        self.begun: _Begun | None = None
        """The policy's plan under way, None for none."""

    def follow(self, state: RoomState, now: float) -> None:
        """Judge the policy's plan if it has ended, and targets placed earlier."""
        begun = self.begun
        if begun is not None and state.id != begun.id:
            self.begun = None  # another plan has begun since: its outcome is unknown
        elif begun is not None and state.phase not in (Phase.MOVING, Phase.PLACING):
            self.begun = None
            self._judge(begun, state, now)
        earlier, self._watched = self._watched, []
        for watched in earlier:
            if not all(map(self._is_there, watched.wait.uids)):
                self._back_off_namespace(watched.wait, now)
            elif now < watched.until:
                self._watched.append(watched)
            else:
                self._namespaces.reset(watched.wait.namespace)

    def _judge(self, begun: _Begun, state: RoomState, now: float) -> None:
        wait, at_fault = begun.wait, self._owners_at_fault(begun, state)
        self.back_off_owners(at_fault, now)
        if wait is None:
            if state.why and not at_fault:
                self._targets.fail("", begun.name, now)
            return
        moved = all(move.stage == Stage.DONE for move in state.moves)
        if not state.why:
            self._targets.reset(wait.name)
            self._watched = [*self._watched, _Watched(wait, now + _PROVEN_S)][-_MAX_WATCHED:]
            return
        if not at_fault:
            self._targets.fail(wait.namespace, wait.name, now)
        in_vain = state.culprit == Culprit.TARGET and any(move.stage not in _NOT_EVICTED for move in state.moves)
        # It was not placed after all moves, or has disappeared, or has changed after others were moved.
        if moved or in_vain or not all(map(self._is_there, wait.uids)):
            self._back_off_namespace(wait, now)

    def _owners_at_fault(self, begun: _Begun, state: RoomState) -> list[PlannedMove]:
        """Moves that failed because of the moved pods: all lost ones, else the first that could not be evicted; all
        finished and lost ones if the plan took too long. Owners of pods that moved as planned are reset."""
        stages = {move.pod: move.stage for move in state.moves}
        of_stage: dict[str, list[PlannedMove]] = {}
        for move in begun.moves:
            of_stage.setdefault(stages.get(move.pod, ""), []).append(move)
        if state.culprit == Culprit.MOVED:
            return of_stage.get(Stage.DONE, []) + of_stage.get(Stage.LOST, [])
        for move in of_stage.get(Stage.DONE, ()):
            self._owners.reset(move.controller)
        return of_stage.get(Stage.LOST) or of_stage.get(Stage.LEFT, [])[:1]

    def back_off_owners(self, moves: Iterable[PlannedMove], now: float) -> None:
        """Begin the back-off of these moves' owners."""
        for move in moves:
            self._owners.fail(move.pod.partition("/")[0], move.controller, now)

    def _back_off_namespace(self, wait: Wait, now: float) -> None:
        self._namespaces.fail("", wait.namespace, now)


_TICK_S: Final = 5.0
_NODE_FREE_S: Final = 3600.0
"""Time for which an autoscaler is assumed to save an emptied node."""
_MAX_TARGET_BACK_OFF_S: Final = 3600.0
_MAX_BACK_OFF_S: Final = 24 * 3600.0
_answer: Final = msgspec.json.Decoder(RoomAnswer)


@dataclass(eq=False)
class _Round:
    """Limits and targets of a round."""

    moves: int
    """Most moves."""
    waits: list[Wait] = field(default_factory=list)


class MovePolicy(Background):
    """Runs from `start` to `stop`; active while this process leads."""

    def __init__(
        self, planner: _RoomPlanner, mover: Mover | None, teller: Teller, inputs: PolicyInputs, config: DefragConfig
    ) -> None:
        """`mover` None: no pods are moved here."""
        super().__init__("defrag policy", needed=False)
        self._planner, self._mover, self._teller, self._inputs, self._config = planner, mover, teller, inputs, config
        self._targets = _BackOffs(2 * config.every_s, max(_MAX_TARGET_BACK_OFF_S, 2 * config.every_s))
        self._namespaces = _BackOffs(2 * config.every_s, _MAX_BACK_OFF_S)
        self._owners = _BackOffs(2 * config.every_s, _MAX_BACK_OFF_S)
        self._outcomes = _Outcomes(self._targets, self._namespaces, self._owners, inputs.is_there)
        self._turns = _NamespaceTurns()
        self._round_at: float | None = None
        """Time of the last round, None while this process does not lead."""
        self._fault = ""
        self.counts = _Counts()
        self.advice: list[Advice] = []
        """Advice of the last round, and earlier advice for targets outside the queue while these back off."""
        self._unqueued: dict[str, Advice] = {}
        """Advice for targets outside the queue, by name."""

    def state(self) -> PolicyState:
        """The state for `GET /defrag`."""
        fault = self._inputs.standby() or self._fault
        return PolicyState(self._config.mode, self._is_open(), self.advice, self.counts.begun, fault)

    def to_json(self) -> dict[str, Any]:
        """The page's JSON: the first advice that makes room for pods, {} for none."""
        first = next((advice for advice in self.advice if advice.purpose == ROOM), None)
        keys = ("target", "moves", "cost_gpu_s", "why_not")
        return {} if first is None else {key: getattr(first, key) for key in keys}

    async def run(self) -> None:
        """Call `look` periodically."""
        await repeat(self.look, min(_TICK_S, self._config.every_s), "defrag policy")

    async def look(self) -> None:
        """Follow the plan under way, and run a round if one is due."""
        inputs = self._inputs
        if inputs.standby():
            self.advice, self._unqueued, self._outcomes.begun, self._round_at = [], {}, None, None
            return
        now = inputs.clock()
        if self._round_at is None:  # the previous leader's plan is finished first
            self._round_at = now
        if self._config.heal:
            inputs.sick.look(inputs.cluster(), now)
        if self._mover is not None:
            self._follow(self._mover, now)
        if now - self._round_at < self._config.every_s or self._is_busy():
            return
        self._round_at = now
        self._targets.expire(now)
        self._namespaces.expire(now)
        self._owners.expire(now)
        await self._round(now)

    def _is_busy(self) -> bool:
        return self._mover is not None and self._mover.state().phase in (Phase.MOVING, Phase.PLACING)

    def _is_open(self) -> bool:
        return are_open(self._config.windows, self._inputs.wall_clock())

    def _follow(self, mover: Mover, now: float) -> None:
        state = mover.state()
        begun = self._outcomes.begun
        goes_on = begun is not None and begun.id == state.id and state.phase == Phase.MOVING and not state.why
        if goes_on and not self._is_open():
            mover.give_up("the window for moves has closed (setting defrag.windows)")
        self._outcomes.follow(state, now)

    async def _round(self, now: float) -> None:
        """Plan for some targets, report the results, and begin the first plan that may begin."""
        self.counts.rounds += 1
        self._fault = ""
        waits = await self._inputs.waits()
        this_round = _Round(self._moves_left(), [wait for wait in waits if self._is_due(wait, now)])
        options = await self._options(this_round, now, nothing_waits=not waits) if this_round.moves > 0 else []
        names = {wait.name for wait in waits if self._targets.is_active(wait.name, now)}
        self._unqueued = {name: advice for name, advice in self._unqueued.items() if name in names}
        self.advice = []
        begun = False
        for option in options:
            only_advised = self._why_not(option)
            why_not = only_advised or ("another plan is carried out first" if begun else await self._begin(option, now))
            begun = begun or not why_not
            advice = option.advice(self._inputs.wall_clock(), why_not)
            if option.wait is None or option.wait.queued:
                self.advice.append(advice)
            else:
                self._unqueued[option.wait.name] = advice
            if only_advised or (why_not and not begun):
                self._teller.tell(option, now)
        self.advice += sorted(self._unqueued.values(), key=lambda advice: advice.cost_gpu_s - advice.gain_gpu_s)

    async def _options(self, this_round: _Round, now: float, *, nothing_waits: bool) -> list[Option]:
        """Worthwhile plans, in the order in which they would begin."""
        options = [await self._healing(this_round, now), *await self._room(this_round, now)]
        if nothing_waits and self._config.free_nodes:
            options.append(await self._nodes(this_round, now))
        return [option for option in options if option is not None]

    async def _healing(self, this_round: _Round, now: float) -> Option | None:
        unhealthy = self._inputs.sick.steady(now)
        if not unhealthy or self._targets.is_active(HEAL, now):
            return None
        answer = await self._ask({"heal": True, "maxMoves": this_round.moves}, ("", HEAL), now, unhealthy)
        return Option(HEAL, answer) if answer is not None and answer.id else None

    async def _room(self, this_round: _Round, now: float) -> list[Option]:
        """The best plan for the round's queued targets, and all plans for those outside the queue. The latter are only
        reported, and back off, so that others have their turns."""
        queued, unqueued, known = list[Option](), list[Option](), set[str]()
        for wait in self._turns.next(this_round.waits, known, now):
            question = {"for": wait.name, "maxMoves": this_round.moves}
            answer = await self._ask(question, (wait.namespace, wait.name), now)
            if answer is None:
                continue
            known |= {pod.uid for pod in answer.target}
            waited_s = self._inputs.wall_clock() - wait.since
            option = Option(ROOM, answer, gain_gpu_s(answer.gpus, max(waited_s, 0.0)), wait)
            pays = bool(answer.id) and option.pays(self._config.least_gain)
            if pays:
                (queued if wait.queued else unqueued).append(option)
            if not (pays and wait.queued):
                self._targets.fail(wait.namespace, wait.name, now)
        return [*_best_first(queued)[:1], *_best_first(unqueued)]

    async def _nodes(self, this_round: _Round, now: float) -> Option | None:
        """A plan for `free_nodes` empty nodes, or half of them, and so on."""
        number = self._config.free_nodes
        while number and not self._targets.is_active(FREE_NODES, now):
            answer = await self._ask({"freeNodes": number, "maxMoves": this_round.moves}, ("", FREE_NODES), now)
            if answer is None:
                return None
            if answer.fits:
                option = Option(FREE_NODES, answer, gain_gpu_s(answer.gpus, _NODE_FREE_S))
                return option if answer.id and option.pays(self._config.least_gain) else None
            number //= 2
        self._targets.fail("", FREE_NODES, now)
        return None

    async def _ask(
        self,
        question: Mapping[str, Any],
        target: tuple[str, str],
        now: float,
        unhealthy: Mapping[str, tuple[int, ...]] | None = None,
    ) -> RoomAnswer | None:
        """The answer; None if it fails, and `target` (namespace and name) then backs off."""
        body = msgspec.json.encode(question)
        try:
            owners = self._owners.active(now)
            rest_s = self._config.rest_s
            return _answer.decode(await self._planner.answer(body, rest_s=rest_s, sick=unhealthy, backing_off=owners))
        except QuestionError as error:  # it has a node by now, has disappeared, or is not supported
            logger.debug("defrag policy: %s: %s", target[1], error)
        except (BusyError, ClusterError, msgspec.DecodeError) as error:
            self._fault = f"{target[1]}: {error}"
            logger.warning("defrag policy: no plan for %s", self._fault)
        self._targets.fail(*target, now)
        return None

    def _is_due(self, wait: Wait, now: float) -> bool:
        if self._inputs.wall_clock() - wait.since < self._config.after_s:
            return False
        return not (self._targets.is_active(wait.name, now) or self._namespaces.is_active(wait.namespace, now))

    def _moves_left(self) -> int:
        """How many more moves this hour allows."""
        evicted = self._mover.state().evicted if self._mover is not None else 0
        return max(self._config.moves_an_hour - evicted, 0)

    def _why_not(self, option: Option) -> str:
        """Why a plan is only reported, "" if it may begin."""
        if not self._config.acts:
            return "Kerf only advises (setting defrag.mode)"
        if not self._is_open():
            return "no window for moves is open (setting defrag.windows)"
        if option.wait is not None and not option.wait.queued:
            return "it does not wait in the queue: no place can be kept for it"
        return ""

    async def _begin(self, option: Option, now: float) -> str:
        """Begin a plan; returns why that fails, "" if it does not."""
        plan, wait = self._planner.kept(option.answer.id), option.wait
        name = option.purpose if wait is None else wait.name
        if plan is None:
            return "the plan has expired"
        mover = cast(Mover, self._mover)  # settings with mode `act` have a record and a queue, so there is one
        try:
            begun = await mover.begin(plan, target_of(plan))
        except RoomError as error:
            self.counts.refused += 1
            logger.warning("defrag policy: %s: %s", target_of(plan), error)
            at_fault = [move for move in plan.moves if move.uid == error.pod_uid]
            self._outcomes.back_off_owners(at_fault, now)
            if not at_fault:
                self._targets.fail("" if wait is None else wait.namespace, name, now)
            return str(error)
        self.counts.begun += 1
        self._outcomes.begun = _Begun(begun, name, wait, plan.moves)
        logger.info("defrag policy: plan %s, %s: %d moves", begun, target_of(plan), len(plan.moves))
        return ""


def build_policy(kernel: Kernel, wanted: DefragSettings, room: RoomAnswers, mover: Mover | None) -> MovePolicy | None:
    """The policy, None with mode `off`."""
    base, queue, unbound = kernel.base, kernel.queue, kernel.unbound
    if wanted.mode is Initiative.OFF:
        return None
    backlog = queue.backlog if queue is not None else None

    def is_there(uid: str) -> bool:
        waits = backlog is not None and uid in backlog.entries
        return waits or unbound.get(uid) is not None or base.ledger.allocation(uid) is not None

    def standby() -> str:
        return base.fence.fault() or base.mirror.fault() or (queue.fault() if queue is not None else "")

    def cluster() -> Cluster:
        return base.ledger.snapshot(base.clock())

    inputs = PolicyInputs(
        cluster,
        lambda: _waits_of(backlog, unbound),
        is_there,
        standby,
        base.clock,
        time.time,
        SickGpus(room.sick, wanted.sick_s),
    )
    return MovePolicy(room, mover, Teller(base.events), inputs, _config_of(wanted))


def _config_of(wanted: DefragSettings) -> DefragConfig:
    return DefragConfig(
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
