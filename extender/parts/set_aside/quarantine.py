"""Nodes on which pods of several namespaces fail soon after their start: set aside, with a reason and a way back.

Sets nodes aside, and opens them again: the leader writes a note on the node, all replicas read it.

Nothing else is kept: who leads next goes on with the notes that it finds. A node is set aside for a while, twice as
long each time in a row; then it is open on trial, until a pod has lived well on it. What somebody else writes on a
node, or takes away, counts at once.

Nodes with GPUs that are alike to a pod: whether where it ran was its author's choice.

How a pod did on its node, by what its kubelet tells: whether it runs, or failed soon after its start.

When failures speak against a node, and not against the pods that failed.

Whoever may create pods can make them fail. So failures count from several namespaces, few of each; not those of a
workload that fails on other nodes as well and has lived well on none, nor those of a namespace that fails here and
there; and only failures since the start of the last pod that lives well on the node. What comes out later counts too:
where those who failed on a node go on to fail elsewhere, it was not the node.

How pods with GPUs do on their nodes, from what the watch tells of them.

The watch leaves finished pods out, so of one that is gone soon after its start nobody says how it ended: it is read,
once, and only while this process leads.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Final, NamedTuple

import msgspec
import numpy as np

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
from extender.kube.turns import Pauses
from extender.ledger.ledger import Ledger
from extender.plugins.pods import owner_of
from extender.plugins.protocol import UnreadableError
from extender.plugins.set_aside import MAX_TIMES, NEVER, SET_ASIDE, Note, is_exempt, read_note, text_of
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.fence import Fence

logger = logging.getLogger(__name__)

_HOSTNAME: Final = "kubernetes.io/hostname"
_MOST_LABELS: Final = 20
"""By so many labels a pod may choose; who names more names a node."""


class AlikeNodes:
    """Compares nodes by their labels."""

    def __init__(self, ledger: Ledger, nodes: Cache[objects.Node, objects.Node], clock: Callable[[], float]) -> None:
        self._ledger, self._nodes, self._clock = ledger, nodes, clock

    def chosen_by(self, pod: objects.Pod, node: str) -> bool:
        """Whether a pod's author names the node that it is on, or it is there for it: where it fails he chose.

        It is not, where another node with GPUs has the same values of all labels that the pod chooses by: whatever it
        says of them, it may go there as well.
        """
        keys = _labels_named(pod.spec)
        if pod.metadata.belongs_to_a_node or keys is None or len(keys) > _MOST_LABELS or not self._nodes.named(node):
            return True
        return bool(keys) and not any(self._alike(node, other, keys) for other in self._with_gpus() if other != node)

    def _alike(self, node: str, other: str, keys: frozenset[str]) -> bool:
        known, found = self._nodes.named(node), self._nodes.named(other)
        if known is None or found is None:
            return False
        of_known, of_found = known.metadata.labels or {}, found.metadata.labels or {}
        return all(of_known.get(key) == of_found.get(key) for key in keys)

    def _with_gpus(self) -> list[str]:
        cluster = self._ledger.snapshot(self._clock())
        return [cluster.node_names[row] for row in np.flatnonzero(cluster.unit != GpuUnit.NONE).tolist()]


def _labels_named(spec: objects.PodSpec) -> frozenset[str] | None:
    """Labels of nodes by which a pod chooses, None where it names nodes."""
    affinity = spec.affinity and spec.affinity.node_affinity
    required = affinity and affinity.required
    terms = (required and required.node_selector_terms) or ()
    keys = frozenset(spec.node_selector or ()).union(
        item.key for term in terms for item in term.match_expressions or ()
    )
    names = _HOSTNAME in keys or any(term.match_fields for term in terms)  # of fields there is the name alone
    return None if names else keys


_REFUSED: Final = "UnexpectedAdmissionError"
_OUT_OF: Final = "OutOf"
"""What the kubelet refuses a pod with begins so where it lacks a resource: `OutOf` and its name."""
_NOT_STARTED: Final = frozenset({"CreateContainerError", "RunContainerError", "ContainerCannotRun", "StartError"})
_TELLS_NOTHING: Final = frozenset({"Completed", "OOMKilled", "ContainerStatusUnknown"})
"""Ends that are the pod's own doing, or of which nobody knows how they came."""
_SIGTERM: Final = 143
"""Exit code of who was asked to end."""


