"""Runs the app in uvicorn, with graceful shutdown.

A second port serves probes and metrics, for the kubelet and Prometheus, where Kerf listens on loopback for
kube-scheduler only. Anyone may reach it, so it limits the calls of an address and renders metrics once a second.
"""

import asyncio
import ctypes
import gc
import ipaddress
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from extender.core.resources.quantities import MIB
from extender.server.access import MAX_BODY_MIB, METRICS, PROBES, Rates, Refusal, Tokens, client_of, refuse, too_many
from extender.server.certificates import CertificateFiles, Certificates
from extender.server.connections import DEFAULT_BODY_BYTES, Accepted, Limits, OpenConnections, TimedProtocol, listen
from extender.server.verb_protocol import Verb, VerbProtocol
from extender.settings.access import OpenTo
from extender.settings.leader_election import ElectionMode
from extender.settings.server import ServerSettings
from extender.settings.tree import Settings, alone

logger = logging.getLogger(__name__)

_CALLS_PER_S: Final = 20.0
_BURST: Final = 60
_AT_ONCE: Final = 1 << 30
_KEPT_S: Final = 1.0
"""Seconds for which rendered metrics are reused."""
_NOT_FOUND: Final = Refusal(404, "this port only serves GET of /metrics, /healthz, /readyz and /syncz")


class _ReadOnly:
    """ASGI middleware that passes on probes and metrics only."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._rates = Rates(per_s=_CALLS_PER_S, burst=_BURST, at_once=_AT_ONCE, clock=clock)
        self._metrics: list[Message] = []
        self._rendered_at = float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] != "GET" or (scope["path"] not in PROBES and scope["path"] != METRICS):
            await refuse(_NOT_FOUND, send)
        elif wait_s := self._rates.wait_s(client_of(scope)):
            await refuse(too_many(f"{_CALLS_PER_S:g} a second per address", wait_s), send)
        elif scope["path"] == METRICS:
            await self._send_metrics(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _send_metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._clock() - self._rendered_at > _KEPT_S:
            messages: list[Message] = []

            async def keep(message: Message) -> None:
                messages.append(message)

            await self._app(scope, receive, keep)
            self._metrics, self._rendered_at = messages, self._clock()
        for message in self._metrics:
            await send(dict(message))


_GRACE_S = 30
_HAND_OVER_S = 1.5
"""Seconds for which a former leader still serves, until another one leads and callers have found it."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Parameters of glibc's mallopt."""
_LARGE_BYTES = 2 * 2**20
"""Larger than the arrays of a request on thousands of nodes, smaller than a page of a list."""
_GC_THRESHOLDS = (50_000, 20, 50)
_SWITCH_S = 0.001
"""Longest wait of the event loop for a planning thread, in seconds."""
_READ_ONLY_CONNECTIONS = 64
_READ_ONLY_CONNECTIONS_EACH = 16
_READ_ONLY_BODY_BYTES = 4 << 20
_BODIES = 2
"""Size of each pool of bodies, in kube-scheduler's largest bodies."""
_WEBHOOK_BODY_BYTES = 64 << 20
"""Size of the pools if only webhooks are served: sixteen of the API server's largest bodies."""


