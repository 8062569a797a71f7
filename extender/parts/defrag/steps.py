"""Follows the pods of a step: each leaves, its replacement appears, is released to its kept place, and runs.

Members of a gang are released together while all goes well; otherwise one by one, so that none waits for one that does
not come.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.kube.client import ClusterError, Transport
from extender.kube.objects import Pod
from extender.parts.defrag.checks import is_of
from extender.parts.defrag.places import Places
from extender.parts.defrag.plan import PlannedMove
from extender.parts.defrag.record import Culprit, Phase, Progress, Record, Stage
from extender.queueing.controller import QueueController
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.entries import Stage as PodStage
from extender.queueing.pods.nominations import PLANNED_BY, planned_node
from extender.queueing.pods.objects import is_gated
from extender.scheduling.binding import read
from extender.scheduling.placer import PodIdentity

logger = logging.getLogger(__name__)

_SLOWEST_FACTOR: Final = 4
"""Longest duration of a step, as a multiple of the allowed average over a plan's steps."""
_UNSEEN_S: Final = 2.0
"""Seconds for which a bound pod may be missing from both watches, before it is read from the API server."""
Moving = tuple[PlannedMove, Progress]


@dataclass(frozen=True, slots=True)
class Limits:
    """Time limits, in seconds."""

    replace_s: float = 600.0
    """For an evicted pod to leave, and again for its replacement to wait in the queue."""
    start_s: float = 600.0
    """For a replacement to run."""
    target_s: float = 300.0
    """For the target's pods to get their nodes."""
    budget_s: float = 60.0
    """For retrying an eviction that a budget refuses."""

    def plan_s(self, num_steps: int) -> float:
        """Longest time from a plan's begin to that of its last step: the longest duration of one step, plus a quarter
        of it for each other one. It bounds how long other plans wait, however slow the moved pods are."""
        step_s = self.budget_s + 2 * self.replace_s + self.start_s
        return step_s * (1 + (num_steps - 1) / _SLOWEST_FACTOR)


@dataclass(eq=False)
class Run:
    """A plan under way."""

    record: Record
    clock: Callable[[], float]
    epoch: str = ""
    """The leader's term in which it runs, "" after a takeover."""
    siblings: dict[str, frozenset[str]] = field(default_factory=dict)
    """By UID of a moved pod: UIDs of its controller's pods that had nodes when its step began."""
    moved_requests: dict[str, object] = field(default_factory=dict)
    """Requests of the moved pods, by UID."""
    unheld: set[str] = field(default_factory=set)
    """UIDs of the moved pods whose new places only the plan frees."""
    seen: dict[str, PodIdentity] = field(default_factory=dict)
    """Known replacements, by UID."""
    target_requests: dict[str, object] = field(default_factory=dict)
    """Requests of the target's pods when the plan began, by UID."""
    _since: dict[str, float] = field(default_factory=dict)
    begun: float = field(init=False)
    """Monotonic time."""
    on_stop: Callable[[str], None] = lambda why: None
    """Called once with the reason when the plan is given up."""

    def __post_init__(self) -> None:
        self.begun = self.clock()

    @property
    def planner(self) -> str:
        """Value of the annotation PLANNED_BY on pods that the plan releases."""
        return f"defrag {self.record.id}"

    def moving(self) -> list[Moving]:
        """All moves with their progress."""
        return list(zip(self.record.plan.moves, self.record.progress, strict=True))

    def under_way(self) -> list[Moving]:
        """The moves for which a place is kept."""
        return [(move, progress) for move, progress in self.moving() if progress.stage.under_way]

    def enter(self, progress: Progress, stage: Stage, why: str = "") -> None:
        """Set a move's stage."""
        progress.stage, progress.why = stage, why
        self._since[progress.uid] = self.clock()

    def age_s(self, uid: str) -> float:
        """Seconds since a key's time was set; the first call sets it, and returns 0."""
        return self.clock() - self._since.setdefault(uid, self.clock())

    def reset_age(self, uid: str) -> None:
        """Reset a key's time."""
        self._since[uid] = self.clock()

    def lose(self, move: PlannedMove, progress: Progress, why: str) -> None:
        """Mark a move as lost: release its place, and give up the plan."""
        self.enter(progress, Stage.LOST, why)
        self.give_up(f"pod {move.pod} {why}")

    def give_up(self, why: str, culprit: Culprit = Culprit.NOBODY) -> None:
        """Begin no further steps; moves under way are finished."""
        if not self.record.why:
            self.record.why, self.record.culprit = why, culprit
            self.on_stop(why)


