"""The paths that take a JSON body, from kube-scheduler, the API server and users, and their ASGI endpoints."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from extender.api import wire
from extender.api.posts import BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE, UNAVAILABLE, Call, Caller
from extender.api.readiness import UnavailableError
from extender.api.verbs import Verbs
from extender.core.resources.quantities import MIB
from extender.core.resources.requests import RequestError
from extender.explain.processes import BusyError, NotKnownError, QuestionError, RefusedError
from extender.kube.client import ClusterError
from extender.server import access
from extender.server.access import Rates
from extender.server.connections import CLIENT_CERTIFICATE
from extender.server.verb_protocol import Answer

if TYPE_CHECKING:
    from extender.api.service import Service


def calls_of(service: "Service") -> list[Call]:
    """All calls of a service."""
    of_parts = [call for contribution in service.contributions.values() for call in contribution.calls]

    def requiring_view(answer: Callable[[bytes], bytes | Awaitable[bytes]]) -> Callable[[bytes], Awaitable[bytes]]:
        async def answered(body: bytes) -> bytes:
            if blind := service.blindness():
                raise UnavailableError(blind.sentence)
            content = answer(body)
            return content if isinstance(content, bytes) else await content

        return answered

    return [
        *_verbs(service.verbs),
        *(replace(call, answer=requiring_view(call.answer)) if call.needs_current_view else call for call in of_parts),
    ]


def _verbs(verbs: Verbs) -> list[Call]:
    """kube-scheduler's calls, also through the ignorable second extender entry (extender.plugins.pod_resources)."""
    filtering = Call(
        path="/filter",
        verb="filter",
        asks=wire.ExtenderArgs,
        answers=wire.FilterResult,
        answer=verbs.filter,
        summary="Returns the candidate nodes that fit a pod. Errors are reported in `Error`, always with status 200.",
        fault=_filter_fault,
    )
    prioritizing = Call(
        path="/prioritize",
        verb="prioritize",
        asks=wire.ExtenderArgs,
        answers="HostPriorityList",
        answer=verbs.prioritize,
        summary="Returns scores of candidate nodes, 0 to 10. Errors have a status: the protocol has no field for them.",
        faults=(BAD_REQUEST, TOO_LARGE, UNAVAILABLE),
    )
    return [
        filtering,
        prioritizing,
        replace(
            filtering,
            path="/others/filter",
            verb="others-filter",
            answer=partial(verbs.filter, others=True),
            summary="Like /filter, for the second extender entry. GPU pods of the first pass; those of neither are "
            "rejected.",
        ),
        replace(
            prioritizing,
            path="/others/prioritize",
            verb="others-prioritize",
            answer=partial(verbs.prioritize, others=True),
            summary="Like /prioritize, for the second extender entry. Pods of the first get no scores.",
        ),
        Call(
            path="/preempt",
            verb="preempt",
            asks=wire.ExtenderPreemptionArgs,
            answers=wire.PreemptionResult,
            answer=verbs.evictions.preempt,
            summary="Returns the proposed evictions that would make room for a pod; none if in doubt.",
            faults=(BAD_REQUEST, TOO_LARGE),
        ),
        Call(
            path="/bind",
            verb="bind",
            asks=wire.ExtenderBindingArgs,
            answers=wire.BindResult,
            answer=verbs.bind,
            summary="Binds a pod to a node with its GPUs. Errors are reported in `Error`, always with status 200.",
            fault=wire.encode_bind_result,
        ),
    ]


def _filter_fault(text: str) -> bytes:
    return wire.encode_filter_result(wire.FilterResult(error=text))


_BURST_S: Final = 4
_WEBHOOKS_PER_S: Final = 500.0
"""Admission reviews per second from one address, after a burst of `_BURST_S` seconds' worth."""
_UNLIMITED: Final = 1 << 30
_MAX_MIB: Final = {Caller.API_SERVER: 4, Caller.READER: access.MAX_BODY_MIB, Caller.OPERATOR: access.MAX_BODY_MIB}
"""Maximum body by caller other than kube-scheduler, in MiB. The API server accepts pods of up to 3 MiB."""
_NO_CERTIFICATE: Final = access.Refusal(403, "a client certificate is required (setting server.tls_client_ca_file)")

_NO_OPERATOR: Final = access.Refusal(403, "for operators only (setting access.apply_token_file)")


