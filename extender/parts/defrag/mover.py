"""Carries out a plan that makes room, step by step, and stops at the first deviation.

A pod is evicted only once its new place is kept. Each step is recorded before its first eviction, so that the next
leader can finish the moves under way; it evicts no further pods. Places of moves under way are kept until the pods have
them, or time out.
"""

import asyncio
import logging
import secrets
import time
from typing import Final

import msgspec

from extender.api.contributions import Kernel
from extender.kube.background import Background, gather_all, repeat
from extender.kube.client import ApiError, ClusterError
from extender.kube.commit import FencedError
from extender.kube.objects import Pod
from extender.kube.watches import BOUND_PODS
from extender.parts.defrag.checks import CheckInputs, RoomError
from extender.parts.defrag.evictions import Evictor
from extender.parts.defrag.places import Places
from extender.parts.defrag.plan import PlannedMove, RoomPlan
from extender.parts.defrag.proof import ProofInputs
from extender.parts.defrag.record import UNUSABLE, Ending, Phase, Progress, Record, RecordError, Records, Stage
from extender.parts.defrag.settings import DefragSettings
from extender.parts.defrag.starts import Starter
from extender.parts.defrag.state import RoomState, state_of
from extender.parts.defrag.steps import Follower, Limits, Run
from extender.parts.defrag.target_pods import TargetPlacer
from extender.parts.defrag.tools import Counts, Tools
from extender.queueing.pods.entries import Entry

logger = logging.getLogger(__name__)

_INTERVAL_S: Final = 0.25
_MAX_CONCURRENT: Final = 16
"""Most evictions sealed concurrently on a takeover: decisions wait for all of them."""
_HOUR_S: Final = 3600.0
_TERM_ENDED: Final = "the leader's term in which it began has ended"


