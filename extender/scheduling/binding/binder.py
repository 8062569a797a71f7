"""Binding: one write that sets a pod's node and its GPU assignment together.

The annotations of a Binding are merged into the pod in the very write that sets `spec.nodeName`, with the pod's UID
as a precondition: there is no state in between that would have to be rolled back. Where GPUs are given, the pod's
resourceVersion is a precondition too, which is what the fence between two leaders rests on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.core.fit.reasons import Reason, sentence
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.events import EventRecorder
from extender.ledger.ledger import ClaimState, Ledger, NodeState
from extender.plugins.pods import read_pod_request
from extender.plugins.protocol import LockError
from extender.scheduling.binding.handovers import Handovers
from extender.scheduling.binding.unanswered_bindings import Settler
from extender.scheduling.fence import Fence, FencedError
from extender.scheduling.placer import Assignment, Placer, PodIdentity

logger = logging.getLogger(__name__)

_OWN_PREFIX: Final = "kerf.dev/"

_pod_decoder = Decoder(objects.Pod)


class BindError(Exception):
    """A pod was not bound; the sentence becomes a message on the pod."""


class _UndecidedError(BindError):
    """A Binding may yet take effect: what it holds must not be given away until it is settled."""


@dataclass(slots=True)
class _Attempt:
    """What a binding rests on."""

    epoch: str
    version: str = ""
    """The resourceVersion that the last Binding sent carries, "" before there is one."""
    state: NodeState | None = None
    """Of the node, when its GPUs were taken."""


class Binder:
    """Binds pods to the nodes that kube-scheduler has settled on."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        placer: Placer,
        events: EventRecorder,
        clock: Callable[[], float],
        fence: Fence,
        wall_clock: Callable[[], float],
        notes: Callable[[str], dict[str, str]] = lambda uid: {},
    ) -> None:
        """`notes` gives more annotations for a pod, by its UID."""
        self._transport = transport
        self._ledger = ledger
        self._placer = placer
        self._notes = notes
        self._events = events
        self._fence = fence
        self._clock = clock
        self._wall_clock = wall_clock
        self._handovers = Handovers(transport, ledger.rows, clock, wall_clock)
        self.settler = Settler(transport, ledger, fence, clock)
        """For Bindings whose answer was lost; to be started and stopped with the service."""

    async def bind(self, pod: PodIdentity, node: str, fault: str) -> None:
        """Bind a pod, with the very GPUs it gets. Raises BindError; nothing stays reserved for a pod not bound.

        A reservation that still stands is bound as it was decided; a pod without one, or with one on another node, is
        checked afresh on the ledger of this moment.
        `fault` says why no GPUs may be given away, "" when they may: only pods without GPUs are bound then.
        """
        request = self._placer.remembered(pod.uid)
        if request is None or request.gpus is None:  # what is asked by annotation may have come since
            request = await self._ask_request(pod)
        if request.gpus is None:
            await self._write(pod, request, node, {}, None)
            self._placer.forget(pod.uid)
            self._fence.forget(pod.uid)
            return
        if fault:
            self._ledger.release(pod.uid)
            raise BindError(f"Kerf can't tell which GPUs are free: {fault}")
        try:
            attempt = _Attempt(self._fence.enter())
        except FencedError as error:
            raise BindError(str(error)) from error
        assignment = self._placer.reserved(pod.uid, node) or self._check(pod, request, request.gpus, node)
        if assignment is None:
            return  # the watch tells that it is bound there already
        decided_at = self._decided_at(pod.uid)
        claim = self._ledger.begin_binding(pod.uid, node, assignment.holding, self._clock())
        attempt.state = self._ledger.rows.state_of(node)
        outcome: ClaimState | None = ClaimState.UNDECIDED  # while nobody knows: cancellation and surprises included
        try:
            await self._hand_over(pod, request, assignment, attempt, decided_at)
            outcome = ClaimState.BOUND
        except _UndecidedError:
            raise
        except BindError:
            outcome = None
            raise
        finally:
            self._ledger.end_binding(claim, outcome, self._clock())
            if outcome is ClaimState.UNDECIDED:
                self.settler.add(pod, claim, attempt.version)
        self._placer.forget(pod.uid)
        self._fence.forget(pod.uid)
        self._events.emit(pod.namespace, pod.name, pod.uid, reason="GPUsAssigned", message=str(assignment))

    def _decided_at(self, uid: str) -> float:
        """Unix time at which a pod was given what it holds. Bindings are written side by side and end in any order, but
        gpushare's plugin takes pods of one size by the time that is written on them: this keeps them as decided."""
        claim = self._ledger.claim(uid)
        return self._wall_clock() - (self._clock() - claim.since if claim is not None else 0.0)

    async def _hand_over(
        self, pod: PodIdentity, request: PodRequest, assignment: Assignment, attempt: _Attempt, decided_at: float
    ) -> None:
        """Write the Binding in the way of the node's device plugin. Raises BindError, _UndecidedError."""
        node = assignment.node
        annotations = dict.fromkeys(request.stale, "") | assignment.annotations | self._notes(pod.uid)
        try:
            handed = await self._handovers.prepare(pod, assignment, decided_at, self._get)
        except (ClusterError, msgspec.DecodeError, RequestError, LockError) as error:
            raise BindError(f"pod {pod.key}: {error}") from error
        try:
            await self._write(pod, request, node, {**handed.annotations, **annotations}, attempt)
        except _UndecidedError:
            raise  # if it takes effect yet, the lock is needed; if not, the next one takes it over
        except BindError:
            await self._handovers.give_up(pod, node, handed)
            raise

    def _check(self, pod: PodIdentity, request: PodRequest, gpus: GpuRequest, node: str) -> Assignment | None:
        """What a pod gets on the one node now, None when it is bound there already. Raises BindError."""
        claim = self._ledger.claim(pod.uid)
        if claim is not None and claim.state is not ClaimState.RESERVED:
            if claim.state is ClaimState.BOUND and claim.node == node:
                return None
            raise BindError(f"pod {pod.key} is already bound, or being bound, to node {claim.node}")
        try:
            policy = self._placer.policy_of(request)
        except RequestError as error:
            raise BindError(str(error)) from error
        asked = policy.asked(request) or gpus
        placement = self._placer.place(pod, asked, policy, [node])
        if placement.node is None and self._ledger.cycles.claim_back(pod.uid):
            placement = self._placer.place(pod, asked, policy, [node])
        if placement.unknown:
            raise BindError(f"node {node} is not known to Kerf")
        assignment = placement.assignment()
        if assignment is None:
            self._placer.decided.add(placement)
            evaluation = placement.decision.evaluation
            why = sentence(Reason(evaluation.reason[0]), gpus, int(evaluation.available[0]))
            raise BindError(f"node {node} no longer fits pod {pod.key}: {why}")
        return assignment

    async def _ask_request(self, pod: PodIdentity) -> PodRequest:
        """The request of a pod that was never offered to Kerf, or before a restart: the API server knows it."""
        try:
            found = await self._get(pod)
            self._fence.note(found.metadata)
            return self._placer.read_request(found)
        except (ClusterError, msgspec.DecodeError, RequestError) as error:
            raise BindError(f"pod {pod.key}: {error}") from error

    async def _get(self, pod: PodIdentity) -> objects.Pod:
        found = _pod_decoder.decode(await self._transport.get(pod.path))
        if found.metadata.uid != pod.uid:
            raise BindError(f"pod {pod.key} was deleted and created again: UID {pod.uid} is gone")
        return found

    async def _write(
        self, pod: PodIdentity, request: PodRequest, node: str, annotations: dict[str, str], attempt: _Attempt | None
    ) -> None:
        """Write a Binding that fails if another leader, or anybody, has changed the pod since it was read.

        Whoever leads after the confirmation changes it, so what this rests on is not over when the Binding is written.
        Without an attempt nothing is confirmed: a pod without GPUs may be bound by whoever is asked, as long as it
        asks for none.

        A pod that was changed for a reason that does not matter, such as its status, is bound as it is now.
        Raises BindError, _UndecidedError.
        """
        version = self._fence.version_of(pod.uid) or await self._ask_version(pod, request)
        for repeatable in (True, False):
            if attempt is not None:
                await self._check_fence(pod, version, attempt.epoch)
                if self._ledger.rows.state_of(node) != attempt.state:
                    raise BindError(f"node {node} has changed since pod {pod.key} was given its GPUs")
                attempt.version = version
            try:
                return await self._post(pod, node, annotations, version)
            except ClusterError as error:
                found = await self._resolve(pod, node, annotations, error, fenced=attempt is not None)
                if found is None:
                    return
                if not repeatable or found.metadata.resource_version == version:
                    raise _refused(pod, node, error) from error
                version = self._accept(pod, request, found)

    async def _check_fence(self, pod: PodIdentity, version: str, epoch: str) -> None:
        try:
            await self._fence.confirm(pod.uid, version)
            self._fence.check(epoch)
        except FencedError as error:
            raise BindError(str(error)) from error

    async def _ask_version(self, pod: PodIdentity, request: PodRequest) -> str:
        try:
            return self._accept(pod, request, await self._get(pod))
        except (ClusterError, msgspec.DecodeError) as error:
            raise BindError(f"pod {pod.key}: {error}") from error

    def _accept(self, pod: PodIdentity, request: PodRequest, found: objects.Pod) -> str:
        """The resourceVersion of a pod that is still what was decided on. Raises BindError."""
        self._fence.note(found.metadata)
        try:
            asked = read_pod_request(found).gpus
            by_claims = asked is None and request.gpus is not None and request.gpus.unit is AskedUnit.CLAIM
            if by_claims or asked == request.gpus:  # claims can't be changed
                return found.metadata.resource_version
        except RequestError as error:
            raise BindError(str(error)) from error
        raise BindError(f"pod {pod.key} has changed its request since the decision")

    async def _post(self, pod: PodIdentity, node: str, annotations: dict[str, str], version: str) -> None:
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": annotations,
                "resourceVersion": version,
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._transport.post(f"{pod.path}/binding", msgspec.json.encode(binding))

    async def _resolve(
        self, pod: PodIdentity, node: str, annotations: dict[str, str], cause: ClusterError, *, fenced: bool
    ) -> objects.Pod | None:
        """Find out whether a Binding took effect after all: None when it did, the unbound pod when 409 means that it
        never will. Raises BindError, _UndecidedError otherwise.

        Without an answer, a `fenced` Binding is kept from taking effect later.
        """
        conflict = isinstance(cause, ApiError) and cause.status == 409
        if isinstance(cause, ApiError) and not conflict and cause.status < 500:
            raise _refused(pod, node, cause) from cause
        sealed = fenced and not conflict
        try:
            found = await self.settler.seal(pod) if sealed else await self._get(pod)
        except (ClusterError, msgspec.DecodeError) as error:
            if isinstance(error, ApiError) and error.status == 404:
                raise BindError(f"pod {pod.key} is gone") from cause
            raise _UndecidedError(f"binding {pod.key} to {node}: {cause}; its outcome is unknown: {error}") from cause
        if found is None:
            raise BindError(f"pod {pod.key} is gone") from cause
        bound_to = found.spec.node_name
        # A device plugin changes its own annotations as soon as it sees them: Kerf's tell whose Binding it was.
        own = {key: value for key, value in annotations.items() if key.startswith(_OWN_PREFIX)}
        written = (found.metadata.annotations or {}).items() >= own.items()
        if bound_to == node and written:
            return None
        if bound_to:
            held = self._ledger.hold_as_read(found, self._clock())
            if held is not None:
                self.settler.add(pod, held, "")
            raise BindError(f"pod {pod.key} is bound to node {bound_to} by somebody else") from cause
        if conflict:
            return found
        raise BindError(f"binding {pod.key} to {node} failed: {cause}") from cause  # and a late write will, too


def _refused(pod: PodIdentity, node: str, cause: ClusterError) -> BindError:
    return BindError(f"the API server refused to bind {pod.key} to {node}: {cause}")
