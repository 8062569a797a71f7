"""Following the pods of a step: each leaves, its replacement comes, is let go for the place kept for it, and runs.

Members of a gang are let go together, as long as nothing has gone wrong; then each for itself, so that none of them
waits for what does not come.
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

_SLOWER_THAN_MOST: Final = 4
"""A step may take so many times as long as the steps of a plan may on average."""
_UNSEEN_S: Final = 2.0
"""How long two watches may take to tell that a pod has its node, before somebody asks."""
Moving = tuple[PlannedMove, Progress]


@dataclass(frozen=True, slots=True)
class Limits:
    """How long what is under way is waited for, in seconds."""

    replace_s: float = 600.0
    """Until an evicted pod has left, and again until its replacement waits in the queue."""
    start_s: float = 600.0
    """Until a replacement runs."""
    target_s: float = 300.0
    """Until the target's pods have their nodes."""
    budget_s: float = 60.0
    """For how long an eviction is tried again that a budget refuses."""

    def plan_s(self, num_steps: int) -> float:
        """How long a plan may have been under way as its last step begins: as long as a step may take at most, and a
        quarter of that for each other one. Others wait for their turn, whoever moves as slowly as they may."""
        step_s = self.budget_s + 2 * self.replace_s + self.start_s
        return step_s * (1 + (num_steps - 1) / _SLOWER_THAN_MOST)


@dataclass(eq=False)
class Run:
    """A plan that is being carried out."""

    record: Record
    clock: Callable[[], float]
    epoch: str = ""
    """The term in which it goes on, "" where it is of an earlier one."""
    siblings: dict[str, frozenset[str]] = field(default_factory=dict)
    """By the UID of a pod that moves: UIDs of the pods with a node that its controller had as its step began."""
    asks: dict[str, object] = field(default_factory=dict)
    """What those asked for that move, by UID."""
    unheld: set[str] = field(default_factory=set)
    """Pods whose next places become free only by the plan, by UID."""
    seen: dict[str, PodIdentity] = field(default_factory=dict)
    """Replacements and target's pods, by UID."""
    asked: dict[str, object] = field(default_factory=dict)
    """What the target's pods asked for as it began, by UID."""
    _since: dict[str, float] = field(default_factory=dict)
    begun: float = field(init=False)
    """Monotonic time."""
    told: Callable[[str], None] = lambda why: None
    """Hears why it goes no further, once."""

    def __post_init__(self) -> None:
        self.begun = self.clock()

    @property
    def planner(self) -> str:
        """Who has nominated the pods that are let go by it, as is written on them."""
        return f"defrag {self.record.id}"

    def moving(self) -> list[Moving]:
        """All moves."""
        return list(zip(self.record.plan.moves, self.record.progress, strict=True))

    def under_way(self) -> list[Moving]:
        """Those for which something is kept."""
        return [(move, progress) for move, progress in self.moving() if progress.stage.under_way]

    def enter(self, progress: Progress, stage: Stage, why: str = "") -> None:
        """A move is at another stage."""
        progress.stage, progress.why = stage, why
        self._since[progress.uid] = self.clock()

    def age_s(self, uid: str) -> float:
        """For how long something has been as it is; first asked, 0."""
        return self.clock() - self._since.setdefault(uid, self.clock())

    def begin_anew(self, uid: str) -> None:
        """Count the time of something from now on."""
        self._since[uid] = self.clock()

    def lose(self, move: PlannedMove, progress: Progress, why: str) -> None:
        """A move has come to something else than was planned: nothing is kept for it, and no other begins."""
        self.enter(progress, Stage.LOST, why)
        self.give_up(f"pod {move.pod} {why}")

    def give_up(self, why: str, culprit: Culprit = Culprit.NOBODY) -> None:
        """Go no further than what is under way."""
        if not self.record.why:
            self.record.why, self.record.culprit = why, culprit
            self.told(why)