_STATUSES: Final[dict[type[Exception], int]] = {
    wire.WireError: BAD_REQUEST,
    RequestError: BAD_REQUEST,
    QuestionError: BAD_REQUEST,
    UnavailableError: UNAVAILABLE,
    ClusterError: UNAVAILABLE,
    BusyError: UNAVAILABLE,
    NotKnownError: NOT_FOUND,
    RefusedError: REFUSED,
}
_ERRORS: Final = tuple(_STATUSES)


def _status_of(error: Exception) -> int:
    return next(status for kind, status in _STATUSES.items() if isinstance(error, kind))


class Endpoint:
    """The ASGI endpoint of one call."""

    def __init__(self, call: Call, service: "Service", webhooks_per_s: float = _WEBHOOKS_PER_S) -> None:
        settings = service.settings
        self._call = call
        self._service = service
        self._webhooks_per_s = webhooks_per_s
        self._rates = (
            Rates(per_s=webhooks_per_s, burst=int(_BURST_S * webhooks_per_s), at_once=_UNLIMITED, clock=time.monotonic)
            if call.caller is Caller.API_SERVER
            else None
        )
        self._max_mib = _MAX_MIB.get(call.caller, settings.server.max_body_mib)
        self._latency = service.metrics.latency.labels(call.verb)
        self._needs_operator = call.caller is Caller.OPERATOR
        self._guarded = call.caller.guarded
        self._is_verb = call.caller is Caller.SCHEDULER
        self._needs_certificate = self._is_verb and settings.server.tls_client_ca_file is not None
        self._own_hosts = frozenset(settings.access.hosts)

    @property
    def max_bytes(self) -> int:
        """Size of the largest body."""
        return self._max_mib * MIB

    @property
    def refuses_by_rate(self) -> bool:
        """Whether `refusal` limits the rate of calls."""
        return self._rates is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if refusal := self.refusal(scope):
            await access.refuse(refusal, send, "Error")
            return
        try:
            body = await self._body(receive)
            answer = self.too_large() if body is None else self.answer(body)
            if not isinstance(answer, Answer):
                answer = await answer
        except ClientDisconnect:
            return
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.content})

    def answer(self, body: bytes) -> Answer | Awaitable[Answer]:
        """The answer to a complete body."""
        began = time.perf_counter()
        try:
            content = self._call.answer(body)
        except _ERRORS as error:
            return self._failed(_status_of(error), str(error), began)
        return self._answered(200, content, began) if isinstance(content, bytes) else self._awaited(content, began)

    def too_large(self) -> Answer:
        """The answer to a body of more than `max_bytes`."""
        setting = " (setting server.max_body_mib)" if self._is_verb else ""
        why = f"the request body is larger than {self._max_mib} MiB{setting}"
        return self._failed(TOO_LARGE, why, time.perf_counter())

    async def _awaited(self, content: Awaitable[bytes], began: float) -> Answer:
        try:
            return self._answered(200, await content, began)
        except _ERRORS as error:
            return self._failed(_status_of(error), str(error), began)

    def _failed(self, status: int, why: str, began: float) -> Answer:
        if self._call.fault is not None:
            return self._answered(200, self._call.fault(why), began)
        return self._answered(status, wire.encode({"Error": why}), began)

    def _answered(self, status: int, content: bytes, began: float) -> Answer:
        marks: list[tuple[bytes, bytes]] = []
        if self._guarded and (blind := self._service.blindness()):
            content = blind.marked(content)
            marks = [(name.encode(), value.encode()) for name, value in blind.headers.items()]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *marks]
        # So that the next call reaches the leader.
        closes = self._service.draining or (self._is_verb and bool(self._service.fence.standby()))
        if closes:
            headers.append((b"connection", b"close"))
        self._latency.observe(time.perf_counter() - began)
        return Answer(status, headers, content, closes)

    def refusal(self, scope: Scope) -> access.Refusal | None:
        """Why a call is refused before its body is read, None if it is not."""
        if self._needs_certificate and not scope.get("state", {}).get(CLIENT_CERTIFICATE):
            return _NO_CERTIFICATE
        if self._needs_operator and not scope.get(access.OPERATOR):
            return _NO_OPERATOR
        if not self._guarded and (foreign := access.foreign_page(scope, self._own_hosts)):
            return foreign
        if self._rates is not None and (wait_s := self._rates.wait_s(access.client_of(scope))):
            return access.too_many(f"{self._webhooks_per_s:g} a second from one address", wait_s)
        return None

    async def _body(self, receive: Receive) -> bytes | None:
        """The body of a request, None if it is too large. Raises ClientDisconnect."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self.max_bytes:
                return None
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)
