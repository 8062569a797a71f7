"""All that hear of nodes, pods and namespaces, each with the slow account of what it has to say.

A new one is a class here: how it is made and subscribed, as the product does that, and what it has to say by what its
process was told. The slow accounts call nothing of what they check; what one pod or node says is read as the product
reads it.
"""

import importlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise, takewhile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import pytest

from extender.core.durations import Durations
from extender.core.gauges import Gauge
from extender.core.resources.requests import PodRequest, RequestError
from extender.explain.holders import Closed, Holders
from extender.explain.workloads import belonging
from extender.kube.commit import Resolver
from extender.kube.objects import Node, Pod, unix_time
from extender.kube.watches import BOUND_PODS, NODES, PENDING_PODS, PODS, Feed, ReflectorTimes
from extender.ledger.ledger import AllocationState, Ledger
from extender.ledger.mirror import Mirror
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.plugins.nodes import read_capacity
from extender.plugins.pod_demands import read_presence
from extender.plugins.pod_resources import read_compute, while_resized
from extender.plugins.protocol import DevicePlugin
from extender.plugins.registry import NATIVE, plugin_of
from extender.queueing.controller import _NAMESPACES, QueueController
from extender.queueing.direct.follower import Follower
from extender.queueing.extender_mode import ExtenderMode
from extender.queueing.options import Counts, Options
from extender.queueing.pods.entries import Stage
from extender.ranking.demands import Kind, kind_of
from extender.ranking.seen_pods import SeenPods
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.reporters import Reporters
from extender.scheduling.unbound_pods import UnboundPods
from extender.scheduling.waking import Waker
from extender.telemetry.observer import Finders, Observer, Wanted
from extender.telemetry.owners import OwnerUsage
from tests.kube.consumers.histories import ADDRESSES, NODE_NAMES, OWNERS, QUEUE, SLOTS, WALL, WHOSE, Cluster, Owner
from tests.kube.consumers.servers import PAGE_SIZE, Line
from tests.kube.consumers.told import ALL, BOUND, PENDING, Stay, Told, Version
from tests.kube.consumers.told import NODES as TOLD_NODES
from tests.ledger.builders import free_units, open_fence
from tests.telemetry.feeds import FakeFeed

HALF_LIFE_PODS: Final = 5.0
_FROM_MONOTONIC: Final = WALL - 1000.0


class Process:
    """A process that watches a cluster from `begin` to `end`, with all consumers."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.told = Told(self.wall_clock)
        self.line = Line(cluster.server, self.told.hear, self.told.complete)
        self.ledger = Ledger(reservation_ttl_s=30.0)
        times = ReflectorTimes(first_backoff_s=0.0, max_backoff_s=0.0)
        self.mirror = Mirror(self.line, self.ledger, self.clock, max_age_s=60.0, page_size=PAGE_SIZE, times=times)
        self.hub = self.mirror.hub
        self.events: list[tuple[str, str]] = []
        """Reason and UID of those that were told."""
        self._read = dict[int, PodRequest | RequestError]()
        self.consumers = [make(self) for make in consumers()]

    def clock(self) -> float:
        """Monotonic time."""
        return self.cluster.now - _FROM_MONOTONIC

    def wall_clock(self) -> float:
        """Unix time."""
        return self.cluster.now

    def emit(self, namespace: str, name: str, uid: str, *, reason: str, message: str) -> None:
        self.events.append((reason, uid))

    def asks(self, pod: Pod) -> PodRequest | None:
        """A pod's request, None if it is invalid."""
        return None if isinstance(found := self.reads(pod), RequestError) else found

    def reads(self, pod: Pod) -> PodRequest | RequestError:
        """A pod's request, or why it is invalid."""
        if (found := self._read.get(id(pod))) is None:
            try:
                found = self.ledger.read_request(pod)
            except RequestError as error:
                found = error
            self._read[id(pod)] = found
        return found

    @cached_property
    def placer(self) -> Placer:
        return Placer(
            self.ledger,
            default_policy="bestfit",
            clock=self.clock,
            wall_clock=self.wall_clock,
            on_request=lambda pod, request: self.mix.asked(pod, request),  # noqa: PLW0108 - it is made later
        )

    @cached_property
    def mix(self) -> SeenPods:
        return SeenPods(HALF_LIFE_PODS, {}, 0.0)

    @cached_property
    def waker(self) -> Waker:
        unbound = UnboundPods(self.placer.read_request, self.wall_clock)
        fence, rules = open_fence(), QueueRules()
        return Waker(self.line, self.ledger, self.placer, unbound, self.clock, fence, queue=rules)

    @cached_property
    def queue(self) -> QueueController:
        return QueueController(
            self.line,
            self.hub,
            self.ledger,
            self.placer,
            Options(quotas=Quotas({"blue": 100.0}), gang_timeout_s=60.0),
            clock=self.clock,
            wall_clock=self.wall_clock,
            standby=str,
            mirror_fault=self.mirror.fault,
            events=self,  # type: ignore[arg-type]
            mode=partial(ExtenderMode, resolver=Resolver(open_fence(), self.clock)),
            crowd=self.mirror.bound_pods.index,
        )

    async def begin(self, order: Sequence[str]) -> None:
        """List and watch, in this order."""
        feeds: dict[str, Feed[Any]] = {feed.path: feed for feed in (NODES, PODS, _NAMESPACES)}
        for path in order:
            self.hub.begin(feeds[path], f"watch of {path}")
            await self.line.settle([path])
        assert not self.mirror.fault()
        self.mix.started = True
        self.told.begun = self.told.moment

    async def end(self) -> None:
        assert not self.hub.tasks.num_deaths
        await self.hub.tasks.end()

    def ask(self, slot: str) -> None:
        """Offer nodes to a pod that waits, as far as this process knows."""
        for stay in self.told.there(PENDING).values():
            if stay.last.key == slot and (request := self.asks(stay.last)) is not None:
                self.told.ask(stay.last)
                self.placer.remember(PodIdentity.of(stay.last), request)
                self.waker.rejected(PodIdentity.of(stay.last), request)


