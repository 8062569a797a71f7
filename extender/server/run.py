"""Running the app: uvicorn with one worker, and a stop that cuts no request off."""

import asyncio
import ctypes
import gc
import ipaddress
import logging
import signal
import socket
from collections.abc import Callable
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI

from extender.server.certificates import CertificateFiles, Certificates
from extender.server.connection_limits import Doors, Limits
from extender.server.handshakes import Accepted
from extender.server.http import Protocol
from extender.server.tokens import Tokens
from extender.settings.access import OpenTo
from extender.settings.leader_election import ElectionMode
from extender.settings.server import ServerSettings
from extender.settings.tree import Settings

logger = logging.getLogger(__name__)

_GRACE_S = 30
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
"""Of glibc's mallopt."""
_LARGE_BYTES = 2 * 2**20
"""More than the arrays of a request on thousands of nodes, less than a page of a list."""
_GC_THRESHOLDS = (50_000, 20, 50)


def keep_what_is_there() -> None:
    """What start-up has made stays: collections need not walk it again, and are rare enough to hold up no call."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


class DrainingServer(uvicorn.Server):
    """On SIGTERM: not ready at once, closed after the drain time, ended when the last request is answered."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, drain_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._drain_s = drain_s
        self._loop: asyncio.AbstractEventLoop | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # The app's lifespan is entered here and not by uvicorn, so that what fails in it is raised to the caller.
        self._loop = asyncio.get_running_loop()
        async with self._app.router.lifespan_context(self._app):
            await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        keep_what_is_there()
        await super().startup(sockets)
        self._log_addresses()

    def _log_addresses(self) -> None:
        for server in self.servers:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                logger.info("listening on %s port %d", host, port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by uvicorn on SIGINT and SIGTERM; a second signal ends at once."""
        service = self._app.state.service
        if service.draining or self._loop is None:
            self.should_exit = self.force_exit = True
            return
        service.draining = True
        wait_s = self._drain_s if sig == signal.SIGTERM else 0.0
        self._loop.call_soon_threadsafe(self._loop.call_later, wait_s, self._begin_exit)

    def _begin_exit(self) -> None:
        self.should_exit = True


def run(app: FastAPI, settings: Settings) -> None:
    """Serve until told to stop.

    Raises CertificateError, TokenError, and what the app's lifespan raises, as CredentialsError.
    """
    _return_memory()
    if settings.access.token_file is not None:
        Tokens(settings.access.token_file).load()
    for risk in _risks(settings):
        logger.warning(risk)
    config = uvicorn.Config(
        app,
        host=settings.server.host,
        port=settings.server.port,
        loop="uvloop",
        http=_protocols(settings.server),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        access_log=False,
        proxy_headers=False,
        log_config=None,
        timeout_keep_alive=settings.server.keep_alive_s,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
    )
    DrainingServer(config, app, settings.server.drain_s).run()


def _return_memory() -> None:
    """Have what is freed go back to the system: glibc keeps a heap for each thread, and what a large list once took."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    for parameter, value in ((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, _LARGE_BYTES), (_M_TRIM_THRESHOLD, _LARGE_BYTES)):
        mallopt(parameter, value)


def _protocols(settings: ServerSettings) -> Callable[..., asyncio.Protocol]:
    """What makes the protocol of a new connection. Raises CertificateError."""
    doors = Doors(Limits(settings.request_s, settings.max_connections, settings.max_connections_each))
    if settings.tls_cert_file is None or settings.tls_key_file is None:
        return partial(Protocol, doors=doors)
    files = CertificateFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    context = Certificates(files).listen()
    return lambda **named: Accepted(Protocol(**named, doors=doors), context, doors)


def _risks(settings: Settings) -> list[str]:
    """What an administrator may not have meant, in words."""
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
