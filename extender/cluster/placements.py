"""Placing pods: decisions on the current cluster, and the reservations that keep a burst from over-committing it."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Protocol, Self

import numpy as np

from extender.cluster import objects
from extender.cluster.fair_caches import FairCache
from extender.cluster.holdings import Holding, Part
from extender.cluster.ledger import Ledger
from extender.core.clusters import WHOLE_MILLI, Cluster, Mask, Rows
from extender.core.decisions import Decision, Memo, decide, decide_from_top, decide_on
from extender.core.nodes import GpuUnit
from extender.core.policies import POLICIES, Policy
from extender.core.requests import POLICY, AskedUnit, GpuRequest, PodRequest, RequestError

_MAX_REMEMBERED: Final = 20_000
_REMEMBERED_S: Final = 900.0
"""kube-scheduler asks again about every pod within five minutes: one that it asks about no more is gone."""
_UUIDS_PER_WEIGHT: Final = 8
_A_MOMENT_S: Final = 2.0
_FEW_NAMES: Final = 256
_MAX_NAME_BYTES: Final = 256  # a node's name in quotes, and a comma
_SMALLEST_SAMPLE_FRAC: Final = 1 / 14
"""Down to this part the ranking is walked from its top: kube-scheduler offers a tenth of 5,000 nodes by default.
With one node in 14 a candidate, 64 tries miss them all once in a hundred times."""
_MAX_TRIES: Final = 64
DEFAULT_LOAD: Final = 0.7
"""Load expected of a pod on each of its GPUs while nothing is known of its owner's pods."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """One pod, and not another of the same name."""

    namespace: str
    name: str
    uid: str
    owner: str = ""
    """What its load is predicted by: see `pods.owner_of`."""
    created: str = field(default="", compare=False)
    """Time stamp of the API server, "" where nobody has told."""
    gang: str = ""
    """The PodGroup that kube-scheduler places it with, `namespace/name`; "" for none."""

    @classmethod
    def of(cls, pod: objects.Named) -> Self:
        """Which pod it is, and no more of it."""
        return cls(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class Candidates(Protocol):
    """Names of candidate nodes, not looked at one by one unless they have to be."""

    def __contains__(self, name: object, /) -> bool: ...

    def __len__(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Size of their text."""

    def decode(self) -> list[str]:
        """All of them."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a placement gives a pod: what bind writes, once it is decided."""

    node: str
    units: int
    gpus: tuple[int, ...]
    """Indices, () when the device plugin alone picks them."""
    uuids: tuple[str, ...]
    """Theirs in the same order, () where the node does not tell all of them."""
    milli: int
    """Compute booked on each GPU; WHOLE_MILLI where whole ones are."""
    mib_each: tuple[int, ...]
    """Memory booked on each GPU where it is shared, in the same order."""
    mig: tuple[tuple[str, int], ...]
    """MIG devices by profile."""
    models: str
    """Names of the GPUs' models, each once, separated by commas; "" when not known."""
    request: str
    """The request in words."""
    policy: str
    num_fit: int
    """Nodes with room for it, this one among them."""
    num_nodes: int
    """Nodes that were looked at."""

    @property
    def shared(self) -> bool:
        """Whether it gives parts of GPUs."""
        return self.milli < WHOLE_MILLI

    @property
    def mib(self) -> int:
        """The most memory that is booked on one GPU where it is shared."""
        return max(self.mib_each, default=0)

    @property
    def holding(self) -> Holding:
        """What the pod holds with it."""
        if self.mig:
            return Holding(0, (), self.mig)
        uuids = self.uuids or ("",) * len(self.gpus)
        mib_each = self.mib_each or (0,) * len(self.gpus)
        parts = (Part(gpu, self.milli, mib, uuid) for gpu, mib, uuid in zip(self.gpus, mib_each, uuids, strict=True))
        return Holding(self.units, tuple(parts))


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision about a pod, with all that is needed to explain it later."""

    pod: PodIdentity
    cluster: Cluster
    decision: Decision
    unknown: tuple[str, ...]
    """Candidate names that Kerf knows no node of."""
    decided_at: float
    """Unix time."""
    offered: Candidates | None = None
    """The candidates where the decision looked at the whole cluster; None: they are the decision's rows."""

    @property
    def node(self) -> str | None:
        """The node that wins, None when none fits."""
        return None if self.decision.best is None else self.cluster.node_names[self.decision.best]

    def assignment(self) -> Assignment | None:
        """What the winner gives, None when no node fits."""
        decision, row = self.decision, self.decision.best
        if row is None:
            return None
        slots = list(decision.gpus) or [0]
        models = {
            self.cluster.models[index].name for index in self.cluster.gpu_model[row, slots].tolist() if index >= 0
        }
        known = self.cluster.gpu_uuids[row]
        uuids = tuple(known[gpu] for gpu in decision.gpus)
        return Assignment(
            node=self.cluster.node_names[row],
            units=decision.units,
            gpus=decision.gpus,
            uuids=uuids if all(uuids) else (),
            milli=decision.milli,
            mib_each=decision.mib_each,
            mig=decision.request.mig,
            models=",".join(sorted(models - {""})),
            request=str(decision.request),
            policy=decision.policy,
            num_fit=int(np.count_nonzero(decision.evaluation.fits)),
            num_nodes=len(decision.rows),
        )


class Placer:
    """Decides, reserves, and remembers what it decided."""

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        ledger: Ledger,
        *,
        default_policy: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        num_kept: int = 128,
        policies: Mapping[str, Policy] = POLICIES,
        load_of: Callable[[str], float] = lambda owner: DEFAULT_LOAD,
        canary: Callable[[objects.Metadata], str] = lambda metadata: "",
        on_request: Callable[[str, PodRequest], None] = lambda uid, request: None,
    ) -> None:
        """`policies` may change meanwhile. `canary` names the policy of a pod that chooses none, "" for the
        deployment's; `on_request` hears of pods that are offered nodes, by UID."""
        self._ledger = ledger
        self.policies = policies
        """By name."""
        self._load_of = load_of
        self._default_policy = default_policy
        self._canary = canary
        self._on_request = on_request
        self._clock = clock
        self._wall_clock = wall_clock
        self._memo = Memo()
        self._memo_aside = Memo()
        """Of what the background looks at: many kinds of pods that wait push no kind that is asked about out."""
        self._requests: FairCache[PodRequest] = FairCache(_MAX_REMEMBERED)
        self._assignments: FairCache[tuple[GpuRequest, Assignment]] = FairCache(_MAX_REMEMBERED)
        self._expected: tuple[Candidates | None, tuple[str, ...], Rows] = None, (), np.empty(0, np.intp)
        self._kept: deque[Placement] = deque(maxlen=num_kept)
        self.num_decided = 0
        """Decisions kept so far, those included that others gave way to."""

    def policy_of(self, request: PodRequest) -> Policy:
        """The pod's own policy, else the deployment's. Raises RequestError when there is none of that name."""
        policy = self.policies.get(request.policy or self._default_policy)
        if policy is None:
            names = ", ".join(self.policies)
            raise RequestError(f'{POLICY}: "{request.policy[:80]}" is no policy; write one of {names}')
        return policy

    def read_request(self, pod: objects.Pod) -> PodRequest:
        """What a pod asks for. Raises RequestError with a sentence for its author."""
        request = self._ledger.read_request(pod)
        if request.gpus is None or request.policy:
            return request
        chosen = self._canary(pod.metadata)
        return replace(request, policy=chosen) if chosen else request

    def policies_apart(self) -> dict[str, Policy]:
        """The policies for a plan that is made in a thread: as they are configured, each with a state of its own."""
        return {name: policy.apart() if policy.apart else policy for name, policy in self.policies.items()}

    def snapshot(self) -> Cluster:
        """The cluster now."""
        return self._ledger.snapshot(self._clock())

    def remember(self, pod: PodIdentity, request: PodRequest) -> None:
        """Keep a pod's request until it is bound, so that bind need not ask the API server for it."""
        self._requests.put(pod.namespace, pod.uid, request, self._clock(), weight_of(request))
        self._on_request(pod.uid, request)

    def remembered(self, uid: str) -> PodRequest | None:
        """The request of a pod that was offered nodes before."""
        return self._requests.get(uid)

    def forget(self, uid: str) -> None:
        """A pod is bound, or gone: its request is no longer needed."""
        self._requests.pop(uid)
        self._assignments.pop(uid)

    def forget_old(self) -> None:
        """Forget pods that kube-scheduler asks about no more: nobody tells of those that are deleted unbound."""
        before = self._clock() - _REMEMBERED_S
        self._requests.expire(before)
        self._assignments.expire(before)

    def node_changed(self, node: objects.Node) -> None:
        """Nodes change nothing that is remembered."""

    def pod_changed(self, pod: objects.Pod) -> None:
        """A pod has a node, whoever has bound it."""
        self.forget(pod.metadata.uid)

    def place_best(
        self, pod: PodIdentity, request: GpuRequest, policy: Policy, candidates: Candidates
    ) -> Placement | None:
        """Decide for the best node alone, without a look at each candidate; gives back what the pod had reserved.

        None when that does not pay or does not lead to a node: then `place` has to decide.
        """
        self._give_back(pod.uid)
        cluster = self.snapshot()
        num_known = len(cluster.row_of)
        fewest = max(_FEW_NAMES, int(num_known * _SMALLEST_SAMPLE_FRAC))
        if len(candidates) < fewest or candidates.num_bytes > _MAX_NAME_BYTES * num_known:
            return None
        decision = decide_from_top(cluster, request, policy, candidates.__contains__, self._memo, _MAX_TRIES)
        if decision is None:
            return None
        return Placement(pod, cluster, decision, (), self._wall_clock(), candidates)

    def place(
        self, pod: PodIdentity, request: GpuRequest, policy: Policy, candidates: Candidates | Sequence[str]
    ) -> Placement:
        """Decide among the named nodes; gives back what the pod had reserved."""
        self._give_back(pod.uid)
        cluster = self.snapshot()
        rows, unknown = self._look_up(cluster, candidates)
        decision = decide(cluster, request, policy, rows, self._memo)
        return Placement(pod, cluster, decision, unknown, self._wall_clock())

    def place_on(self, pod: PodIdentity, request: GpuRequest, policy: Policy, node: str) -> Placement:
        """Decide on a node that a plan has chosen; gives back what the pod had reserved."""
        self._give_back(pod.uid)
        cluster = self.snapshot()
        row = cluster.row_of.get(node)
        if row is None:
            decision = decide(cluster, request, policy, np.empty(0, np.intp), self._memo)
            return Placement(pod, cluster, decision, (node,), self._wall_clock())
        return Placement(pod, cluster, decide_on(cluster, request, policy, row, self._memo), (), self._wall_clock())

    def consider(self, pod: PodIdentity, request: GpuRequest, policy: Policy) -> Placement:
        """What a decision among all nodes would be now; nothing is reserved, given back or kept."""
        cluster = self.snapshot()
        rows = np.fromiter(cluster.row_of.values(), np.intp, len(cluster.row_of))
        return Placement(pod, cluster, decide(cluster, request, policy, rows, self._memo), (), self._wall_clock())

    def expect(self, candidates: Candidates, cluster: Cluster, rows: Rows) -> None:
        """Candidates that the next call will probably name, with their rows: prioritize names what filter answered."""
        self._expected = candidates, cluster.node_names, rows

    def _look_up(self, cluster: Cluster, candidates: Candidates | Sequence[str]) -> tuple[Rows, tuple[str, ...]]:
        """Rows of the named nodes, each once, and the names that nobody knows."""
        if isinstance(candidates, Sequence):
            return _rows(cluster, candidates)
        expected, node_names, rows = self._expected
        if node_names is cluster.node_names and expected == candidates:
            return rows, ()
        return _rows(cluster, candidates.decode())

    def keep(self, placement: Placement) -> None:
        """Keep a decision for those who ask later; the oldest one gives way."""
        self._kept.append(placement)
        self.num_decided += 1

    def kept_after(self, number: int) -> list[tuple[int, Placement]]:
        """Kept decisions past the `number`th that was made, oldest first, each with its own number."""
        first = self.num_decided - len(self._kept) + 1
        newer = islice(self._kept, max(number + 1 - first, 0), None)
        return list(enumerate(newer, max(number + 1, first)))

    def fits_somewhere(self, request: PodRequest) -> bool:
        """Whether any node of the cluster has room for a request now."""
        policy = self.policy_of(request)
        asked = policy.asked(request)
        if asked is None:
            return False
        return bool(self._memo_aside.evaluate(self.snapshot(), asked, policy).evaluation.fits.any())

    def room(self, request: GpuRequest, policy: Policy) -> Mask:
        """(N,) the nodes with room for a request now. The array is the caller's."""
        return self._memo.evaluate(self.snapshot(), request, policy).evaluation.fits

    def decide_at(self, request: GpuRequest, policy: Policy, row: int) -> Decision:
        """The verdict on one node; nothing is reserved or given back."""
        return decide_on(self.snapshot(), request, policy, row, self._memo)

    def fits_meanwhile(self, pod: PodIdentity, request: PodRequest) -> bool:
        """Whether a pod that was rejected a moment ago fits now on a node that it was offered then."""
        last = self.last(pod.namespace, pod.name)
        if request.gpus is None or last is None or last.pod.uid != pod.uid or last.node is not None:
            return False
        if not 0 <= self._wall_clock() - last.decided_at < _A_MOMENT_S:
            return False
        cluster, policy = self.snapshot(), self.policy_of(request)
        rows, _ = _rows(cluster, [last.cluster.node_names[row] for row in last.decision.rows.tolist()])
        asked = policy.asked(request) or request.gpus
        return bool(self._memo.evaluate(cluster, asked, policy).evaluation.fits[rows].any())

    def reserve(self, placement: Placement) -> None:
        """Hold the GPUs of a decision for the pod until it is bound or the TTL ends."""
        assignment, uid = placement.assignment(), placement.pod.uid
        if assignment is None or not uid:
            return
        request = placement.decision.request
        self._ledger.reserve(
            uid, assignment.node, assignment.holding, self._clock(),
            cpu_milli=request.cpu_milli, memory_mib=request.memory_mib,
        )  # fmt: skip
        if placement.pod.gang:
            self._ledger.cycles.reserve(placement.pod.gang, uid, counted=_is_counted(placement))
        self._expect_load(placement)
        self._assignments.put(
            placement.pod.namespace, uid, (request, assignment), self._clock(), _weight_of_gpus(request)
        )

    def asked(self, pod: PodIdentity) -> None:
        """kube-scheduler asks about a pod: begins another cycle of its gang where that is over."""
        if pod.gang and pod.uid:
            self._ledger.cycles.ask(pod.gang, pod.uid, self._clock())

    def make_way(self, pod: PodIdentity, request: GpuRequest) -> bool:
        """For a pod that fits nowhere, give back what gangs seem to have given up; whether there was anything."""
        return self._ledger.cycles.make_way(pod.gang, pod.uid, counted=_counts(request))

    def turned_away(self, pod: PodIdentity) -> None:
        """A pod was told of no node: its gang may have to be given up."""
        self._ledger.cycles.turn_away(pod.gang, pod.uid)

    def _expect_load(self, placement: Placement) -> None:
        """Count the pod as load on its GPUs until samples show it: otherwise a burst would run after old samples."""
        observed, row = self._ledger.arrays.observed, placement.decision.best
        if observed is None or row is None or not observed.has_samples:
            return
        decision = placement.decision
        load = self._load_of(placement.pod.owner) * decision.milli / WHOLE_MILLI
        self._ledger.arrays.touch(observed.expect(placement.pod.uid, row, decision.gpus, load, self._clock()))

    def _give_back(self, uid: str) -> None:
        """Give back what a pod has reserved, and expect no load of it."""
        self._ledger.release(uid)
        observed = self._ledger.arrays.observed
        claim = self._ledger.claim(uid)
        if observed is not None and claim is None:
            self._ledger.arrays.touch(observed.expect_no_more(uid))

    def reserved(self, uid: str, node: str) -> Assignment | None:
        """What was reserved for a pod on a node, if it still stands: it was checked when it was decided."""
        _, assignment = self._assignments.get(uid) or (None, None)
        return assignment if self._ledger.is_reserved(uid, node) else None

    def keeps(self, uid: str, request: GpuRequest, candidates: Candidates) -> bool:
        """Whether a pod's one candidate is the node on which just this is reserved for it; the TTL begins anew.

        The queue has decided on the node that it nominates: to ask for that node alone decides nothing else.
        """
        asked, assignment = self._assignments.get(uid) or (None, None)
        return (
            assignment is not None
            and asked == request
            and candidates.num_bytes <= _MAX_NAME_BYTES
            and candidates.decode() == [assignment.node]
            and self._ledger.renew(uid, assignment.node, self._clock())
        )

    def release(self, uid: str) -> None:
        """Give back what a pod has reserved."""
        self._give_back(uid)

    def last(self, namespace: str, name: str) -> Placement | None:
        """The newest decision about a pod that is still kept."""
        wanted = (namespace, name)
        return next((kept for kept in reversed(self._kept) if (kept.pod.namespace, kept.pod.name) == wanted), None)


def weight_of(request: PodRequest) -> int:
    """How much of a bounded memory a request takes: 1 for all but those with many UUIDs."""
    return 1 if request.gpus is None else _weight_of_gpus(request.gpus)


def _weight_of_gpus(request: GpuRequest) -> int:
    return 1 + (len(request.uuids) + len(request.uuids_exclude)) // _UUIDS_PER_WEIGHT


def _counts(request: GpuRequest) -> bool:
    """Whether kube-scheduler counts what is asked by itself: GPUs, time slices and devices, but no parts of them."""
    is_counted = request.unit in (AskedUnit.GPU, AskedUnit.SHARED, AskedUnit.MIG, AskedUnit.CLAIM)
    return is_counted and not request.milli and not request.shares_by_memory


def _is_counted(placement: Placement) -> bool:
    """The same of what is reserved: where parts of GPUs are handed out, their number says little."""
    row = placement.decision.best
    on_parts = row is not None and placement.cluster.unit[row] == GpuUnit.PART
    return _counts(placement.decision.request) and not on_parts


def _rows(cluster: Cluster, names: Sequence[str]) -> tuple[Rows, tuple[str, ...]]:
    """Rows of the named nodes, each once, and the names that nobody knows."""
    unknown: tuple[str, ...] = ()
    try:
        rows = np.fromiter(map(cluster.row_of.__getitem__, names), np.intp, len(names))
    except KeyError:
        unknown = tuple(dict.fromkeys(name for name in names if name not in cluster.row_of))
        rows = np.array([cluster.row_of[name] for name in names if name in cluster.row_of], dtype=np.intp)
    named = np.zeros(cluster.num_nodes, np.bool_)
    named[rows] = True
    if np.count_nonzero(named) != len(rows):
        rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    return rows, unknown