class Mover(Background):
    """Carries out one plan at a time, from `start` to `stop`; active while this process leads."""

    def __init__(self, tools: Tools) -> None:
        super().__init__("mover", needed=False)
        self._tools, self._places = tools, tools.follower.places
        self._run: Run | None = None
        self._last: Record | None = None
        self._ending = Ending(tools.records, tools.fence)
        self._beginning = False
        self.counts = Counts()
        self._starter = Starter(tools, self.counts, self._keep)

    async def begin(self, plan: RoomPlan, target: str = "") -> str:
        """Begin to carry out a plan; returns its new ID. `target` describes what room is made for.

        Raises RoomError if the plan is outdated, another one is carried out, or this process does not lead.
        """
        if fault := self._why_not_now():
            raise RoomError(fault)
        self._beginning = True
        try:
            return await self._begin(plan, target)
        finally:
            self._beginning = False

    def give_up(self, why: str) -> bool:
        """Stop evicting; moves under way are finished. Returns whether a plan was under way."""
        if self._run is not None:
            self._run.give_up(why)
            self._keep(self._run)
        return self._run is not None

    @property
    def busy(self) -> bool:
        """Whether this process is carrying out a plan."""
        return self._run is not None and not self._tools.fence.standby()

    def state(self) -> RoomState:
        """State of the current plan, or of the last one; none on a standby, since only the leader knows."""
        if standby := self._tools.fence.standby():
            return state_of(None, [], 0, standby)
        record = self._run.record if self._run is not None else self._last
        kept, evicted = sorted(self._places.ledger.rows.closed), len(self._evicted_lately(record))
        return state_of(record, kept, evicted, self._why_not_now())

    def others(self, waiting: list[Entry]) -> list[Entry]:
        """The waiting pods that a round of the queue may place: all without a kept place."""
        if self._run is None:
            return waiting
        excluded = self._tools.follower.kept_aside(self._run)
        return [entry for entry in waiting if entry.uid not in excluded]

    def place_kept(self, pod: Pod) -> str:
        """The node kept for a released pod, which is reserved for it from now on; "" for none.

        kube-scheduler clears a nomination if no answer comes, and may ask before the next tick.
        """
        run, tools = self._run, self._tools
        node = None if run is None else tools.follower.node_of(run, pod) or tools.targets.node_of(run, pod)
        return node if node and self._places.hold_for(pod, node) else ""

    async def catch_up(self) -> None:
        """Take over the previous leader's moves under way, before anything is decided. Raises ClusterError.

        Seals evictions that the previous leader may have sent, so that they can't take effect later, and keeps its
        pods' places. Runs before pods are listed, since requests about its pods may follow at once.
        """
        self._run = self._ending.record = None
        self._places.clear()
        try:
            await self._take_over()
        except ClusterError as error:
            gone = isinstance(error, ApiError) and error.status in UNUSABLE
            if not gone and not isinstance(error, RecordError):
                raise
            logger.warning("making room: the record of moves under way can't be read or written: %s", error)

    async def _take_over(self) -> None:
        tools = self._tools
        record = self._last = await tools.records.read()
        if record is None or not record.phase.active:
            return
        run = self._new_run(record)
        under_way, writes = run.under_way(), asyncio.Semaphore(_MAX_CONCURRENT)

        async def sealed(move: PlannedMove) -> bool:
            async with writes:
                return await tools.evictor.seal(move)

        for (_, progress), evicted in zip(
            under_way, await gather_all(sealed(move) for move, _ in under_way), strict=True
        ):
            if not evicted:
                run.enter(progress, Stage.LEFT, "was not evicted")
        if record.phase is Phase.MOVING:
            run.give_up("Kerf was restarted, or another replica leads now")
        await tools.records.write(record)  # later writes of another replica then conflict
        self._run = run
        self._keep(run)

    async def run(self) -> None:
        """Call `tick` periodically."""
        await repeat(self.tick, _INTERVAL_S, "making room")

    async def tick(self) -> None:
        """Follow the moves under way, and begin the next step if there are none."""
        run, tools = self._run, self._tools
        if tools.fence.standby():
            self._stand_by()
            return
        if self._beginning or tools.fence.fault() or tools.fault():
            return
        if run is None:
            await self._ending.write()
            return
        epoch = tools.fence.enter()
        if run.epoch not in ("", epoch):
            run.give_up(_TERM_ENDED)
        run.epoch = epoch
        try:
            await self._advance(run)
        except (FencedError, ClusterError, msgspec.DecodeError) as error:
            run.give_up(f"{error}")
        self._keep(run)

    def _stand_by(self) -> None:
        """Release all places, since the leader keeps them now, and give up the plan for good."""
        if self._run is not None:
            self._run.give_up(_TERM_ENDED)
        self._places.clear()

    async def _begin(self, plan: RoomPlan, target: str) -> str:
        tools = self._tools
        epoch = tools.fence.enter()
        try:
            last = await tools.records.read()
        except ClusterError as error:
            raise RoomError(f"the plan can't be recorded: {error}") from error
        evicted = self._evicted_lately(last)
        if len(evicted) + len(plan.moves) > tools.most_an_hour:
            used = f"{len(evicted)} of {tools.most_an_hour} per hour are used up"
            raise RoomError(f"the plan has {len(plan.moves)} moves, and {used}")
        if not await self._starter.prove(plan):
            raise RoomError("the target has room without any move")
        progress = [Progress(move.uid) for move in plan.moves]
        record = Record(secrets.token_hex(4), plan, progress, target, begun=tools.wall_clock(), evicted=evicted)
        run = self._new_run(record)
        run.target_requests = self._starter.target_requests(plan)
        run.epoch, self._run, self._ending.record = epoch, run, None
        self._hold(run)
        try:
            tools.fence.check(epoch)
            await tools.records.write(record)
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            self._end(run, f"the plan can't be recorded: {error}")
            if not isinstance(error, FencedError):
                self._ending.record = record  # the failed write may have arrived
            raise RoomError(record.why) from error
        logger.info("making room for %s, plan %s: %d moves", target or "pods", record.id, len(plan.moves))
        self._emit_for_target(record, "MakingRoom", f"Making room with {len(plan.moves)} moves: plan {record.id}")
        return record.id

    def _why_not_now(self) -> str:
        busy = "another plan is being carried out" if self._run is not None or self._beginning else ""
        busy += f": {self._run.record.id}" if self._run is not None else ""
        return self._tools.fence.fault() or busy or self._tools.fault()

    def _new_run(self, record: Record) -> Run:
        def report(why: str) -> None:
            logger.warning("making room, plan %s is stopping: %s", record.id, why)
            records = self._tools.records
            self._tools.events.emit_about_config_map(
                records.namespace, records.name, reason="RoomStopped", message=f"Plan {record.id}: {why}"
            )

        return Run(record, self._tools.clock, on_stop=report)

    def _evicted_lately(self, record: Record | None) -> list[float]:
        now = self._tools.wall_clock()
        return [at for at in (record.evicted if record is not None else ()) if now - at < _HOUR_S]

    def _hold(self, run: Run) -> None:
        """Keep the places of the whole plan: by reservations where there is room now, else by closing nodes."""
        running = self._tools.check_inputs().running
        for move in run.record.plan.moves:
            run.moved_requests[move.uid] = self._places.request_key(running[move.uid])
            if not self._places.hold(running[move.uid], move.to_node):
                run.unheld.add(move.uid)
        self._keep(run)

    def _keep(self, run: Run) -> bool:
        """Close exactly the nodes that must be kept now; returns whether this is the current plan."""
        if self._run is not run:
            return False
        record = run.record
        nodes = self._tools.follower.nodes_under_way(run)
        if record.phase is Phase.PLACING:
            nodes |= self._tools.targets.nodes(run)
        elif not record.why:
            nodes |= {pod.node for pod in record.plan.target if pod.node} | set(record.plan.emptied)
            planned = (move for move, progress in run.moving() if progress.stage is Stage.PLANNED)
            nodes |= {move.to_node for move in planned if move.uid in run.unheld}
        self._places.close(nodes)
        return True

    def _end(self, run: Run, why: str) -> None:
        record = run.record
        record.phase, record.why, record.ended = Phase.STOPPED if why else Phase.DONE, why, self._tools.wall_clock()
        if self._run is run:
            self._run, self._last = None, record
            self._places.clear()

    async def _advance(self, run: Run) -> None:
        record = run.record
        if record.phase is Phase.PLACING:
            if (why := self._tools.targets.place(run)) is not None:
                await self._finish(run, why)
            return
        done = sum(progress.stage is Stage.DONE for progress in record.progress)
        await self._tools.follower.follow(run)
        self.counts.moved += sum(progress.stage is Stage.DONE for progress in record.progress) - done
        if run.under_way():
            return
        if record.why:
            await self._finish(run, record.why)
        elif (step := self._next_step(record)) is None or not await self._starter.begin(run, step):
            await self._begin_placing(run)

    @staticmethod
    def _next_step(record: Record) -> int | None:
        return min((move.step for move in record.plan.moves if move.step > record.step), default=None)

    async def _begin_placing(self, run: Run) -> None:
        """All moves are done: begin to give the target its nodes."""
        run.record.phase = Phase.PLACING
        self._places.give_back([move.uid for move in run.record.plan.moves])
        self._tools.fence.check(run.epoch)
        await self._tools.records.write(run.record)

    async def _finish(self, run: Run, why: str) -> None:
        """End the plan: keep nothing more, and record its end."""
        record = run.record
        self._end(run, why)
        self.counts.stopped += bool(why)
        self.counts.done += not why
        logger.info("making room, plan %s is %s%s", record.id, record.phase, why and f": {why}")
        message = why or f"Room was made: plan {record.id}"
        self._emit_for_target(record, "RoomStopped" if why else "RoomMade", message)
        self._ending.record = record
        if (error := await self._ending.write()) is not None:
            logger.warning("making room: the end of plan %s is not recorded yet: %s", record.id, error)

    def _emit_for_target(self, record: Record, reason: str, message: str) -> None:
        for pod in record.plan.target:
            if pod.uid:
                namespace, _, name = pod.pod.partition("/")
                self._tools.events.emit(namespace, name, pod.uid, reason=reason, message=message)


