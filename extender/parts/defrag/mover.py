"""Carries out a plan that makes room, one step after the other, and stops at the first surprise.

Nobody is evicted whose next place is not kept. Each step is written down before its first eviction; whoever leads next
finishes what is under way by that, and evicts nobody. What is under way keeps its place until it has it, or for a time.
"""

import asyncio
import logging
import secrets
import time
from typing import Final

import msgspec

from extender.api.contributions import Kernel
from extender.kube.background import Background, all_of, repeat
from extender.kube.client import ApiError, ClusterError
from extender.kube.commit import FencedError
from extender.kube.objects import Pod
from extender.kube.watches import BOUND_PODS
from extender.parts.defrag.checks import Facts, RoomError
from extender.parts.defrag.evictions import Evictor
from extender.parts.defrag.places import Places
from extender.parts.defrag.plan import PlannedMove, RoomPlan
from extender.parts.defrag.proof import Around
from extender.parts.defrag.record import NOT_TO_BE_HAD, Ending, Phase, Progress, Record, RecordError, Records, Stage
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
"""Pods of a gang that are sealed at once: no decision is made before the last one is."""
_HOUR_S: Final = 3600.0
_TERM_ENDED: Final = "the term of the leader that began it has ended"


class Mover(Background):
    """Carries out one plan at a time, from `start` to `stop`, while this process leads."""

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
        """Carry out a plan from now on; its id. `target` says in words what room is made for.

        Raises RoomError where that can't be: the plan is of a cluster that has gone by, another one is carried out, or
        this process does not lead.
        """
        if fault := self._why_not_now():
            raise RoomError(fault)
        self._beginning = True
        try:
            return await self._begin(plan, target)
        finally:
            self._beginning = False

    def give_up(self, why: str) -> bool:
        """Evict nobody any more; what is under way is finished. Whether anything was."""
        if self._run is not None:
            self._run.give_up(why)
            self._keep(self._run)
        return self._run is not None

    @property
    def busy(self) -> bool:
        """Whether a plan is being carried out, by this process."""
        return self._run is not None and not self._tools.fence.standby()

    def state(self) -> RoomState:
        """How far the plan is that is carried out, or was last; none on a standby: whoever leads knows."""
        if standby := self._tools.fence.standby():
            return state_of(None, [], 0, standby)
        record = self._run.record if self._run is not None else self._last
        kept, evicted = sorted(self._places.ledger.rows.closed), len(self._evicted_lately(record))
        return state_of(record, kept, evicted, self._why_not_now())

    def others(self, waiting: list[Entry]) -> list[Entry]:
        """Of pods that wait, those whose nodes a round may choose."""
        if self._run is None:
            return waiting
        aside = self._tools.follower.kept_aside(self._run)
        return [entry for entry in waiting if entry.uid not in aside]

    def place_kept(self, pod: Pod) -> str:
        """The node that is kept for a pod that was let go, and reserved for it from now on; "" for none.

        kube-scheduler takes a nomination away when nobody answers, and may ask before this process has looked.
        """
        run, tools = self._run, self._tools
        node = None if run is None else tools.follower.node_of(run, pod) or tools.targets.node_of(run, pod)
        return node if node and self._places.hold_for(pod, node) else ""

    async def catch_up(self) -> None:
        """Take over what a leader before this one has under way, before anything is decided. Raises ClusterError.

        The evictions that it may have sent are kept from taking effect later, and the places of its pods are kept. Pods
        are listed after it: who is under way has to be known before anybody asks about them.
        """
        self._run = self._ending.record = None
        self._places.clear()
        tools = self._tools
        try:
            await self._take_over(tools)
        except ClusterError as error:
            gone = isinstance(error, ApiError) and error.status in NOT_TO_BE_HAD
            if not gone and not isinstance(error, RecordError):
                raise
            logger.warning("making room: what is under way can't be read or written: %s", error)

    async def _take_over(self, tools: Tools) -> None:
        record = self._last = await tools.records.read()
        if record is None or not record.phase.active:
            return
        run = self._new_run(record)
        under_way, writes = run.under_way(), asyncio.Semaphore(_MAX_CONCURRENT)

        async def sealed(move: PlannedMove) -> bool:
            async with writes:
                return await tools.evictor.seal(move)

        for (_, progress), going in zip(under_way, await all_of(sealed(move) for move, _ in under_way), strict=True):
            if not going:
                run.enter(progress, Stage.LEFT, "was not evicted any more")
        if record.phase is Phase.MOVING:
            run.give_up("Kerf was restarted, or another one leads now")
        await tools.records.write(record)  # what another one is about to write is late from now on
        self._run = run
        self._keep(run)

    async def run(self) -> None:
        """Go on with the plan, again and again."""
        await repeat(self.tick, _INTERVAL_S, "making room")

    async def tick(self) -> None:
        """Look at what is under way, and begin the next step where nothing is."""
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
        """Whoever leads keeps the places from now on: here nobody else is evicted, whoever leads next."""
        if self._run is not None:
            self._run.give_up(_TERM_ENDED)
        self._places.clear()

    async def _begin(self, plan: RoomPlan, target: str) -> str:
        tools = self._tools
        epoch = tools.fence.enter()
        try:
            before = await tools.records.read()
        except ClusterError as error:
            raise RoomError(f"the plan can't be written down: {error}") from error
        evicted = self._evicted_lately(before)
        if len(evicted) + len(plan.moves) > tools.most_an_hour:
            most = f"{len(evicted)} of {tools.most_an_hour} in an hour are used up"
            raise RoomError(f"the plan has {len(plan.moves)} moves, and {most}")
        if not await self._starter.prove(plan):
            raise RoomError("the target has room without any move")
        progress = [Progress(move.uid) for move in plan.moves]
        record = Record(secrets.token_hex(4), plan, progress, target, begun=tools.wall_clock(), evicted=evicted)
        run = self._new_run(record)
        run.asked = self._starter.asked(plan)
        run.epoch, self._run, self._ending.record = epoch, run, None
        self._hold(run)
        try:
            tools.fence.check(epoch)
            await tools.records.write(record)
        except (ClusterError, FencedError, msgspec.DecodeError) as error:
            self._end(run, f"the plan can't be written down: {error}")
            if not isinstance(error, FencedError):
                self._ending.record = record  # it may be written there all the same
            raise RoomError(record.why) from error
        logger.info("making room for %s, plan %s: %d moves", target or "pods", record.id, len(plan.moves))
        self._tell_target(record, "MakingRoom", f"Making room by {len(plan.moves)} moves: plan {record.id}")
        return record.id

    def _why_not_now(self) -> str:
        busy = "another plan is being carried out" if self._run is not None or self._beginning else ""
        busy += f": {self._run.record.id}" if self._run is not None else ""
        return self._tools.fence.fault() or busy or self._tools.fault()

    def _new_run(self, record: Record) -> Run:
        def told(why: str) -> None:
            logger.warning("making room, plan %s goes no further: %s", record.id, why)
            records = self._tools.records
            self._tools.events.emit_about_config_map(
                records.namespace, records.name, reason="RoomStopped", message=f"Plan {record.id}: {why}"
            )

        return Run(record, self._tools.clock, told=told)

    def _evicted_lately(self, record: Record | None) -> list[float]:
        now = self._tools.wall_clock()
        return [at for at in (record.evicted if record is not None else ()) if now - at < _HOUR_S]

    def _hold(self, run: Run) -> None:
        """Keep the places of the whole plan: reserved where there is room now, else by closing the node."""
        running = self._tools.facts().running
        for move in run.record.plan.moves:
            run.asks[move.uid] = self._places.asked(running[move.uid])
            if not self._places.hold(running[move.uid], move.to_node):
                run.unheld.add(move.uid)
        self._keep(run)

    def _keep(self, run: Run) -> bool:
        """Keep just the nodes from others that have to be kept now; whether this is the plan that is carried out."""
        if self._run is not run:
            return False
        record = run.record
        nodes = self._tools.follower.nodes_under_way(run)
        if record.phase is Phase.PLACING:
            nodes |= self._tools.targets.nodes(run)
        elif not record.why:
            nodes |= {pod.node for pod in record.plan.target if pod.node} | set(record.plan.emptied)
            planned = (move for move, one in run.moving() if one.stage is Stage.PLANNED)
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
        """All that had to move has moved: give the target its nodes."""
        run.record.phase = Phase.PLACING
        self._places.give_back([move.uid for move in run.record.plan.moves])
        self._tools.fence.check(run.epoch)
        await self._tools.records.write(run.record)

    async def _finish(self, run: Run, why: str) -> None:
        """Nothing is under way any more: keep nothing, and write that down."""
        record = run.record
        self._end(run, why)
        self.counts.stopped += bool(why)
        self.counts.done += not why
        logger.info("making room, plan %s is %s%s", record.id, record.phase, why and f": {why}")
        self._tell_target(record, "RoomMade" if not why else "RoomStopped", why or f"Room was made: plan {record.id}")
        self._ending.record = record
        if (error := await self._ending.write()) is not None:
            logger.warning("making room: the end of plan %s is not written down yet: %s", record.id, error)

    def _tell_target(self, record: Record, reason: str, message: str) -> None:
        for pod in record.plan.target:
            if pod.uid:
                namespace, _, name = pod.pod.partition("/")
                self._tools.events.emit(namespace, name, pod.uid, reason=reason, message=message)


def build_mover(kernel: Kernel, wanted: DefragSettings) -> Mover | None:
    """What carries plans out that make room, None where no pod is to be moved."""
    base, placer, queue = kernel.base, kernel.placer, kernel.queue
    if queue is None or not wanted.record:
        return None
    namespace, _, name = wanted.record.partition("/")
    running = base.mirror.hub.part(BOUND_PODS)
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
        around=Around(
            base.ledger,
            queue.nodes,
            running.values,
            lambda: placer.policies,
            kernel.settings.decisions.policy,
            base.clock,
        ),
        facts=lambda: Facts(running, queue.backlog.entries, queue.namespaces, exempt, queue.use),
        fault=queue.fault,
        fence=base.fence,
        events=base.events,
        clock=base.clock,
        wall_clock=time.time,
        most_an_hour=wanted.moves_an_hour,
    )
    return Mover(tools)
