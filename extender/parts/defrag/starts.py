"""Beginning a step: what is left of the plan is proved once more, the step is written down, its pods are evicted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.kube.client import ClusterError
from extender.kube.commit import FencedError
from extender.parts.defrag import proof
from extender.parts.defrag.checks import RoomError, TargetError, check, siblings, siblings_running, targets_of
from extender.parts.defrag.evictions import BudgetError, EvictionError, identity_of
from extender.parts.defrag.plan import PlannedMove, RoomPlan
from extender.parts.defrag.proof import Arrival
from extender.parts.defrag.record import Culprit, Stage
from extender.parts.defrag.steps import Moving, Run
from extender.parts.defrag.tools import Counts, Tools

_BUDGET_PAUSE_S: Final = 2.0


@dataclass(eq=False)
class Starter:
    """Begins steps."""

    tools: Tools
    counts: Counts
    keep: Callable[[Run], bool]
    """Keeps the nodes that have to be kept now; whether the plan is carried out still."""

    async def prove(self, plan: RoomPlan) -> bool:
        """Whether a plan is needed: the target has no room yet. Raises RoomError where it does not hold."""
        check(plan, self.tools.facts())
        moves, of_target = self._arrivals(plan)
        if of_target and not await proof.why_not(self.tools.around, of_target):
            return False
        if fault := await proof.why_not(self.tools.around, [*moves, *of_target]):
            raise RoomError(fault)
        check(plan, self.tools.facts())  # as it is now: other things went on meanwhile
        return True

    async def begin(self, run: Run, step: int) -> bool:
        """Begin a step; whether there was need for it."""
        record = run.record
        limit_s = self.tools.follower.limits.plan_s(len({move.step for move in record.plan.moves}))
        if self.tools.clock() - run.begun > limit_s:
            run.give_up(f"it takes too long: more than {limit_s:g} s, and it is not at its last step", Culprit.MOVED)
            return True
        rest = msgspec.structs.replace(record.plan, moves=[move for move in record.plan.moves if move.step >= step])
        members = [(move, progress) for move, progress in run.moving() if move.step == step]
        try:
            if not await self.prove(rest):
                return False  # others have left meanwhile
            for move, progress in members:
                progress.known = siblings(move, self.tools.facts().waiting)
                run.siblings[move.uid] = siblings_running(move, self.tools.facts().running)
        except RoomError as error:
            self._refused(run, error)
        if record.why:
            return True
        record.step = step
        for _, progress in members:
            run.enter(progress, Stage.EVICTING)
        self.keep(run)
        try:
            self.tools.fence.check(run.epoch)
            await self.tools.records.write(record)
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            self._leave(run, members, f"the step could not be written down: {error}")
        else:
            await self._evict(run, members)
        return True

    def asked(self, plan: RoomPlan) -> dict[str, object]:
        """What the target's pods that wait ask for, by UID."""
        entries = [entry for pod in plan.target if (entry := self.tools.facts().waiting.get(pod.uid)) is not None]
        return {
            entry.uid: (entry.pod.spec, planned.gpus, planned.policy, planned.priority, planned.gang)
            for entry in entries
            if entry.stage.waits and (planned := entry.planned) is not None
        }

    def _refused(self, run: Run, error: RoomError) -> None:
        """What is left of a plan does not hold any more: by the doing of the target, of a pod that would move, or of
        nobody."""
        asked = self.asked(run.record.plan)
        changed = any(asked.get(uid, before) != before for uid, before in run.asked.items())
        if changed or isinstance(error, TargetError):
            run.give_up(str(error), Culprit.TARGET)
            return
        run.give_up(str(error))
        for progress in run.record.progress:
            if progress.uid == error.of:
                run.enter(progress, Stage.LEFT, str(error))

    async def _evict(self, run: Run, members: list[Moving]) -> None:
        for position, (move, progress) in enumerate(members):
            try:
                await self._evict_one(run, move)
            except (EvictionError, FencedError) as error:
                self._leave(run, members[position:], str(error))
                return
            except (ClusterError, msgspec.DecodeError) as error:  # it may have gone, or go yet
                run.give_up(f"what became of pod {move.pod} is not known: {error}")
                self._leave(run, members[position + 1 :], run.record.why)
                return
            run.enter(progress, Stage.EVICTING)

    async def _evict_one(self, run: Run, move: PlannedMove) -> None:
        """Evict a pod, again and again for a while where a budget keeps it. Raises as `Evictor.evict`."""
        tools, began = self.tools, self.tools.clock()
        while True:
            if run.record.why or not self.keep(run):
                raise EvictionError(run.record.why or "another leader has taken over meanwhile")
            try:
                await tools.evictor.evict(move, run.epoch)
                break
            except BudgetError:
                if tools.clock() - began >= tools.follower.limits.budget_s:
                    raise
            await tools.pause(_BUDGET_PAUSE_S)
        self.counts.evicted += 1
        run.record.evicted.append(tools.wall_clock())
        pod, words = identity_of(move), run.record.target or "pods that wait"
        message = f"Moved to node {move.to_node} to make room for {words}: plan {run.record.id}"
        tools.events.emit(pod.namespace, pod.name, pod.uid, reason="MovedToMakeRoom", message=message)

    @staticmethod
    def _leave(run: Run, members: list[Moving], why: str) -> None:
        """These are not evicted; nor is anybody else."""
        for _, progress in members:
            run.enter(progress, Stage.LEFT, why)
        run.give_up(why)

    def _arrivals(self, plan: RoomPlan) -> tuple[list[Arrival], list[Arrival]]:
        """The pods of a plan that was checked that move, and the target's, which come last."""
        facts = self.tools.facts()
        moves = [Arrival(facts.running[move.uid], move.to_node, move.step, move.from_node) for move in plan.moves]
        last = plan.moves[-1].step
        return moves, [Arrival(entry.pod, node, last) for entry, node in targets_of(plan, facts.waiting)]
