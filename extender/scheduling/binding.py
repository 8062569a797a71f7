"""Binding pods, and resolving Bindings whose answer was lost.

One write sets a pod's node and its GPU assignment: the API server merges a Binding's annotations into the pod as it
sets `spec.nodeName`, with the pod's UID as a precondition. No state in between needs a rollback. With GPUs, the pod's
resourceVersion is a precondition too, which the fence between two leaders relies on.

Some device plugins need more: annotations of their own on the pod, and a lock on the node.

Sealing changes a pod so that a Binding with an older resourceVersion is refused (409). It writes an annotation. The API
server refuses that on a pod with almost 256 KiB of annotations (422) or of almost 1.5 MiB (500, from etcd), which its
author may have arranged. Kerf then removes the annotations that a Binding would replace, and writes a status message of
a few bytes, which only etcd's limit counts. A Binding with GPUs makes the pod larger than that, so a pod too large to
seal can't be bound either.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import msgspec

from extender.core.fit.checks import sentence
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.kube import objects, patches
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.commit import FencedError, Outcome, Resolver, Result, Target, commit, is_permanent_refusal
from extender.kube.decoding import Decoder
from extender.kube.events import EventRecorder
from extender.ledger.ledger import AllocationState, Ledger, PodAllocation
from extender.ledger.rows import NodeRows
from extender.plugins.kerf import ASSIGNMENT, EXPLANATION
from extender.plugins.pods import read_pod_request
from extender.plugins.protocol import DevicePlugin, Handover, LockError, Locks
from extender.plugins.registry import assigned_gpus, plugins
from extender.scheduling.assignments import Assignment, PodIdentity
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer
from extender.scheduling.skips import SKIPPED, SKIPPED_COUNT


@dataclass(eq=False)
class Handovers:
    """Prepares what the nodes' device plugins need with a Binding."""

    transport: Transport
    rows: NodeRows
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _locks: dict[str, Locks | None] = field(default_factory=dict, init=False)  # by plugin

    async def prepare(
        self,
        pod: PodIdentity,
        held: PodAllocation,
        decided_at: float,
        read: Callable[[], Awaitable[objects.Pod | None]],
    ) -> Handover:
        """Return the annotations that the plugin needs with the Binding, after locking the node if the plugin wants it.

        `read` gets the pod from the API server. Raises ClusterError, DecodeError, RequestError, LockError.
        """
        node = held.node
        plugin, manifest = self.rows.plugin_on(node), self.rows.manifest(node)
        gpus = assigned_gpus(self.rows.offer_of(node), held.holding)
        if manifest is None or not plugin.told or not gpus or (current := await read()) is None:
            return Handover()
        handover = plugin.handover(current, gpus, manifest, decided_at)
        if handover.locks_node and (locks := self._locks_of(plugin)) is not None:
            await locks.take(node, pod.namespace, pod.name)
        return handover

    async def give_up(self, pod: PodIdentity, node: str, handover: Handover) -> None:
        """Release the node's lock: the Binding will not take effect."""
        if handover.locks_node and (locks := self._locks_of(self.rows.plugin_on(node))) is not None:
            await locks.release(node, pod.namespace, pod.name)

    def _locks_of(self, plugin: DevicePlugin) -> Locks | None:
        if plugin.name not in self._locks:
            self._locks[plugin.name] = plugin.locks(self.transport, self.clock, self.wall_clock)
        return self._locks[plugin.name]


_WRITTEN_BY_KERF: Final = frozenset({*ASSIGNMENT, EXPLANATION, SKIPPED, SKIPPED_COUNT, "kerf.dev/nomination-lost"})
"""Annotations that a Binding may set, besides those for device plugins."""
SEALED: Final = "kerf.dev/sealed"
"""Annotation that seals a pod against older writes. Its value is random."""

_pod_decoder = Decoder(objects.Pod)


async def read(transport: Transport, pod: PodIdentity) -> objects.Pod | None:
    """Return the current pod, None once this UID is gone. Raises ClusterError, DecodeError."""
    return await patches.read(transport, pod.path, _pod_decoder, pod.uid)


