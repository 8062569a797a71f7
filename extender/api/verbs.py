"""The verbs that kube-scheduler calls.

In mode `decisive`, filter returns only the best node, which kube-scheduler takes without scoring; for a pod with soft
preferences it returns the near-best nodes, for kube-scheduler's plugins to weigh. In mode `scores`, filter returns
every node that fits, and prioritize ranks them.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import numpy as np

from extender.api import wire
from extender.api.evictions import Evictions
from extender.api.readiness import Readiness, UnavailableError, read_pod
from extender.core.decisions import levels, near_best
from extender.core.policies.policy import Policy
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.explain.explanations import RejectionLog, failures
from extender.metrics.registry import Metrics
from extender.plugins.pod_resources import UNMARKED, is_managed
from extender.plugins.pods import has_soft_preferences
from extender.ranking.interfaces import DecisionObserver
from extender.scheduling.assignments import Without
from extender.scheduling.binding import Binder, BindError
from extender.scheduling.callers import Callers
from extender.scheduling.cpu_pods import CpuPods
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placement, Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.waking import Waker
from extender.settings.decisions import Mode

logger = logging.getLogger(__name__)

_MAX_NAMES_WITH_REASONS: Final = 100
"""Up to this many candidates, filter returns the reason of each that fails even if others fit. Beyond that it returns
reasons only when nothing fits: only then does kube-scheduler read them."""
_COUNTED_ELSEWHERE: Final = (AskedUnit.CLAIM, AskedUnit.MIG)
"""Units that kube-scheduler itself allocates or counts: Kerf only chooses the node, so anyone may bind the pod."""


@dataclass(eq=False)
class Verbs:
    """The verbs on one cluster."""

    placer: Placer
    cpu_pods: CpuPods
    binder: Binder
    waker: Waker
    fence: Fence
    readiness: Readiness
    evictions: Evictions
    metrics: Metrics
    rejections: RejectionLog
    queue: QueueRules
    mode: Mode
    near_best_nodes: int
    sees_decisions: Callable[[], DecisionObserver | None] = lambda: None
    """Returns what receives each decision of filter, if anything does."""
    callers: Callers = field(default_factory=lambda: Callers(time.monotonic), kw_only=True)
    """Tracks kube-scheduler's calls."""
    _priorities: wire.PriorityEncoder = field(default_factory=wire.PriorityEncoder, init=False)

    def filter(self, body: bytes, *, others: bool = False) -> bytes:
        """Answer filter. Errors are reported in `Error` or for each node; never raises for a bad request.

        `others`: called through the second extender entry, which is ignorable and does not bind.
        """
        self.callers.note_call(others=others)
        try:
            call = wire.read_args(body)
            if others:
                return wire.encode_filter_result(self._filter_others(call))
            self.readiness.check_leading()
            return wire.encode_filter_result(self._filter(call))
        except (wire.WireError, UnavailableError) as error:
            return wire.encode_filter_result(wire.FilterResult(error=str(error)))

    def prioritize(self, body: bytes, *, others: bool = False) -> bytes:
        """Answer prioritize. Raises WireError, RequestError, UnavailableError: its answer has no field for errors.

        `others` as for filter; pods that the first entry scores get no scores from the second.
        """
        call = wire.read_args(body)
        if others and is_managed(call.pod.spec):
            return b"[]"
        pod, request = read_pod(self.placer, call)
        if not others:
            self.readiness.check_leading()
        if request.gpus is None:
            names = call.candidates()
            scores = self.cpu_pods.scores(call.pod, names)
            return wire.encode([wire.HostPriority(name, score) for name, score in zip(names, scores, strict=True)])
        policy = self.readiness.policy(request)
        placement = self.placer.place(pod, policy.weighed_request(request) or request.gpus, policy, _named(call))
        self.placer.decided.add(placement)
        self.placer.reserve(placement)
        decision = placement.decision
        scores = levels(decision.evaluation).tolist()
        return self._priorities.encode(placement.cluster.node_names, decision.rows.tolist(), scores, placement.unknown)

    async def bind(self, body: bytes) -> bytes:
        """Answer bind; on failure `Error` says why. A standby fails every bind and changes nothing.

        A failed Binding releases the pod's GPUs. While its outcome is unknown, they stay held: the resolver settles it.
        """
        try:
            args = wire.read_binding_args(body)
            pod = PodIdentity(args.pod_namespace, args.pod_name, args.pod_uid)
            self.readiness.check_leading()
            self.placer.lost.forget(pod.uid)
            await self.binder.bind(pod, args.node, self.readiness.fault())
        except (wire.WireError, UnavailableError, BindError) as error:
            logger.warning("bind: %s", error)
            self.metrics.failed_binds.inc()
            return wire.encode_bind_result(str(error))
        self.waker.placed(pod.uid)
        self.metrics.binds.inc()
        return wire.encode_bind_result()

    def _filter_others(self, call: wire.PodCall) -> wire.FilterResult:
        """Keep what the first entry has decided, and reject pods that would be bound without their GPUs.

        On standby too: the entry is ignorable, so kube-scheduler would place the pod on an error.
        """
        if is_managed(call.pod.spec):
            return _among(call, call.candidates())
        try:
            _, request = read_pod(self.placer, call)
        except RequestError as error:
            return self._reject_request(call, str(error))
        if request.gpus is None:
            return self._filter_cpu_pod(call)
        if request.gpus.unit not in _COUNTED_ELSEWHERE:
            return self._reject_request(call, UNMARKED)
        return self._filter(call)

    def _filter_cpu_pod(self, call: wire.PodCall) -> wire.FilterResult:
        """The best nodes for a pod without GPUs; all candidates if it has soft preferences or they can't be ranked."""
        names = call.candidates()
        if self.mode is Mode.DECISIVE and not has_soft_preferences(call.pod.spec) and not self.readiness.fault():
            candidates = call.names or wire.NodeNames(wire.encode(names))
            names = self.cpu_pods.near_best(call.pod, candidates) or names
        return _among(call, names)

    def _filter(self, call: wire.PodCall) -> wire.FilterResult:
        try:
            pod, request = read_pod(self.placer, call)
            if request.gpus is None:
                self.placer.remember(pod, request)
                return self._filter_cpu_pod(call)
            policy = self.readiness.policy(request)
        except RequestError as error:
            self.placer.release(call.pod.metadata.uid)
            self.placer.decided.outdate(call.pod.metadata.namespace, call.pod.metadata.name)
            return self._reject_request(call, str(error))
        if excess := self.queue.over_quota(pod, request.gpus):
            return self._hold_to_quota(call, pod, excess)
        one_is_enough = self.mode is Mode.DECISIVE and not has_soft_preferences(call.pod.spec)
        gpus = policy.weighed_request(request) or request.gpus
        lost = self.placer.lost.asked(pod, gpus)
        if node := self._kept(call, pod, gpus):
            self.placer.remember(pod, request)
            self.fence.note(call.pod.metadata)
            self.metrics.decisions.labels("placed").inc()
            return _among(call, [node])
        self.placer.note_question(pod)
        placement = None
        if lost and one_is_enough:
            placement = self._place(call, pod, request, gpus, policy, one_is_enough=True, left_out=lost)
        if placement is None or placement.node is None:
            placement = self._place(call, pod, request, gpus, policy, one_is_enough=one_is_enough)
        if placement is not None and placement.node is None and self.placer.release_stale_gangs(pod, gpus):
            placement = self._place(call, pod, request, gpus, policy, one_is_enough=one_is_enough)
        if placement is None:
            return self._skip(call, pod, request)
        if not gpus.count and (excess := self.queue.over_quota(pod, replace(gpus, count=placement.decision.units))):
            return self._hold_to_quota(call, pod, excess)  # its number of GPUs was unknown until now
        return self._answer(call, request, placement, one_is_enough=one_is_enough)

    def _kept(self, call: wire.PodCall, pod: PodIdentity, gpus: GpuRequest) -> str:
        """The node already decided for a pod, "" for none. Raises WireError."""
        kept, names = self.queue.place_kept(call.pod), call.names
        if names is None and kept:
            names = wire.NodeNames(wire.encode(call.candidates()))
        return "" if names is None else self.placer.reserved_candidate(pod.uid, gpus, names, kept)

    def _answer(
        self, call: wire.PodCall, request: PodRequest, placement: Placement, *, one_is_enough: bool
    ) -> wire.FilterResult:
        """filter's answer for a decision; if it has one node, the GPUs are reserved."""
        pod = placement.pod
        self.placer.decided.add(placement)
        self.placer.remember(pod, request)
        self.fence.note(call.pod.metadata)
        self.metrics.count_decision(placement)
        if (observer := self.sees_decisions()) is not None:
            observer.offer(placement, request)
        decision = placement.decision
        if decision.best is None:
            rows = decision.rows[:0]
            self.rejections.record(placement)
            self._note_rejection(pod, request)
        elif one_is_enough:
            rows = np.array([decision.best])
        elif self.mode is Mode.DECISIVE:
            rows = near_best(placement.cluster, decision, self.near_best_nodes)
        else:
            rows = decision.rows[decision.evaluation.fits]
        node_names = placement.cluster.node_names
        result = _among(call, [node_names[row] for row in rows.tolist()])
        num_candidates = len(decision.rows) + len(placement.unknown)
        with_reasons = num_candidates <= _MAX_NAMES_WITH_REASONS
        if not len(rows) or (with_reasons and (placement.unknown or not decision.evaluation.fits.all())):
            result.failed, result.unresolvable = failures(placement)
        if len(rows) == 1:
            self.placer.reserve(placement)  # kube-scheduler takes the only node
            if num_candidates > 1:
                self.placer.lost.answered(pod, decision.request, node_names[int(rows[0])])
        elif call.names is not None:
            self.placer.expect(wire.NodeNames(result.node_names), placement.cluster, rows)
        return result

    def _place(
        self,
        call: wire.PodCall,
        pod: PodIdentity,
        request: PodRequest,
        gpus: GpuRequest,
        policy: Policy,
        *,
        one_is_enough: bool,
        left_out: frozenset[str] = frozenset(),
    ) -> Placement | None:
        """Decide among the candidates except `left_out` and nodes that larger pods need; None if no other than these
        fits. Raises WireError."""
        placement = self._decide(call, pod, gpus, policy, one_is_enough=one_is_enough, left_out=left_out)
        best = placement.decision.best
        kept = self.waker.skips.kept_rows(pod, request, gpus, policy) if best is not None else frozenset()
        if not kept or (one_is_enough and best not in kept):
            return placement
        left_out |= {placement.cluster.node_names[row] for row in kept}
        placement = self._decide(call, pod, gpus, policy, one_is_enough=False, left_out=left_out)
        return placement if placement.node is not None else None

    def _decide(
        self,
        call: wire.PodCall,
        pod: PodIdentity,
        gpus: GpuRequest,
        policy: Policy,
        *,
        one_is_enough: bool,
        left_out: frozenset[str] = frozenset(),
    ) -> Placement:
        """Decide among the candidates except `left_out`; not all are evaluated if one is enough. Raises WireError."""
        if call.names is None:
            names = [name for name in call.candidates() if name not in left_out]
            return self.placer.place(pod, gpus, policy, names)
        candidates = Without(call.names, left_out) if left_out else call.names
        return self.placer.place(pod, gpus, policy, candidates, only_best=one_is_enough)

    def _skip(self, call: wire.PodCall, pod: PodIdentity, request: PodRequest) -> wire.FilterResult:
        """Leave a pod pending, without preemption; it is retried when the reason is gone."""
        reason = self.waker.skips.skip(pod.uid)
        self._note_rejection(pod, request)
        self.metrics.decisions.labels("skipped").inc()
        return _none(call, reason)

    def _hold_to_quota(self, call: wire.PodCall, pod: PodIdentity, excess: str) -> wire.FilterResult:
        """Leave a pod pending whose namespace is over its quota, without preemption."""
        self.placer.note_rejection(pod)
        self.placer.release(pod.uid)
        self.metrics.decisions.labels("skipped").inc()
        return _none(call, excess)

    def _note_rejection(self, pod: PodIdentity, request: PodRequest) -> None:
        """Record a pod that got no node."""
        self.placer.note_rejection(pod)
        self.waker.rejected(pod, request)

    def _reject_request(self, call: wire.PodCall, fault: str) -> wire.FilterResult:
        """Reject an invalid request: the same message for every node, and no preemption."""
        self.metrics.bad_requests.inc()
        result = _none(call, fault)
        return result if result.unresolvable else wire.FilterResult(error=fault)


def _named(call: wire.PodCall) -> wire.NodeNames | list[str]:
    """The candidates, undecoded if they came as names. Raises WireError."""
    return call.candidates() if call.names is None else call.names


def _none(call: wire.PodCall, why: str) -> wire.FilterResult:
    """An answer without nodes, for a reason that holds for all of them and that evictions don't change."""
    result = _among(call, [])
    result.unresolvable = dict.fromkeys(call.candidates(), why)
    return result


def _among(call: wire.PodCall, chosen: list[str]) -> wire.FilterResult:
    """An answer with the chosen nodes, in the form in which the candidates came."""
    if call.nodes is None or call.names is not None:
        return wire.FilterResult(node_names=msgspec.Raw(wire.encode(chosen)))
    item_of = dict(zip(call.candidates(), call.nodes.items or (), strict=True))
    return wire.FilterResult(nodes=wire.NodeList([item_of[name] for name in chosen]))
