"""Begins a step: verifies the rest of the plan, records the step, and evicts its pods."""

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
    """Closes the nodes that must be kept now; returns whether the plan is still the current one."""

    async def prove(self, plan: RoomPlan) -> bool:
        """Whether a plan is still needed, since the target has no room yet. Raises RoomError if the plan is invalid."""
        check(plan, self.tools.check_inputs())
        moves, of_target = self._arrivals(plan)
        if of_target and not await proof.why_not(self.tools.proof_inputs, of_target):
            return False
        if fault := await proof.why_not(self.tools.proof_inputs, [*moves, *of_target]):
            raise RoomError(fault)
        check(plan, self.tools.check_inputs())  # again, since the cluster may have changed during the awaits
        return True

    async def begin(self, run: Run, step: int) -> bool:
        """Begin a step, or give up; returns False if the target has room without it."""
        record = run.record
        limit_s = self.tools.follower.limits.plan_s(len({move.step for move in record.plan.moves}))
        if self.tools.clock() - run.begun > limit_s:
            run.give_up(f"it takes too long: more than {limit_s:g} s before its last step", Culprit.MOVED)
            return True
        rest = msgspec.structs.replace(record.plan, moves=[move for move in record.plan.moves if move.step >= step])
        members = [(move, progress) for move, progress in run.moving() if move.step == step]
        try:
            if not await self.prove(rest):
                return False
            for move, progress in members:
                progress.known = siblings(move, self.tools.check_inputs().waiting)
                run.siblings[move.uid] = siblings_running(move, self.tools.check_inputs().running)
        except RoomError as error:
            self._give_up_for(run, error)
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
            self._leave(run, members, f"the step could not be recorded: {error}")
        else:
            await self._evict(run, members)
        return True

    def target_requests(self, plan: RoomPlan) -> dict[str, object]:
        """Requests of the target's waiting pods, by UID; equal while these are unchanged."""
        waiting = self.tools.check_inputs().waiting
        entries = [entry for pod in plan.target if (entry := waiting.get(pod.uid)) is not None]
        return {
            entry.uid: (entry.pod.spec, planned.gpus, planned.policy, planned.priority, planned.gang)
            for entry in entries
            if entry.stage.waits and (planned := entry.planned) is not None
        }

    def _give_up_for(self, run: Run, error: RoomError) -> None:
        """Give up an invalid plan, and blame the target or a moved pod if one of them is the reason."""
        requests = self.target_requests(run.record.plan)
        changed = any(requests.get(uid, before) != before for uid, before in run.target_requests.items())
        if changed or isinstance(error, TargetError):
            run.give_up(str(error), Culprit.TARGET)
            return
        run.give_up(str(error))
        for progress in run.record.progress:
            if progress.uid == error.pod_uid:
                run.enter(progress, Stage.LEFT, str(error))

    async def _evict(self, run: Run, members: list[Moving]) -> None:
        for position, (move, progress) in enumerate(members):
            try:
                await self._evict_one(run, move)
            except (EvictionError, FencedError) as error:
                self._leave(run, members[position:], str(error))
                return
            except (ClusterError, msgspec.DecodeError) as error:  # it may have been evicted, or still be
                run.give_up(f"the outcome of evicting pod {move.pod} is unknown: {error}")
                self._leave(run, members[position + 1 :], run.record.why)
                return
            run.enter(progress, Stage.EVICTING)

    async def _evict_one(self, run: Run, move: PlannedMove) -> None:
        """Evict a pod, with retries for `budget_s` if a budget refuses. Raises like `Evictor.evict`."""
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
        pod, target = identity_of(move), run.record.target or "waiting pods"
        message = f"Moved to node {move.to_node} to make room for {target}: plan {run.record.id}"
        tools.events.emit(pod.namespace, pod.name, pod.uid, reason="MovedToMakeRoom", message=message)

    @staticmethod
    def _leave(run: Run, members: list[Moving], why: str) -> None:
        """Leave these pods where they are, and give up the plan."""
        for _, progress in members:
            run.enter(progress, Stage.LEFT, why)
        run.give_up(why)

    def _arrivals(self, plan: RoomPlan) -> tuple[list[Arrival], list[Arrival]]:
        """The arrivals of a valid plan's moves, and those of its target, which come last."""
        inputs = self.tools.check_inputs()
        moves = [Arrival(inputs.running[move.uid], move.to_node, move.step, move.from_node) for move in plan.moves]
        last = plan.moves[-1].step
        return moves, [Arrival(entry.pod, node, last) for entry, node in targets_of(plan, inputs.waiting)]
