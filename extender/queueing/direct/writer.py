"""Writes to pods that kube-scheduler binds by itself, each on the resourceVersion that was decided on.

`DirectAssignments` turns assignments into annotations, which no Binding carries here: Kerf's and the device plugin's.

`Products` restricts pods that request a GPU model or an amount of memory to nodes with suitable GPUs. kube-scheduler
does not know such requests and, if it can't use the nominated node, takes any node with enough GPUs. It does know the
label with the product of a node's GPUs, and the API server allows adding node affinity while a pod is gated.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from extender.core.decisions import decide_on
from extender.core.evaluations import Memo
from extender.core.fit.checks import could_fit
from extender.core.resources.requests import GpuRequest, PodRequest
from extender.core.vendors.registry import VENDORS
from extender.kube.client import Transport
from extender.kube.commit import Outcome, Result, Term
from extender.kube.decoding import Decoder
from extender.kube.objects import Pod
from extender.kube.patches import Annotations, Patch, write
from extender.ledger.ledger import Ledger, PodAllocation
from extender.planning.plans import PlanPod
from extender.plugins.kerf import ASSIGNED_NODE, ASSIGNMENT, EXPLANATION
from extender.plugins.protocol import Handover
from extender.plugins.registry import assigned_gpus, plugins
from extender.queueing.node_view import NodeBook
from extender.queueing.pods.nominations import MAX_TEXT, NOMINATION_LOST, PLANNED_BY, PLANNED_NODE, unsaid
from extender.queueing.pods.objects import is_gated, other_gates
from extender.scheduling.assignments import Assignment, assignment_of
from extender.scheduling.binding import SEALED, read, seal
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.skips import SKIPPED, SKIPPED_COUNT


@dataclass(eq=False)
class Products:
    """Node restrictions added to pods as their gates are opened."""

    placer: Placer
    nodes: NodeBook
    _memo: Memo = field(default_factory=Memo, init=False)

    def kept_to(self, pod: Pod, planned: PlanPod, node: str) -> dict[str, Any]:
        """Return spec fields that keep a pod planned on a node to its gang's domain and to suitable GPU products.

        A pod with an affinity of its own keeps that and is restricted to the product of its node.
        """
        selector = self.nodes.domain_of(node, planned.topology)
        label = VENDORS[planned.gpus.vendor].product_label if planned.gpus is not None else ""
        own, affinity = self.nodes.labels_of(node).get(label, ""), {}
        if planned.gpus is not None and own and is_picky(planned.gpus):
            products = self._products(planned.gpus)
            if pod.spec.affinity is not None:
                selector = {**selector, label: own}
            elif products:
                affinity = {"affinity": _affinity(label, products)}
        return ({"nodeSelector": selector} if selector else {}) | affinity

    def _products(self, request: GpuRequest) -> list[str]:
        """Return the products of all nodes that would fit if free, none if one of these has no product label."""
        cluster = self.placer.snapshot()
        evaluated = self._memo.evaluate(cluster, request, self.placer.policy_of(PodRequest(request)))
        suitable = could_fit(evaluated.evaluation.reason)
        names = [cluster.node_names[row] for row in cluster.row_of.values() if suitable[row]]
        products = {self.nodes.labels_of(name).get(VENDORS[request.vendor].product_label, "") for name in names}
        return [] if "" in products else sorted(products)


def is_picky(request: GpuRequest) -> bool:
    """Whether a request accepts only some GPUs."""
    patterns = request.include is not None or request.exclude is not None
    return patterns or bool(request.memory_each_mib or request.memory_total_mib or request.uuids)


def _affinity(label: str, products: list[str]) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": label, "operator": "In", "values": products}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


@dataclass(eq=False)
class DirectAssignments:
    """Assignments of pods that kube-scheduler binds by itself."""

    ledger: Ledger
    placer: Placer
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def of(self, pod: Pod, node: str) -> dict[str, str]:
        """Return a pod's reservation on a node as annotations, none without a reservation.

        Raises RequestError when the pod's containers can't be read.
        """
        assignment = self.placer.reserved(pod.metadata.uid, node)
        return {} if assignment is None else self.written(pod, assignment)

    def written(self, pod: Pod, assignment: Assignment) -> dict[str, str]:
        """Return an assignment as annotations. Raises RequestError when the pod's containers can't be read."""
        handover = self._handover(pod, assignment).annotations
        return {**handover, **assignment.annotations, ASSIGNED_NODE: assignment.node}

    def matters(self, held: PodAllocation) -> bool:
        """Whether the choice of GPUs takes effect: the node's plugin follows it, or no plugin serves the pod.

        The vendor's plugin picks GPUs by itself.
        """
        return bool(held.holding) and (held.holding.unserved or self.ledger.rows.plugin_on(held.node).told)

    def on_its_node(self, pod: Pod, held: PodAllocation) -> Assignment | None:
        """Return an assignment for a bound pod on its node, None if too little is free. Raises RequestError."""
        request = self.placer.read_request(pod)
        alone = self.ledger.without(held.node, {held.uid}, self.clock())
        if request.gpus is None or alone is None:
            return None
        policy, row = self.placer.policy_of(request), alone.row_of[held.node]
        decision = decide_on(alone, request.gpus, policy, row, Memo())
        return assignment_of(alone, decision)

    def _handover(self, pod: Pod, assignment: Assignment) -> Handover:
        rows, node = self.ledger.rows, assignment.node
        plugin, manifest = rows.plugin_on(node), rows.manifest(node)
        gpus = assigned_gpus(rows.offer_of(node), assignment.holding)
        if manifest is None or not gpus:
            return Handover()
        return plugin.handover(pod, gpus, manifest, self.wall_clock())


Reserved = Callable[[], Annotations | None]
"""Returns a pod's reservation as annotations, None if it does not stand any more."""

