"""The verbs kube-scheduler calls: wire requests in, deliberate answers out.

`decisive` mode: filter returns the one best node, and kube-scheduler takes it without scoring; a pod with soft
preferences of its own gets the near-best few, for the plugins to weigh. `scores` mode: filter returns every node that
fits, prioritize ranks them.
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
from extender.ranking.beside import SeesDecisions
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
"""Up to so many candidates, filter names the reason of each that fails even though others fit. Beyond that reasons
travel only when nothing fits, which is when kube-scheduler reads them."""
_COUNTED_ELSEWHERE: Final = (AskedUnit.CLAIM, AskedUnit.MIG)
"""What kube-scheduler itself allocates or counts: Kerf's word is the node alone, so whoever may bind the pod."""


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
    sees_decisions: Callable[[], SeesDecisions | None] = lambda: None
    """Hears of each decision of filter."""
    callers: Callers = field(default_factory=lambda: Callers(time.monotonic), kw_only=True)
    """Hears of each call of kube-scheduler's."""
    _priorities: wire.PriorityEncoder = field(default_factory=wire.PriorityEncoder, init=False)

    def filter(self, body: bytes, *, others: bool = False) -> bytes:
        """Answer filter. Every fault is a sentence in `Error` or against the nodes; never raises for a bad request.

        `others`: asked by the entry that kube-scheduler may skip, and does not bind by.
        """
        self.callers.asked(others=others)
        try:
            asked = wire.read_args(body)
            if others:
                return wire.encode_filter_result(self._filter_others(asked))
            self.readiness.check_leading()
            return wire.encode_filter_result(self._filter(asked))
        except (wire.WireError, UnavailableError) as error:
            return wire.encode_filter_result(wire.FilterResult(error=str(error)))

    def prioritize(self, body: bytes, *, others: bool = False) -> bytes:
        """Answer prioritize. Raises WireError, RequestError, UnavailableError: this verb has no field for an error.

        `others` as for filter: what the first entry has scored gets no more from the second.
        """
        asked = wire.read_args(body)
        if others and is_managed(asked.pod.spec):
            return b"[]"
        pod, request = read_pod(self.placer, asked)
        if not others:
            self.readiness.check_leading()
        if request.gpus is None:
            names = asked.candidates()
            scores = self.cpu_pods.scores(asked.pod, names)
            return wire.encode([wire.HostPriority(name, score) for name, score in zip(names, scores, strict=True)])
        policy = self.readiness.policy(request)
        placement = self.placer.place(pod, policy.asked(request) or request.gpus, policy, _named(asked))
        self.placer.decided.add(placement)
        self.placer.reserve(placement)
        decision = placement.decision
        scores = levels(decision.evaluation).tolist()
        return self._priorities.encode(placement.cluster.node_names, decision.rows.tolist(), scores, placement.unknown)

    async def bind(self, body: bytes) -> bytes:
        """Answer bind; whatever goes wrong is a sentence in `Error`, and nothing stays reserved."""
        try:
            args = wire.read_binding_args(body)
            pod = PodIdentity(args.pod_namespace, args.pod_name, args.pod_uid)
            self.readiness.check_leading()
            self.placer.lost.accepted(pod.uid)
            await self.binder.bind(pod, args.node, self.readiness.fault())
        except (wire.WireError, UnavailableError, BindError) as error:
            logger.warning("bind: %s", error)
            self.metrics.failed_binds.inc()
            return wire.encode_bind_result(str(error))
        self.waker.placed(pod.uid)
        self.metrics.binds.inc()
        return wire.encode_bind_result()

    def _filter_others(self, asked: wire.Asked) -> wire.FilterResult:
        """What the first entry has decided stays; a pod that would be bound without its GPUs is refused.

        That holds on standby too: kube-scheduler would take an error for leave to place it blind.
        """
        if is_managed(asked.pod.spec):
            return _among(asked, asked.candidates())
        try:
            _, request = read_pod(self.placer, asked)
        except RequestError as error:
            return self._reject_request(asked, str(error))
        if request.gpus is None:
            return self._filter_cpu_pod(asked)
        if request.gpus.unit not in _COUNTED_ELSEWHERE:
            return self._reject_request(asked, UNMARKED)
        return self._filter(asked)

    def _filter_cpu_pod(self, asked: wire.Asked) -> wire.FilterResult:
        """Where a pod without GPUs costs least; all that fit where it has preferences, or that can't be told now."""
        names = asked.candidates()
        if self.mode is Mode.DECISIVE and not has_soft_preferences(asked.pod.spec) and not self.readiness.fault():
            candidates = asked.names or wire.NodeNames(wire.encode(names))
            names = self.cpu_pods.near_best(asked.pod, candidates) or names
        return _among(asked, names)

    def _filter(self, asked: wire.Asked) -> wire.FilterResult:
        try:
            pod, request = read_pod(self.placer, asked)
            if request.gpus is None:
                self.placer.remember(pod, request)
                return self._filter_cpu_pod(asked)
            policy = self.readiness.policy(request)
        except RequestError as error:
            self.placer.release(asked.pod.metadata.uid)
            self.placer.decided.outdate(asked.pod.metadata.namespace, asked.pod.metadata.name)
            return self._reject_request(asked, str(error))
        if excess := self.queue.over_quota(pod, request.gpus):
            return self._hold_to_quota(asked, pod, excess)
        one_is_enough = self.mode is Mode.DECISIVE and not has_soft_preferences(asked.pod.spec)
        gpus = policy.asked(request) or request.gpus
        lost = self.placer.lost.asked(pod, gpus)
        if node := self._kept(asked, pod, gpus):
            self.placer.remember(pod, request)
            self.fence.note(asked.pod.metadata)
            self.metrics.decisions.labels("placed").inc()
            return _among(asked, [node])
        self.placer.asked(pod)
        placement = self._place_elsewhere(asked, pod, request, gpus, lost) if lost and one_is_enough else None
        if placement is None:
            placement = self._place(asked, pod, request, gpus, policy, one_is_enough=one_is_enough)
        if placement is not None and placement.node is None and self.placer.make_way(pod, gpus):
            placement = self._place(asked, pod, request, gpus, policy, one_is_enough=one_is_enough)
        if placement is None:
            return self._skip(asked, pod, request)
        if not gpus.count and (excess := self.queue.over_quota(pod, replace(gpus, count=placement.decision.units))):
            return self._hold_to_quota(asked, pod, excess)  # only now it is known how many GPUs hold so much memory
        return self._answer(asked, request, placement, one_is_enough=one_is_enough)

    def _kept(self, asked: wire.Asked, pod: PodIdentity, gpus: GpuRequest) -> str:
        """The node that is decided for a pod already, "" for none. Raises WireError."""
        kept, names = self.queue.place_kept(asked.pod), asked.names
        if names is None and kept:
            names = wire.NodeNames(wire.encode(asked.candidates()))
        return "" if names is None else self.placer.keeps(pod.uid, gpus, names, kept)

    def _answer(
        self, asked: wire.Asked, request: PodRequest, placement: Placement, *, one_is_enough: bool
    ) -> wire.FilterResult:
        """What filter says of a decision; where it leaves one node, the GPUs are reserved."""
        pod = placement.pod
        self.placer.decided.add(placement)
        self.placer.remember(pod, request)
        self.fence.note(asked.pod.metadata)
        self.metrics.count_decision(placement)
        if (beside := self.sees_decisions()) is not None:
            beside.offer(placement, request)
        decision = placement.decision
        if decision.best is None:
            rows = decision.rows[:0]
            self.rejections.record(placement)
            self._turn_away(pod, request)
        elif one_is_enough:
            rows = np.array([decision.best])
        elif self.mode is Mode.DECISIVE:
            rows = near_best(placement.cluster, decision, self.near_best_nodes)
        else:
            rows = decision.rows[decision.evaluation.fits]
        node_names = placement.cluster.node_names
        result = _among(asked, [node_names[row] for row in rows.tolist()])
        num_candidates = len(decision.rows) + len(placement.unknown)
        all_fit = not placement.unknown and bool(decision.evaluation.fits.all())
        if not len(rows) or (num_candidates <= _MAX_NAMES_WITH_REASONS and not all_fit):
            result.failed, result.unresolvable = failures(placement)
        if len(rows) == 1:
            self.placer.reserve(placement)  # kube-scheduler takes it as it is: this call has decided
            if num_candidates > 1:
                self.placer.lost.answered(pod, decision.request, node_names[int(rows[0])])
        elif asked.names is not None:
            self.placer.expect(wire.NodeNames(result.node_names), placement.cluster, rows)
        return result

    def _place(
        self,
        asked: wire.Asked,
        pod: PodIdentity,
        request: PodRequest,
        gpus: GpuRequest,
        policy: Policy,
        *,
        one_is_enough: bool,
    ) -> Placement | None:
        """Decide among the candidates, but for nodes that larger pods need; None for a pod that they leave none.

        Raises WireError.
        """
        placement = self._decide(asked, pod, gpus, policy, one_is_enough=one_is_enough)
        best = placement.decision.best
        kept = self.waker.skips.kept_rows(pod, request, gpus, policy) if best is not None else frozenset()
        if not kept or (one_is_enough and best not in kept):
            return placement
        left_out = frozenset(placement.cluster.node_names[row] for row in kept)
        placement = self._decide(asked, pod, gpus, policy, one_is_enough=False, left_out=left_out)
        return placement if placement.node is not None else None

    def _place_elsewhere(
        self, asked: wire.Asked, pod: PodIdentity, request: PodRequest, gpus: GpuRequest, lost: frozenset[str]
    ) -> Placement | None:
        """Decide among the candidates but for nodes that were answered in vain, and those that larger pods need; None
        where that leaves no node. Raises WireError."""
        policy = self.readiness.policy(request)
        placement = self._decide(asked, pod, gpus, policy, one_is_enough=True, left_out=lost)
        kept = self.waker.skips.kept_rows(pod, request, gpus, policy) if placement.node else frozenset()
        return placement if placement.node is not None and placement.decision.best not in kept else None

    def _decide(
        self,
        asked: wire.Asked,
        pod: PodIdentity,
        gpus: GpuRequest,
        policy: Policy,
        *,
        one_is_enough: bool,
        left_out: frozenset[str] = frozenset(),
    ) -> Placement:
        """Decide among the candidates but for some, without a look at each where one is enough. Raises WireError."""
        if asked.names is None:
            names = [name for name in asked.candidates() if name not in left_out]
            return self.placer.place(pod, gpus, policy, names)
        candidates = Without(asked.names, left_out) if left_out else asked.names
        best = self.placer.place_best(pod, gpus, policy, candidates) if one_is_enough else None
        return self.placer.place(pod, gpus, policy, candidates) if best is None else best

    def _skip(self, asked: wire.Asked, pod: PodIdentity, request: PodRequest) -> wire.FilterResult:
        """Leave a pod pending for now: no preemption for it, and it is woken when the reason has gone."""
        reason = self.waker.skips.skip(pod.uid)
        self._turn_away(pod, request)
        self.metrics.decisions.labels("skipped").inc()
        return _none(asked, reason)

    def _hold_to_quota(self, asked: wire.Asked, pod: PodIdentity, excess: str) -> wire.FilterResult:
        """Leave a pod pending whose namespace has all that it may have; nobody is evicted for it."""
        self.placer.turned_away(pod)
        self.placer.release(pod.uid)
        self.metrics.decisions.labels("skipped").inc()
        return _none(asked, excess)

    def _turn_away(self, pod: PodIdentity, request: PodRequest) -> None:
        """Remember a pod that is told of no node."""
        self.placer.turned_away(pod)
        self.waker.rejected(pod, request)

    def _reject_request(self, asked: wire.Asked, fault: str) -> wire.FilterResult:
        """A request that can't be understood: the same sentence against every node, and no preemption for it."""
        self.metrics.bad_requests.inc()
        result = _none(asked, fault)
        return result if result.unresolvable else wire.FilterResult(error=fault)


def _named(asked: wire.Asked) -> wire.NodeNames | list[str]:
    """The candidates, as text where they came as names. Raises WireError."""
    return asked.candidates() if asked.names is None else asked.names


def _none(asked: wire.Asked, why: str) -> wire.FilterResult:
    """No node, for a reason that holds for all of them and that no eviction changes."""
    result = _among(asked, [])
    result.unresolvable = dict.fromkeys(asked.candidates(), why)
    return result


def _among(asked: wire.Asked, chosen: list[str]) -> wire.FilterResult:
    """The chosen nodes in the form in which the candidates came."""
    if asked.nodes is None or asked.names is not None:
        return wire.FilterResult(node_names=msgspec.Raw(wire.encode(chosen)))
    item_of = dict(zip(asked.candidates(), asked.nodes.items or (), strict=True))
    return wire.FilterResult(nodes=wire.NodeList([item_of[name] for name in chosen]))
