"""One call as an ASGI application: who may make it, the whole body in, one answer out."""

import time
from typing import TYPE_CHECKING, Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from extender.api import wire
from extender.api.calls import BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE, UNAVAILABLE, Call, Caller
from extender.api.readiness import UnavailableError
from extender.core.resources.quantities import MIB
from extender.core.resources.requests import RequestError
from extender.explain.defrag.applying import RefusedError, UnknownPlanError
from extender.explain.processes import BusyError, QuestionError
from extender.kube.client import ClusterError
from extender.server import access
from extender.server.http import CLIENT_CERTIFICATE
from extender.server.rates import Rates

if TYPE_CHECKING:
    from extender.api.service import Service

_BURST_S: Final = 4
_MANY: Final = 1 << 30
_SECTIONS: Final = {
    Caller.SCHEDULER: "server",
    Caller.API_SERVER: "webhook",
    Caller.READER: "access",
    Caller.OPERATOR: "access",
}
"""Of the settings, that limit a caller."""
_NO_CERTIFICATE: Final = access.Refusal(403, "a client certificate is required (setting server.tls_client_ca_file)")

_NO_OPERATOR: Final = access.Refusal(403, "for operators only (setting access.apply_token_file)")


class BodyTooLargeError(Exception):
    """A request body over the limit."""


_STATUSES: Final[dict[type[Exception], int]] = {
    wire.WireError: BAD_REQUEST,
    RequestError: BAD_REQUEST,
    QuestionError: BAD_REQUEST,
    BodyTooLargeError: TOO_LARGE,
    UnavailableError: UNAVAILABLE,
    ClusterError: UNAVAILABLE,
    BusyError: UNAVAILABLE,
    UnknownPlanError: NOT_FOUND,
    RefusedError: REFUSED,
}


class Endpoint:
    """One call of a service."""

    def __init__(self, call: Call, service: "Service") -> None:
        settings = service.settings
        self._call = call
        self._service = service
        section = _SECTIONS[call.caller]
        calls_per_s = settings.webhook.calls_per_s
        burst = max(int(_BURST_S * calls_per_s), 1)
        self._rates = (
            Rates(per_s=calls_per_s, burst=burst, at_once=_MANY, clock=time.monotonic) if section == "webhook" else None
        )
        self._max_mib: int = getattr(settings, section).max_body_mib
        self._max_setting = f"{section}.max_body_mib"
        self._latency = service.metrics.latency.labels(call.verb)
        self._needs_operator = call.caller is Caller.OPERATOR
        self._guarded = call.caller.guarded
        self._is_verb = call.caller is Caller.SCHEDULER
        self._needs_certificate = self._is_verb and settings.server.tls_client_ca_file is not None
        self._own_hosts = frozenset(settings.access.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        if refusal := self._refusal(scope):
            await access.refuse(refusal, send, "Error")
            return
        status = 200
        try:
            answer = self._call.answer(await self._body(receive))
            content = answer if isinstance(answer, bytes) else await answer
        except ClientDisconnect:
            return  # nobody is left to answer
        except tuple(_STATUSES) as error:
            if self._call.fault is not None:
                content = self._call.fault(str(error))
            else:
                status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
                content = wire.encode({"Error": str(error)})
        marks: list[tuple[bytes, bytes]] = []
        if self._guarded and (blind := self._service.blindness()):
            content = blind.marked(content)
            marks = [(name.encode(), value.encode()) for name, value in blind.headers.items()]
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content)), *marks]
        # The next call is to go to whoever leads, or will.
        if self._service.draining or (self._is_verb and self._service.fence.standby()):
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        self._latency.observe(time.perf_counter() - began)

    def _refusal(self, scope: Scope) -> access.Refusal | None:
        """Why the body is not even read."""
        if self._needs_certificate and not scope.get("state", {}).get(CLIENT_CERTIFICATE):
            return _NO_CERTIFICATE
        if self._needs_operator and not scope.get(access.OPERATOR):
            return _NO_OPERATOR
        if not self._guarded and (foreign := access.foreign_page(scope, self._own_hosts)):
            return foreign
        if self._rates is not None and (wait_s := self._rates.wait_s(access.client_of(scope))):
            return access.too_many("setting webhook.calls_per_s", wait_s)
        return None

    async def _body(self, receive: Receive) -> bytes:
        """The body of a request. Raises BodyTooLargeError, ClientDisconnect."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._max_mib * MIB:
                raise BodyTooLargeError(
                    f"the request body is larger than {self._max_mib} MiB (setting {self._max_setting})"
                )
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)
