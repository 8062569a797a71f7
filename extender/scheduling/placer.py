"""Placing pods: decisions on the current cluster, and the reservations that keep a burst from over-committing it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import structs

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
    distinct,
    is_counted,
    rows_of,
)
from extender.scheduling.fair_cache import FairCache
from extender.scheduling.lost_answers import LostAnswers
from extender.scheduling.name_table import NameTable

logger = logging.getLogger(__name__)

__all__ = ["Assignment", "Candidates", "Placement", "Placer", "PodIdentity"]

_MAX_REMEMBERED: Final = 20_000
_REMEMBERED_S: Final = 900.0
"""kube-scheduler retries every pod within five minutes, so a pod it stopped asking about is gone."""
_UUIDS_PER_WEIGHT: Final = 8
_RECENT_S: Final = 2.0
_FEW_NAMES: Final = 256
_MAX_NAME_BYTES: Final = 256  # a quoted node name and a comma
_MOST_FRAC: Final = 1 / 2
"""Smallest fraction of the nodes for which the ranking is walked from its top. kube-scheduler offers a tenth of 5,000
nodes, one after the other, and the best of all are seldom among them."""
DEFAULT_LOAD: Final = 0.7
"""Load expected on each GPU of a pod whose owner has no history."""


class Placer:
    """Decides, reserves, and remembers its decisions."""

    def __init__(  # noqa: PLR0913 - dependencies
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
        watched: Callable[[str], objects.Pod | None] = lambda uid: None,
    ) -> None:
        """`policies` may change at run time. `canary` returns the policy of a pod that chooses none, "" for the
        deployment's; `on_request` is called for pods that are offered nodes; `watched` returns the pod of a UID as the
        watch has it, None if unknown."""
        self._ledger = ledger
        self.policies = policies
        """By name."""
        self._load_of = load_of
        self._default_policy = default_policy
        self._warned_of: set[str] = set()
        self._canary = canary
        self._on_request = on_request
        self._watched = watched
        self._clock = clock
        self._wall_clock = wall_clock
        self._memo = Memo()
        self._background_memo = Memo()
        """For background work, so that the many kinds of waiting pods evict nothing that filter uses."""
        self._requests: FairCache[PodRequest] = FairCache(_MAX_REMEMBERED)
        self._assignments: FairCache[tuple[GpuRequest, Assignment]] = FairCache(_MAX_REMEMBERED)
        self._expected: tuple[Candidates | None, tuple[str, ...], Rows] = None, (), np.empty(0, np.intp)
        self._name_table = NameTable()
        self.decided = DecisionLog(num_kept)
        self.lost = LostAnswers(clock)

    def policy_of(self, request: PodRequest) -> Policy:
        """Return the pod's own policy, else the deployment's. Raises RequestError for an unknown name."""
        policy = self.policies.get(request.policy or self._default_policy)
        if policy is None and request.policy == CANDIDATE:  # drawn for a model that has been removed since
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
        """Return a pod's request. Raises RequestError with a sentence for its author."""
        watched = self._watched(pod.metadata.uid)
        if watched is not None and watched.metadata.resource_version == pod.metadata.resource_version:
            pod = watched  # the same version, whose request is mostly read already
        request = self._ledger.read_request(pod)
        if request.policy == CANDIDATE:
            raise self._no_policy(request)
        if request.gpus is None or request.policy:
            return request
        chosen = self._canary(pod.metadata)
        return structs.replace(request, policy=chosen) if chosen else request

    def policies_apart(self) -> dict[str, Policy]:
        """Return copies of the policies, with a state of their own, for planning in a thread."""
        return {name: policy.apart() if policy.apart else policy for name, policy in self.policies.items()}

    def snapshot(self) -> Cluster:
        """Return the current cluster."""
        return self._ledger.snapshot(self._clock())

    def remember(self, pod: PodIdentity, request: PodRequest) -> None:
        """Keep a pod's request until it is bound, so that bind need not read the pod."""
        self._requests.put(pod.namespace, pod.uid, request, self._clock(), weight_of(request))
        self._on_request(pod, request)

    def remembered(self, uid: str) -> PodRequest | None:
        """Return the request of a pod that filter has seen, None if not kept."""
        return self._requests.get(uid)

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self._requests.pop(uid)
        self._assignments.pop(uid)
        self.lost.forget(uid)

    def forget_old(self) -> None:
        """Forget pods that kube-scheduler no longer asks about: nothing reports the deletion of an unbound pod."""
        before = self._clock() - _REMEMBERED_S
        self._requests.expire(before)
        self._assignments.expire(before)
        self.lost.forget_old(before)

    def pod_changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Forget a pod that has a node."""
        if new is not None:
            self.forget(new.metadata.uid)

    def place(
        self,
        pod: PodIdentity,
        request: GpuRequest,
        policy: Policy,
        candidates: Candidates | Sequence[str],
        *,
        only_best: bool = False,
    ) -> Placement:
        """Release the pod's reservation and decide among the named nodes.

        With `only_best`, the decision may consider the whole cluster, of which the best candidate is found faster.
        """
        self.release(pod.uid)
        cluster, memo = self.snapshot(), self._memo.of(pod.namespace)
        if only_best and not isinstance(candidates, Sequence) and _are_most(cluster, candidates):
            max_tries = 1 + 3 * len(cluster.row_of) // len(candidates)
            decision = decide_from_top(cluster, request, policy, candidates.__contains__, memo, max_tries)
            if decision is not None:
                return Placement(pod, cluster, decision, (), self._wall_clock(), candidates)
        rows, unknown = self._look_up(cluster, candidates)
        decision = decide(cluster, request, policy, rows, memo)
        return Placement(pod, cluster, decision, unknown, self._wall_clock())

    def place_on(self, pod: PodIdentity, request: GpuRequest, policy: Policy, node: str) -> Placement:
        """Release the pod's reservation and decide on the node that a plan has chosen."""
        self.release(pod.uid)
        cluster = self.snapshot()
        row = cluster.row_of.get(node)
        if row is None:
            decision = decide(cluster, request, policy, np.empty(0, np.intp), self._memo.of(pod.namespace))
            return Placement(pod, cluster, decision, (node,), self._wall_clock())
        return Placement(pod, cluster, decide_on(cluster, request, policy, row, self._memo), (), self._wall_clock())

    def preview(self, pod: PodIdentity, request: GpuRequest, policy: Policy) -> Placement:
        """Decide among all nodes without side effects."""
        cluster = self.snapshot()
        rows = np.fromiter(cluster.row_of.values(), np.intp, len(cluster.row_of))
        decision = decide(cluster, request, policy, rows, self._memo.of(pod.namespace))
        return Placement(pod, cluster, decision, (), self._wall_clock())

    def expect(self, candidates: Candidates, cluster: Cluster, rows: Rows) -> None:
        """Cache the rows of the candidates that prioritize will probably name: those that filter returned."""
        self._expected = candidates, cluster.node_names, rows

    def _look_up(self, cluster: Cluster, candidates: Candidates | Sequence[str]) -> tuple[Rows, tuple[str, ...]]:
        """Return the distinct rows of the named nodes, and the names that are unknown."""
        if isinstance(candidates, Sequence):
            return rows_of(cluster, candidates)
        expected, node_names, rows = self._expected
        if node_names is cluster.node_names and expected == candidates:
            return rows, ()
        named = self._name_table.rows(cluster, candidates.encoded)
        return (distinct(cluster, named), ()) if named is not None else rows_of(cluster, candidates.decode())

    def fits_somewhere(self, request: PodRequest) -> bool:
        """Whether any node of the cluster has room for a request now."""
        policy = self.policy_of(request)
        effective = policy.weighed_request(request)
        if effective is None:
            return False
        return bool(self._background_memo.evaluate(self.snapshot(), effective, policy).evaluation.fits.any())

    def room(self, request: GpuRequest, policy: Policy) -> Mask:
        """Return (N,) which nodes have room for a request now. The caller may change the array."""
        return self._memo.evaluate(self.snapshot(), request, policy).evaluation.fits

    def decide_at(self, request: GpuRequest, policy: Policy, row: int) -> Decision:
        """Decide on one node without side effects."""
        return decide_on(self.snapshot(), request, policy, row, self._memo)

    def fits_meanwhile(self, pod: PodIdentity, request: PodRequest) -> bool:
        """Whether a pod rejected within the last `_RECENT_S` now fits a node that it was offered then."""
        last = self.decided.last(pod.namespace, pod.name)
        if request.gpus is None or last is None or last.pod.uid != pod.uid or last.node is not None:
            return False
        if not 0 <= self._wall_clock() - last.decided_at < _RECENT_S:
            return False
        cluster, policy = self.snapshot(), self.policy_of(request)
        rows, _ = rows_of(cluster, [last.cluster.node_names[row] for row in last.decision.rows.tolist()])
        effective = policy.weighed_request(request) or request.gpus
        return bool(self._memo.evaluate(cluster, effective, policy).evaluation.fits[rows].any())

    def reserve(self, placement: Placement) -> None:
        """Reserve the GPUs of a decision for the pod until it is bound or the TTL expires."""
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

    def note_question(self, pod: PodIdentity) -> None:
        """Note that kube-scheduler asks about a pod, which may begin another cycle of its gang."""
        if pod.gang and pod.uid:
            self._ledger.cycles.ask(pod.gang, pod.uid, self._clock())

    def release_stale_gangs(self, pod: PodIdentity, request: GpuRequest) -> bool:
        """Release for a pod that fits nowhere what gangs seem to have given up; return whether there was anything."""
        return self._ledger.cycles.release_stale_gangs(pod.gang, pod.uid, counted=is_counted(request))

    def note_rejection(self, pod: PodIdentity) -> None:
        """Note that a pod was rejected: its gang's cycle may fail."""
        self._ledger.cycles.turn_away(pod.gang, pod.uid)

    def _expect_load(self, placement: Placement) -> None:
        """Count the pod's expected load until samples show it: otherwise a burst would follow outdated samples."""
        observed, row = self._ledger.arrays.observed, placement.decision.best
        if observed is None or row is None or not observed.has_samples:
            return
        decision = placement.decision
        load = self._load_of(placement.pod.owner) * decision.milli / WHOLE_MILLI
        self._ledger.arrays.touch(observed.expect(placement.pod.uid, row, decision.gpus, load, self._clock()))

    def release(self, uid: str) -> None:
        """Release a pod's reservation and its expected load. A bound or binding pod keeps both."""
        self._ledger.release(uid)
        observed = self._ledger.arrays.observed
        allocation = self._ledger.allocation(uid)
        if observed is not None and allocation is None:
            self._ledger.arrays.touch(observed.expect_no_more(uid))

    def reserved(self, uid: str, node: str) -> Assignment | None:
        """Return the pod's assignment on a node while its reservation stands, else None."""
        _, assignment = self._assignments.get(uid) or (None, None)
        return assignment if self._ledger.is_reserved(uid, node) else None

    def reserved_candidate(self, uid: str, request: GpuRequest, candidates: Candidates, kept: str = "") -> str:
        """Return the node reserved for this request if it is the only candidate, or is `kept` and a candidate, else "".

        Renews the TTL. The queue has decided on the node that it nominates, so kube-scheduler's question about that
        node alone needs no new decision.
        """
        decided, assignment = self._assignments.get(uid) or (None, None)
        if assignment is None or decided != request:
            return ""
        node, few = assignment.node, candidates.num_bytes <= _MAX_NAME_BYTES
        matches = node in candidates if node == kept else few and candidates.decode() == [node]
        return node if matches and self._ledger.renew(uid, node, self._clock()) else ""


def _are_most(cluster: Cluster, candidates: Candidates) -> bool:
    """Whether these are so many of the nodes that looking all of them up would take longest."""
    num_known, num_named = len(cluster.row_of), len(candidates)
    most = max(_FEW_NAMES, int(num_known * _MOST_FRAC))
    return num_named >= most and candidates.num_bytes <= _MAX_NAME_BYTES * num_known


def weight_of(request: PodRequest) -> int:
    """Return the weight of a request in a `FairCache`: 1, more with many UUIDs."""
    return 1 if request.gpus is None else _weight_of_gpus(request.gpus)


def _weight_of_gpus(request: GpuRequest) -> int:
    return 1 + (len(request.uuids) + len(request.uuids_exclude)) // _UUIDS_PER_WEIGHT
