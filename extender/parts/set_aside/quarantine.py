"""Quarantines nodes on which pods of several namespaces fail soon after their start.

The leader writes an annotation on the node; all replicas read it. There is no other state: the next leader continues
from the annotations. A quarantine lasts a while, twice as long each time in a row; then the node is on trial until a
pod runs well on it. An annotation that someone else changes or removes takes effect at once.

Anyone who may create pods can make them fail. Therefore failures of several namespaces are required, and few of each
count. These do not count: failures of a workload that also fails on other nodes and ran well on none, failures of a
namespace that fails on several nodes, and failures before the start of the last pod that runs well on the node. This
is checked again later: a quarantine ends if the pods that failed on the node go on to fail elsewhere.

The pod watch leaves finished pods out. So a pod that disappears soon after its start is read once, by the leader, to
find out how it ended.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from extender.core.resources.nodes import GpuUnit
from extender.kube import objects
from extender.kube.background import Background, repeat
from extender.kube.cache import Cache
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.commit import FencedError
from extender.kube.decoding import Decoder
from extender.kube.events import EventRecorder
from extender.kube.objects import unix_time
from extender.kube.transport import NODES_PATH
from extender.kube.turns import Backoffs
from extender.ledger.ledger import Ledger
from extender.plugins.pods import owner_of
from extender.plugins.protocol import UnreadableError
from extender.plugins.set_aside import MAX_TIMES, NEVER, SET_ASIDE, Note, is_exempt, read_note, text_of
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_HOSTNAME: Final = "kubernetes.io/hostname"
_MOST_LABELS: Final = 20
"""A pod that selects nodes by more labels than this counts as naming its node."""


class AlikeNodes:
    """Compares nodes by their labels."""

    def __init__(self, ledger: Ledger, nodes: Cache[objects.Node, objects.Node], clock: Callable[[], float]) -> None:
        self._ledger, self._nodes, self._clock = ledger, nodes, clock

    def chosen_by(self, pod: objects.Pod, node: str) -> bool:
        """Whether the pod's author chose its node: the pod belongs to the node, names it, or selects it alone.

        The node is not chosen if another GPU node has the same values of all labels that the pod selects by: then the
        pod may run there as well.
        """
        keys = _labels_named(pod.spec)
        if pod.metadata.belongs_to_a_node or keys is None or len(keys) > _MOST_LABELS or not self._nodes.find(node):
            return True
        return bool(keys) and not any(self._alike(node, other, keys) for other in self._with_gpus() if other != node)

    def _alike(self, node: str, other: str, keys: frozenset[str]) -> bool:
        first, second = self._nodes.find(node), self._nodes.find(other)
        if first is None or second is None:
            return False
        labels, others = first.metadata.labels or {}, second.metadata.labels or {}
        return all(labels.get(key) == others.get(key) for key in keys)

    def _with_gpus(self) -> list[str]:
        cluster = self._ledger.snapshot(self._clock())
        return [cluster.node_names[row] for row in np.flatnonzero(cluster.unit != GpuUnit.NONE).tolist()]


def _labels_named(spec: objects.PodSpec) -> frozenset[str] | None:
    """Node labels that a pod selects by, None if it names nodes."""
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required
    terms = (required and required.node_selector_terms) or ()
    keys = frozenset(spec.node_selector or ()).union(
        item.key for term in terms for item in term.match_expressions or ()
    )
    names_nodes = _HOSTNAME in keys or any(term.match_fields for term in terms)  # metadata.name is the only field
    return None if names_nodes else keys


_REFUSED: Final = "UnexpectedAdmissionError"
_OUT_OF: Final = "OutOf"
"""Prefix of the reason with which the kubelet refuses a pod for lack of a resource, such as `OutOfcpu`."""
_NOT_STARTED: Final = frozenset({"CreateContainerError", "RunContainerError", "ContainerCannotRun", "StartError"})
_NOT_NODE_FAULTS: Final = frozenset({"Completed", "OOMKilled", "ContainerStatusUnknown"})
"""Reasons of an end that is the pod's own fault or of unknown cause."""
_SIGTERM: Final = 143
"""Exit code after SIGTERM."""