async def change(transport: Transport, pod: PodIdentity, key: str, value: str) -> bytes | None:
    """Change a pod by an annotation, or, if that is refused, by the change that adds the fewest bytes.

    Returns the changed pod, None when it is gone. Raises ClusterError, DecodeError.
    """
    try:
        return await _patch(transport, pod, {"metadata": {"uid": pod.uid, "annotations": {key: value}}})
    except ApiError as error:
        if not is_permanent_refusal(error):
            raise
    current = await read(transport, pod)  # a UID mismatch is refused, too
    if current is None:
        return None
    written = _WRITTEN_BY_KERF.union(*(plugin.written for plugin in plugins()))
    removed = dict.fromkeys(written & (current.metadata.annotations or {}).keys())
    status = {"message": f"Kerf {secrets.token_hex(4)}"}
    return await _patch(transport, pod, {"metadata": {"uid": pod.uid, "annotations": removed}, "status": status})


async def seal(transport: Transport, pod: PodIdentity) -> objects.Pod | None:
    """Change a pod so that the API server refuses every write sent before that has not taken effect yet.

    Returns the changed pod, None when it is gone. Raises ClusterError, DecodeError.
    """
    answer = await change(transport, pod, SEALED, secrets.token_hex(4))
    return None if answer is None else _pod_decoder.decode(answer)


async def _patch(transport: Transport, pod: PodIdentity, body: dict[str, Any]) -> bytes | None:
    try:
        return await transport.patch(f"{pod.path}/status", msgspec.json.encode(body))
    except ApiError as error:
        if error.status == 404:
            return None
        raise


_OWN_PREFIX: Final = "kerf.dev/"


class BindError(Exception):
    """A pod was not bound. kube-scheduler shows the message on the pod."""


@dataclass(frozen=True, slots=True)
class BindingTools:
    """Dependencies of `Binding`."""

    transport: Transport
    ledger: Ledger
    resolver: Resolver
    handovers: Handovers
    clock: Callable[[], float]