def _tune_garbage_collection() -> None:
    """Exempt start-up objects from garbage collection, and make collections rare enough not to delay calls."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    sys.setswitchinterval(_SWITCH_S)


class _DrainingServer(uvicorn.Server):
    """A server that drains on SIGTERM: not ready, then closed after `drain_s`, ended after the last response.

    A leader with other replicas releases its lease before it closes, so that some replica always serves.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, settings: ServerSettings) -> None:
        super().__init__(config)
        self._app = app
        self._settings = settings
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # The app's lifespan is entered here, not by uvicorn, so that its exceptions reach the caller.
        self._loop = asyncio.get_running_loop()
        async with self._app.router.lifespan_context(self._app):
            await self._app.state.service.ready()
            body_bytes = _body_bytes(self._app.state.service.settings)
            protocols = _protocols(self._settings, self._app.state.plain_verbs, body_bytes)
            self.config.http = protocols  # type: ignore[assignment]
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        _tune_garbage_collection()
        await super().startup(sockets or listen(self._settings.host, self._settings.port))
        self._log_addresses("")
        if self._settings.metrics_port is not None:
            await self._open_read_only(self._settings.metrics_host, self._settings.metrics_port)

    async def _open_read_only(self, host: str, port: int) -> None:
        """Open the port of probes. The main port is open already: a ready Kerf must accept calls."""
        config = _config(_ReadOnly(self._app), self._settings, http=TimedProtocol)
        config.load()
        limits = Limits(
            request_s=self._settings.request_s,
            connections=_READ_ONLY_CONNECTIONS,
            connections_each=_READ_ONLY_CONNECTIONS_EACH,
            body_bytes=_READ_ONLY_BODY_BYTES,
        )
        protocol = partial(
            TimedProtocol, config=config, server_state=self.server_state, app_state={}, opened=OpenConnections(limits)
        )
        num_others = len(self.servers)
        for listener in listen(host, port):
            self.servers.append(await asyncio.get_running_loop().create_server(protocol, sock=listener))
        self._log_addresses(" for probes and metrics", num_others)

    def _log_addresses(self, what: str, first: int = 0) -> None:
        for server in self.servers[first:]:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                logger.info("listening on %s port %d%s", host, port, what)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn on SIGINT and SIGTERM; a second signal ends the process immediately."""
        service = self._app.state.service
        if service.draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        service.draining = True
        wait_s = self._settings.drain_s if sig == signal.SIGTERM else 0.0
        self._loop.call_soon_threadsafe(self._loop.call_later, wait_s, self._begin_exit)

    def _begin_exit(self) -> None:
        self._leaving = asyncio.create_task(self._leave(), name="leaving")

    async def _leave(self) -> None:
        try:
            if await self._app.state.service.hand_over():
                await asyncio.sleep(_HAND_OVER_S)
        finally:
            self.should_exit = True


def run(app: FastAPI, settings: Settings) -> None:
    """Serve until stopped by a signal.

    Raises CertificateError, TokenError, ListenError, and errors of the app's lifespan such as CredentialsError.
    """
    _return_memory()
    for tokens in (settings.access.token_file, settings.access.apply_token_file):
        if tokens is not None:
            Tokens(tokens).load()
    for risk in _risks(settings):
        logger.warning(risk)
    server = settings.server
    _DrainingServer(_config(app, server), app, server).run()


def _config(app: Any, settings: ServerSettings, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=settings.keep_alive_s,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        **options,
    )


def _return_memory() -> None:
    """Make glibc return freed memory, which it otherwise keeps in per-thread arenas and after large lists."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    for parameter, value in ((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, _LARGE_BYTES), (_M_TRIM_THRESHOLD, _LARGE_BYTES)):
        mallopt(parameter, value)


def _protocols(
    settings: ServerSettings, verbs: Mapping[bytes, Verb], body_bytes: int = DEFAULT_BODY_BYTES
) -> Callable[..., asyncio.Protocol]:
    """Return the protocol factory of new connections.

    `verbs` as in VerbProtocol, `body_bytes` as in Limits. Raises CertificateError.
    """
    opened = OpenConnections(
        Limits(
            request_s=settings.request_s,
            connections=settings.max_connections,
            connections_each=settings.max_connections_each,
            body_bytes=body_bytes,
            verbs_by_certificate=settings.tls_client_ca_file is not None,
        )
    )
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return partial(VerbProtocol, opened=opened, verbs=verbs)
    files = CertificateFiles(
        certificate=settings.tls_cert_file, key=settings.tls_key_file, client_ca=settings.tls_client_ca_file
    )
    context = Certificates(files).listen()
    return lambda **options: Accepted(VerbProtocol(**options, opened=opened, verbs=verbs), context, opened)


def _body_bytes(settings: Settings) -> int:
    """Return `Limits.body_bytes`."""
    if alone(settings) is not None:
        return _WEBHOOK_BODY_BYTES
    return _BODIES * max(settings.server.max_body_mib, MAX_BODY_MIB) * MIB


def _risks(settings: Settings) -> list[str]:
    """Return warnings about insecure settings."""
    if _is_loopback(settings.server.host):
        return []
    risks: list[str] = []
    if settings.server.tls_client_ca_file is None and settings.leader_election.mode is not ElectionMode.NEVER:
        risks.append(
            "anyone who reaches this port can bind pods: set server.tls_client_ca_file, or restrict access to it"
        )
    if settings.access.open_to is OpenTo.ALL:
        risks.append("anyone who reaches this port can read about all GPU pods (setting access.open_to)")
    if settings.access.token_file is not None and settings.server.tls_cert_file is None:
        risks.append("tokens travel in clear text: serve HTTPS with server.tls_cert_file and server.tls_key_file")
    return risks


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
