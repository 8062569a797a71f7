"""What is written on a pod that kube-scheduler places by itself: each time on the version that was decided on.

Keeping a pod that asks for a model or an amount of memory to nodes of which the GPUs will do.

kube-scheduler knows none of these words, and takes any node that has as many GPUs where the one nominated is not to be
had. What it does know is the label by which nodes tell the product of their GPUs; the API server lets that be asked of
a pod as long as its gate is shut.

What is written of an assignment where no Binding carries it, in Kerf's words and in those of the node's plugin.
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
from extender.ledger.ledger import Claim, Ledger
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
    """What pods are kept to as their gates are opened."""

    placer: Placer
    nodes: NodeBook
    _memo: Memo = field(default_factory=Memo, init=False)

    def kept_to(self, pod: Pod, planned: PlanPod, node: str) -> dict[str, Any]:
        """What keeps a pod planned on a node to its gang's domain and to products that will do, as parts of its spec.

        One that has an affinity of its own keeps that, and is kept to the product of its node.
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
        """Products of the nodes that would do if they were free, none where one of those tells none."""
        cluster = self.placer.snapshot()
        found = self._memo.evaluate(cluster, request, self.placer.policy_of(PodRequest(request)))
        will_do = could_fit(found.evaluation.reason)
        names = [cluster.node_names[row] for row in cluster.row_of.values() if will_do[row]]
        products = {self.nodes.labels_of(name).get(VENDORS[request.vendor].product_label, "") for name in names}
        return [] if "" in products else sorted(products)


def is_picky(request: GpuRequest) -> bool:
    """Whether not every GPU will do for a request."""
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
        """What is reserved for a pod on a node, as annotations; none for a pod that asks for no GPUs.

        Raises RequestError when the pod's containers can't be read.
        """
        assignment = self.placer.reserved(pod.metadata.uid, node)
        return {} if assignment is None else self.written(pod, assignment)

    def written(self, pod: Pod, assignment: Assignment) -> dict[str, str]:
        """An assignment as annotations. Raises RequestError when the pod's containers can't be read."""
        handed = self._handover(pod, assignment).annotations
        return {**handed, **assignment.annotations, ASSIGNED_NODE: assignment.node}

    def matters(self, claim: Claim) -> bool:
        """Whether somebody goes by which GPUs of its node a pod has: the node's plugin, or nobody but Kerf, where its
        kubelet knows nothing of them. The vendor's plugin chooses by itself."""
        return bool(claim.holding) and (claim.holding.unserved or self.ledger.rows.plugin_on(claim.node).told)

    def on_its_node(self, pod: Pod, claim: Claim) -> Assignment | None:
        """What a pod may get of the node that it is bound to, beside all others there; None where that is too little.

        Raises RequestError.
        """
        request = self.placer.read_request(pod)
        alone = self.ledger.without(claim.node, {claim.uid}, self.clock())
        if request.gpus is None or alone is None:
            return None
        policy, row = self.placer.policy_of(request), alone.row_of[claim.node]
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
"""Tells what is reserved for a pod as annotations, None where that does not stand any more."""

_pod_decoder: Final = Decoder(Pod)


class _Assignment(Patch[Pod]):
    """The node that a pod gets, and which GPUs of it: not to be written late, when these are somebody else's."""

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

    def stands(self) -> str:
        reserved = self._reserved()
        self.metadata = {"annotations": {**self._notes, **(reserved or {})}}
        return "what was reserved does not stand any more" if reserved is None else ""

    async def seal(self) -> Pod | None:
        return await seal(self._transport, self._identity)

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        annotations = found.metadata.annotations or {}
        told = {key: annotations.get(key) for key in self.metadata["annotations"]}
        written = told == self.metadata["annotations"] and found.status.nominated_node_name == self._node
        return Outcome.DONE if written else None

    def settle(self, result: Result[Pod]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._unsealed.add(self.uid)


class DirectWriter:
    """Writes to pods in a term, as they are known. Each method returns the pod as it is then, None where it has changed
    before or is gone.

    They raise FencedError; ClusterError where the API server refuses, or where nobody knows what it did; DecodeError.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._unsealed: set[str] = set()
        """Pods on which an assignment may be written yet, by their UIDs."""

    async def read(self, pod: Pod) -> Pod | None:
        """A pod as it is now, None once it is gone."""
        return await read(self._transport, PodIdentity.of(pod))

    async def assign(self, pod: Pod, node: str, reserved: Reserved, lost: str, term: Term | None) -> Pod | None:
        """Nominate a node, and write what is reserved of it, if anything still is, and which one the pod has lost: one
        write to its status."""
        assignment = _Assignment(self._transport, pod, node, reserved, lost, self._unsealed)
        return await write(assignment, term, pod.metadata.resource_version)

    async def open(self, pod: Pod, planner: str, kept_to: Mapping[str, Any], term: Term | None) -> Pod | None:
        """Take Kerf's gate off, and write whose plan it is; `kept_to` is what of its spec keeps it to some nodes."""
        return await self._open(pod, {PLANNED_BY: planner}, kept_to, term)

    async def open_without_node(self, pod: Pod, why: str, term: Term | None) -> Pod | None:
        """Take the gate off a pod that nothing is assigned to."""
        annotations = {**_blank(pod), PLANNED_NODE: "", PLANNED_BY: why, SKIPPED: None, SKIPPED_COUNT: None}
        return await self._open(pod, annotations, {}, term)

    def is_clear(self, pod: Pod) -> bool:
        """Whether nothing of a node is written on a pod, nor will be by what was sent before."""
        return is_blank(pod) and pod.metadata.uid not in self._unsealed

    async def take_back(self, pod: Pod, node: str, term: Term | None) -> Pod | None:
        """Take back what is written of a node, and change the pod, so that nothing sent before is written on it later;
        with an open gate a nomination for another is kube-scheduler's."""
        own = is_gated(pod) or pod.status.nominated_node_name == node
        status = {"status": {"nominatedNodeName": None}} if own else {}
        sealed = {SEALED: secrets.token_hex(4)} if pod.metadata.uid in self._unsealed else {}
        found = await self._write(pod, "/status", {**_blank(pod), **sealed}, term, **status)
        if found is not None:
            self._unsealed.discard(pod.metadata.uid)
        return found

    def forget(self, uid: str) -> None:
        """A pod is gone, or has its node."""
        self._unsealed.discard(uid)

    async def assign_bound(self, pod: Pod, assignment: Annotations, term: Term | None) -> Pod | None:
        """Write which GPUs a pod gets of the node that it has."""
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
    """Whether nothing of a node is written on a pod."""
    annotations = pod.metadata.annotations or {}
    return not pod.status.nominated_node_name and not any(annotations.get(key) for key in _assigned())


def _blank(pod: Pod) -> dict[str, str | None]:
    """What takes away all that is assigned to a pod, whoever wrote it."""
    return dict.fromkeys((_assigned() | {EXPLANATION}) & (pod.metadata.annotations or {}).keys())


@cache
def _assigned() -> frozenset[str]:
    return frozenset(ASSIGNMENT).union(*(plugin.written for plugin in plugins()))
