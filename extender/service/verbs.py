"""The verbs kube-scheduler calls: wire requests in, deliberate answers out.

`decisive` mode: filter returns the one best node, and kube-scheduler takes it without scoring; a pod with soft
preferences of its own gets the near-best few, for the plugins to weigh. `scores` mode: filter returns every node that
fits, prioritize ranks them.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final

import msgspec
import numpy as np

from extender.cluster import objects
from extender.cluster.binds import Binder, BindError
from extender.cluster.fences import Fence, FencedError
from extender.cluster.managed import is_managed
from extender.cluster.mirrors import Mirror
from extender.cluster.placements import Placement, Placer, PodIdentity
from extender.cluster.pods import has_soft_preferences, owner_of, read_pod_request
from extender.cluster.preemptions import Preemptor
from extender.cluster.wakes import Waker
from extender.core.decisions import MAX_LEVEL, levels, near_best
from extender.core.nodes import GpuUnit
from extender.core.policies import Policy
from extender.core.preemptions import Candidate
from extender.core.requests import MARKER, AskedUnit, GpuRequest, PodRequest, RequestError
from extender.service import wire
from extender.service.explanations import RejectionLog, failures
from extender.service.metrics import Metrics

logger = logging.getLogger(__name__)

_MAX_NAMES_WITH_REASONS: Final = 100
"""Up to so many candidates, filter names the reason of each that fails even though others fit. Beyond that reasons
travel only when nothing fits, which is when kube-scheduler reads them."""
_MAX_IN_LOG: Final = 20
UNMARKED: Final = (
    f'asks for GPUs by annotation or label alone: write limits: {{{MARKER}: "1"}} in one of its containers, or install '
    "what adds it (docs/requests.md)"
)
"""Constant: another text at each try would make kube-scheduler ask again."""
_COUNTED_ELSEWHERE: Final = (AskedUnit.CLAIM, AskedUnit.MIG)
"""What kube-scheduler itself allocates or counts: Kerf's word is the node alone, so whoever may bind the pod."""


class Mode(StrEnum):
    """How the ranking reaches kube-scheduler."""

    DECISIVE = "decisive"
    SCORES = "scores"


class UnavailableError(Exception):
    """Nothing can be decided now; says why."""