def build_mover(kernel: Kernel, wanted: DefragSettings) -> Mover | None:
    """The mover, None without the queue or `defrag.record`."""
    base, placer, queue = kernel.base, kernel.placer, kernel.queue
    if queue is None or not wanted.record:
        return None
    namespace, _, name = wanted.record.partition("/")
    running = base.mirror.hub.group(BOUND_PODS)
    places = Places(base.ledger, placer, queue.dispatcher, base.clock)
    limits = Limits(
        replace_s=wanted.replace_s, start_s=wanted.start_s, target_s=wanted.target_s, budget_s=wanted.budget_s
    )
    exempt = frozenset(wanted.exempt_namespaces)
    tools = Tools(
        records=Records(base.transport, namespace, name),
        evictor=Evictor(base.transport, base.fence, base.resolver),
        follower=Follower(base.transport, queue, running, places, limits),
        targets=TargetPlacer(queue, running, places, limits),
        proof_inputs=ProofInputs(
            base.ledger,
            queue.nodes,
            running.values,
            lambda: placer.policies,
            kernel.settings.decisions.policy,
            base.clock,
        ),
        check_inputs=lambda: CheckInputs(running, queue.backlog.entries, queue.namespaces, exempt, queue.use),
        fault=queue.fault,
        fence=base.fence,
        events=base.events,
        clock=base.clock,
        wall_clock=time.time,
        most_an_hour=wanted.moves_an_hour,
    )
    return Mover(tools)
