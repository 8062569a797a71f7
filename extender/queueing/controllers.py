"""The queue's controller: it looks at what waits, plans a round, and carries it out through kube-scheduler.

Sync, order, plan, reserve, nominate, open, verify: each round is one such story, and holds nothing that the API server
does not: after a restart pods behind the gate are planned anew. GPUs of a pod that is let go are reserved in the ledger
until it is bound, as those of any decision. One that has lost its node and finds no other takes its place in the order
again, and is nominated anew.

The next round is planned while the writes of the last one go on, so that neither the API server nor kube-scheduler
waits for a plan; how many pods are between plan and binding is bounded.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from extender.cluster import objects
from extender.cluster.ledger import Ledger
from extender.cluster.mirrors import HOLDING_PODS, NODES_PATH, PODS_PATH
from extender.cluster.placements import Placer, PodIdentity
from extender.cluster.reflectors import Reflector
from extender.cluster.tasks import Tasks
from extender.cluster.transports import ApiError, ClusterError, Transport
from extender.cluster.unbound import PENDING_PODS, Both, UnboundPods
from extender.core.durations import Durations
from extender.core.orders import Order, Waiting, hold_s, ordered
from extender.core.requests import AskedUnit, GpuRequest, PodRequest
from extender.queueing.backlogs import Backlog, Entry
from extender.queueing.gangs import Gangs, Unit, units_of
from extender.queueing.manifests import Node, Pod
from extender.queueing.nodebooks import Booked, NodeBook
from extender.queueing.optins import NAMESPACES_PATH, Namespaces, opted_out
from extender.queueing.options import Counts, Options
from extender.queueing.plans import Plan, PlanPod
from extender.queueing.realisations import NOMINATION_LOST, Realiser
from extender.queueing.remnants import Remnants
from extender.queueing.rounds import KEPT, Head, Round, Rules, greedy_round, searched_round
from extender.queueing.runs import Runs, learn_finished, owners_of

logger = logging.getLogger(__name__)

_MAX_CONCURRENT: Final = 16
_NOTE_AFTER_S: Final = 1.0
_NOTE_EVERY_S: Final = 30.0
_MAX_NOTES: Final = 50
_PLANNED_INLINE: Final = 64
_ASKS_INLINE: Final = 8
"""A round of so few pods, which ask for so few different things, is planned at once; another one in a thread, so that
filter and bind go on."""


class QueueController:
    """Runs from `start` to `stop`: writes nothing on a standby, and plans nothing while the mirror is not current."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        transport: Transport,
        ledger: Ledger,
        placer: Placer,
        options: Options,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        standby: Callable[[], str],
        mirror_fault: Callable[[], str],
        page_size: int = 500,
        unbound: UnboundPods | None = None,
    ) -> None:
        """`unbound` hears of all pods without a node: one watch serves both."""
        self._transport = transport
        self._ledger = ledger
        self._placer = placer
        self._options = options
        self._clock = clock
        self._wall_clock = wall_clock
        self._standby = standby
        self._mirror_fault = mirror_fault
        self._dirty = asyncio.Event()
        self._realiser = Realiser(transport)
        self.backlog = Backlog(clock, self._dirty.set, self._left)
        self.counts = Counts()
        self.why_refused: Callable[[PodIdentity], str] = lambda pod: ""
        """Why Kerf refused a pod the nodes that it was asked about last, "" when it did not."""
        self.takes_more: Callable[[GpuRequest], bool] = lambda request: False
        """Whether a pod takes more of a GPU's worth than its part of it: it gives way for `Options.patience_s`."""
        self.durations = Durations()
        self.head: Head | None = None
        self._gangs = Gangs(transport, clock, page_size)
        self._nodes = NodeBook(self._dirty.set)
        self._namespaces = Namespaces(self._dirty.set)
        self._runs = Runs(self.durations, wall_clock)
        waiting = self.backlog if unbound is None else Both(self.backlog, unbound)
        self._reflectors: dict[str, Reflector[Any]] = {
            "waiting pods": Reflector[objects.Pod](
                transport, PODS_PATH, Pod, waiting, clock, field_selector=PENDING_PODS, page_size=page_size
            ),
            "nodes": Reflector[objects.Node](transport, NODES_PATH, Node, self._nodes, clock, page_size=page_size),
            "namespaces": Reflector[objects.Node](transport, NAMESPACES_PATH, Node, self._namespaces, clock),
        }
        if options.order is Order.KERF or options.fair_share or options.quotas.gpus or options.gang_timeout_s:
            self._reflectors["running pods"] = Reflector[objects.Pod](
                transport, PODS_PATH, Pod, self._runs, clock, field_selector=HOLDING_PODS, page_size=page_size
            )
        self.remnants = Remnants(
            transport, self._gangs, self._runs.gangs, timeout_s=options.gang_timeout_s, clock=clock, standby=standby
        )
        self.tasks = Tasks()
        self._writes: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_MAX_CONCURRENT)
        self._limit = asyncio.Semaphore(_MAX_CONCURRENT)
        self._noting = False
        self._granted: dict[str, tuple[str, float]] = {}
        """Namespace and GPUs of pods past the queue that quotas had room for, until the watch tells of them."""
        self._planned_version = -1
        self._planned_at = float("-inf")

    def start(self) -> None:
        """Begin, in the running event loop."""
        for name, reflector in self._reflectors.items():
            self.tasks.begin(f"queue's mirror of {name}", reflector.run, needed=False)
        self.tasks.begin("queue", self._run, needed=False)
        if self._options.order is Order.KERF:
            self.tasks.begin("queue's look at finished pods", self._learn, needed=False)
        if self._options.gang_timeout_s:
            self.remnants.start()

    async def stop(self) -> None:
        """End; what has been sent may take effect yet."""
        await self.remnants.stop()
        await self.tasks.end()
        for task in self._writes:
            task.cancel()
        await asyncio.gather(*self._writes, return_exceptions=True)

    @property
    def num_unread(self) -> int:
        """Objects set aside because they can't be read, counted each time that they came."""
        return sum(reflector.num_unread for reflector in self._reflectors.values())

    def fault(self) -> str:
        """Why nothing can be planned now, "" when it can."""
        for name, reflector in self._reflectors.items():
            if not reflector.synced:
                return f"{name} of the queue are not synced yet" + (
                    f": {reflector.last_error}" if reflector.last_error else ""
                )
        return self._mirror_fault()

    async def run_round(self) -> None:
        """Let go what must not wait any longer, then plan the others and carry the plan out, to the last write."""
        await self._begin_round()
        await asyncio.gather(*self._writes)

    async def _begin_round(self) -> None:
        """A round whose last writes are still to come."""
        now = self._clock()
        if self._standby():
            return
        for entry in (*self.backlog.recall(now), *self.backlog.notice_lost(now)):
            self._placer.release(entry.uid)
        await self._release(now)
        if self.fault():
            return
        self.backlog.forget_kinds()
        to_plan = [entry for entry in self.backlog.entries.values() if entry.waits and not self._is_placed(entry)]
        waiting = [entry for entry in to_plan if entry.planned is not None]
        window, limits = self._windows(waiting, now)
        if window < self._options.max_open / 4:
            return  # kube-scheduler has enough to do; whoever gets a node makes room for a round
        units = await units_of(waiting, self._gangs)
        ready = self._in_order([unit for unit in units if not unit.missing])
        batch: list[tuple[Entry, PlanPod]] = []
        most = self._options.batch_pods if self._options.planner != "greedy" else len(waiting)
        for unit in ready:
            if batch and len(batch) + len(unit.entries) > most:
                break
            batch += [(entry, entry.planned) for entry in unit.entries if entry.planned is not None]
        self._planned_at = now
        if batch:
            made, names = await self._plan([pod for _, pod in batch], now, ready, window, limits)
            self.counts.rounds += 1
            self.counts.round_s = self._clock() - now
            self.head = made.head
            _fall_in(ready, made.head)
            await self._realise(made.plan, names, batch)
            for position, why in made.plan.unassigned.items():
                _skip(batch[position][0], why)
                _keep_back(batch[position][0], why, now)
        for unit in units:
            for entry in unit.entries if unit.missing else ():
                _skip(entry, unit.missing)
        for entry in self.backlog.waiting():
            if entry.fault:
                _skip(entry, entry.fault)
        self._take_back_nominations()
        self._note(now)

    def _windows(self, waiting: Sequence[Entry], now: float) -> tuple[int, dict[str, int]]:
        """How many pods may be let go now, and how many of each namespace that would take more than its part of that.

        Where several namespaces wait none may take all: one whose pods kube-scheduler does not bind holds up no other.
        """
        on_way, waits = Counter(_namespaces(self.backlog.on_their_way(now))), Counter(_namespaces(waiting))
        share = self._options.max_open // max(len(on_way | waits), 1)
        window = self._options.max_open - sum(min(count, share) for count in on_way.values())
        if len(on_way | waits) < 2:
            return window, {}
        return window, {name: share - on_way[name] for name in waits if waits[name] + on_way[name] > share}

    async def _learn(self) -> None:
        """What pods took that ended before the start."""
        try:
            await learn_finished(self._transport, self.durations)
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("the queue's order knows nothing of pods that ended before the start: %s", error)

    async def _run(self) -> None:
        options = self._options
        while True:
            # Not wait_for: that of Python 3.11 loses a cancellation as the event is set, and `stop` never ends.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(options.interval_s):
                    await self._dirty.wait()
            if not self.backlog.entries:
                self._dirty.clear()
                continue
            moved = self._ledger.snapshot(self._clock()).version != self._planned_version
            due = self._clock() - self._planned_at >= options.retry_s
            if not (self._dirty.is_set() or moved or due):
                continue
            await asyncio.sleep(options.interval_s)  # what comes together is planned together
            self._dirty.clear()
            self._planned_version = self._ledger.snapshot(self._clock()).version
            try:
                await self._begin_round()
            except Exception:
                self.counts.errors += 1
                logger.exception("a round of the queue failed")
            await asyncio.sleep(min(2 * self.counts.round_s, 1.0))  # others' time

    def _in_order(self, units: Sequence[Unit]) -> list[Unit]:
        """Whose turn it is first."""
        quotas, by_key = self._options.quotas, {unit.name: unit for unit in units}
        fair = self._options.fair_share
        waiting = [
            Waiting(
                key=unit.name,
                priority=max(pod.priority for pod in unit.pods),
                since=min(entry.created for entry in unit.entries),
                held_s=self._held_s(unit),
                owner=unit.namespace,
                share=unit.gpus / max(quotas.weights.get(unit.namespace, 1.0), 1e-9) if fair else 0.0,
            )
            for unit in units
        ]
        shares = quotas.shares(self._used()) if fair else None
        in_order = ordered(
            waiting,
            self._wall_clock(),
            ageing_s=self._options.ageing_s,
            shares=shares,
        )
        return [by_key[item.key] for item in in_order]

    def _held_s(self, unit: Unit) -> float:
        requests = [pod.gpus for pod in unit.pods]
        selective = self._options.patience_s > 0 and all(gpus and self.takes_more(gpus) for gpus in requests)
        patience_s = self._options.patience_s if selective else 0.0
        if self._options.order is not Order.KERF:
            return patience_s
        expected_s = max(
            self.durations.expected_s(owners_of(entry.pod, entry.planned.num_gpus))
            for entry in unit.entries
            if entry.planned is not None
        )
        return patience_s + hold_s(expected_s, unit.gpus, self._options.held_most_s)

    def _used(self) -> dict[str, float]:
        """GPUs in use by namespace, those of pods on their way included."""
        used = dict(self._runs.gpus)
        for namespace, devices in self._ledger.num_claimed().items():
            used[namespace] = used.get(namespace, 0.0) + devices
        for entry in self.backlog.on_their_way(self._clock()):
            if entry.planned is not None:
                namespace = entry.pod.metadata.namespace
                used[namespace] = used.get(namespace, 0.0) + self._held(entry.uid, entry.planned.num_gpus)
        for uid, (namespace, gpus) in list(self._granted.items()):
            if uid in self._runs or self._ledger.claim(uid) is None:
                del self._granted[uid]  # counted there, or has not got them
            else:
                used[namespace] = used.get(namespace, 0.0) + self._held(uid, gpus)
        return used

    def _held(self, uid: str, asked: float) -> float:
        """GPUs of a pod on its way: one that asks for memory in total may hold more than it names."""
        claim = self._ledger.claim(uid)
        return max(asked, float(claim.holding.units)) if claim is not None else asked

    async def _plan(
        self, pods: list[PlanPod], now: float, units: Sequence[Unit], window: int, most: Mapping[str, int]
    ) -> tuple[Round, tuple[str, ...]]:
        """Plan on the cluster of this moment; the round, and the names of its rows."""
        options = self._options
        booked = [
            Booked(entry.planned, entry.node) for entry in self.backlog.on_their_way(now) if entry.planned is not None
        ]
        topologies = {pod.topology for pod in pods if pod.topology}
        cluster = self._ledger.snapshot(now)
        view = self._nodes.view(cluster, self.backlog.kinds, topologies, booked, options.reserve_frac)
        view = replace(view, policies=self._placer.policies_apart())
        patient = {
            unit.key for unit in units if now - min(entry.seen for entry in unit.entries) >= options.reserve_after_s
        }
        exempt = {unit.key for unit in units if any(self._is_exempt(entry, now) for entry in unit.entries)}
        rules = Rules(
            *(options.quotas, self._used(), self.head, frozenset(patient), frozenset(exempt), options.policy),
            *(window, most),
        )
        asks = {(pod.gpus, pod.cpu_milli, pod.memory_mib, pod.kind, pod.policy) for pod in pods[:_PLANNED_INLINE]}
        if len(pods) <= _PLANNED_INLINE and len(asks) <= _ASKS_INLINE and options.planner == "greedy":
            return greedy_round(view, pods, rules), cluster.node_names
        return await asyncio.to_thread(searched_round, view, pods, rules, options.planner), cluster.node_names

    async def _realise(self, plan: Plan, names: Sequence[str], batch: Sequence[tuple[Entry, PlanPod]]) -> None:
        """Carry a plan out, gangs whole."""
        gang_members: dict[str, list[tuple[Entry, str]]] = {}
        for (entry, pod), row in zip(batch, plan.rows, strict=True):
            if row >= 0:
                gang_members.setdefault(pod.gang or entry.uid, []).append((entry, names[row]))
        for members in gang_members.values():
            if self._reserve(members):
                for entry, node in members:
                    entry.node, entry.going = node, True
                lost = [(entry, node) for entry, node in members if entry.lost]
                behind_gate = [(entry, node) for entry, node in members if not entry.lost]
                if lost:
                    self._write(self._nominate_anew(lost))
                if behind_gate:
                    self._write(self._let_go(behind_gate, plan.planner))
                await asyncio.sleep(0)  # filter and bind go on meanwhile
            else:
                self.counts.outdated += len(members)
                self._dirty.set()

    def _write(self, write: Coroutine[Any, Any, None]) -> None:
        """Have something written while the rounds go on."""
        task = asyncio.create_task(write, name="queue: write")
        self._writes.add(task)
        task.add_done_callback(self._written)

    def _written(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.counts.errors += 1
            logger.error("a write of the queue failed", exc_info=error)

    def _reserve(self, members: Sequence[tuple[Entry, str]]) -> bool:
        """Hold the GPUs of a unit if its nodes still fit: the plan may be of a version that has gone by."""
        if any(self._is_placed(entry) for entry, _ in members):
            return False
        for entry, node in members:
            request = entry.planned.gpus if entry.planned is not None else None
            if request is None:
                continue
            identity = PodIdentity.of(entry.pod)
            planned = entry.planned
            policy = self._placer.policy_of(PodRequest(request, planned.policy if planned else ""))
            cpu, memory = (planned.cpu_milli, planned.memory_mib) if planned else (0, 0)
            asked = policy.asked(PodRequest(request, cpu_milli=cpu, memory_mib=memory)) or request
            placement = self._placer.place_on(identity, asked, policy, node)
            if placement.node is None:
                for other, _ in members:
                    self._placer.release(other.uid)
                return False
            self._placer.keep(placement)  # the decision on it: kube-scheduler asks for this node alone
            self._placer.reserve(placement)
        return True

    async def _let_go(self, members: Sequence[tuple[Entry, str]], planner: str) -> None:
        """Nominate all members of a unit, then open all their gates."""

        async def nominate(entry: Entry, node: str) -> bool:
            async with self._limit:
                return await self._realiser.nominate(entry.pod, node)

        async def open_gate(entry: Entry, node: str) -> None:
            async with self._limit:
                entry.opened, entry.by_kerf = self._clock(), True
                opened = False
                try:
                    domain = self._nodes.domain_of(node, entry.planned.topology) if entry.planned else None
                    opened = await self._realiser.open(entry.pod, node, planner, domain)
                finally:
                    self.counts.opened += opened
                    if not opened:
                        entry.opened = None  # if it was opened after all, the watch will tell

        try:
            async with self._turns:  # who is nominated is opened next, whoever else is still to be nominated
                nominated = await asyncio.gather(*(nominate(entry, node) for entry, node in members))
                if all(nominated):  # else one is deleted, or too much is written to it at once
                    await asyncio.gather(*(open_gate(entry, node) for entry, node in members))
        except ClusterError as error:
            self.counts.errors += 1
            logger.warning("the queue could not let pod %s go: %s", members[0][0].pod.key, error)
        finally:
            for entry, _ in members:
                entry.going = False
                if entry.opened is None:
                    entry.node = ""
                    self._placer.release(entry.uid)  # else it would be in its own way
                    self._dirty.set()

    def _take_back_nominations(self) -> None:
        """Those of pods that stay behind the gate, because it could not be opened or whoever nominated them is gone:
        kube-scheduler counts their GPUs as if they ran there."""
        for entry in self.backlog.waiting():
            if entry.pod.status.nominated_node_name:
                entry.going = True
                self._write(self._take_back(entry))

    async def _take_back(self, entry: Entry) -> None:
        try:
            async with self._limit:
                await self._realiser.nominate(entry.pod, "")
            status = msgspec.structs.replace(entry.pod.status, nominated_node_name="")
            entry.pod = msgspec.structs.replace(entry.pod, status=status)  # the watch will tell
        except ClusterError as error:
            self.counts.errors += 1
            logger.warning("the nomination of pod %s was not taken back: %s", entry.pod.key, error)
        finally:
            entry.going = False

    async def _nominate_anew(self, members: Sequence[tuple[Entry, str]]) -> None:
        """Nominate pods that were let go and have lost their nodes."""
        for entry, node in members:
            nominated = False
            try:
                async with self._limit:
                    nominated = await self._realiser.nominate_anew(entry.pod, node, f"{entry.num_lost}. {entry.lost}")
            except ClusterError as error:
                self.counts.errors += 1
                logger.warning("the queue could not nominate pod %s anew: %s", entry.pod.key, error)
            finally:
                entry.going = False
                if nominated:
                    self.counts.nominated_anew += 1
                    entry.lost, entry.reason, entry.noted, entry.opened = "", "", "", self._clock()
                else:
                    self._placer.release(entry.uid)

    async def _release(self, now: float) -> None:
        """Open the gates of pods that no longer opt in, and of those that have waited too long."""
        limit_s = self._options.fail_open_s
        for entry in self.backlog.lost():
            if opted_out(entry.pod, self._namespaces):
                entry.node = entry.lost = ""  # kube-scheduler's, for good
        for entry in self.backlog.waiting():
            why = opted_out(entry.pod, self._namespaces)
            if not why and limit_s > 0 and now - entry.seen >= limit_s:
                why = f"fail-open after {limit_s:g} s"
                self.counts.failed_open += 1
                entry.by_kerf = True
            if why:
                entry.opened, entry.node = now, ""
                try:
                    if not await self._realiser.open(entry.pod, "", why):
                        entry.opened = None
                except ClusterError as error:
                    entry.opened = None
                    logger.warning("the gate of pod %s was not opened: %s", entry.pod.key, error)

    def over_quota(self, pod: PodIdentity, request: GpuRequest) -> str:
        """Why a pod that the queue has not let go may not have its GPUs, "" when it may: to opt out of the queue is not
        to opt out of its quotas. One text, whatever is in use."""
        limit = self._options.quotas.limit(pod.namespace)
        entry = self.backlog.entries.get(pod.uid)
        # What a pod asks by ResourceClaims the queue has not looked at as it let it go.
        if limit == float("inf") or (entry is not None and entry.by_kerf and request.unit is not AskedUnit.CLAIM):
            return ""
        if not all(reflector.synced for reflector in self._reflectors.values()):
            return f"quota of namespace {pod.namespace}: what it uses is not known yet"
        self._granted.pop(pod.uid, None)
        asked = float(max(request.count, 1))
        if self._options.quotas.excess(pod.namespace, self._used().get(pod.namespace, 0.0), asked):
            return f"quota of namespace {pod.namespace}: {limit:g} GPUs"
        self._granted[pod.uid] = pod.namespace, asked
        return ""

    def kept_from(self, uid: str) -> frozenset[str]:
        """Nodes that a pod let go has to leave to the head: it has lost its own, and is behind it in the order."""
        entry, head = self.backlog.entries.get(uid), self.head
        if head is None or entry is None or not entry.behind_head or not entry.lost:
            return frozenset()
        return frozenset() if self._is_exempt(entry, self._clock()) else head.nodes

    def will_nominate(self, uid: str) -> bool:
        """Whether a pod let go is planned anew, so that nobody else need wake it."""
        entry = self.backlog.entries.get(uid)
        return entry is not None and bool(entry.lost) and entry.planned is not None

    def _is_exempt(self, entry: Entry, now: float) -> bool:
        """Whether a pod has been kept from the head's nodes for long enough."""
        return entry.kept_back is not None and now - entry.kept_back >= self._options.skip_s

    def notes(self, uid: str) -> dict[str, str]:
        """Annotations of a pod that is bound to another node than it was nominated for, none for all others."""
        entry, claim = self.backlog.entries.get(uid), self._ledger.claim(uid)
        if entry is None or claim is None or not entry.node or claim.node == entry.node:
            return {}
        refused = self.why_refused(PodIdentity.of(entry.pod))
        why = refused or ("kube-scheduler did not take it" if entry.node in self._nodes else "the node is gone")
        number = entry.num_lost + (not entry.lost)
        return {NOMINATION_LOST: f"{number}. {entry.lost or f'{entry.node}: {why}'}"}

    def _is_placed(self, entry: Entry) -> bool:
        """Whether kube-scheduler has found a node for a pod since that lost the one nominated."""
        return bool(entry.lost) and self._ledger.claim(entry.uid) is not None

    def _left(self, entry: Entry) -> None:
        """A pod has its node, or is gone."""
        claim = self._ledger.claim(entry.uid)
        if entry.opened is None:
            self._ledger.release(entry.uid)
        elif entry.node and not entry.lost and (claim is None or claim.node == entry.node):
            self.counts.honoured += 1
        elif entry.node:
            self.counts.fallbacks += 1

    def _note(self, now: float) -> None:
        """Write on pods why they wait: not at once, not for every change of a number, a bounded number at a time."""
        due = [
            entry
            for entry in self.backlog.entries.values()
            if entry.waits
            and entry.reason
            and entry.reason != entry.noted
            and now - entry.seen >= _NOTE_AFTER_S
            and now - entry.noted_at >= _NOTE_EVERY_S
        ]
        if due and not self._noting:
            self._noting = True
            self._write(self._tell(due[:_MAX_NOTES], now))

    async def _tell(self, entries: Sequence[Entry], now: float) -> None:
        """One after the other: a place in the order matters more than why another one waits."""
        try:
            for entry in entries:
                if entry.waits:
                    entry.noted_at = now  # if it fails it is tried again after as long as any other change
                    await self._tell_one(entry, entry.reason)
        except ClusterError as error:
            logger.warning("pods could not be told why they wait: %s", error)
        finally:
            self._noting = False

    async def _tell_one(self, entry: Entry, reason: str) -> None:
        """Raises ClusterError, but not where it is this pod's own, which may have no room for an annotation."""
        try:
            if await self._realiser.note(entry.pod, reason, entry.num_skips):
                entry.noted = reason
        except ApiError as error:
            logger.warning("pod %s could not be told why it waits: %s", entry.pod.key, error)


def _namespaces(entries: Iterable[Entry]) -> Iterator[str]:
    return (entry.pod.metadata.namespace for entry in entries)


def _fall_in(units: Sequence[Unit], head: Head | None) -> None:
    """Note who is behind the head, of units in their order."""
    behind = False
    for unit in units:
        for entry in unit.entries:
            entry.behind_head = behind
        behind |= head is not None and unit.key == head.key


def _skip(entry: Entry, why: str) -> None:
    if why and entry.waits and entry.reason != why:
        entry.reason = why
        entry.num_skips += 1


def _keep_back(entry: Entry, why: str, now: float) -> None:
    """Note since when a pod is passed over for the head: from then on its wait for that is bounded."""
    if why.startswith(KEPT) and entry.kept_back is None:
        entry.kept_back = now