class Verbs:
    """The verbs on one cluster."""

    def __init__(  # noqa: PLR0913 - what the verbs are wired to
        self,
        placer: Placer,
        binder: Binder,
        waker: Waker,
        mirror: Mirror,
        fence: Fence,
        metrics: Metrics,
        preemptor: Preemptor,
        *,
        mode: Mode,
        near_best_nodes: int,
    ) -> None:
        self._placer = placer
        self._binder = binder
        self._waker = waker
        self._mirror = mirror
        self._fence = fence
        self._metrics = metrics
        self._preemptor = preemptor
        self._mode = mode
        self._near_best_nodes = near_best_nodes
        self.rejections = RejectionLog()
        """What pods that fit nowhere were told."""
        self.on_decision: Callable[[Placement, PodRequest], None] = lambda placement, request: None
        """Hears of each decision of filter."""
        self.over_quota: Callable[[PodIdentity, GpuRequest], str] = lambda pod, request: ""
        """Why a pod's namespace may not have so many more GPUs, "" when it may."""
        self._priorities = wire.PriorityEncoder()

    def filter(self, body: bytes, *, others: bool = False) -> bytes:
        """Answer filter. Every fault is a sentence in `Error` or against the nodes; never raises for a bad request.

        `others`: asked by the entry that kube-scheduler may skip, and does not bind by.
        """
        try:
            asked = wire.read_args(body)
            if others:
                return wire.encode(self._filter_others(asked))
            self._check_leading()
            return wire.encode(self._filter(asked))
        except (wire.WireError, UnavailableError) as error:
            return wire.encode(wire.FilterResult(error=str(error)))

    def prioritize(self, body: bytes, *, others: bool = False) -> bytes:
        """Answer prioritize. Raises WireError, RequestError, UnavailableError: this verb has no field for an error.

        `others` as for filter: what the first entry has scored gets no more from the second.
        """
        asked = wire.read_args(body)
        if others and is_managed(asked.pod.spec):
            return b"[]"
        pod, request = _read_pod(self._placer, asked)
        if not others:
            self._check_leading()
        if request.gpus is None:
            return wire.encode(self._keep_off_gpus(asked.candidates()))
        policy = self._policy(request)
        placement = self._placer.place(pod, policy.asked(request) or request.gpus, policy, _named(asked))
        self._placer.keep(placement)
        self._placer.reserve(placement)
        decision = placement.decision
        scores = levels(decision.evaluation).tolist()
        return self._priorities.encode(placement.cluster.node_names, decision.rows.tolist(), scores, placement.unknown)

    async def bind(self, body: bytes) -> bytes:
        """Answer bind; whatever goes wrong is a sentence in `Error`, and nothing stays reserved."""
        try:
            args = wire.read_binding_args(body)
            pod = PodIdentity(args.pod_namespace, args.pod_name, args.pod_uid)
            self._check_leading()
            await self._binder.bind(pod, args.node, self._fault())
        except (wire.WireError, UnavailableError, BindError) as error:
            logger.warning("bind: %s", error)
            self._metrics.failed_binds.inc()
            return wire.encode(wire.BindResult(str(error)))
        self._waker.placed(pod.uid)
        self._metrics.binds.inc()
        return wire.encode(wire.BindResult())

    async def preempt(self, body: bytes) -> bytes:
        """Answer preempt: nobody is evicted on a guess, so in doubt no node is left. Raises WireError."""
        asked = wire.read_preemption_args(body)
        candidates = [
            self._preemptor.candidate(asked.pod, proposal.node, proposal.uids, proposal.num_pdb_violations)
            for proposal in asked.proposals
        ]
        key = asked.pod.key
        try:
            _check_names(asked.pod)
            self._check_leading()
            await self._confirm_leading()
            request = read_pod_request(asked.pod)
            if request.gpus is not None:
                self._policy(request)
                if excess := self.over_quota(PodIdentity.of(asked.pod), request.gpus):
                    raise UnavailableError(excess)  # filter would refuse it the room that was made
                if self._is_room_coming(asked.pod, request):
                    raise UnavailableError("room is being made for it already")
                chosen = await self._preemptor.choose(asked.pod, asked.demands, request.gpus, candidates)
                self._log_preemption(key, candidates, chosen)
                candidates = chosen
        except (RequestError, UnavailableError) as error:
            logger.warning("pod %s evicts nobody: %s", key, error)
            self._metrics.preemptions.labels("refused").inc(len(candidates))
            candidates = []
        return wire.encode(wire.PreemptionResult({candidate.node: _meta(candidate) for candidate in candidates}))

    def _is_room_coming(self, pod: objects.Pod, request: PodRequest) -> bool:
        """Whether a pod will fit without more evictions: then it is woken as soon as it does."""
        return self._placer.fits_meanwhile(PodIdentity.of(pod), request) or (
            request.gpus is not None and self._preemptor.is_under_way(pod, request.gpus)
        )

    def _log_preemption(self, key: str, proposed: list[Candidate], chosen: list[Candidate]) -> None:
        num_proposed = {candidate.node: len(candidate.victims) for candidate in proposed}
        spared = sum(num_proposed[candidate.node] - len(candidate.victims) for candidate in chosen)
        self._metrics.preemptions.labels("kept").inc(len(chosen))
        self._metrics.preemptions.labels("dropped").inc(len(proposed) - len(chosen))
        self._metrics.spared_victims.inc(spared)
        nodes = ", ".join(f"{candidate.node} ({len(candidate.victims)} pods)" for candidate in chosen[:_MAX_IN_LOG])
        logger.info("pod %s may evict on %d of %d nodes: %s", key, len(chosen), len(proposed), nodes or "none")

    def _filter_others(self, asked: wire.Asked) -> wire.FilterResult:
        """What the first entry has decided stays; a pod that would be bound without its GPUs is refused.

        That holds on standby too: kube-scheduler would take an error for leave to place it blind.
        """
        if is_managed(asked.pod.spec):
            return _among(asked, asked.candidates())
        try:
            _, request = _read_pod(self._placer, asked)
        except RequestError as error:
            return self._reject_request(asked, str(error))
        if request.gpus is None:
            return _among(asked, asked.candidates())
        if request.gpus.unit not in _COUNTED_ELSEWHERE:
            return self._reject_request(asked, UNMARKED)
        return self._filter(asked)

    def _filter(self, asked: wire.Asked) -> wire.FilterResult:
        try:
            pod, request = _read_pod(self._placer, asked)
            if request.gpus is None:
                self._placer.remember(pod, request)
                return _among(asked, asked.candidates())
            policy = self._policy(request)
        except RequestError as error:
            self._placer.release(asked.pod.metadata.uid)
            return self._reject_request(asked, str(error))
        if excess := self.over_quota(pod, request.gpus):
            self._placer.turned_away(pod)
            return self._hold_to_quota(asked, excess)
        one_is_enough = self._mode is Mode.DECISIVE and not has_soft_preferences(asked.pod.spec)
        gpus = policy.asked(request) or request.gpus
        if asked.names is not None and self._placer.keeps(pod.uid, gpus, asked.names):
            self._placer.remember(pod, request)
            self._fence.note(asked.pod.metadata)
            self._metrics.decisions.labels("placed").inc()
            return _among(asked, asked.names.decode())
        self._placer.asked(pod)
        placement = self._place(asked, pod, request, gpus, policy, one_is_enough=one_is_enough)
        if placement is not None and placement.node is None and self._placer.make_way(pod, gpus):
            placement = self._place(asked, pod, request, gpus, policy, one_is_enough=one_is_enough)
        if placement is None:
            return self._skip(asked, pod, request)
        if not gpus.count and (excess := self.over_quota(pod, replace(gpus, count=placement.decision.units))):
            self._placer.turned_away(pod)
            return self._hold_to_quota(asked, excess)  # only now it is known how many GPUs hold so much memory
        return self._answer(asked, request, placement, one_is_enough=one_is_enough)

    def _answer(
        self, asked: wire.Asked, request: PodRequest, placement: Placement, *, one_is_enough: bool
    ) -> wire.FilterResult:
        """What filter says of a decision; where it leaves one node, the GPUs are reserved."""
        pod = placement.pod
        self._placer.keep(placement)
        self._placer.remember(pod, request)
        self._fence.note(asked.pod.metadata)
        self._metrics.count_decision(placement)
        self.on_decision(placement, request)
        decision = placement.decision
        if decision.best is None:
            rows = decision.rows[:0]
            self.rejections.record(placement)
            self._turn_away(pod, request)
        elif one_is_enough:
            rows = np.array([decision.best])
        elif self._mode is Mode.DECISIVE:
            rows = near_best(placement.cluster, decision, self._near_best_nodes)
        else:
            rows = decision.rows[decision.evaluation.fits]
        node_names = placement.cluster.node_names
        result = _among(asked, [node_names[row] for row in rows.tolist()])
        num_candidates = len(decision.rows) + len(placement.unknown)
        all_fit = not placement.unknown and bool(decision.evaluation.fits.all())
        if not len(rows) or (num_candidates <= _MAX_NAMES_WITH_REASONS and not all_fit):
            result.failed, result.unresolvable = failures(placement)
        if len(rows) == 1:
            self._placer.reserve(placement)  # kube-scheduler takes it as it is: this call has decided
        elif asked.names is not None:
            self._placer.expect(wire.NodeNames(result.node_names), placement.cluster, rows)
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
        placement = None
        if one_is_enough and asked.names is not None:
            placement = self._placer.place_best(pod, gpus, policy, asked.names)
        if placement is None:
            placement = self._placer.place(pod, gpus, policy, _named(asked))
        best = placement.decision.best
        kept = self._waker.skips.kept_rows(pod, request, gpus, policy) if best is not None else frozenset()
        if not kept or (one_is_enough and best not in kept):
            return placement
        row_of = placement.cluster.row_of
        others = [name for name in asked.candidates() if row_of.get(name) not in kept]
        placement = self._placer.place(pod, gpus, policy, others)
        return placement if placement.node is not None else None

    def _skip(self, asked: wire.Asked, pod: PodIdentity, request: PodRequest) -> wire.FilterResult:
        """Leave a pod pending for now: no preemption for it, and it is woken when the reason has gone."""
        reason = self._waker.skips.skip(pod.uid)
        self._turn_away(pod, request)
        self._metrics.decisions.labels("skipped").inc()
        result = _among(asked, [])
        result.unresolvable = dict.fromkeys(asked.candidates(), reason)
        return result

    def _hold_to_quota(self, asked: wire.Asked, excess: str) -> wire.FilterResult:
        """Leave a pod pending whose namespace has all that it may have; nobody is evicted for it."""
        self._placer.release(asked.pod.metadata.uid)
        self._metrics.decisions.labels("skipped").inc()
        result = _among(asked, [])
        result.unresolvable = dict.fromkeys(asked.candidates(), excess)
        return result

    def _turn_away(self, pod: PodIdentity, request: PodRequest) -> None:
        """Remember a pod that is told of no node."""
        self._placer.turned_away(pod)
        self._waker.rejected(pod, request)

    def _policy(self, request: PodRequest) -> Policy:
        """The policy for a pod, if anything can be decided now. Raises RequestError, UnavailableError."""
        policy = self._placer.policy_of(request)
        fault = self._fault()
        if fault:
            raise UnavailableError(f"Kerf can't tell which GPUs are free: {fault}")
        return policy

    def _check_leading(self) -> None:
        """Answer only where this process leads. Raises UnavailableError."""
        standby = self._fence.standby()
        if standby:
            raise UnavailableError(f"this Kerf does not decide now: {standby}")

    async def _confirm_leading(self) -> None:
        """Answer only where this process certainly led when it was asked. Raises UnavailableError."""
        try:
            await self._fence.confirm_now()
        except FencedError as error:
            raise UnavailableError(str(error)) from error

    def _fault(self) -> str:
        """Why no GPUs may be given away now, "" when they may."""
        return self._fence.fault() or self._mirror.fault()

    def _keep_off_gpus(self, names: Sequence[str]) -> list[wire.HostPriority]:
        """Scores for a pod without GPUs: nodes with GPUs last, so that they stay free for those who need them."""
        cluster = self._placer.snapshot()
        get = cluster.row_of.get
        rows = [get(name, -1) for name in names]
        has_gpus = (cluster.unit != GpuUnit.NONE).tolist()
        return [
            wire.HostPriority(name, 0 if row >= 0 and has_gpus[row] else MAX_LEVEL)
            for name, row in zip(names, rows, strict=True)
        ]

    def _reject_request(self, asked: wire.Asked, fault: str) -> wire.FilterResult:
        """A request that can't be understood: the same sentence against every node, and no preemption for it."""
        self._metrics.bad_requests.inc()
        names = asked.candidates()
        if not names:
            return wire.FilterResult(error=fault)
        result = _among(asked, [])
        result.unresolvable = dict.fromkeys(names, fault)
        return result