class Consumer:
    """A subscriber of the caches, created with its process."""

    subscriptions: ClassVar[tuple[str, ...]]
    """File and call, as they are in `extender/`."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def check(self, told: Told) -> None:
        """Compare it with what the process was told so far."""

    async def check_at_rest(self, told: Told) -> None:
        """Compare the rest once all is told."""

    async def check_at_end(self, told: Told) -> None:
        """Compare the rest once in the life of a process."""


# What one object says


def version_of(item: Any) -> str:
    return str(item.metadata.resource_version)


def is_ending(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None


def note_of(item: Any, name: str) -> str:
    """A kerf.dev annotation, "" for none."""
    return str((item.metadata.annotations or {}).get(f"kerf.dev/{name}", ""))


def label_of(item: Any, name: str) -> str:
    return str((item.metadata.labels or {}).get(name, ""))


def gates_of(pod: Pod) -> list[str]:
    return [gate.name for gate in pod.spec.scheduling_gates or ()]


def has_condition(item: Any, kind: str, status: str = "True", reason: str = "") -> bool:
    return any(
        (one.type, one.status, reason or one.reason) == (kind, status, one.reason)
        for one in item.status.conditions or ()
    )


def refusal_of(pod: Pod) -> str:
    """kube-scheduler's message about a pod that fits nowhere."""
    found = (one.message for one in pod.status.conditions or () if one.reason == "Unschedulable")
    return next(found, "")


def gang_named(pod: Pod) -> str:
    """Its gang, "" for none or with an invalid size."""
    if name := note_of(pod, "gang"):
        return f"{pod.metadata.namespace}/{name}" if note_of(pod, "gang-size").isdecimal() else ""
    group = label_of(pod, "scheduling.x-k8s.io/pod-group")
    return f"{pod.metadata.namespace}/{group}" if group else ""


def owner(pod: Pod) -> Owner:
    return OWNERS[int((pod.metadata.annotations or {})[WHOSE])]


def named(form: str, pod: Pod) -> str:
    """The name of a pod's owner in some form, for pods without one by their own name."""
    return form.format(pod.metadata.name.rstrip("0123456789").rstrip("-"))


def plugin_for(told: Told, stay: Stay) -> DevicePlugin:
    """The plugin of a pod's node, as that was known last in the pod's time."""
    name = stay.last.spec.node_name
    nodes = [one for one in told.stays(TOLD_NODES) if one.last.metadata.name == name]
    return plugin_of(nodes[-1].last) if nodes and (nodes[-1].ended or stay.began) >= stay.began else NATIVE


def held_by(told: Told, stay: Stay) -> Holding:
    return stay.said.on(plugin_for(told, stay))


def has_gpus(stay: Stay) -> bool:
    """Whether a pod with a node holds GPUs, or devices of ResourceClaims."""
    return bool(stay.said or stay.last.spec.resource_claims)


def holders(told: Told, *, made_up: bool = False) -> dict[str, Stay]:
    """Pods with a node that hold GPUs."""
    return {uid: stay for uid, stay in told.there(BOUND, made_up=made_up).items() if stay.said}


def on_node(told: Told) -> dict[str, list[Stay]]:
    """Pods with a node by that, stand-ins included."""
    found: dict[str, list[Stay]] = {}
    for stay in told.there(BOUND, made_up=True).values():
        found.setdefault(stay.last.spec.node_name, []).append(stay)
    return found


# Who hears of them