def _early_failure(pod: objects.Pod, early_s: float, now: float, window_s: float) -> str:
    """Why a pod failed within `early_s` seconds of its start, "" if it did not.

    The last failure of a restarted container counts if it is no older than `window_s` at `now`, in Unix time. Failures
    that the pod or the cluster caused don't count: evictions, deletions, OOM kills, missing images and ConfigMaps.
    """
    status = pod.status
    if pod.metadata.deletion_timestamp or status.phase == "Succeeded":
        return ""
    if status.phase == "Failed":
        return _terminal_fault(status, early_s)
    for container in status.container_statuses or ():
        waiting, last = container.state and container.state.waiting, container.last_state
        if waiting and waiting.reason in _NOT_STARTED:
            return waiting.reason
        ended = last.terminated if last else None
        recent = ended is not None and now - unix_time(ended.finished_at) <= window_s
        if ended and recent and _lifetime_s(ended) < early_s and (fault := _fault(ended)):
            return fault
    return ""


def _runs(pod: objects.Pod) -> bool:
    """Whether all its containers run."""
    for container in pod.status.container_statuses or ():
        if (state := container.state) and (state.waiting or state.terminated):
            return False
    return pod.status.phase == "Running"


def _has_restarted(pod: objects.Pod) -> bool:
    """Whether a container has terminated before or is waiting to start."""
    for container in pod.status.container_statuses or ():
        state, last = container.state, container.last_state
        if (last and last.terminated) or (state and state.waiting):
            return True
    return False


def _terminal_fault(status: objects.PodStatus, early_s: float) -> str:
    if status.reason:
        return status.reason if status.reason == _REFUSED or status.reason.startswith(_OUT_OF) else ""
    states = [container.state for container in status.container_statuses or () if container.state]
    ends = [state.terminated for state in states if state.terminated]
    if max(map(_lifetime_s, ends), default=0.0) >= early_s:
        return ""
    return next((fault for end in ends if (fault := _fault(end))), "")


def _fault(ended: objects.Ended) -> str:
    """What a container failed with, "" if the node can't be at fault."""
    if ended.exit_code in (0, _SIGTERM) or ended.reason in _NOT_NODE_FAULTS:
        return ""
    return ended.reason if ended.reason in _NOT_STARTED else f"exit code {ended.exit_code}"


def _lifetime_s(ended: objects.Ended) -> float:
    """Seconds that a container ran; 0 if it never started, which the kubelet reports as a start in 1970."""
    started = unix_time(ended.started_at)
    return max(unix_time(ended.finished_at) - started, 0.0) if started > 0 else 0.0


_FAILS_EVERYWHERE: Final = 3
"""Failures of a namespace don't count while its pods fail on this many nodes."""
_MAX_OF_NAMESPACE: Final = 16
"""Failures kept for each node and namespace."""
_MAX_NODES: Final = 16
"""Nodes kept for each workload or namespace."""
_MAX_WORKLOADS: Final = 20_000