def _read_pod(placer: Placer, asked: wire.Asked) -> tuple[PodIdentity, PodRequest]:
    """Who asks, and for what. Raises WireError, RequestError."""
    _check_names(asked.pod)
    metadata = asked.pod.metadata
    group = asked.pod.spec.pod_group
    gang = f"{metadata.namespace}/{group}" if group else ""
    created = metadata.creation_timestamp
    pod = PodIdentity(metadata.namespace, metadata.name, metadata.uid, owner_of(metadata), created, gang)
    return pod, placer.read_request(asked.pod)


def _check_names(pod: objects.Pod) -> None:
    metadata = pod.metadata
    for key, name in (("Pod.metadata.namespace", metadata.namespace), ("Pod.metadata.name", metadata.name)):
        if name:
            wire.check_name(key, name)


def _meta(candidate: Candidate) -> wire.MetaVictims:
    pods = [wire.MetaPod(victim.uid) for victim in candidate.victims]
    return wire.MetaVictims(pods, candidate.num_pdb_violations)


def _named(asked: wire.Asked) -> wire.NodeNames | list[str]:
    """The candidates, as text where they came as names. Raises WireError."""
    return asked.candidates() if asked.names is None else asked.names


def _among(asked: wire.Asked, chosen: list[str]) -> wire.FilterResult:
    """The chosen nodes in the form in which the candidates came."""
    if asked.nodes is None or asked.names is not None:
        return wire.FilterResult(node_names=msgspec.Raw(wire.encode(chosen)))
    item_of = dict(zip(asked.candidates(), asked.nodes.items or (), strict=True))
    return wire.FilterResult(nodes=wire.NodeList([item_of[name] for name in chosen]))