def _early_failure(pod: objects.Pod, early_s: float, now: float, window_s: float) -> str:
    """Why a pod failed within so many seconds of its start, "" where it did not.

    Of one that is restarted, a failure counts that is no older than `window_s` at `now`, in Unix time. What the pod
    itself or its cluster has brought about says nothing of its node: evictions, deletions, memory over its limit,
    images and ConfigMaps that are missing.
    """
    status = pod.status
    if pod.metadata.deletion_timestamp or status.phase == "Succeeded":
        return ""
    if status.phase == "Failed":
        return _of_failed(status, early_s)
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
    """Whether a container has ended before, or waits for its start."""
    for container in pod.status.container_statuses or ():
        state, last = container.state, container.last_state
        if (last and last.terminated) or (state and state.waiting):
            return True
    return False


def _of_failed(status: objects.PodStatus, early_s: float) -> str:
    if status.reason:
        return status.reason if status.reason == _REFUSED or status.reason.startswith(_OUT_OF) else ""
    states = [container.state for container in status.container_statuses or () if container.state]
    ends = [state.terminated for state in states if state.terminated]
    if max(map(_lifetime_s, ends), default=0.0) >= early_s:
        return ""
    return next((fault for end in ends if (fault := _fault(end))), "")


def _fault(ended: objects.Ended) -> str:
    """What a container failed with, "" where that is not its node's doing."""
    if ended.exit_code in (0, _SIGTERM) or ended.reason in _TELLS_NOTHING:
        return ""
    return ended.reason if ended.reason in _NOT_STARTED else f"exit code {ended.exit_code}"


def _lifetime_s(ended: objects.Ended) -> float:
    """0 for one that never started, whose start is told as of 1970."""
    started = unix_time(ended.started_at)
    return max(unix_time(ended.finished_at) - started, 0.0) if started > 0 else 0.0