class Binding(Target[objects.Pod]):
    """A write that sets a pod's node and its GPU assignment."""

    tries = 2
    kept_on_standby = True

    def __init__(
        self,
        tools: BindingTools,
        pod: PodIdentity,
        request: PodRequest,
        node: str,
        *,
        held: PodAllocation | None = None,
        epoch: str = "",
        annotations: Mapping[str, str] = MappingProxyType({}),
        decided_at: float = 0.0,
    ) -> None:
        """`held` is the pod's allocation, None for a pod without GPUs, which any replica may bind. `decided_at` is the
        Unix time of the allocation."""
        super().__init__(pod.namespace, pod.uid, f"binding {pod.key} to {node}", epoch)
        self.seals = held is not None
        self.pod = pod
        self._tools, self._request, self._node, self._held = tools, request, node, held
        self._annotations, self._decided_at, self._handover = annotations, decided_at, Handover()
        self._state = None if held is None else tools.ledger.rows.state_of(node)
        self._is_recreated = False

    async def prepare(self) -> str:
        """Raises ClusterError, DecodeError, RequestError, LockError."""
        if self._held is not None:
            self._handover = await self._tools.handovers.prepare(self.pod, self._held, self._decided_at, self.read)
        return ""

    async def undo(self) -> None:
        await self._tools.handovers.give_up(self.pod, self._node, self._handover)

    def failed_precondition(self) -> str:
        if self._held is None or self._tools.ledger.rows.state_of(self._node) == self._state:
            return ""
        return f"node {self._node} has changed since pod {self.pod.key} was given its GPUs"

    def refusal(self, found: objects.Pod) -> str:
        """Accept a pod whose GPU request is unchanged; other changes, such as in its status, don't matter."""
        decided = self._request.gpus
        try:
            current = read_pod_request(found).gpus
        except RequestError as error:
            return str(error)
        by_claims = current is None and decided is not None and decided.unit is AskedUnit.CLAIM  # immutable
        unchanged = by_claims or current == decided
        return "" if unchanged else f"pod {self.pod.key} has changed its request since the decision"

    async def send(self, version: str) -> objects.Pod | None:
        metadata = {
            "name": self.pod.name,
            "namespace": self.pod.namespace,
            "uid": self.pod.uid,
            "annotations": {**self._handover.annotations, **self._annotations},
            "resourceVersion": version,
        }
        node = {"apiVersion": "v1", "kind": "Node", "name": self._node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": node}
        await self._tools.transport.post(f"{self.pod.path}/binding", msgspec.json.encode(body))
        return None

    async def read(self) -> objects.Pod | None:
        try:
            found = await _read_by_name(self._tools.transport, self.pod)
        except ApiError as error:
            if error.status != 404:
                raise
            return None
        self._is_recreated = found.metadata.uid != self.uid
        return None if self._is_recreated else found

    async def seal(self) -> objects.Pod | None:
        return await seal(self._tools.transport, self.pod)

    def judge(self, found: objects.Pod | None, *, sealed: bool) -> Outcome | None:
        if found is None:
            return Outcome.GONE
        if not found.spec.node_name:
            return Outcome.REFUSED if found.finished else None
        # A device plugin changes its annotations as soon as it sees them, so only Kerf's identify this Binding.
        own = {key: value for key, value in self._annotations.items() if key.startswith(_OWN_PREFIX)}
        written = (found.metadata.annotations or {}).items() >= own.items()
        return Outcome.DONE if found.spec.node_name == self._node and written else Outcome.REFUSED

    def is_settled(self) -> bool:
        held = self._held
        return (
            held is None
            or held.state is not AllocationState.UNDECIDED
            or self._tools.ledger.allocation(held.uid) is not held
        )

    def settle(self, result: Result[objects.Pod]) -> None:
        """Update the ledger. The GPUs stay held while the Binding may still take effect."""
        tools, held, found = self._tools, self._held, result.found
        if held is None:
            return
        now, node = tools.clock(), "" if found is None or found.finished else found.spec.node_name
        if result.outcome is Outcome.UNKNOWN:
            tools.ledger.end_binding(held, AllocationState.UNDECIDED, now)
            tools.resolver.add(self)
        elif result.outcome is Outcome.DONE or (node == self._node and held.state is AllocationState.UNDECIDED):
            tools.ledger.end_binding(held, AllocationState.BOUND, now)
        elif found is None or not node:
            tools.ledger.end_binding(held, None, now)
        elif (other := tools.ledger.hold_as_read(found, now)) is not None:  # bound by another client
            tools.resolver.add(Binding(tools, self.pod, self._request, other.node, held=other))
        else:
            tools.ledger.end_binding(held, None, now)

    def sentence(self, result: Result[objects.Pod]) -> str:
        """Return why the Binding has not taken effect, or why its outcome is unknown."""
        error, node = result.error, "" if result.found is None else result.found.spec.node_name
        match result.outcome:
            case Outcome.FENCED:
                return str(error)
            case Outcome.GONE:
                return _recreated(self.pod) if self._is_recreated else f"pod {self.pod.key} is gone"
            case Outcome.UNKNOWN if result.why:
                return f"{self.description}: {error}; its outcome is unknown: {result.why}"
        if result.why:
            return result.why
        if node:
            return f"pod {self.pod.key} is bound to node {node} by another client"
        if not self.version:
            return f"pod {self.pod.key}: {error}"
        if isinstance(error, ApiError) and error.status < 500:
            return f"the API server refused to bind {self.pod.key} to {self._node}: {error}"
        return f"{self.description} failed: {error}"


@dataclass(eq=False)
class Binder:
    """Binds pods to the nodes that kube-scheduler has selected."""

    transport: Transport
    ledger: Ledger
    placer: Placer
    events: EventRecorder
    clock: Callable[[], float]
    fence: Fence
    wall_clock: Callable[[], float]
    notes: Callable[[str], dict[str, str]] = lambda uid: {}
    """Returns further annotations for a pod, by its UID."""
    resolver: Resolver = field(kw_only=True)
    """Resolves Bindings whose answer was lost."""

    def __post_init__(self) -> None:
        handovers = Handovers(self.transport, self.ledger.rows, self.clock, self.wall_clock)
        self._tools = BindingTools(self.transport, self.ledger, self.resolver, handovers, self.clock)

    async def bind(self, pod: PodIdentity, node: str, fault: str) -> None:
        """Bind a pod with its GPU assignment. Raises BindError; unless the pod may be bound, it loses its reservation.

        A reservation on the node is bound as decided. Without one, the pod is placed on the node now.
        `fault` says why no GPUs may be allocated, "" when they may; with a fault only pods without GPUs are bound.
        """
        request = self.placer.remembered(pod.uid)
        if request is None or request.gpus is None:  # a request by annotation may have been added since
            request = await self._read_request(pod)
        if request.gpus is None:
            await self._write(Binding(self._tools, pod, request, node))
            self.placer.forget(pod.uid)
            self.fence.forget(pod.uid)
            return
        if fault:
            raise self._refuse(pod, f"Kerf can't tell which GPUs are free: {fault}")
        try:
            epoch = self.fence.enter()
        except FencedError as error:
            raise self._refuse(pod, str(error)) from error
        assignment = self.placer.reserved(pod.uid, node) or self._place_now(pod, request, request.gpus, node)
        if assignment is None:
            return  # already bound there
        decided_at = self._decided_at(pod.uid)
        binding = Binding(
            self._tools,
            pod,
            request,
            node,
            held=self.ledger.begin_binding(pod.uid, node, assignment.holding, self.clock()),
            epoch=epoch,
            annotations=dict.fromkeys(request.stale, "") | assignment.annotations | self.notes(pod.uid),
            decided_at=decided_at,
        )
        await self._write(binding)
        self.placer.forget(pod.uid)
        self.fence.forget(pod.uid)
        self.events.emit_placement(pod.namespace, pod.name, pod.uid, message=assignment)

    def _decided_at(self, uid: str) -> float:
        """Return the Unix time of the pod's reservation.

        gpushare's plugin serves pods of equal size by the time written on them, and concurrent Bindings end in any
        order, so the time of the decision is written.
        """
        allocation = self.ledger.allocation(uid)
        return self.wall_clock() - (self.clock() - allocation.since if allocation is not None else 0.0)

    def _place_now(self, pod: PodIdentity, request: PodRequest, gpus: GpuRequest, node: str) -> Assignment | None:
        """Place a pod on this node now; None when it is already bound there. Raises BindError."""
        allocation = self.ledger.allocation(pod.uid)
        if allocation is not None and allocation.state is not AllocationState.RESERVED:
            if allocation.state is AllocationState.BOUND and allocation.node == node:
                return None
            raise BindError(f"pod {pod.key} is already bound, or being bound, to node {allocation.node}")
        try:
            policy = self.placer.policy_of(request)
        except RequestError as error:
            raise self._refuse(pod, str(error)) from error
        effective = policy.weighed_request(request) or gpus
        placement = self.placer.place(pod, effective, policy, [node])
        if placement.node is None and self.ledger.cycles.claim_back(pod.uid):
            placement = self.placer.place(pod, effective, policy, [node])
        if placement.unknown:
            raise BindError(f"node {node} is not known to Kerf")
        assignment = placement.assignment()
        if assignment is None:
            self.placer.decided.add(placement)
            evaluation = placement.decision.evaluation
            why = sentence(int(evaluation.reason[0]), gpus, int(evaluation.available[0]))
            raise BindError(f"node {node} no longer fits pod {pod.key}: {why}")
        return assignment

    async def _read_request(self, pod: PodIdentity) -> PodRequest:
        """Read the request of a pod that filter has not seen since the start. Raises BindError."""
        try:
            current = await _read_by_name(self.transport, pod)
            if current.metadata.uid != pod.uid:
                raise self._refuse(pod, _recreated(pod))
            self.fence.note(current.metadata)
            return self.placer.read_request(current)
        except (ClusterError, msgspec.DecodeError, RequestError) as error:
            raise self._refuse(pod, f"pod {pod.key}: {error}") from error

    def _refuse(self, pod: PodIdentity, why: str) -> BindError:
        """Release the reservation of a pod for which no Binding was sent, and return the error to raise.

        A pinned reservation stays: kube-scheduler may bind the pod by it without Kerf.
        """
        allocation = self.ledger.allocation(pod.uid)
        if allocation is None or not allocation.pinned:
            self.placer.release(pod.uid)
        return BindError(why)

    async def _write(self, binding: Binding) -> None:
        """Raises BindError when the Binding has not taken effect, or its outcome is unknown."""
        pod = binding.pod
        try:
            result = await commit(
                binding, self.fence if binding.seals else None, version=self.fence.version_of(pod.uid)
            )
        except (ClusterError, msgspec.DecodeError, RequestError, LockError) as error:
            raise BindError(f"pod {pod.key}: {error}") from error
        if result.outcome is not Outcome.DONE:
            raise BindError(binding.sentence(result)) from result.error


def _recreated(pod: PodIdentity) -> str:
    return f"pod {pod.key} was deleted and created again: UID {pod.uid} is gone"


async def _read_by_name(transport: Transport, pod: PodIdentity) -> objects.Pod:
    """Return the pod of that name, whatever its UID. Raises ClusterError, DecodeError."""
    return _pod_decoder.decode(await transport.get(pod.path))