@dataclass(frozen=True, slots=True)
class FailureThresholds:
    """Thresholds above which failures count against a node."""

    failures: int = 5
    namespaces: int = 3
    window_s: float = 600.0
    """Time within which they must happen."""

    @property
    def per_namespace(self) -> int:
        """Most failures of one namespace that count."""
        return -(-self.failures // self.namespaces)


class Failure(NamedTuple):
    """A pod that failed soon after its start."""

    uid: str
    namespace: str
    workload: str
    """The pod's owner (`pods.owner_of`)."""
    at: float
    """Monotonic time."""


class FailureEvidence(NamedTuple):
    """Failures that count against a node."""

    failures: tuple[Failure, ...]

    @property
    def namespaces(self) -> list[str]:
        """Namespaces of the pods that failed, sorted."""
        return sorted({failure.namespace for failure in self.failures})

    def __str__(self) -> str:
        return f"{len(self.failures)} pods of {len(self.namespaces)} namespaces"


class Failures:
    """Remembers pods that failed soon after their start, and pods that ran well. Bounded; times are monotonic."""

    def __init__(self, rules: FailureThresholds) -> None:
        self._rules = rules
        self._on: dict[str, dict[str, dict[str, Failure]]] = {}  # by node, namespace and UID
        self._well: dict[str, float] = {}  # by node: start of the youngest pod that runs well there
        self._failed_on: FairCache[dict[str, float]] = FairCache(_MAX_WORKLOADS)  # by workload: time by node
        self._lived_on: FairCache[dict[str, float]] = FairCache(_MAX_WORKLOADS)
        self._namespace_on: dict[str, dict[str, float]] = {}

    @property
    def nodes(self) -> list[str]:
        """Nodes on which pods failed within the window."""
        return list(self._on)

    def failed(self, node: str, failure: Failure, *, counts: bool) -> None:
        """Record that a pod failed; it counts against its node only if `counts`."""
        self._record(self._failed_on, failure.namespace, failure.workload, node, failure.at)
        _put(self._namespace_on.setdefault(failure.namespace, {}), node, failure.at)
        if counts:
            of_namespace = self._on.setdefault(node, {}).setdefault(failure.namespace, {})
            of_namespace[failure.uid] = failure
            if len(of_namespace) > _MAX_OF_NAMESPACE:
                del of_namespace[next(iter(of_namespace))]

    def lived(self, node: str, namespace: str, workload: str, started: float, now: float) -> None:
        """Record that a pod, started at `started`, runs well or has succeeded."""
        self._record(self._lived_on, namespace, workload, node, now)
        self._well[node] = max(self._well.get(node, float("-inf")), started)

    def well_since(self, node: str) -> float:
        """Start of the youngest pod that runs well on a node, -inf if none is known."""
        return self._well.get(node, float("-inf"))

    def against(self, node: str, now: float, least: int | None = None) -> FailureEvidence | None:
        """Failures that count against a node, None below the thresholds; `least` overrides the rules' `failures`."""
        self._drop_old(node, now)
        since = self.well_since(node)
        found = (failure for of in self._on.get(node, {}).values() for failure in of.values() if failure.at > since)
        return self._case(node, found, now, least)

    def stands(self, node: str, case: FailureEvidence, now: float, least: int | None = None) -> bool:
        """Whether a case still holds against its node, given what was recorded since."""
        since = self.well_since(node)
        found = (failure for failure in case.failures if failure.at > since)
        return self._case(node, found, now, least) is not None

    def forget(self, node: str) -> None:
        """Drop all failures of a node."""
        self._on.pop(node, None)

    def forget_old(self, now: float, nodes: Iterable[str]) -> None:
        """Drop what is outside the window, and nodes that are not in `nodes`."""
        for node in self.nodes:
            self._drop_old(node, now)
        kept = set(nodes)
        self._well = {node: at for node, at in self._well.items() if node in kept}
        for namespace, on in list(self._namespace_on.items()):
            recent = {node: at for node, at in on.items() if at >= now - self._rules.window_s}
            if recent:
                self._namespace_on[namespace] = recent
            else:
                del self._namespace_on[namespace]

    def _case(self, node: str, failures: Iterable[Failure], now: float, least: int | None) -> FailureEvidence | None:
        found = tuple(failure for failure in failures if not self._is_pods_fault(failure, node, now))
        num_of: dict[str, int] = {}
        for failure in found:
            num_of[failure.namespace] = min(num_of.get(failure.namespace, 0) + 1, self._rules.per_namespace)
        enough = sum(num_of.values()) >= (self._rules.failures if least is None else least)
        return FailureEvidence(found) if enough and len(num_of) >= self._rules.namespaces else None

    def _is_pods_fault(self, failure: Failure, node: str, now: float) -> bool:
        """Whether the pod is at fault rather than the node, judged by its failures on other nodes."""
        since = min(failure.at, now) - self._rules.window_s
        places = self._namespace_on.get(failure.namespace, {}).values()
        if sum(at >= since for at in places) >= _FAILS_EVERYWHERE:
            return True
        failed, lived = self._failed_on.get(failure.workload) or {}, self._lived_on.get(failure.workload) or {}
        elsewhere = any(at >= since and other != node for other, at in failed.items())
        return elsewhere and not any(other != node for other in lived)

    def _drop_old(self, node: str, now: float) -> None:
        by_namespace = self._on.get(node, {})
        for namespace, of in list(by_namespace.items()):
            for failure in [failure for failure in of.values() if failure.at < now - self._rules.window_s]:
                del of[failure.uid]
            if not of:
                del by_namespace[namespace]
        if not by_namespace:
            self._on.pop(node, None)

    @staticmethod
    def _record(where: FairCache[dict[str, float]], namespace: str, workload: str, node: str, at: float) -> None:
        known = where.get(workload) or {}
        _put(known, node, at)
        where.put(namespace, workload, known, at)


def _put(on: dict[str, float], node: str, at: float) -> None:
    """Add a node as the newest; drop the oldest beyond `_MAX_NODES`."""
    on.pop(node, None)
    on[node] = at
    if len(on) > _MAX_NODES:
        del on[next(iter(on))]


_MAX_ENDED: Final = 1_000
"""Disappeared pods that wait to be read."""
_MAX_READ: Final = 10
"""Pods read in a round."""
_decoder: Final = Decoder(objects.Pod)


class _TrackedPod(msgspec.Struct):
    """What is known about a pod on its node."""

    uid: str
    namespace: str
    name: str
    workload: str
    node: str
    started: float
    """Monotonic time at which the kubelet accepted it, or at which it was first seen."""
    runs_since: float | None = None
    """Monotonic time."""
    settled: bool = False
    """Whether it was recorded as running well."""
    failed: bool = False
    """Whether it was recorded as failed; a pod is counted once."""


class PodOutcomes:
    """Follows bound pods with GPUs, and records which fail early and which run well."""

    def __init__(
        self,
        transport: Transport,
        failures: Failures,
        nodes: AlikeNodes,
        has_gpus: Callable[[objects.Pod], bool],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        early_s: float,
        window_s: float,
    ) -> None:
        self._transport, self._failures, self._nodes, self._has_gpus = transport, failures, nodes, has_gpus
        self._clock, self._wall_clock = clock, wall_clock
        self._early_s, self._window_s = early_s, window_s
        self._pods: dict[str, _TrackedPod] = {}  # by UID
        self._undecided: set[str] = set()  # UIDs of pods that neither failed nor ran for long enough yet
        self._ended: FairCache[_TrackedPod] = FairCache(_MAX_ENDED)
        self.num_failed = 0
        """Pods that failed soon after their start, whatever the cause."""

    # Watch events

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Handle a bound pod that was added or changed, or (`new` is None) that disappeared or finished."""
        if new is not None:
            self._upsert(new)
        elif old is not None:
            life = self._forget(old.metadata.uid)
            if life is not None and not old.metadata.deletion_timestamp:  # a deleted pod's end says nothing
                self._end(life)

    def _upsert(self, item: objects.Pod) -> None:
        uid = item.metadata.uid
        life = self._pods.get(uid)
        if life is None:
            if not self._has_gpus(item):
                return
            life = self._pods[uid] = self._life(item)
            self._ended.pop(uid)  # the pod is back: the cluster was restored
            self._undecided.add(uid)
        if not life.settled or _has_restarted(item):
            if not _runs(item):
                life.runs_since = None
            elif life.runs_since is None:
                life.runs_since = self._clock()
            self._judge(life, item)

    # Verdicts

    def age(self) -> None:
        """Record the pods that have run for long enough by now."""
        now = self._clock()
        for uid in list(self._undecided):
            life = self._pods[uid]
            if self._has_run(life, now):
                self._settle(life)

    def forget_ended(self) -> None:
        """Read no disappeared pods: another process leads."""
        self._ended.clear()

    async def read_ended(self) -> None:
        """Read some of the disappeared pods to find out how they ended."""
        self._ended.expire(self._clock() - self._window_s)
        for life in list(islice(self._ended.in_turn(), _MAX_READ)):
            try:
                path = f"/api/v1/namespaces/{life.namespace}/pods/{life.name}"
                pod = _decoder.decode(await self._transport.get(path))
            except (ApiError, msgspec.DecodeError):
                self._ended.pop(life.uid)  # deleted or unreadable: how it ended stays unknown
            except ClusterError:
                return
            else:
                self._ended.pop(life.uid)
                if (pod.metadata.uid, pod.spec.node_name) == (life.uid, life.node):
                    self._judge(life, pod)

    def _life(self, pod: objects.Pod) -> _TrackedPod:
        metadata, now = pod.metadata, self._clock()
        taken = unix_time(pod.status.start_time)
        started = now - max(self._wall_clock() - taken, 0.0) if taken else now
        return _TrackedPod(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            workload=owner_of(metadata),
            node=pod.spec.node_name or "",
            started=started,
        )

    def _has_run(self, life: _TrackedPod, now: float) -> bool:
        return life.runs_since is not None and now - life.runs_since >= self._early_s

    def _judge(self, life: _TrackedPod, pod: objects.Pod) -> None:
        if pod.status.phase == "Succeeded":
            self._settle(life)
        elif not life.failed and _early_failure(pod, self._early_s, self._wall_clock(), self._window_s):
            life.failed, life.settled = True, False
            self.num_failed += 1
            failure = Failure(life.uid, life.namespace, life.workload, self._clock())
            self._failures.failed(life.node, failure, counts=not self._nodes.chosen_by(pod, life.node))
            if life.uid in self._pods:
                self._undecided.add(life.uid)

    def _settle(self, life: _TrackedPod) -> None:
        """Record that a pod runs well or succeeded; one that failed before counts from its last start."""
        life.settled = True
        self._undecided.discard(life.uid)
        started = life.runs_since if life.failed and life.runs_since is not None else life.started
        self._failures.lived(life.node, life.namespace, life.workload, started, self._clock())

    def _end(self, life: _TrackedPod) -> None:
        """Settle a disappeared pod, or queue it to be read if its outcome is unknown."""
        now = self._clock()
        if self._has_run(life, now) and not life.settled:
            self._settle(life)
        elif not life.settled and not life.failed:
            self._ended.put(life.namespace, life.uid, life, now)

    def _forget(self, uid: str) -> _TrackedPod | None:
        self._undecided.discard(uid)
        return self._pods.pop(uid, None)


_INTERVAL_S: Final = 1.0
_IN_FLIGHT_S: Final = 30.0
"""Longest wait for the watch to show a note that was written."""
_MAX_NAMED: Final = 10
"""Namespaces in a log line."""


@dataclass(frozen=True, slots=True)
class QuarantineConfig:
    """How many nodes are quarantined, and for how long."""

    acts: bool
    """Whether nodes are quarantined; otherwise they are only reported."""
    namespaces: int
    early_s: float
    max_frac: float
    """Largest fraction of the GPU nodes; at least one node, if there are several."""
    for_s: float
    max_for_s: float


class QuarantineController(Background):
    """Quarantines and releases nodes, from `start` to `stop`. Subscribes to nodes with `changed`."""

    def __init__(  # noqa: PLR0913, PLR0917 - its dependencies
        self,
        transport: Transport,
        ledger: Ledger,
        events: EventRecorder,
        fence: Fence,
        failures: Failures,
        lives: PodOutcomes,
        terms: QuarantineConfig,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__("quarantining nodes", needed=False)
        self._transport, self._ledger, self._events, self._fence = transport, ledger, events, fence
        self._failures, self._terms, self._clock, self._wall_clock = failures, terms, clock, wall_clock
        self.lives = lives
        self._notes: dict[str, Note] = {}  # as the watch shows them
        self._in_flight: dict[str, tuple[Note | None, float]] = {}  # written, but not shown by the watch yet
        self._cases: dict[str, FailureEvidence] = {}  # why this process quarantined nodes
        self._opened: dict[str, float] = {}  # when this process first saw that a node is on trial
        self._failing: dict[str, FailureEvidence] = {}
        self._pauses = Backoffs()

    # Reading

    @property
    def num_set_aside(self) -> int:
        """Number of quarantined nodes."""
        return sum(not note.trial for note in self._notes.values()) if self._terms.acts else 0

    @property
    def num_failing(self) -> int:
        """Number of failing nodes that are not quarantined: mode `advise`, or too many are already."""
        return len(self._failing)

    def words(self, node: str) -> str:
        """Why a node is quarantined, on trial or failing, in words; "" if it is none of these."""
        note, case = self._notes.get(node) if self._terms.acts else None, self._failing.get(node)
        if note is not None:
            failed = f"{note.pods} pods of {note.namespaces} namespaces failed {self._soon}"
            return f"on trial: {failed}" if note.trial else f"quarantined: {failed}; until {_time(note.until)}"
        if case is not None:
            why = "set_aside.max_frac of the nodes already are" if self._terms.acts else "set_aside.mode is advise"
            return f"pods fail here: {case} {self._soon}; not quarantined: {why}"
        return ""

    @property
    def _soon(self) -> str:
        return f"within {self._terms.early_s:g} s"

    # Watch events

    def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        """Handle a node that was added, changed or (`new` is None) removed."""
        if new is None:
            if old is not None:
                self._notes.pop(old.metadata.name, None)
                self._clear(old.metadata.name)
            return
        name = new.metadata.name
        try:
            note = read_note(new.metadata.annotations or {})
        except UnreadableError:
            note = None
        if name in self._in_flight and self._in_flight[name][0] == note:
            del self._in_flight[name]
        known = self._notes.pop(name, None)
        if note is not None:
            self._notes[name] = note
        elif known is not None and name not in self._in_flight:
            self._clear(name)  # someone else released it: earlier failures no longer count
        if note is None or not note.trial:
            self._opened.pop(name, None)

    # Reconciling

    async def run(self) -> None:
        await repeat(self.round, _INTERVAL_S, "quarantining nodes")

    async def round(self) -> None:
        """Reconcile once: judge pods, review quarantined nodes, quarantine failing ones."""
        self.lives.age()
        if self._fence.fault():
            self.lives.forget_ended()
            self._failing = {}
            return
        await self.lives.read_ended()
        now = self._clock()
        names = set(self._ledger.rows.names())
        self._failures.forget_old(now, names)
        for removed in self._notes.keys() - names:
            del self._notes[removed]
            self._clear(removed)
        self._in_flight = {name: sent for name, sent in self._in_flight.items() if sent[1] > now}
        if self._terms.acts:
            for name, note in list(self._notes.items()):
                if name not in self._in_flight:
                    await self._review(name, note, now)
        await self._quarantine_failing(now)

    async def _review(self, name: str, note: Note, now: float) -> None:
        """Release a node that is not at fault, or that proved itself on trial; start the trial of an expired one."""
        node, wall, case = self._ledger.rows.manifest(name), self._wall_clock(), self._cases.get(name)
        boot = _boot(node)
        if node is None:
            return
        if note.trial:
            opened = self._opened.setdefault(name, now)
            if self._failures.well_since(name) >= opened:
                await self._write(node, None, "a pod ran well on it")
            return
        least = self._terms.namespaces if note.times > 1 else None
        if case is not None and not self._failures.stands(name, case, now, least):
            await self._write(node, None, "the pods that failed on it failed elsewhere too, or a pod runs well on it")
        elif note.boot and boot and boot != note.boot:
            await self._start_trial(node, note, "the node rebooted")
        elif not wall < note.until <= wall + self._terms.max_for_s + 1:
            await self._start_trial(node, note, "the quarantine expired")

    async def _start_trial(self, node: objects.Node, note: Note, why: str) -> None:
        trial = structs.replace(note, trial=True, since=int(self._wall_clock()))
        if await self._write(node, trial, why):
            self._failures.forget(node.metadata.name)

    async def _quarantine_failing(self, now: float) -> None:
        """Quarantine nodes whose failures exceed the thresholds, those with the most failures first."""
        candidates: list[tuple[str, objects.Node, FailureEvidence, int]] = []
        for name in self._failures.nodes:
            node, note = self._ledger.rows.manifest(name), self._notes.get(name) if self._terms.acts else None
            quarantined = note is not None and not note.trial
            if node is None or quarantined or name in self._in_flight or is_exempt(node.metadata.annotations or {}):
                continue
            # On trial, one failure of each namespace is enough. Fewer namespaces would let a tenant attack the node.
            case = self._failures.against(name, now, None if note is None else self._terms.namespaces)
            if case is not None:
                candidates.append((name, node, case, 1 if note is None else min(note.times + 1, MAX_TIMES)))
        failing: dict[str, FailureEvidence] = {}
        allowed = self._num_allowed(now)
        for name, node, case, times in sorted(candidates, key=lambda entry: (-len(entry[2].failures), entry[0])):
            if self._terms.acts and allowed > 0 and await self._quarantine(node, case, times):
                allowed -= 1
            else:
                failing[name] = case
        for name in failing.keys() - self._failing.keys():
            self._emit(name, "PodsFailEarly", f"{failing[name]} failed {self._soon} of their start", failing[name])
        self._failing = failing

    def _num_allowed(self, now: float) -> int:
        """How many more nodes may be quarantined."""
        has_gpus = self._ledger.snapshot(now).unit != GpuUnit.NONE
        num_nodes, in_flight = int(has_gpus.sum()), {name for name, (note, _) in self._in_flight.items() if note}
        most = max(int(self._terms.max_frac * num_nodes), 1) if num_nodes > 1 and self._terms.max_frac else 0
        return most - len({name for name, note in self._notes.items() if not note.trial} | in_flight)

    async def _quarantine(self, node: objects.Node, case: FailureEvidence, times: int) -> bool:
        wall = int(self._wall_clock())
        for_s = min(self._terms.for_s * 2 ** (times - 1), self._terms.max_for_s)
        until = wall + max(int(for_s), 1)
        note = Note(len(case.failures), len(case.namespaces), wall, until, times, _boot(node))
        message = f"{case} failed {self._soon} of their start: no new GPU pods until {_time(until)}"
        if not await self._write(node, note, f"{message}; annotation {SET_ASIDE}={NEVER} prevents this", case):
            return False
        self._cases[node.metadata.name] = case
        return True

    async def _write(
        self, node: objects.Node, note: Note | None, why: str, case: FailureEvidence | None = None
    ) -> bool:
        """Write a node's note, or remove it, unless the node changed meanwhile; whether that succeeded."""
        name = node.metadata.name
        if self._pauses.why("", name, self._clock()) is not None:
            return False
        text = None if note is None else text_of(note)
        metadata = {"annotations": {SET_ASIDE: text}, "resourceVersion": node.metadata.resource_version}
        try:
            await self._fence.confirm_now()
            await self._transport.patch(f"{NODES_PATH}/{name}/status", msgspec.json.encode({"metadata": metadata}))
        except FencedError:
            return False
        except ClusterError as error:
            if not (isinstance(error, ApiError) and error.status in (404, 409)):  # gone or changed: the next round sees
                logger.warning("node %s: %s was not written: %s", name, SET_ASIDE, error)
                self._pauses.failed("", name, error, self._clock())
            return False
        self._pauses.succeeded("", name)
        self._in_flight[name] = note, self._clock() + _IN_FLIGHT_S
        if note is None:
            self._clear(name)
        quarantined = note is not None and not note.trial
        self._emit(name, "SetAside" if quarantined else "OnTrial" if note else "TakesPodsAgain", why, case)
        return True

    def _emit(self, name: str, reason: str, why: str, case: FailureEvidence | None) -> None:
        """Emit an event and log it; only the log names the pods' namespaces."""
        self._events.emit_about_node(name, reason=reason, message=why)
        namespaces = "" if case is None else f" (namespaces {', '.join(case.namespaces[:_MAX_NAMED])})"
        logger.warning("node %s: %s: %s%s", name, reason, why, namespaces)

    def _clear(self, name: str) -> None:
        self._failures.forget(name)
        self._cases.pop(name, None)
        self._opened.pop(name, None)


def _boot(node: objects.Node | None) -> str:
    info = node.status.node_info if node is not None else None
    return info.boot_id[:160] if info is not None else ""


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
