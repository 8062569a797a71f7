"""The verbs kube-scheduler calls: wire requests in, deliberate answers out.

`decisive` mode: filter returns the one best node, and kube-scheduler takes it without scoring; a pod with soft
preferences of its own gets the near-best few, for the plugins to weigh. `scores` mode: filter returns every node that
fits, prioritize ranks them.
"""

import logging
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.binds import Binder, BindError
from extender.cluster.mirrors import Mirror
from extender.cluster.placements import Placement, Placer, PodIdentity
from extender.cluster.pods import has_soft_preferences, read_pod_request
from extender.cluster.wakes import Waker
from extender.core.clusters import Rows
from extender.core.decisions import MAX_LEVEL, levels, near_best
from extender.core.nodes import GpuUnit
from extender.core.reasons import RESOLVABLE
from extender.core.requests import GpuRequest, PodRequest, RequestError
from extender.service import wire
from extender.service.explanations import RejectionLog, node_reasons
from extender.service.metrics import Metrics

logger = logging.getLogger(__name__)

_MAX_NAMES_WITH_REASONS: Final = 100
"""Up to so many candidates, filter names the reason of each that fails even though others fit. Beyond that reasons
travel only when nothing fits, which is when kube-scheduler reads them."""


class Mode(StrEnum):
    """How the ranking reaches kube-scheduler."""

    DECISIVE = "decisive"
    SCORES = "scores"


class UnavailableError(Exception):
    """Nothing can be decided now; says why."""


class Verbs:
    """The verbs on one cluster."""

    def __init__(
        self,
        placer: Placer,
        binder: Binder,
        waker: Waker,
        mirror: Mirror,
        metrics: Metrics,
        *,
        mode: Mode,
        near_best_nodes: int,
    ) -> None:
        self._placer = placer
        self._binder = binder
        self._waker = waker
        self._mirror = mirror
        self._metrics = metrics
        self._mode = mode
        self._near_best_nodes = near_best_nodes
        self._rejections = RejectionLog()

    def filter(self, body: bytes) -> bytes:
        """Answer filter. Every fault is a sentence in `Error` or against the nodes; never raises for a bad request."""
        try:
            args = wire.read_args(body)
            return wire.encode(self._filter(args))
        except (wire.WireError, UnavailableError) as error:
            return wire.encode(wire.FilterResult(error=str(error)))

    def prioritize(self, body: bytes) -> bytes:
        """Answer prioritize. Raises WireError, RequestError, UnavailableError: this verb has no field for an error."""
        args = wire.read_args(body)
        names = _candidates(args)
        pod, request = self._read(args)
        if request.gpus is None:
            return wire.encode(self._keep_off_gpus(names))
        placement = self._place(pod, request, request.gpus, names)
        self._placer.reserve(placement)
        decision = placement.decision
        known = zip(_names_at(placement, decision.rows), levels(decision.evaluation).tolist(), strict=True)
        scored = [wire.HostPriority(name, score) for name, score in known]
        return wire.encode(scored + [wire.HostPriority(name, 0) for name in placement.unknown])

    async def bind(self, body: bytes) -> bytes:
        """Answer bind; whatever goes wrong is a sentence in `Error`, and nothing stays reserved."""
        try:
            args = wire.read_binding_args(body)
            pod = PodIdentity(args.pod_namespace, args.pod_name, args.pod_uid)
            await self._binder.bind(pod, args.node, self._mirror.fault())
        except (wire.WireError, BindError) as error:
            logger.warning("bind: %s", error)
            self._metrics.failed_binds.inc()
            return wire.encode(wire.BindResult(str(error)))
        self._waker.placed(pod.uid)
        self._metrics.binds.inc()
        return wire.encode(wire.BindResult())

    def _filter(self, args: wire.ExtenderArgs) -> wire.FilterResult:
        names = _candidates(args)
        try:
            pod, request = self._read(args)
            if request.gpus is None:
                self._placer.remember(pod, request)
                return wire.FilterResult(args.nodes if args.node_names is None else None, args.node_names)
            placement = self._place(pod, request, request.gpus, names)
        except RequestError as error:
            return self._reject_request(args, names, str(error))
        self._placer.remember(pod, request)
        decision = placement.decision
        if decision.best is None:
            chosen: Sequence[str] = ()
            self._rejections.record(placement)
            self._waker.rejected(pod, request)
        elif self._mode is Mode.SCORES:
            chosen = _names_at(placement, decision.rows[decision.evaluation.fits])
        elif has_soft_preferences(args.pod.spec if args.pod else objects.PodSpec()):
            chosen = _names_at(placement, near_best(placement.cluster, decision, self._near_best_nodes))
        else:
            chosen = [placement.cluster.node_names[decision.best]]
        if len(chosen) == 1:
            self._placer.reserve(placement)  # kube-scheduler takes it as it is: this call has decided
        result = _among(args, names, chosen)
        if not chosen or len(names) <= _MAX_NAMES_WITH_REASONS:
            for failing in node_reasons(placement, failing_only=True):
                failed = result.failed if failing.reason in RESOLVABLE else result.unresolvable
                failed[failing.node] = failing.text
        self._metrics.count_decision(placement)
        return result

    def _read(self, args: wire.ExtenderArgs) -> tuple[PodIdentity, PodRequest]:
        pod = args.pod or objects.Pod()
        metadata = pod.metadata
        identity = PodIdentity(metadata.namespace, metadata.name, metadata.uid)
        return identity, read_pod_request(pod)

    def _place(self, pod: PodIdentity, request: PodRequest, gpus: GpuRequest, names: Sequence[str]) -> Placement:
        """Decide, and keep the decision for those who ask later. Raises RequestError, UnavailableError."""
        policy = self._placer.policy_of(request)
        fault = self._mirror.fault()
        if fault:
            raise UnavailableError(f"Kerf can't tell which GPUs are free: {fault}")
        placement = self._placer.place(pod, gpus, policy, names)
        self._placer.keep(placement)
        return placement

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

    def _reject_request(self, args: wire.ExtenderArgs, names: Sequence[str], fault: str) -> wire.FilterResult:
        """A request that can't be understood: the same sentence against every node, and no preemption for it."""
        self._metrics.bad_requests.inc()
        if not names:
            return wire.FilterResult(error=fault)
        result = _among(args, names, ())
        result.unresolvable = dict.fromkeys(names, fault)
        return result


def _candidates(args: wire.ExtenderArgs) -> list[str]:
    """The candidates' names, from names or whole nodes. Raises WireError."""
    if args.node_names is not None:
        return args.node_names
    return wire.names_of(args.nodes) if args.nodes else []


def _names_at(placement: Placement, rows: Rows) -> list[str]:
    node_names = placement.cluster.node_names
    return [node_names[row] for row in rows.tolist()]


def _among(args: wire.ExtenderArgs, names: Sequence[str], chosen: Sequence[str]) -> wire.FilterResult:
    """The chosen nodes in the form in which the candidates came."""
    if args.node_names is not None or args.nodes is None:
        return wire.FilterResult(node_names=list(chosen))
    wanted = set(chosen)
    items: list[msgspec.Raw] = []
    for name, item in zip(names, args.nodes.items or (), strict=True):
        if name in wanted:
            wanted.discard(name)
            items.append(item)
    return wire.FilterResult(nodes=wire.NodeList(items))