class LedgerAccount(Consumer):
    """GPUs, CPU and memory that pods hold."""

    subscriptions = (
        "extender/ledger/mirror.py: self.hub.cache(NODES).subscribe(_Nodes(ledger, self.bound_pods).changed)",
        "extender/ledger/mirror.py: self.hub.group(BOUND_PODS).subscribe"
        "(pods.changed, on_list=ledger.keep_pods, stand_ins=True)",
    )

    def check(self, told: Told) -> None:
        ledger, nodes, on = self.process.ledger, told.nodes(), on_node(told)
        known = {name: ledger.rows.manifest(name) for name in ledger.rows.names()}
        assert {name: version_of(node) for name, node in known.items()} == {
            name: version_of(node) for name, node in nodes.items()
        }
        holding = {uid: held_by(told, stay) for uid, stay in holders(told, made_up=True).items()}
        there = told.there(BOUND, made_up=True)
        assert {
            claim.uid: (claim.node, claim.pod, claim.state, claim.holding) for claim in ledger.rows.allocations
        } == {
            uid: (there[uid].last.spec.node_name, there[uid].last.key, AllocationState.BOUND, held)
            for uid, held in holding.items()
        }
        assert {uid for uid in self.process.cluster.pods if ledger.is_bound(uid)} == set(there)
        by_namespace = Counter[str]()
        for uid, held in holding.items():
            milli = sum(part.milli for part in held.parts)
            by_namespace[there[uid].last.metadata.namespace] += milli if held.parts else 1000 * held.units
        held_by_namespace = ledger.held_by_namespace()
        assert {name: 1000 * gpus for name, gpus in held_by_namespace.items() if gpus} == +by_namespace
        self._check_rooms(told, nodes, on, holding)

    def _check_rooms(
        self, told: Told, nodes: Mapping[str, Node], on: Mapping[str, list[Stay]], holding: Mapping[str, Holding]
    ) -> None:
        cluster = self.process.ledger.snapshot(self.process.clock())
        assert set(cluster.row_of) == set(nodes)
        for name, node in nodes.items():
            row, pods = cluster.row_of[name], on.get(name, [])
            taken = [read_compute(while_resized(stay.last)) for stay in pods]
            cpu, memory = (
                free - sum(column) for free, column in zip(read_capacity(node), _columns(taken), strict=True)
            )
            assert (cluster.cpu_free_milli[row], cluster.memory_free_mib[row]) == (cpu, memory)
            held = [holding[stay.uid] for stay in pods if stay.uid in holding]
            whole = all(part.whole for one in held for part in one.parts) and not any(one.mig for one in held)
            if plugin_of(node) is NATIVE and whole:
                offered = int((node.status.allocatable or {}).get("nvidia.com/gpu", 0))
                assert free_units(cluster, name) == max(offered - sum(one.units for one in held), 0)

    async def check_at_rest(self, told: Told) -> None:
        edits = 0
        for stay in told.stays(BOUND, made_up=True):
            said = [version.says for version in stay.versions]
            edits += sum(now not in (said[0], before) for before, now in pairwise(said))
        assert self.process.ledger.num_edits_ignored == edits
        removed = {stay.last.metadata.name: stay.ended for stay in told.stays(TOLD_NODES) if stay.ended}
        left = Counter(
            stay.last.spec.node_name
            for stay in told.stays(BOUND, made_up=True)
            if stay.ended and stay.ended > removed.get(stay.last.spec.node_name, 0)
        )
        assert +self.process.ledger.num_left == left


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Sequence[int], Sequence[int]]:
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    return first, second


class BoundPodsAccount(Consumer):
    """Pods by node."""

    subscriptions = LedgerAccount.subscriptions

    def check(self, told: Told) -> None:
        tenants, nodes, on = self.process.mirror.bound_pods, told.nodes(), on_node(told)
        for name in {*nodes, *on}:
            assert {
                uid: (one.key, one.priority, one.started, one.leaving) for uid, one in tenants.on(name).items()
            } == {
                stay.uid: (
                    stay.last.key,
                    stay.last.spec.priority or 0,
                    stay.last.status.start_time or "",
                    is_ending(stay.last),
                )
                for stay in on.get(name, ())
            }
            room = name in nodes and len(on.get(name, ())) < int((nodes[name].status.allocatable or {})["pods"])
            assert tenants.have_room(name, Pod().spec, ()) == room
        node_of = {uid: node for uid in self.process.cluster.pods if (node := tenants.node_of(uid))}
        assert node_of == {stay.uid: name for name, stays in on.items() for stay in stays}


class BoundPodIndexAccount(Consumer):
    """Pods by node, for plans."""

    subscriptions = LedgerAccount.subscriptions

    def check(self, told: Told) -> None:
        crowd, there = self.process.mirror.bound_pods.index, told.there(BOUND, made_up=True)
        pods = [stay.last for stay in there.values()]
        assert {one.uid: (one.namespace, one.node, one.labels, one.leaving) for one in crowd.of(None)} == {
            pod.metadata.uid: (pod.metadata.namespace, pod.spec.node_name, pod.metadata.labels or {}, is_ending(pod))
            for pod in pods
        }
        assert (len(crowd), crowd.num_pods) == (len(pods), Counter(pod.spec.node_name for pod in pods))
        dongles, ports = Counter[str](), dict[Any, Counter[str]]()
        apart = dict[Any, Counter[str]]()
        for pod in pods:
            demands = read_presence(pod)
            for name, units in demands.resources if demands else ():
                dongles[pod.spec.node_name or ""] += units if name == "example.com/dongle" else 0
            for port in demands.ports if demands else ():
                ports.setdefault(port, Counter())[pod.spec.node_name or ""] += 1
            for term in demands.anti_affinity if demands else ():
                apart.setdefault((pod.metadata.namespace, term), Counter())[pod.spec.node_name or ""] += 1
        assert crowd.used("example.com/dongle") == dongles
        assert dict(crowd.holding("TCP", 8080)) == ports
        assert crowd.repelling() == apart