@dataclass(eq=False)
class Follower:
    """Follows what is under way; evicts nobody."""

    transport: Transport
    queue: QueueController
    running: Mapping[str, Pod]
    """Pods with a node, by UID."""
    places: Places
    limits: Limits

    async def follow(self, run: Run) -> None:
        """Look at all that is under way, and let go what can be."""
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
        """Find out which waiting pods are replacements: made by the same controller, and not there before.

        What a Kerf before this one has let go says by whose plan, and for which node.
        """
        taken = {progress.replacement for progress in run.record.progress}
        entries = self.queue.backlog.entries
        for move, progress in run.under_way():
            if progress.replacement:
                continue
            found = next((pod for pod in self._let_go_before(run, move) if pod.metadata.uid not in taken), None)
            if found is None:
                skipped = taken.union(progress.known)
                waiting = [entry.pod for entry in entries.values() if entry.stage.waits and entry.uid not in skipped]
                found = next((pod for pod in waiting if is_of(pod, move)), None)
            if found is None and (before := run.siblings.get(move.uid)) is not None:  # it came without the gate
                skipped = taken.union(progress.known, before)
                others = (pod for uid, pod in self.running.items() if uid not in skipped)
                found = next((pod for pod in others if is_of(pod, move)), None)
            if found is not None:
                progress.replacement = found.metadata.uid
                run.seen[progress.replacement] = PodIdentity.of(found)
                taken.add(progress.replacement)

    def node_of(self, run: Run, pod: Pod) -> str:
        """The node kept for a pod that was let go, "" for none: the queue may not know of it (any more).

        A replacement that came without the gate, as where no webhook answers, has the place of what it replaces at
        once: nobody lets it go for that.
        """
        self.match(run)
        moves = (
            move
            for move, progress in run.under_way()
            if progress.replacement == pod.metadata.uid or (not progress.replacement and _was_let_go(run, move, pod))
        )
        return next((move.to_node for move in moves), None) or self._take_in(run, pod)

    def _take_in(self, run: Run, pod: Pod) -> str:
        """The node kept for a pod that came past the gate and is the replacement of one that moves, "" for none."""
        uid = pod.metadata.uid
        if is_gated(pod) or uid in self.queue.backlog.entries or uid in self.running:
            return ""
        for move, progress in run.under_way():
            if progress.replacement or uid in progress.known or not is_of(pod, move):
                continue
            same = run.asks.get(move.uid) in (None, self.places.asked(pod))
            if same and self.places.hand_to(pod, move.to_node, move.uid):
                progress.replacement = uid
                run.seen[uid] = PodIdentity.of(pod)
                run.enter(progress, Stage.STARTING)
                return move.to_node
        return ""

    def _let_go_before(self, run: Run, move: PlannedMove) -> list[Pod]:
        """Pods that a leader before this one has let go for the node of a move."""
        waiting = [entry.pod for entry in self.queue.backlog.entries.values()]
        return [pod for pod in (*waiting, *self.running.values()) if _was_let_go(run, move, pod)]

    def kept_aside(self, run: Run) -> set[str]:
        """UIDs of the waiting pods that no round is to place."""
        self.match(run)
        if run.record.phase is Phase.PLACING:
            return {pod.uid for pod in run.record.plan.target}
        return {progress.replacement for _, progress in run.under_way() if not progress.why}

    def nodes_under_way(self, run: Run) -> set[str]:
        """Nodes of pods under way that don't have them yet."""
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
            progress.replacement = ""  # it is gone, and its controller makes another one
        elif uid and (uid in self.running or not entries[uid].stage.waits):
            self.places.give_back([move.uid])  # it came past the gate, or went where it found room: it has its own
            run.enter(progress, Stage.STARTING, progress.why)
        if progress.stage is Stage.COMING and run.age_s(move.uid) > self.limits.replace_s:
            waited = f"after {self.limits.replace_s:g} s"
            came = "has a replacement that found no room" if progress.replacement else "has no replacement in the queue"
            run.lose(move, progress, f"{came} {waited}{progress.why and ': '}{progress.why}")

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
                await self._ask(run, move, progress)
        elif entry.stage is PodStage.OPENED and entry.node == move.to_node:
            self.places.hold_for(entry.pod, entry.node)

    async def _ask(self, run: Run, move: PlannedMove, progress: Progress) -> None:
        """What became of a replacement that nobody tells of."""
        known, found = run.seen.get(progress.replacement), None
        try:
            found = None if known is None else await read(self.transport, known)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("making room: the replacement of pod %s can't be read: %s", move.pod, error)
            return
        if found is not None and found.status.phase == "Succeeded":
            run.enter(progress, Stage.DONE)
        elif found is None or found.finished:
            progress.known.append(progress.replacement)
            progress.replacement = ""
            run.enter(progress, Stage.COMING, "its replacement went, too")
            run.give_up(f"the replacement of pod {move.pod} is gone")
        elif not found.spec.node_name:
            self.places.hold_for(found, move.to_node)
        run.begin_anew(progress.replacement)

    def _hand_over(self, run: Run) -> None:
        """Let replacements go for their places: those of a step together, unless something has gone wrong."""
        waiting: list[tuple[PlannedMove, Progress, Entry]] = []
        for move, progress in run.under_way():
            entry = self.queue.backlog.entries.get(progress.replacement)
            gone = progress.stage is not Stage.EVICTING
            if entry is not None and gone and self._can_go(entry):
                waiting.append((move, progress, entry))
            elif progress.stage in (Stage.EVICTING, Stage.COMING) and not run.record.why:
                return  # the others of its step wait for it
        together = not run.record.why and all(move.gang for move, _, _ in waiting)
        for unit in [waiting] if together and waiting else [[one] for one in waiting]:
            self._let_go(run, unit)

    def _let_go(self, run: Run, unit: Sequence[tuple[PlannedMove, Progress, Entry]]) -> None:
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


def _was_let_go(run: Run, move: PlannedMove, pod: Pod) -> bool:
    """Whether a pod of a move's controller says that it was let go for its next node, by this plan."""
    by_it = (pod.metadata.annotations or {}).get(PLANNED_BY) == run.planner
    return by_it and planned_node(pod) == move.to_node and not is_gated(pod) and is_of(pod, move)


def _runs(pod: Pod) -> bool:
    """Whether a pod is ready, or runs and nobody tells whether it is."""
    told = any(condition.type == "Ready" for condition in pod.status.conditions or ())
    return pod.ready or (pod.status.phase == "Running" and not told)
