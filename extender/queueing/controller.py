"""The queue's controller: it orders the waiting pods, plans a round, and has the plan carried out.

A round orders the gated pods, plans, reserves, nominates and opens gates. All its state is on the API server: after a
restart gated pods are planned again. A pod that has lost its node and finds no other returns to its place in the queue
order and is nominated again.

The next round is planned while the writes of the last one go on, so that neither the API server nor kube-scheduler
waits for a plan. The number of pods between plan and binding is bounded.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from extender.core.durations import Durations
from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.core.texts import printable
from extender.kube import objects
from extender.kube.background import Tasks, give_way, until_set
from extender.kube.client import ClusterError, Transport
from extender.kube.events import EventRecorder
from extender.kube.objects import Pod
from extender.kube.rights import Grants
from extender.kube.transport import NAMESPACES_PATH
from extender.kube.watches import BOUND_PODS, NODES, PENDING_PODS, PODS, Feed, Reflector, WatchHub
from extender.ledger.bound_pods import BoundPodIndex
from extender.ledger.ledger import Ledger
from extender.planning.wait_reasons import Code
from extender.queueing.devices import AllocatorFactory, DeviceAllocator, QueueClaims
from extender.queueing.dispatch import Dispatcher, Mode, no_right
from extender.queueing.gangs import GangMembers, Gangs, units_of
from extender.queueing.kept_places import PlaceKeeper
from extender.queueing.leavers import GateOpener, LeavingPod
from extender.queueing.node_view import NodeBook
from extender.queueing.options import Counts, Options
from extender.queueing.passed_pods import PassedPods
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.nominations import NOMINATION_LOST, PodWriter
from extender.queueing.pods.notes import Notes
from extender.queueing.pods.objects import Namespaces, opted_out
from extender.queueing.preempted_gangs import GangEviction, PreemptedGangs
from extender.queueing.roomless import RoomlessReleaser
from extender.queueing.round_planner import RoundPlanner, in_order
from extender.queueing.running_pods import RunningPods, learn_finished
from extender.queueing.shares import QuotaUse, Shares
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules

logger = logging.getLogger(__name__)

_WAITING: Final = "waiting pods"
_UNHEARD: Final = "Kerf has heard nothing from the API server for too long"
_MAX_FAULT: Final = 400
_REPORT_EVERY_S: Final = 5.0
_PORTION: Final = 1000
_NAMESPACES: Final = Feed("namespaces", NAMESPACES_PATH, objects.Node)


class QueueController(QueueRules):
    """Runs rounds from `start` to `stop`. A standby writes nothing, and with a stale mirror nothing is planned."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        transport: Transport,
        hub: WatchHub,
        ledger: Ledger,
        placer: Placer,
        options: Options,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        standby: Callable[[], str],
        mirror_fault: Callable[[], str],
        events: EventRecorder | None = None,
        wastes_gpu: Callable[[GpuRequest], bool] = lambda request: False,
        why_refused: Callable[[PodIdentity], str] = lambda pod: "",
        mode: Callable[..., Mode],
        keeper: AllocatorFactory | None = None,
        crowd: BoundPodIndex | None = None,
        rights: Grants | None = None,
        kept_places: Callable[[], PlaceKeeper | None] = lambda: None,
        roomless_releaser: Callable[[], RoomlessReleaser | None] = lambda: None,
    ) -> None:
        """`wastes_gpu`: whether a pod takes more of a GPU's value than its share; it yields for `Options.patience_s`.
        `why_refused`: why Kerf rejected a pod last, "" if it did not. `mode` creates the `Mode`, `keeper` the allocator
        of devices for ResourceClaims. `crowd` are the bound pods; `rights` names the manifest that grants a right.
        `kept_places` returns the part that keeps places for pods that it moves, `roomless_releaser` the one that
        releases pods without room; either may be None.
        """
        self._transport, self._ledger, self._placer, self.options = transport, ledger, placer, options
        self._events = events
        self._clock, self._wall_clock, self._standby, self._mirror_fault = clock, wall_clock, standby, mirror_fault
        self._dirty = asyncio.Event()
        self._planned_version, self._planned_at = -1, float("-inf")
        self._report_at = float("inf")
        """Monotonic time at which to write on the pods why nothing is planned."""
        self._wastes_gpu, self._why_refused = wastes_gpu, why_refused
        self.backlog = Backlog(
            clock=clock,
            changed=self._dirty.set,
            left=self._left,
            found_open=lambda entry: self.mode.found_open(entry),  # noqa: PLW0108 - created below
            check=lambda pod: self.mode.check(pod),  # noqa: PLW0108
            claims_of=lambda pod: self._claims.of(pod),  # noqa: PLW0108
        )
        self._claims = QueueClaims(keeper, self.backlog, self._dirty.set)
        self.counts, self.durations, self.tasks = Counts(), Durations(), Tasks()
        self.nodes = NodeBook(hub.cache(NODES), self._dirty.set, crowd)
        self.namespaces = Namespaces(self._dirty.set)
        self._kept_places, self._roomless_releaser = kept_places, roomless_releaser
        self.passed = PassedPods(self.namespaces, lambda: self._of_namespaces.synced, standby, events)
        self.running = RunningPods(hub.group(BOUND_PODS), self.durations, wall_clock)
        self.use = QuotaUse(options.quotas, ledger, self.backlog, self.running)
        self._gangs = Gangs(transport, clock)
        self.members = GangMembers(wall_clock)
        self.gang_eviction = GangEviction(
            transport, self._gangs, self.members.gangs, timeout_s=options.gang_timeout_s, clock=clock, standby=standby
        )
        self.preempted_gangs = PreemptedGangs(transport, self._gangs, self.members, events, clock, standby)
        self._planner = RoundPlanner(
            options=options,
            ledger=ledger,
            placer=placer,
            backlog=self.backlog,
            nodes=self.nodes,
            used=self.use.by_namespace,
            clock=clock,
            tell=self._emit_refusal,
        )
        self.refusals = self._planner.refusals
        self.mode = mode(
            transport=transport,
            ledger=ledger,
            placer=placer,
            backlog=self.backlog,
            nodes=self.nodes,
            counts=self.counts,
            clock=clock,
            changed=self._dirty.set,
            taken=self.refusals.taken,
        )
        self.dispatcher = Dispatcher(
            mode=self.mode,
            ledger=ledger,
            placer=placer,
            backlog=self.backlog,
            nodes=self.nodes,
            counts=self.counts,
            clock=clock,
            changed=self._dirty.set,
            claims=self._claims.allocator,
            may_hold=self.refusals.may_hold,
            rights=rights or Grants(),
        )
        self._leavers = GateOpener(self.dispatcher, self.backlog, self.counts, standby)
        self._shares = Shares(options.max_open, self.backlog, clock)
        self._notes = Notes(PodWriter(transport), clock)
        hub.group(PENDING_PODS).subscribe(self.backlog.changed)
        hub.cache(_NAMESPACES).subscribe(self.namespaces.changed)
        hub.group(PENDING_PODS).subscribe(self.passed.changed)
        self._of_namespaces = hub.reflector(_NAMESPACES)
        hub.cache(NODES).subscribe(self.nodes.changed)
        self.reflectors: dict[str, Reflector[Any]] = {
            _WAITING: hub.reflector(PODS),
            "namespaces": self._of_namespaces,
            "nodes": hub.reflector(NODES),
        }
        """The watches that a round depends on. Those shared with the mirror start and stop with it."""
        if options.order is Order.KERF or options.fair_share or options.quotas.gpus:
            hub.group(BOUND_PODS).subscribe(self.running.changed)
        if options.gang_timeout_s or options.gangs_end_whole:
            hub.group(BOUND_PODS).subscribe(self.members.changed)

    def start(self) -> None:
        """Start in the running event loop."""
        self.tasks.begin("queue's mirror of namespaces", self._of_namespaces.run, needed=False)
        self.tasks.begin("queue", self._run, needed=False)
        for name, work in ({**self.mode.works(), **self._claims.works()}).items():
            self.tasks.begin(name, work, needed=False)
        if self.options.order is Order.KERF:
            self.tasks.begin("queue's list of finished pods", self._learn, needed=False)
        if self.options.gang_timeout_s:
            self.tasks.begin("eviction of incomplete gangs", self.gang_eviction.run, needed=False)
        if self.options.gangs_end_whole:
            self.tasks.begin("end of preempted gangs", self.preempted_gangs.run, needed=False)

    async def catch_up(self) -> None:
        """Prepare for the first decision of a term: forget pods that a previous leader may have written on, until they
        are listed again, and stop its allocations. Raises ClusterError, DecodeError."""
        if not self.mode.has_extender or self.claims is not None:
            self.backlog.clear()
            self.dispatcher.forget()
        if self.claims is not None:
            await self.claims.catch_up()

    async def stop(self) -> None:
        """Stop; requests already sent may still take effect."""
        await self.tasks.end()
        await self.dispatcher.stop()

    def place_kept(self, pod: Pod) -> str:
        places = self._kept_places()
        return "" if places is None else places.place_kept(pod)

    def _others(self, waiting: list[Entry]) -> list[Entry]:
        """Return the waiting pods whose nodes a round may choose."""
        places = self._kept_places()
        return waiting if places is None else places.others(waiting)

    @property
    def claims(self) -> DeviceAllocator | None:
        """Allocates devices to ResourceClaims, None where kube-scheduler does."""
        return self._claims.allocator

    @property
    def num_unread(self) -> int:
        """Namespaces skipped because they can't be decoded, counted at each receipt."""
        return self._of_namespaces.num_unread

    def fault(self) -> str:
        """Return why nothing can be planned now, "" when it can."""
        for name, reflector in self.reflectors.items():
            if not reflector.synced:
                return f"{name} of the queue are not synced yet{reflector.last_error and f': {reflector.last_error}'}"
        return self._mirror_fault()

    def over_quota(self, pod: PodIdentity, request: GpuRequest) -> str:
        """Return why a pod may not have its GPUs by the queue's rules, "" when it may."""
        known = all(reflector.synced for reflector in self.reflectors.values())
        releaser = self._roomless_releaser()
        return (
            (releaser.refusal(pod.uid, known=known) if releaser is not None else "")
            or self.refusals.excess(pod, request, self._placer.snapshot)
            or self.use.refusal(pod, request, known=known)
        )

    def preemption_refusal(self, uid: str) -> str:
        """Return why a pod must not preempt others, "" when it may: a pod released for a new node keeps waiting."""
        entry = self.backlog.entries.get(uid)
        return "it was released for a new node only" if entry is not None and entry.awaits_new_node else ""

    async def running_gangs(self, uids: Iterable[str]) -> list[Mapping[str, int]]:
        """Return the running gangs if gangs end as a whole; a pod of an unknown PodGroup needs all of its gang."""
        if not self.options.gangs_end_whole:
            return []
        gangs = dict.fromkeys(gang for uid in uids if (gang := self.members.gang_of(uid)))
        alive = {gang: [pod for pod in self.members.of(gang) if not pod.metadata.deletion_timestamp] for gang in gangs}
        await self._gangs.learn_needs(alive)
        running: list[Mapping[str, int]] = []
        for gang, pods in alive.items():
            needs = {pod.metadata.uid: self._gangs.needs(gang, pod) for pod in pods}
            running.append({uid: len(pods) if need is None else need for uid, need in needs.items()})
        return running

    def kept_from(self, uid: str) -> frozenset[str]:
        """Return the nodes that a released pod has to leave to the head of the queue."""
        return self._planner.kept_from(self.backlog.entries.get(uid))

    def will_nominate(self, uid: str) -> bool:
        """Whether a released pod is planned again, so that the waker need not wake it."""
        entry = self.backlog.entries.get(uid)
        return entry is not None and bool(entry.lost) and entry.planned is not None

    def notes(self, uid: str) -> dict[str, str]:
        """Return annotations for a pod that is bound to another node than nominated, none for others."""
        entry, held = self.backlog.entries.get(uid), self._ledger.allocation(uid)
        if entry is None or held is None or not entry.node or held.node == entry.node:
            return {}
        if entry.node in self.nodes:
            why = self._why_refused(PodIdentity.of(entry.pod)) or "kube-scheduler did not take it"
        else:
            why = "the node is gone"  # kube-scheduler may have offered it for a moment longer
        number = entry.num_lost + (not entry.lost)
        return {NOMINATION_LOST: f"{number}. {entry.lost or f'{entry.node}: {why}'}"}

    async def run_round(self) -> None:
        """Run a round and wait for its writes."""
        await self.begin_round()
        await self.dispatcher.finish()

    async def begin_round(self) -> None:
        """Release the pods that leave the queue, then plan the others and start the plan's writes."""
        now = self._clock()
        if self._standby():
            return
        await self._claims.take_stock(lambda pod: opted_out(pod, self.namespaces))
        self.mode.take_stock(now)
        await give_way()
        leavers = self._find_leavers(now)
        self._leavers.open(leavers.values())
        await give_way()
        if self.fault():
            self._report_at = min(self._report_at, now + _REPORT_EVERY_S)  # a short fault is not reported
            if now >= self._report_at:
                self._report_at = now + _REPORT_EVERY_S
                await self._report_fault()
            return
        self._report_at = float("inf")
        self.backlog.forget_kinds()
        self.refusals.forget_old()
        waiting = [
            entry
            for entry in self.backlog.entries.values()
            if entry.stage.waits
            and entry.planned is not None
            and entry.uid not in leavers
            and not self.dispatcher.found_a_node(entry)
        ]
        waiting, skipped = self._claims.select(self._others(self._writable(waiting)))
        for entry, why in skipped:
            entry.pass_over(why, self._wall_clock())
        window = self._shares.window(waiting)
        if not window.due:
            return  # enough pods are open; the next one that gets its node makes another round due
        await give_way()
        units = await units_of(waiting, self._gangs)
        await give_way()
        ready = in_order(
            [unit for unit in units if unit.pods and not unit.missing],
            self._wall_clock(),
            self.options,
            self.use.by_namespace(),
            self.durations,
            self._wastes_gpu,
        )
        await give_way()
        self._planned_at = now
        if ready:
            plan, batch, names = await self._planner.plan(ready, window.most, window.parts)
            if self._shares.note(window, plan):
                self._dirty.set()
            self.counts.rounds += 1
            self.counts.round_s = self._clock() - now
            await give_way()
            await self.dispatcher.carry_out(plan, names, batch)
            for position, why in plan.unassigned.items():
                batch[position][0].pass_over(why, self._wall_clock())
            if (releaser := self._roomless_releaser()) is not None:
                await releaser.release(ready, plan, [entry for entry, _ in batch])
        await give_way()
        for unit in units:
            for entry in unit.entries:
                entry.pass_over(unit.missing, self._wall_clock())
        gated = self.backlog.waiting()
        for entry in gated:
            entry.pass_over(entry.fault, self._wall_clock())
        await give_way()
        self.mode.withdraw(gated)
        self.dispatcher.begin(self._notes.write(list(self.backlog.entries.values())))

    async def _report_fault(self) -> None:
        """Set on all waiting pods why nothing is planned, with a text that is constant while the fault lasts."""
        unsynced = next((name for name, one in self.reflectors.items() if not one.synced), "")
        error = self.reflectors[unsynced].last_error[:_MAX_FAULT] if unsynced else ""
        why = f"its {unsynced} are not synced yet{error and f': {error}'}" if unsynced else _UNHEARD
        reason = no_right(error, self.dispatcher.rights) or Code.NOT_PLANNED.reason(why=printable(why))
        for number, entry in enumerate(list(self.backlog.entries.values()), start=1):
            entry.pass_over(reason, self._wall_clock())
            if number % _PORTION == 0:
                await give_way()

    def _writable(self, waiting: list[Entry]) -> list[Entry]:
        """Return the pods whose writes don't back off; pass over the others."""
        writable: list[Entry] = []
        for entry in waiting:
            if (why := self.dispatcher.rests(entry)) is None:
                writable.append(entry)
            else:
                entry.pass_over(why, self._wall_clock())
        return writable

    def _left(self, entry: Entry) -> None:
        self.mode.left(entry)
        self.use.left(entry)

    def _emit_refusal(self, entry: Entry, message: str) -> None:
        if self._events is not None:
            name = entry.pod.metadata.name
            self._events.emit(entry.namespace, name, entry.uid, reason="NominationRefused", message=message)

    def _find_leavers(self, now: float) -> dict[str, LeavingPod]:
        """Return by UID the gated pods whose gates open without a plan; give up lost pods that no longer opt in."""
        limit_s = self.options.fail_open_s
        for entry in self.backlog.lost():
            if opted_out(entry.pod, self.namespaces):
                entry.give_up()
        leavers: dict[str, LeavingPod] = {}
        for entry in self.backlog.waiting():
            if why := opted_out(entry.pod, self.namespaces) or entry.left_to_scheduler:
                leavers[entry.uid] = LeavingPod(entry, why)
            elif limit_s > 0 and now - entry.seen >= limit_s:
                leavers[entry.uid] = LeavingPod(entry, f"fail-open after {limit_s:g} s", by_kerf=True)
        return leavers

    async def _learn(self) -> None:
        """Learn the run times of pods that ended before the start."""
        try:
            await learn_finished(self._transport, self.durations)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("finished pods can't be listed, so the queue's order ignores them: %s", error)

    async def _run(self) -> None:
        options = self.options
        while True:
            await until_set(self._dirty, options.interval_s)
            if not self.backlog.entries:
                self._dirty.clear()
                continue
            changed = self._ledger.snapshot(self._clock()).version != self._planned_version
            due = self._clock() - self._planned_at >= options.retry_s
            if not (self._dirty.is_set() or changed or due):
                continue
            await asyncio.sleep(options.interval_s)  # plan pods that arrive together in one round
            self._dirty.clear()
            self._planned_version = self._ledger.snapshot(self._clock()).version
            try:
                await self.begin_round()
            except Exception:
                self.counts.errors += 1
                logger.exception("a round of the queue failed")
            await self._planner.rest(min(2 * self.counts.round_s, 1.0))