class CacheAccount(Consumer):
    """The caches themselves, which running pods, defragmentation, alike nodes and workload tables read."""

    subscriptions = ()

    def check(self, told: Told) -> None:
        hub = self.process.hub
        for part, group in ((hub.group(BOUND_PODS), BOUND), (hub.group(PENDING_PODS), PENDING), (hub.cache(PODS), ALL)):
            there = told.there(group, made_up=True)
            assert {uid: version_of(pod) for uid, pod in part.items()} == {
                uid: version_of(stay.last) for uid, stay in there.items()
            }
        names = {stay.last.key: uid for uid, stay in told.there(ALL, made_up=True).items()}
        for slot in SLOTS:
            namespace, _, name = slot.partition("/")
            pod = hub.cache(PODS).find(name, namespace)
            assert (pod and pod.metadata.uid) == names.get(slot)


class ObserverAccount(Consumer):
    """Addresses of the nodes whose samples are read."""

    subscriptions = ("extender/telemetry/service.py: base.mirror.hub.cache(NODES).subscribe(observer.node_changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.feed = FakeFeed(SimpleNamespace(now=0.0))  # type: ignore[arg-type]
        finders = Finders(partial(_nothing, None), partial(_nothing, {}))
        self.observer = Observer(Wanted(addresses=("http://p",)), self.feed, finders, process.ledger, process.clock)
        process.ledger.arrays.observe(self.observer.wanted.times)
        process.hub.cache(NODES).subscribe(self.observer.node_changed)

    async def check_at_end(self, told: Told) -> None:
        self.feed.clock.now = self.process.clock()
        teller = dict[str, tuple[int, str]]()
        for stay in told.stays(TOLD_NODES):
            for version in stay.versions:
                for address in version.item.status.addresses or ():
                    latest = (version.moment, version.item.metadata.name)
                    teller[address.address] = max(latest, teller.get(address.address, latest))
        for number, address in enumerate(ADDRESSES, 1):
            self.feed.gauges, self.feed.instances = {"x": {Gauge.LOAD: [number / 10]}}, {"x": f"{address}:9400"}
            await self.observer.round()
            cluster = self.process.ledger.snapshot(self.process.clock())
            assert cluster.observed is not None
            found = {name for name, row in cluster.row_of.items() if _first_load(cluster, row) == number}
            _, name = teller.get(address, (0, ""))
            assert found == ({name} & cluster.row_of.keys() if cluster.observed.value.shape[2] else set())


async def _nothing(found: Any) -> Any:
    return found


def _first_load(cluster: Any, row: int) -> float:
    """In tenths."""
    return round(10 * float(np.nan_to_num(cluster.observed.value[Gauge.LOAD, row, :1]).sum()), 3)


class OwnersAccount(Consumer):
    """Pods that samples belong to; deleted pods are not forgotten."""

    subscriptions = ("extender/telemetry/service.py: base.mirror.hub.group(BOUND_PODS).subscribe(owners.pod_changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.owners = OwnerUsage(process.ledger)
        self.expected = Counter[str]()
        process.hub.group(BOUND_PODS).subscribe(self.owners.pod_changed)

    async def check_at_rest(self, told: Told) -> None:
        whose = {}
        for stay in sorted(told.stays(BOUND), key=lambda stay: stay.versions[-1].moment):
            if has_gpus(stay):
                whose[stay.last.key] = f"{stay.last.metadata.namespace}/{named(owner(stay.last).alike, stay.last)}"
        self.owners.add({tuple(slot.split("/")): (0.5, 100.0) for slot in SLOTS})  # type: ignore[misc]
        self.expected.update(whose.values())
        assert {name: usage.num_samples for name, usage in self.owners.latest().items()} == self.expected


class PlacerAccount(Consumer):
    """Requests of pods that were offered nodes, until they have one."""

    subscriptions = ("extender/api/build.py: base.mirror.hub.group(BOUND_PODS).subscribe(placer.pod_changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        process.hub.group(BOUND_PODS).subscribe(process.placer.pod_changed)

    def check(self, told: Told) -> None:
        asked = {pod.metadata.uid: moment for moment, pod in told.asked}
        bound = {stay.uid: stay.versions[-1].moment for stay in told.stays(BOUND)}
        placer = self.process.placer
        assert {uid for uid in self.process.cluster.pods if placer.remembered(uid) is not None} == {
            uid for uid, moment in asked.items() if bound.get(uid, 0) < moment
        }


class MixAccount(Consumer):
    """The mix of pods, each counted once."""

    subscriptions = ("extender/api/build.py: base.mirror.hub.cache(PODS).subscribe(rank.mix.pod_changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        process.hub.cache(PODS).subscribe(process.mix.pod_changed)

    def check(self, told: Told) -> None:
        kinds, fresh = self._counted(told)
        weights = dict[Kind, float]()
        for age, kind in enumerate(reversed(kinds)):
            weights[kind] = weights.get(kind, 0.0) + 0.5 ** (age / HALF_LIFE_PODS)
        mix = self.process.mix
        assert mix.num_seen == len(kinds)
        assert mix.counts() == pytest.approx(weights)
        assert mix.fresh.counts({}) == Counter(fresh)
        assert mix.fresh.num == sum(kind.gpus > 0 for kind in fresh)

    def _counted(self, told: Told) -> tuple[list[Kind], list[Kind]]:
        """All kinds counted, in order, and those after the first lists."""
        heard: list[tuple[int, Pod, PodRequest | None, bool]] = [
            (one.moment, one.item, one.asks, False) for stay in told.stays(ALL) for one in stay.versions
        ]
        heard += [(moment, pod, self.process.asks(pod), True) for moment, pod in told.asked]
        newest = max((pod.metadata.creation_timestamp for moment, pod, *_ in heard if moment <= told.begun), default="")
        seen, kinds, fresh = set[str](), list[Kind](), list[Kind]()
        for moment, pod, request, asked in sorted(heard, key=lambda one: one[0]):
            created, of_node = pod.metadata.creation_timestamp, pod.metadata.belongs_to_a_node and not asked
            unclear = request is None and not pod.spec.node_name and not of_node
            if pod.metadata.uid in seen or unclear or (asked and request is not None and request.gpus is None):
                continue
            seen.add(pod.metadata.uid)
            kind = None if request is None or of_node else _kind_of(pod, request)
            if kind is not None:
                kinds.append(kind)
                if moment > told.begun and (asked or not created or created > newest):
                    fresh.append(kind)
        return kinds, fresh


def _kind_of(pod: Pod, request: PodRequest) -> Kind | None:
    return kind_of(request if request.gpus else PodRequest(None, "", 0, (), *read_compute(pod.spec)))


class OfQueue(Consumer):
    """A part of the queue, which subscribes it."""

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.queue = process.queue


class BacklogAccount(OfQueue):
    """Pods that wait in the queue, and released ones."""

    subscriptions = ("extender/queueing/controller.py: hub.group(PENDING_PODS).subscribe(self.backlog.changed)",)

    def check(self, told: Told) -> None:
        backlog = self.queue.backlog
        expected = {uid: entry for uid, stay in told.there(PENDING).items() if (entry := _Waits.of(stay))}
        assert {uid: (entry.stage, entry.node, version_of(entry.pod)) for uid, entry in backlog.entries.items()} == {
            uid: (entry.stage, entry.node, version_of(entry.last)) for uid, entry in expected.items()
        }
        assert {entry.uid: entry.num_gpus for entry in backlog.waiting()} == {
            uid: entry.num_gpus for uid, entry in expected.items() if entry.stage is Stage.GATED
        }
        naming = {uid for uid, entry in expected.items() if entry.last.spec.resource_claims}
        for namespace in ("blue", "green"):
            named = {entry.uid for entry in backlog.naming(f"{namespace}/d")}
            assert named == {uid for uid in naming if expected[uid].last.metadata.namespace == namespace}


class _Waits(NamedTuple):
    """A pod that waits in the queue or was released."""

    stage: Stage
    node: str
    last: Pod
    read: Version
    """As it was when what it asks was read."""

    @classmethod
    def of(cls, stay: Stay) -> "_Waits | None":
        """None for a pod that is not the queue's."""
        newest_first = takewhile(lambda version: not is_ending(version.item), reversed(stay.versions))
        versions = list(newest_first)[::-1]
        first = next((number for number, version in enumerate(versions) if cls._enters(version.item)), None)
        if first is None:
            return None
        since = enumerate(versions[first:], first)
        opened = next((number for number, version in since if QUEUE not in gates_of(version.item)), None)
        if opened is None:
            return cls(Stage.GATED, "", stay.last, versions[-1])
        found, read = versions[opened].item, versions[max(opened - 1, first)]
        if (planned := note_of(found, "planned-node")) == found.status.nominated_node_name:
            return cls(Stage.OPENED, planned, stay.last, read)
        return cls(Stage.LOST if planned and refusal_of(found) else Stage.OPENED, "", stay.last, read)

    @staticmethod
    def _enters(pod: Pod) -> bool:
        """Whether it is gated, was released to a node, or is still the queue's to plan."""
        planned, refused = note_of(pod, "planned-node"), bool(refusal_of(pod))
        let_go = planned and (planned == pod.status.nominated_node_name or refused or note_of(pod, "assigned-node"))
        for_autoscalers = note_of(pod, "planned-by").startswith("let go for autoscalers")
        left = refused and (for_autoscalers or bool(note_of(pod, "planned-by") and pod.spec.resource_claims))
        return QUEUE in gates_of(pod) or bool(let_go or left)

    @property
    def num_gpus(self) -> int:
        """Requested GPUs; 0 if invalid or behind another gate."""
        pod, asks = self.read.item, self.read.asks
        unsized = note_of(pod, "gang") and not gang_named(pod)
        known = asks is not None and asks.gpus is not None and not unsized and not set(gates_of(pod)) - {QUEUE}
        return max(asks.gpus.count, 1) if known and asks and asks.gpus else 0


class NamespacesAccount(OfQueue):
    """Namespaces that opt in."""

    subscriptions = ("extender/queueing/controller.py: hub.cache(_NAMESPACES).subscribe(self.namespaces.changed)",)

    def check(self, told: Told) -> None:
        assert self.queue.namespaces.names == told.opted_in()


class PassedAccount(OfQueue):
    """Pods that opt in and came without the queue's gate."""

    subscriptions = ("extender/queueing/controller.py: hub.group(PENDING_PODS).subscribe(self.passed.changed)",)

    def check(self, told: Told) -> None:
        passed = [stay for stay in told.stays(PENDING) if self._has_passed(stay)]
        of_queue = self.queue.passed
        assert set(of_queue.passed) == {stay.uid for stay in passed if not stay.ended}
        assert of_queue.num_passed == len(passed)
        told_of = sorted(uid for reason, uid in self.process.events if reason == "PassedQueue")
        assert told_of == sorted(stay.uid for stay in passed)

    @staticmethod
    def _has_passed(stay: Stay) -> bool:
        """By the first version at which it was known whether its namespace opts in."""
        for version in stay.versions:
            pod, label = version.item, label_of(version.item, "kerf.dev/queue")
            opts_in = label == "enabled" or (label != "disabled" and pod.metadata.namespace in version.opted_in)
            if opts_in or version.all_opted_in:
                let_go = note_of(pod, "planned-by") or note_of(pod, "queued-by")
                return bool(opts_in and QUEUE not in gates_of(pod) and not let_go)
        return False


class NodeBookAccount(OfQueue):
    """Nodes as plans see them."""

    subscriptions = ("extender/queueing/controller.py: hub.cache(NODES).subscribe(self.nodes.changed)",)

    def check(self, told: Told) -> None:
        book, nodes, changed = self.queue.nodes, told.nodes(), list[tuple[int, str]]()
        for stay in told.stays(TOLD_NODES):
            before = None
            for version in stay.versions:
                node = version.item
                facts = node.metadata.labels, node.spec, node.status.allocatable
                if facts != before:
                    changed.append((version.moment, node.metadata.name))
                before = facts
            if stay.ended:
                changed.append((stay.ended, stay.last.metadata.name))
        version_of_name = {name: number for number, (_, name) in enumerate(sorted(changed), 1)}
        for name in NODE_NAMES:
            node = book.get(name)
            assert (node and version_of(node)) == (version_of(nodes[name]) if name in nodes else None)
            assert book.version_of(name) == (version_of_name[name] if name in nodes else 0)


class RunningAccount(OfQueue):
    """GPUs in use by namespace, use of quotas, and durations of ended pods."""

    subscriptions = ("extender/queueing/controller.py: hub.group(BOUND_PODS).subscribe(self.running.changed)",)

    def check(self, told: Told) -> None:
        queue, there = self.queue, told.there(BOUND)
        gpus = Counter[str]()
        for stay in there.values():
            gpus[stay.last.metadata.namespace] += _thousandths(stay)
        assert {name: 1000 * used for name, used in queue.running.gpus.items() if used} == +gpus
        assert {uid for uid in self.process.cluster.pods if uid in queue.running} == set(there)
        for uid, stay in told.there(PENDING).items():
            entry = _Waits.of(stay)
            if entry is not None and entry.stage is Stage.OPENED and entry.node:
                assert uid in queue.backlog.entries
                gpus[stay.last.metadata.namespace] += 1000 * entry.num_gpus
        assert {name: 1000 * used for name, used in queue.use.by_namespace().items() if used} == +gpus
        assert queue.durations == self._learned(told)

    @staticmethod
    def _learned(told: Told) -> Durations:
        durations = Durations()
        ended = (stay for stay in told.stays(BOUND) if stay.ended)
        for stay in sorted(ended, key=lambda stay: stay.ended or 0):
            started, seen = unix_time(stay.last.status.start_time), stay.versions[0].at
            if started and not is_ending(stay.last) and not stay.missed:
                namespace, size = stay.last.metadata.namespace, f"{math.ceil(_thousandths(stay) / 1000)} GPUs"
                name = named(owner(stay.last).stem, stay.last)
                began = seen if started <= seen < started + 1 else started
                owners = f"{namespace}/{name}/{size}", f"{namespace}/{size}", namespace
                durations.finished(owners, stay.ended_at - began)
        return durations


def _thousandths(stay: Stay) -> int:
    """Of GPUs, by a pod's first version, on a node without a plugin."""
    held = stay.said.native
    milli = sum(part.milli for part in held.parts) if held.parts else 1000 * held.units
    return milli + 1000 * sum(count for _, count in held.mig)


class GangsAccount(OfQueue):
    """Gangs of pods with a node, and their losses by preemption."""

    subscriptions = ("extender/queueing/controller.py: hub.group(BOUND_PODS).subscribe(self.members.changed)",)

    def check(self, told: Told) -> None:
        members, expected = self.queue.members, dict[str, set[tuple[str, str]]]()
        for uid, stay in told.there(BOUND).items():
            if gang := self._gang(stay):
                expected.setdefault(gang, set()).add((uid, version_of(stay.last)))
        found = {gang: {(pod.metadata.uid, version_of(pod)) for pod in pods} for gang, pods in members.gangs().items()}
        assert found == expected
        lost = {loss for stay in told.stays(BOUND) for loss in self._losses(stay)}
        assert {(loss.gang, loss.source) for loss in members.losses.values()} == lost

    @staticmethod
    def _gang(stay: Stay) -> str:
        """The first that it names."""
        return next((gang for version in stay.versions if (gang := gang_named(version.item))), "")

    def _losses(self, stay: Stay) -> Iterator[tuple[str, str]]:
        for number, version in enumerate(stay.versions, 1):
            pod, gang = version.item, self._gang(Stay(stay.uid, False, stay.versions[:number]))
            gone = is_ending(pod) or (stay.ended and number == len(stay.versions))
            if gang and gone and has_condition(pod, "DisruptionTarget", reason="PreemptionByScheduler"):
                yield gang, stay.uid
            if gang and not is_ending(pod) and has_condition(pod, "kerf.dev/GangPreempted"):
                yield from ((gang, one.message) for one in pod.status.conditions if one.type.endswith("GangPreempted"))


class FollowerAccount(Consumer):
    """Pods with another node than the one that is written on them, each checked when the watch reports it."""

    subscriptions = ("extender/queueing/direct/mode.py: self.pods.subscribe(self.follower.pod_changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.corrected = set[str]()
        self.looked_at = 0
        pods = process.hub.group(BOUND_PODS)
        self.follower = Follower(
            pods=pods,
            writer=self,  # type: ignore[arg-type]
            ledger=process.ledger,
            assignments=SimpleNamespace(matters=lambda claim: False),  # type: ignore[arg-type]
            fence=open_fence(),
            events=process,  # type: ignore[arg-type]
            counts=Counts(),
            clock=process.clock,
            taken=lambda entry, node: None,
        )
        pods.subscribe(self.follower.pod_changed)

    async def assign_bound(self, pod: Pod, assignment: object, term: object) -> Pod:
        """The annotation is correct now, whether or not the watch has reported it."""
        self.corrected.add(pod.metadata.uid)
        return pod

    async def check_at_rest(self, told: Told) -> None:
        self.corrected.clear()
        await self.follower.follow()
        last = {stay.uid: stay.versions[-1] for stay in told.stays(BOUND)}
        assert self.corrected == {
            uid
            for uid, version in last.items()
            if version.moment > self.looked_at
            and note_of(version.item, "assigned-node") not in ("", version.item.spec.node_name)
        }
        self.looked_at = told.moment


class UnboundAccount(Consumer):
    """Descriptions of pods that wait for GPUs."""

    subscriptions = ("extender/api/build.py: mirror.hub.group(PENDING_PODS).subscribe(unbound.changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.unbound = UnboundPods(process.placer.read_request, process.wall_clock, belonging=belonging)
        process.hub.group(PENDING_PODS).subscribe(self.unbound.changed)

    def check(self, told: Told) -> None:
        expected = {}
        for uid, stay in told.there(PENDING).items():
            waits = list(takewhile(lambda version: self._waits(version.item), reversed(stay.versions)))
            if waits:
                expected[uid] = self._said(waits)
        assert {
            pod.uid: {name: getattr(pod, name) for name in expected.get(pod.uid, ())} for pod in self.unbound.all()
        } == expected

    def _waits(self, pod: Pod) -> bool:
        """Whether it requests GPUs, or may do so."""
        asks = self.process.asks(pod)
        return not is_ending(pod) and (asks is None or asks.gpus is not None)

    def _said(self, waits: list[Version]) -> dict[str, Any]:
        """Of the newest version; `waits` go back to when it began to wait for GPUs."""
        pod, read = waits[0].item, self.process.reads(waits[0].item)
        fault, request = (str(read), "") if isinstance(read, RequestError) else ("", str(read.gpus))
        created = unix_time(pod.metadata.creation_timestamp) or waits[-1].at
        refusal, gates = refusal_of(pod).partition(". ")[0], ", ".join(gates_of(pod))
        why = fault or (gates and f"held by scheduling gate {gates}") or refusal
        said: dict[str, Any] = {
            "key": pod.key,
            "request": request,
            "why": why or f"no status yet from its scheduler {pod.spec.scheduler_name}",
            "created": created,
            "version": version_of(pod),
            "owed": not why,
            "refused": bool(refusal) and why == refusal,
            "gated": bool(gates),
            "gang": gang_named(pod),
            "owner": named(owner(pod).who, pod),
            "least_priority": pod.spec.priority or 0,
        }
        if said["refused"]:
            said["refused_since"] = self._since(waits, created, lambda pod: self._state(pod) == "refused")
        if said["owed"]:
            said["owed_since"] = self._since(waits, created, lambda pod: self._state(pod) == "owed")
        return said

    def _state(self, pod: Pod) -> str:
        held = self.process.asks(pod) is None or gates_of(pod)
        return "held" if held else "refused" if refusal_of(pod) else "owed"

    @staticmethod
    def _since(waits: list[Version], created: float, is_so: Callable[[Pod], bool]) -> float:
        so = list(takewhile(lambda version: is_so(version.item), waits))
        return created if len(so) == len(waits) else so[-1].at


class WakerAccount(Consumer):
    """Pods that were rejected, until they have a node or are gone."""

    subscriptions = ("extender/api/build.py: mirror.hub.group(PENDING_PODS).subscribe(waker.pod_changed)",)

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        process.hub.group(PENDING_PODS).subscribe(process.waker.pod_changed)

    def check(self, told: Told) -> None:
        left = dict[str, int]()
        for stay in told.stays(PENDING, made_up=True):
            ends = [version.moment for version in stay.versions if is_ending(version.item)]
            left[stay.uid] = max(left.get(stay.uid, 0), *ends, stay.ended or 0)
        asked = {pod.metadata.uid: moment for moment, pod in told.asked}
        found = {pod.uid for pod, _, _ in self.process.waker.waiting()}
        assert found == {uid for uid, moment in asked.items() if left.get(uid, 0) < moment}


class HoldersAccount(Consumer):
    """GPU-hours: who has GPUs of which node, updated for nodes that changed."""

    subscriptions = (
        "extender/explain/holders.py: hub.cache(NODES).subscribe(self.node_changed)",
        "extender/explain/holders.py: hub.group(BOUND_PODS).subscribe(self.pod_changed)",
        "extender/explain/workloads.py: holders.subscribe(base.mirror.hub)",
    )

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.holders = Holders(process.ledger)
        self.holders.subscribe(process.hub)
        self.on = dict[str, dict[str, tuple[str, Holding]]]()
        self.closed = dict[str, Closed]()

    def check(self, told: Told) -> None:
        for name in sorted(self.holders.changed):
            on = {}
            for number, held in self.holders.on(name):
                holder = self.holders.at(number)
                assert holder is not None
                on[holder.key] = f"{holder.ownership.namespace}/{holder.ownership.owner}", held
            self.on[name], self.closed[name] = on, self.holders.closed(name)
            if name not in told.nodes():
                self.holders.forget_node(name)
        self.holders.changed.clear()
        expected = dict[str, dict[str, tuple[str, Holding]]]()
        known = {stay.uid: stay.last for stay in told.stays(BOUND) if has_gpus(stay)}
        for uid, stay in holders(told, made_up=True).items():
            if pod := known.get(uid):  # of others nobody knows whose they are
                who = f"{pod.metadata.namespace}/{named(owner(pod).who, pod)}"
                expected.setdefault(stay.last.spec.node_name, {})[uid] = who, held_by(told, stay)
        assert {name: on for name, on in self.on.items() if on} == expected
        for name, node in told.nodes().items():
            closed = (
                Closed.CORDONED if node.spec.unschedulable else Closed.OUT_OF_USE if node.spec.taints else Closed.NOT
            )
            assert self.closed[name] is closed
        numbers = {holder.key for holder in self.holders.all() if holder is not None}
        assert numbers == {uid for on in expected.values() for uid in on}


class ReportersAccount(Consumer):
    """Nodes with a report whose agent is not running."""

    subscriptions = ()

    def __init__(self, process: Process) -> None:
        super().__init__(process)
        self.reporters = Reporters(process.hub.cache(NODES), process.hub.cache(PODS))

    def check(self, told: Told) -> None:
        agents = [
            stay.last
            for stay in told.there(BOUND).values()
            if label_of(stay.last, "app.kubernetes.io/name") == "kerf-agent"
        ]
        at_work = {pod.spec.node_name for pod in agents if has_condition(pod, "Ready") and not is_ending(pod)}
        reports = {name: node for name, node in told.nodes().items() if note_of(node, "node-report")}
        assert self.reporters.any == bool(reports)
        assert self.reporters.silent() == sorted(
            name
            for name, node in reports.items()
            if name not in at_work and not has_condition(node, "Ready", status="False")
        )


CONSUMERS: Final[tuple[type[Consumer], ...]] = (
    CacheAccount,
    LedgerAccount,
    BoundPodsAccount,
    BoundPodIndexAccount,
    ObserverAccount,
    OwnersAccount,
    PlacerAccount,
    MixAccount,
    FollowerAccount,
    BacklogAccount,
    NamespacesAccount,
    PassedAccount,
    NodeBookAccount,
    RunningAccount,
    GangsAccount,
    UnboundAccount,
    WakerAccount,
    HoldersAccount,
    ReportersAccount,
)
"""In the order in which the product subscribes them: what one has heard of, those after it may ask for."""


_LEFT_OUT: Final = {
    "extender/ledger/mirror.py: self.hub.cache(feed).subscribe(ledger.device_changed)": "of devices",
}
"""Those that hear of something else than nodes, pods and namespaces, and why they are not here."""


def consumers() -> Sequence[type[Consumer]]:
    """All, those of parts last: `CONSUMERS` in `consumers.py` of a part's tests."""
    return (*CONSUMERS, *(consumer for module in _of_parts() for consumer in module.CONSUMERS))


def left_out() -> dict[str, str]:
    """Subscriptions to other kinds of objects, those of parts too: `LEFT_OUT` there."""
    return _LEFT_OUT | {one: why for module in _of_parts() for one, why in module.LEFT_OUT.items()}


def _of_parts() -> list[ModuleType]:
    found = sorted(Path(__file__).parents[2].glob("parts/*/consumers.py"))
    return [importlib.import_module(f"tests.parts.{path.parent.name}.consumers") for path in found]