_pod_decoder: Final = Decoder(Pod)


class _Assignment(Patch[Pod]):
    """A write of a pod's nomination and assignment. It is sealed, since a late one would take GPUs of other pods."""

    seals = True

    def __init__(
        self, transport: Transport, pod: Pod, node: str, reserved: Reserved, lost: str, unsealed: set[str]
    ) -> None:
        status = {"nominatedNodeName": node, **unsaid(pod)}
        path = PodIdentity.of(pod).path
        super().__init__(transport, path, _pod_decoder, uid=pod.metadata.uid, part="/status", status=status)
        self._identity, self._node, self._reserved, self._unsealed = PodIdentity.of(pod), node, reserved, unsealed
        note = {NOMINATION_LOST: lost[:MAX_TEXT]} if lost else {}
        self._notes = {**_blank(pod), PLANNED_NODE: node, SKIPPED: None, SKIPPED_COUNT: None, **note}

    def failed_precondition(self) -> str:
        reserved = self._reserved()
        self.metadata = {"annotations": {**self._notes, **(reserved or {})}}
        return "its reservation does not stand any more" if reserved is None else ""

    async def seal(self) -> Pod | None:
        return await seal(self._transport, self._identity)

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        annotations = found.metadata.annotations or {}
        current = {key: annotations.get(key) for key in self.metadata["annotations"]}
        written = current == self.metadata["annotations"] and found.status.nominated_node_name == self._node
        return Outcome.DONE if written else None

    def settle(self, result: Result[Pod]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._unsealed.add(self.uid)


class DirectWriter:
    """Writes to known versions of pods in a term. Each write returns the new pod, None if it has changed or is gone.

    Raises FencedError, DecodeError, and ClusterError where the API server refuses or the outcome is unknown.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._unsealed: set[str] = set()
        """UIDs of pods on which a late assignment may still take effect."""

    async def read(self, pod: Pod) -> Pod | None:
        """Return the current pod, None once it is gone."""
        return await read(self._transport, PodIdentity.of(pod))

    async def assign(self, pod: Pod, node: str, reserved: Reserved, lost: str, term: Term | None) -> Pod | None:
        """Write the nominated node, the reservation on it, and the `lost` node, in one write to the status."""
        assignment = _Assignment(self._transport, pod, node, reserved, lost, self._unsealed)
        return await write(assignment, term, pod.metadata.resource_version)

    async def open(self, pod: Pod, planner: str, kept_to: Mapping[str, Any], term: Term | None) -> Pod | None:
        """Remove Kerf's gate and write the planner's name; `kept_to` are spec fields that restrict the pod's nodes."""
        return await self._open(pod, {PLANNED_BY: planner}, kept_to, term)

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> Pod | None:
        """Remove Kerf's gate from a pod without an assignment."""
        annotations = {**_blank(pod), PLANNED_NODE: "", PLANNED_BY: why, SKIPPED: None, SKIPPED_COUNT: None}
        return await self._open(pod, annotations, {}, term)

    def is_clear(self, pod: Pod) -> bool:
        """Whether no assignment is written on a pod, nor will be by an earlier write."""
        return is_blank(pod) and pod.metadata.uid not in self._unsealed

    async def take_back(self, pod: Pod, node: str, term: Term | None) -> Pod | None:
        """Withdraw an assignment, changing the pod so that earlier writes fail.

        If the gate is open, a nomination for another node is kube-scheduler's and stays.
        """
        own = is_gated(pod) or pod.status.nominated_node_name == node
        status = {"status": {"nominatedNodeName": None}} if own else {}
        sealed = {SEALED: secrets.token_hex(4)} if pod.metadata.uid in self._unsealed else {}
        found = await self._write(pod, "/status", {**_blank(pod), **sealed}, term, **status)
        if found is not None:
            self._unsealed.discard(pod.metadata.uid)
        return found

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone or has its node."""
        self._unsealed.discard(uid)

    async def assign_bound(self, pod: Pod, assignment: Annotations, term: Term | None) -> Pod | None:
        """Write a bound pod's assignment."""
        return await self._write(pod, "/status", {**_blank(pod), **assignment}, term)

    async def _open(self, pod: Pod, annotations: Annotations, spec: Mapping[str, Any], term: Term | None) -> Pod | None:
        others = [{"name": name} for name in other_gates(pod)]
        return await self._write(pod, "", annotations, term, spec={"schedulingGates": others or None, **spec})

    async def _write(
        self, pod: Pod, part: str, annotations: Annotations, term: Term | None, **fields: Any
    ) -> Pod | None:
        metadata, path = {"annotations": annotations}, PodIdentity.of(pod).path
        uid, version = pod.metadata.uid, pod.metadata.resource_version
        patch = Patch(self._transport, path, _pod_decoder, uid=uid, part=part, metadata=metadata, **fields)
        return await write(patch, term, version)


def is_blank(pod: Pod) -> bool:
    """Whether neither a nomination nor an assignment is written on a pod."""
    annotations = pod.metadata.annotations or {}
    return not pod.status.nominated_node_name and not any(annotations.get(key) for key in _assigned())


def _blank(pod: Pod) -> dict[str, str | None]:
    """Return annotations that remove any assignment from a pod."""
    return dict.fromkeys((_assigned() | {EXPLANATION}) & (pod.metadata.annotations or {}).keys())


@cache
def _assigned() -> frozenset[str]:
    return frozenset(ASSIGNMENT).union(*(plugin.written for plugin in plugins()))