_FAILS_EVERYWHERE: Final = 3
"""Nodes on which pods of a namespace fail, from which on they say nothing of any."""
_MAX_OF_NAMESPACE: Final = 16
"""Failures of a namespace that are kept of a node."""
_MAX_NODES: Final = 16
"""Nodes that are remembered of a workload or namespace."""
_MAX_WORKLOADS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Rules:
    """How much has to come together."""

    failures: int = 5
    namespaces: int = 3
    window_s: float = 600.0
    """In which they have to."""

    @property
    def per_namespace(self) -> int:
        """Failures of a namespace that count at most."""
        return -(-self.failures // self.namespaces)


class Failure(NamedTuple):
    """A pod that failed soon after its start."""

    uid: str
    namespace: str
    workload: str
    """Whose pods are alike (`pods.owner_of`)."""
    at: float
    """Monotonic time."""


class Case(NamedTuple):
    """What speaks against a node."""

    failures: tuple[Failure, ...]

    @property
    def namespaces(self) -> list[str]:
        """Whose pods failed."""
        return sorted({failure.namespace for failure in self.failures})

    def __str__(self) -> str:
        return f"{len(self.failures)} pods of {len(self.namespaces)} namespaces"


class Failures:
    """What is remembered of pods that failed soon after their start, and of those that lived on. Bounded; times are
    monotonic."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._on: dict[str, dict[str, dict[str, Failure]]] = {}  # by node, namespace and UID
        self._well: dict[str, float] = {}  # by node: start of the youngest pod that lives well there
        self._failed_on: FairCache[dict[str, float]] = FairCache(_MAX_WORKLOADS)  # by workload: when on which node
        self._lived_on: FairCache[dict[str, float]] = FairCache(_MAX_WORKLOADS)
        self._namespace_on: dict[str, dict[str, float]] = {}

    @property
    def nodes(self) -> list[str]:
        """On which pods have failed of late."""
        return list(self._on)

    def failed(self, node: str, failure: Failure, *, counts: bool) -> None:
        """A pod failed; with `counts` that may speak against its node."""
        self._note(self._failed_on, failure.namespace, failure.workload, node, failure.at)
        _put(self._namespace_on.setdefault(failure.namespace, {}), node, failure.at)
        if counts:
            of_namespace = self._on.setdefault(node, {}).setdefault(failure.namespace, {})
            of_namespace[failure.uid] = failure
            if len(of_namespace) > _MAX_OF_NAMESPACE:
                del of_namespace[next(iter(of_namespace))]

    def lived(self, node: str, namespace: str, workload: str, started: float, now: float) -> None:
        """A pod that started then lives well, or has ended well."""
        self._note(self._lived_on, namespace, workload, node, now)
        self._well[node] = max(self._well.get(node, float("-inf")), started)

    def well_since(self, node: str) -> float:
        """When the youngest pod that lives well on a node started, -inf where none is known."""
        return self._well.get(node, float("-inf"))

    def against(self, node: str, now: float, least: int | None = None) -> Case | None:
        """What speaks against a node, None where that is too little; `least` failures instead of the rules'."""
        self._drop_old(node, now)
        since = self.well_since(node)
        found = (failure for of in self._on.get(node, {}).values() for failure in of.values() if failure.at > since)
        return self._case(node, found, now, least)

    def stands(self, node: str, case: Case, now: float, least: int | None = None) -> bool:
        """Whether a case still speaks against its node, by all that has come out since."""
        since = self.well_since(node)
        found = (failure for failure in case.failures if failure.at > since)
        return self._case(node, found, now, least) is not None

    def forget(self, node: str) -> None:
        """Nothing speaks against a node any more."""
        self._on.pop(node, None)

    def forget_old(self, now: float, nodes: Iterable[str]) -> None:
        """Forget what is past, and all of nodes that are not there any more."""
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

    def _case(self, node: str, failures: Iterable[Failure], now: float, least: int | None) -> Case | None:
        found = tuple(failure for failure in failures if not self._is_its_own(failure, node, now))
        num_of: dict[str, int] = {}
        for failure in found:
            num_of[failure.namespace] = min(num_of.get(failure.namespace, 0) + 1, self._rules.per_namespace)
        enough = sum(num_of.values()) >= (self._rules.failures if least is None else least)
        return Case(found) if enough and len(num_of) >= self._rules.namespaces else None

    def _is_its_own(self, failure: Failure, node: str, now: float) -> bool:
        """Whether a failure is that of the pod, as far as other nodes tell."""
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
    def _note(where: FairCache[dict[str, float]], namespace: str, workload: str, node: str, at: float) -> None:
        known = where.get(workload) or {}
        _put(known, node, at)
        where.put(namespace, workload, known, at)


def _put(on: dict[str, float], node: str, at: float) -> None:
    """Remember a node as the newest, and not too many."""
    on.pop(node, None)
    on[node] = at
    if len(on) > _MAX_NODES:
        del on[next(iter(on))]


_MAX_ENDED: Final = 1_000
"""Pods that are to be read."""
_MAX_READ: Final = 10
"""In a round."""
_decoder: Final = Decoder(objects.Pod)


@dataclass(slots=True)
class _Life:
    """A pod on its node, as far as it is known."""

    uid: str
    namespace: str
    name: str
    workload: str
    node: str
    started: float
    """Monotonic time at which its kubelet took it, as far as that is told."""
    runs_since: float | None = None
    """Monotonic time."""
    settled: bool = False
    """Whether it was found to live well."""
    failed: bool = False
    """Whether it was found to fail: once for each pod."""


class Lives:
    """Of pods with a node."""

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
        self._of: dict[str, _Life] = {}  # by UID
        self._young: set[str] = set()  # those of whom it is not known yet how they do
        self._ended: FairCache[_Life] = FairCache(_MAX_ENDED)
        self.num_failed = 0
        """Pods that failed soon after their start, whoever is to blame."""

    # What the watch tells

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """A pod with a node was added or has changed; or it is gone, or has finished."""
        if new is not None:
            self._upsert(new)
        elif old is not None:
            life = self._forget(old.metadata.uid)
            if life is not None and not old.metadata.deletion_timestamp:  # else its end says nothing
                self._end(life)

    def _upsert(self, item: objects.Pod) -> None:
        uid = item.metadata.uid
        life = self._of.get(uid)
        if life is None:
            if not self._has_gpus(item):
                return
            life = self._of[uid] = self._life(item)
            self._ended.pop(uid)  # it is there again, in a cluster that was restored
            self._young.add(uid)
        if not life.settled or _has_restarted(item):
            if not _runs(item):
                life.runs_since = None
            elif life.runs_since is None:
                life.runs_since = self._clock()
            self._judge(life, item)

    # What is made of it

    def age(self) -> None:
        """Find out who has lived well by now."""
        now = self._clock()
        for uid in list(self._young):
            life = self._of[uid]
            if self._has_run(life, now):
                self._settle(life)

    def forget_ended(self) -> None:
        """Nobody is to be read: another process leads."""
        self._ended.clear()

    async def read_ended(self) -> None:
        """Read some of those that are gone, as long as they are there."""
        self._ended.expire(self._clock() - self._window_s)
        for life in list(islice(self._ended.in_turn(), _MAX_READ)):
            try:
                path = f"/api/v1/namespaces/{life.namespace}/pods/{life.name}"
                pod = _decoder.decode(await self._transport.get(path))
            except (ApiError, msgspec.DecodeError):
                self._ended.pop(life.uid)  # it is gone, or nobody can say how it ended
            except ClusterError:
                return
            else:
                self._ended.pop(life.uid)
                if (pod.metadata.uid, pod.spec.node_name) == (life.uid, life.node):
                    self._judge(life, pod)

    def _life(self, pod: objects.Pod) -> _Life:
        metadata, now = pod.metadata, self._clock()
        taken = unix_time(pod.status.start_time)
        started = now - max(self._wall_clock() - taken, 0.0) if taken else now
        return _Life(
            uid=metadata.uid,
            namespace=metadata.namespace,
            name=metadata.name,
            workload=owner_of(metadata),
            node=pod.spec.node_name or "",
            started=started,
        )

    def _has_run(self, life: _Life, now: float) -> bool:
        return life.runs_since is not None and now - life.runs_since >= self._early_s

    def _judge(self, life: _Life, pod: objects.Pod) -> None:
        if pod.status.phase == "Succeeded":
            self._settle(life)
        elif not life.failed and _early_failure(pod, self._early_s, self._wall_clock(), self._window_s):
            life.failed, life.settled = True, False
            self.num_failed += 1
            failure = Failure(life.uid, life.namespace, life.workload, self._clock())
            self._failures.failed(life.node, failure, counts=not self._nodes.chosen_by(pod, life.node))
            if life.uid in self._of:
                self._young.add(life.uid)

    def _settle(self, life: _Life) -> None:
        """It lives well, or has ended well; one that had failed is as young as its last start."""
        life.settled = True
        self._young.discard(life.uid)
        started = life.runs_since if life.failed and life.runs_since is not None else life.started
        self._failures.lived(life.node, life.namespace, life.workload, started, self._clock())

    def _end(self, life: _Life) -> None:
        """Of who has lived well, or is known to have failed, there is nothing to find out."""
        now = self._clock()
        if self._has_run(life, now) and not life.settled:
            self._settle(life)
        elif not life.settled and not life.failed:
            self._ended.put(life.namespace, life.uid, life, now)

    def _forget(self, uid: str) -> _Life | None:
        self._young.discard(uid)
        return self._of.pop(uid, None)


_INTERVAL_S: Final = 1.0
_ON_ITS_WAY_S: Final = 30.0
"""For which a note that was written is waited for."""
_MAX_NAMED: Final = 10


@dataclass(frozen=True, slots=True)
class Terms:
    """How many nodes are set aside, and for how long."""

    acts: bool
    """Else it is only said."""
    namespaces: int
    early_s: float
    max_frac: float
    """Of the nodes with GPUs; one at least, where there are several."""
    for_s: float
    max_for_s: float


class Keeper(Background):
    """Works in the background, from `start` to `stop`; also a sink of nodes."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it works with
        self,
        transport: Transport,
        ledger: Ledger,
        events: EventRecorder,
        fence: Fence,
        failures: Failures,
        lives: Lives,
        terms: Terms,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        super().__init__("setting nodes aside", needed=False)
        self._transport, self._ledger, self._events, self._fence = transport, ledger, events, fence
        self._failures, self._terms, self._clock, self._wall_clock = failures, terms, clock, wall_clock
        self.lives = lives
        self._notes: dict[str, Note] = {}  # as the watch has told of them
        self._on_its_way: dict[str, tuple[Note | None, float]] = {}  # what was written, until the watch has told
        self._cases: dict[str, Case] = {}  # by which this process has set nodes aside
        self._opened: dict[str, float] = {}  # when this process first knew that a node is on trial
        self._failing: dict[str, Case] = {}
        self._pauses = Pauses()

    # Reading

    @property
    def num_set_aside(self) -> int:
        """Nodes that take no pods."""
        return sum(not note.trial for note in self._notes.values()) if self._terms.acts else 0

    @property
    def num_failing(self) -> int:
        """Nodes that are not set aside although they should be: that is only said, or too many are."""
        return len(self._failing)

    def words(self, node: str) -> str:
        """What is to be said of a node, "" for nothing."""
        note, case = self._notes.get(node) if self._terms.acts else None, self._failing.get(node)
        if note is not None:
            failed = f"{note.pods} pods of {note.namespaces} namespaces failed {self._soon}"
            return f"on trial: {failed}" if note.trial else f"set aside: {failed}; until {_time(note.until)}"
        if case is not None:
            why = "as many nodes are as may be" if self._terms.acts else "set_aside.mode is advise"
            return f"pods fail here: {case} {self._soon}; not set aside: {why}"
        return ""

    @property
    def _soon(self) -> str:
        return f"within {self._terms.early_s:g} s"

    # What the watch tells

    def changed(self, old: objects.Node | None, new: objects.Node | None) -> None:
        """A node was added, has changed or is gone."""
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
        if name in self._on_its_way and self._on_its_way[name][0] == note:
            del self._on_its_way[name]
        known = self._notes.pop(name, None)
        if note is not None:
            self._notes[name] = note
        elif known is not None and name not in self._on_its_way:
            self._clear(name)  # somebody else has opened it: what was before counts no more
        if note is None or not note.trial:
            self._opened.pop(name, None)

    # What is done

    async def run(self) -> None:
        await repeat(self.round, _INTERVAL_S, "setting nodes aside")

    async def round(self) -> None:
        """Look at how pods do, and at the nodes for it."""
        self.lives.age()
        if self._fence.fault():
            self.lives.forget_ended()
            self._failing = {}
            return
        await self.lives.read_ended()
        now = self._clock()
        names = set(self._ledger.rows.names())
        self._failures.forget_old(now, names)
        for gone in self._notes.keys() - names:
            del self._notes[gone]
            self._clear(gone)
        self._on_its_way = {name: sent for name, sent in self._on_its_way.items() if sent[1] > now}
        if self._terms.acts:
            for name, note in list(self._notes.items()):
                if name not in self._on_its_way:
                    await self._reconsider(name, note, now)
        await self._accuse(now)

    async def _reconsider(self, name: str, note: Note, now: float) -> None:
        """Open a node whose time is over, or that is not to blame; and one on trial again and for good, or not."""
        node, wall, case = self._ledger.rows.manifest(name), self._wall_clock(), self._cases.get(name)
        boot = _boot(node)
        if node is None:
            return
        if note.trial:
            opened = self._opened.setdefault(name, now)
            if self._failures.well_since(name) >= opened:
                await self._write(node, None, "a pod has lived well on it")
            return
        least = self._terms.namespaces if note.times > 1 else None
        if case is not None and not self._failures.stands(name, case, now, least):
            await self._write(node, None, "those who failed on it have failed elsewhere as well, or a pod lives well")
        elif note.boot and boot and boot != note.boot:
            await self._try_out(node, note, "it has been started again")
        elif not wall < note.until <= wall + self._terms.max_for_s + 1:
            await self._try_out(node, note, "its time is over")

    async def _try_out(self, node: objects.Node, note: Note, why: str) -> None:
        trial = msgspec.structs.replace(note, trial=True, since=int(self._wall_clock()))
        if await self._write(node, trial, why):
            self._failures.forget(node.metadata.name)

    async def _accuse(self, now: float) -> None:
        """Set nodes aside that there is enough against, those first that there is most against."""
        found: list[tuple[str, objects.Node, Case, int]] = []
        for name in self._failures.nodes:
            node, note = self._ledger.rows.manifest(name), self._notes.get(name) if self._terms.acts else None
            aside = note is not None and not note.trial
            if node is None or aside or name in self._on_its_way or is_exempt(node.metadata.annotations or {}):
                continue
            # One on trial needs no more than one failure of each namespace: fewer would be a weapon.
            case = self._failures.against(name, now, None if note is None else self._terms.namespaces)
            if case is not None:
                found.append((name, node, case, 1 if note is None else min(note.times + 1, MAX_TIMES)))
        failing: dict[str, Case] = {}
        room = self._room(now)
        for name, node, case, times in sorted(found, key=lambda entry: (-len(entry[2].failures), entry[0])):
            if self._terms.acts and room > 0 and await self._set_aside(node, case, times):
                room -= 1
            else:
                failing[name] = case
        for name in failing.keys() - self._failing.keys():
            self._say(name, "PodsFailEarly", f"{failing[name]} failed on it {self._soon} of their start", failing[name])
        self._failing = failing

    def _room(self, now: float) -> int:
        """How many more nodes may be set aside."""
        has_gpus = self._ledger.snapshot(now).unit != GpuUnit.NONE
        num_nodes, on_its_way = int(has_gpus.sum()), {name for name, (note, _) in self._on_its_way.items() if note}
        most = max(int(self._terms.max_frac * num_nodes), 1) if num_nodes > 1 and self._terms.max_frac else 0
        return most - len({name for name, note in self._notes.items() if not note.trial} | on_its_way)

    async def _set_aside(self, node: objects.Node, case: Case, times: int) -> bool:
        wall = int(self._wall_clock())
        for_s = min(self._terms.for_s * 2 ** (times - 1), self._terms.max_for_s)
        until = wall + max(int(for_s), 1)
        note = Note(len(case.failures), len(case.namespaces), wall, until, times, _boot(node))
        told = f"{case} failed on it {self._soon} of their start: it takes no more of them until {_time(until)}"
        if not await self._write(node, note, f'{told}; {SET_ASIDE}: "{NEVER}" prevents that', case):
            return False
        self._cases[node.metadata.name] = case
        return True

    async def _write(self, node: objects.Node, note: Note | None, why: str, case: Case | None = None) -> bool:
        """Write a note on a node as it is known, or take it away; whether that succeeded."""
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
            if not (isinstance(error, ApiError) and error.status in (404, 409)):  # else it is looked at anew
                logger.warning("node %s: %s was not written: %s", name, SET_ASIDE, error)
                self._pauses.failed("", name, error, self._clock())
            return False
        self._pauses.succeeded("", name)
        self._on_its_way[name] = note, self._clock() + _ON_ITS_WAY_S
        if note is None:
            self._clear(name)
        aside = note is not None and not note.trial
        self._say(name, "SetAside" if aside else "OnTrial" if note else "TakesPodsAgain", why, case)
        return True

    def _say(self, name: str, reason: str, why: str, case: Case | None) -> None:
        """Tell everybody, and only the log whose pods they were."""
        self._events.emit_about_node(name, reason=reason, message=why)
        whose = "" if case is None else f" (namespaces {', '.join(case.namespaces[:_MAX_NAMED])})"
        logger.warning("node %s: %s: %s%s", name, reason, why, whose)

    def _clear(self, name: str) -> None:
        self._failures.forget(name)
        self._cases.pop(name, None)
        self._opened.pop(name, None)


def _boot(node: objects.Node | None) -> str:
    info = node.status.node_info if node is not None else None
    return info.boot_id[:160] if info is not None else ""


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