@dataclass(eq=False)
class Follower:
    """Follows the moves under way; evicts no pods."""

    transport: Transport
    queue: QueueController
    running: Mapping[str, Pod]
    """Pods with a node, by UID."""
    places: Places
    limits: Limits

    async def follow(self, run: Run) -> None:
        """Update all moves under way, and release the replacements that can be."""
        self.match(run)
        for move, progress in run.under_way():
            if progress.stage is Stage.EVICTING:
                self._leaving(run, move, progress)
            if progress.stage is Stage.COMING:
                self._coming(run, move, progress)
            if progress.stage is Stage.STARTING:
                await self._starting(run, move, progress)
        self.match(run)
        self._hand_over(run)

    def match(self, run: Run) -> None:
        """Match pods to moves as replacements: of the same controller, and newer than the eviction.

        Pods that a previous leader released carry the plan and node in their annotations.
        """
        taken = {progress.replacement for progress in run.record.progress}
        entries = self.queue.backlog.entries
        for move, progress in run.under_way():
            if progress.replacement:
                continue
            match = next((pod for pod in self._released_before(run, move) if pod.metadata.uid not in taken), None)
            if match is None:
                skipped = taken.union(progress.known)
                waiting = [entry.pod for entry in entries.values() if entry.stage.waits and entry.uid not in skipped]
                match = next((pod for pod in waiting if is_of(pod, move)), None)
            if match is None and (before := run.siblings.get(move.uid)) is not None:  # it was created ungated
                skipped = taken.union(progress.known, before)
                others = (pod for uid, pod in self.running.items() if uid not in skipped)
                match = next((pod for pod in others if is_of(pod, move)), None)
            if match is not None:
                progress.replacement = match.metadata.uid
                run.seen[progress.replacement] = PodIdentity.of(match)
                taken.add(progress.replacement)

    def node_of(self, run: Run, pod: Pod) -> str:
        """The node kept for a released pod, "" for none; the queue may not know the pod.

        A replacement that was created ungated, as when no webhook answers, takes its place at once.
        """
        self.match(run)
        moves = (
            move
            for move, progress in run.under_way()
            if progress.replacement == pod.metadata.uid or (not progress.replacement and _was_released(run, move, pod))
        )
        return next((move.to_node for move in moves), None) or self._take_in(run, pod)

    def _take_in(self, run: Run, pod: Pod) -> str:
        """The node kept for an ungated pod that is the replacement of a moved one, "" for none."""
        uid = pod.metadata.uid
        if is_gated(pod) or uid in self.queue.backlog.entries or uid in self.running:
            return ""
        for move, progress in run.under_way():
            if progress.replacement or uid in progress.known or not is_of(pod, move):
                continue
            same = run.moved_requests.get(move.uid) in (None, self.places.request_key(pod))
            if same and self.places.hand_to(pod, move.to_node, move.uid):
                progress.replacement = uid
                run.seen[uid] = PodIdentity.of(pod)
                run.enter(progress, Stage.STARTING)
                return move.to_node
        return ""

    def _released_before(self, run: Run, move: PlannedMove) -> list[Pod]:
        """Pods that a previous leader released to a move's node."""
        waiting = [entry.pod for entry in self.queue.backlog.entries.values()]
        return [pod for pod in (*waiting, *self.running.values()) if _was_released(run, move, pod)]

    def kept_aside(self, run: Run) -> set[str]:
        """UIDs of the waiting pods that rounds of the queue must not place."""
        self.match(run)
        if run.record.phase is Phase.PLACING:
            return {pod.uid for pod in run.record.plan.target}
        return {progress.replacement for _, progress in run.under_way() if not progress.why}

    def nodes_under_way(self, run: Run) -> set[str]:
        """New nodes of moves under way whose replacements are not bound yet."""
        return {move.to_node for move, progress in run.under_way() if progress.replacement not in self.running}

    def _leaving(self, run: Run, move: PlannedMove, progress: Progress) -> None:
        if move.uid not in self.running:
            run.enter(progress, Stage.COMING)
        elif run.age_s(move.uid) > self.limits.replace_s:
            run.lose(move, progress, f"is still on node {move.from_node} after {self.limits.replace_s:g} s")

    def _coming(self, run: Run, move: PlannedMove, progress: Progress) -> None:
        uid, entries = progress.replacement, self.queue.backlog.entries
        if uid and uid not in entries and uid not in self.running:
            progress.known.append(uid)
            progress.replacement = ""  # it disappeared, and its controller creates another one
        elif uid and (uid in self.running or not entries[uid].stage.waits):
            self.places.give_back([move.uid])  # it was ungated or released elsewhere, and has its own reservation
            run.enter(progress, Stage.STARTING, progress.why)
        if progress.stage is Stage.COMING and run.age_s(move.uid) > self.limits.replace_s:
            what = "has a replacement that found no room" if progress.replacement else "has no replacement in the queue"
            run.lose(move, progress, f"{what} after {self.limits.replace_s:g} s{progress.why and ': '}{progress.why}")

    async def _starting(self, run: Run, move: PlannedMove, progress: Progress) -> None:
        uid = progress.replacement
        entry, pod = self.queue.backlog.entries.get(uid), self.running.get(uid)
        late = run.age_s(move.uid) > self.limits.start_s
        if pod is not None:
            if pod.spec.node_name != move.to_node:
                run.lose(move, progress, f"has its replacement on node {pod.spec.node_name} instead of {move.to_node}")
            elif _runs(pod):
                run.enter(progress, Stage.DONE)
            elif late:
                run.lose(move, progress, f"has a replacement that is not ready after {self.limits.start_s:g} s")
        elif late:
            run.lose(move, progress, f"has a replacement without a node after {self.limits.start_s:g} s")
        elif entry is None:
            if run.age_s(uid) > _UNSEEN_S:
                await self._look_up(run, move, progress)
        elif entry.stage is PodStage.OPENED and entry.node == move.to_node:
            self.places.hold_for(entry.pod, entry.node)

    async def _look_up(self, run: Run, move: PlannedMove, progress: Progress) -> None:
        """Read a replacement that no watch reports from the API server."""
        identity, pod = run.seen.get(progress.replacement), None
        try:
            pod = None if identity is None else await read(self.transport, identity)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("making room: the replacement of pod %s can't be read: %s", move.pod, error)
            return
        if pod is not None and pod.status.phase == "Succeeded":
            run.enter(progress, Stage.DONE)
        elif pod is None or pod.finished:
            progress.known.append(progress.replacement)
            progress.replacement = ""
            run.enter(progress, Stage.COMING, "its replacement disappeared")
            run.give_up(f"the replacement of pod {move.pod} is gone")
        elif not pod.spec.node_name:
            self.places.hold_for(pod, move.to_node)
        run.reset_age(progress.replacement)

    def _hand_over(self, run: Run) -> None:
        """Release replacements to their places: those of a gang's step together, unless the plan was given up."""
        waiting: list[tuple[PlannedMove, Progress, Entry]] = []
        for move, progress in run.under_way():
            entry = self.queue.backlog.entries.get(progress.replacement)
            gone = progress.stage is not Stage.EVICTING
            if entry is not None and gone and self._can_go(entry):
                waiting.append((move, progress, entry))
            elif progress.stage in (Stage.EVICTING, Stage.COMING) and not run.record.why:
                return  # the rest of its step waits for it
        together = not run.record.why and all(move.gang for move, _, _ in waiting)
        for unit in [waiting] if together and waiting else [[item] for item in waiting]:
            self._release(run, unit)

    def _release(self, run: Run, unit: Sequence[tuple[PlannedMove, Progress, Entry]]) -> None:
        members = [(entry, move.to_node) for move, _, entry in unit]
        if self.places.hand_over(members, [move.uid for move, _, _ in unit], run.planner):
            for _, progress, _ in unit:
                run.enter(progress, Stage.STARTING)
            return
        for move, progress, entry in unit:
            progress.why = f"no room for it on node {move.to_node}"
            run.give_up(f"pod {entry.pod.key}, the replacement of {move.pod}, has no room on node {move.to_node}")

    def _can_go(self, entry: Entry) -> bool:
        return entry.stage.waits and entry.planned is not None and not self.queue.dispatcher.found_a_node(entry)


def _was_released(run: Run, move: PlannedMove, pod: Pod) -> bool:
    """Whether a pod of a move's controller was released to the move's node by this plan, as its annotations say."""
    by_plan = (pod.metadata.annotations or {}).get(PLANNED_BY) == run.planner
    return by_plan and planned_node(pod) == move.to_node and not is_gated(pod) and is_of(pod, move)


def _runs(pod: Pod) -> bool:
    """Whether a pod is ready, or runs without a Ready condition."""
    reported = any(condition.type == "Ready" for condition in pod.status.conditions or ())
    return pod.ready or (pod.status.phase == "Running" and not reported)
