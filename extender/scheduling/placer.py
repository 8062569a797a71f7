"""Placing pods: decisions on the current cluster, and the reservations that keep a burst from over-committing it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from extender.core.annotations import POLICY
from extender.core.clusters import WHOLE_MILLI, Cluster, Mask, Rows
from extender.core.decisions import Decision, decide, decide_from_top, decide_on
from extender.core.evaluations import Memo
from extender.core.policies.policy import Policy
from extender.core.policies.registry import CANDIDATE, POLICIES, names, renamed
from extender.core.resources.requests import GpuRequest, PodRequest, RequestError
from extender.kube import objects
from extender.ledger.ledger import Ledger
from extender.scheduling.assignments import (
    Assignment,
    Candidates,
    DecisionLog,
    Placement,
    PodIdentity,
    is_counted,
    rows_of,
)
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.lost_answers import LostAnswers

logger = logging.getLogger(__name__)

__all__ = ["Assignment", "Candidates", "Placement", "Placer", "PodIdentity"]

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
        on_request: Callable[[PodIdentity, PodRequest], None] = lambda pod, request: None,
    ) -> None:
        """`policies` may change meanwhile. `canary` names the policy of a pod that chooses none, "" for the
        deployment's; `on_request` hears of pods that are offered nodes."""
        self._ledger = ledger
        self.policies = policies
        """By name."""
        self._load_of = load_of
        self._default_policy = default_policy
        self._warned_of: set[str] = set()
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
        self.decided = DecisionLog(num_kept)
        self.lost = LostAnswers(clock)

    def policy_of(self, request: PodRequest) -> Policy:
        """The pod's own policy, else the deployment's. Raises RequestError when there is none of that name."""
        policy = self.policies.get(request.policy or self._default_policy)
        if policy is None and request.policy == CANDIDATE:  # it was drawn for a model that is gone
            policy = self.policies.get(self._default_policy)
        if policy is None:
            raise self._no_policy(request)
        if policy.renamed and policy.name not in self._warned_of:
            self._warned_of.add(policy.name)
            logger.warning("%s", renamed(policy))
        return policy

    def _no_policy(self, request: PodRequest) -> RequestError:
        return RequestError(f'{POLICY}: "{request.policy[:80]}" is not a policy; use one of {names(self.policies)}')

    def read_request(self, pod: objects.Pod) -> PodRequest:
        """What a pod asks for. Raises RequestError with a sentence for its author."""
        request = self._ledger.read_request(pod)
        if request.policy == CANDIDATE:
            raise self._no_policy(request)
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
        self._on_request(pod, request)

    def remembered(self, uid: str) -> PodRequest | None:
        """The request of a pod that was offered nodes before."""
        return self._requests.get(uid)

    def forget(self, uid: str) -> None:
        """A pod is bound, or gone: its request is no longer needed."""
        self._requests.pop(uid)
        self._assignments.pop(uid)
        self.lost.forget(uid)

    def forget_old(self) -> None:
        """Forget pods that kube-scheduler asks about no more: nobody tells of those that are deleted unbound."""
        before = self._clock() - _REMEMBERED_S
        self._requests.expire(before)
        self._assignments.expire(before)
        self.lost.forget_old(before)

    def pod_changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """A pod has a node, whoever has bound it."""
        if new is not None:
            self.forget(new.metadata.uid)

    def place_best(
        self, pod: PodIdentity, request: GpuRequest, policy: Policy, candidates: Candidates
    ) -> Placement | None:
        """Decide for the best node alone, without a look at each candidate; gives back what the pod had reserved.

        None when that does not pay or does not lead to a node: then `place` has to decide.
        """
        self.release(pod.uid)
        cluster = self.snapshot()
        num_known = len(cluster.row_of)
        fewest = max(_FEW_NAMES, int(num_known * _SMALLEST_SAMPLE_FRAC))
        if len(candidates) < fewest or candidates.num_bytes > _MAX_NAME_BYTES * num_known:
            return None
        memo = self._memo.of(pod.namespace)
        decision = decide_from_top(cluster, request, policy, candidates.__contains__, memo, _MAX_TRIES)
        if decision is None:
            return None
        return Placement(pod, cluster, decision, (), self._wall_clock(), candidates)

    def place(
        self, pod: PodIdentity, request: GpuRequest, policy: Policy, candidates: Candidates | Sequence[str]
    ) -> Placement:
        """Decide among the named nodes; gives back what the pod had reserved."""
        self.release(pod.uid)
        cluster = self.snapshot()
        rows, unknown = self._look_up(cluster, candidates)
        decision = decide(cluster, request, policy, rows, self._memo.of(pod.namespace))
        return Placement(pod, cluster, decision, unknown, self._wall_clock())

    def place_on(self, pod: PodIdentity, request: GpuRequest, policy: Policy, node: str) -> Placement:
        """Decide on a node that a plan has chosen; gives back what the pod had reserved."""
        self.release(pod.uid)
        cluster = self.snapshot()
        row = cluster.row_of.get(node)
        if row is None:
            decision = decide(cluster, request, policy, np.empty(0, np.intp), self._memo.of(pod.namespace))
            return Placement(pod, cluster, decision, (node,), self._wall_clock())
        return Placement(pod, cluster, decide_on(cluster, request, policy, row, self._memo), (), self._wall_clock())

    def consider(self, pod: PodIdentity, request: GpuRequest, policy: Policy) -> Placement:
        """What a decision among all nodes would be now; nothing is reserved, given back or kept."""
        cluster = self.snapshot()
        rows = np.fromiter(cluster.row_of.values(), np.intp, len(cluster.row_of))
        decision = decide(cluster, request, policy, rows, self._memo.of(pod.namespace))
        return Placement(pod, cluster, decision, (), self._wall_clock())

    def expect(self, candidates: Candidates, cluster: Cluster, rows: Rows) -> None:
        """Candidates that the next call will probably name, with their rows: prioritize names what filter answered."""
        self._expected = candidates, cluster.node_names, rows

    def _look_up(self, cluster: Cluster, candidates: Candidates | Sequence[str]) -> tuple[Rows, tuple[str, ...]]:
        """Rows of the named nodes, each once, and the names that nobody knows."""
        if isinstance(candidates, Sequence):
            return rows_of(cluster, candidates)
        expected, node_names, rows = self._expected
        if node_names is cluster.node_names and expected == candidates:
            return rows, ()
        return rows_of(cluster, candidates.decode())

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
        last = self.decided.last(pod.namespace, pod.name)
        if request.gpus is None or last is None or last.pod.uid != pod.uid or last.node is not None:
            return False
        if not 0 <= self._wall_clock() - last.decided_at < _A_MOMENT_S:
            return False
        cluster, policy = self.snapshot(), self.policy_of(request)
        rows, _ = rows_of(cluster, [last.cluster.node_names[row] for row in last.decision.rows.tolist()])
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
            self._ledger.cycles.reserve(placement.pod.gang, uid, counted=placement.counted)
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
        return self._ledger.cycles.make_way(pod.gang, pod.uid, counted=is_counted(request))

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

    def release(self, uid: str) -> None:
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

    def keeps(self, uid: str, request: GpuRequest, candidates: Candidates, kept: str = "") -> str:
        """The node on which just this is reserved for a pod, where that is its one candidate, or is `kept` for it and
        one of them; "" for none. The TTL begins anew.

        The queue has decided on the node that it nominates: to ask for that node alone decides nothing else.
        """
        asked, assignment = self._assignments.get(uid) or (None, None)
        if assignment is None or asked != request:
            return ""
        node, few = assignment.node, candidates.num_bytes <= _MAX_NAME_BYTES
        wanted = node in candidates if node == kept else few and candidates.decode() == [node]
        return node if wanted and self._ledger.renew(uid, node, self._clock()) else ""


def weight_of(request: PodRequest) -> int:
    """How much of a bounded memory a request takes: 1 for all but those with many UUIDs."""
    return 1 if request.gpus is None else _weight_of_gpus(request.gpus)


def _weight_of_gpus(request: GpuRequest) -> int:
    return 1 + (len(request.uuids) + len(request.uuids_exclude)) // _UUIDS_PER_WEIGHT
