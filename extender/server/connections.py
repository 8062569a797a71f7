"""Limits of HTTP connections and request bodies, timeouts, and the listening sockets.

Request bodies in memory are bounded, since a client may send one slowly. Verbs from addresses that have called verbs
before share one pool of bytes, everything else another. If a pool is full, or an address exceeds its share, the bodies
idle longest are aborted; a few bytes now and then count as idle. Complete bodies being answered, and those of callers
with a certificate, count but are never aborted.

No client can lock out others: above the limit of connections, one that is waiting for a request is closed, of the
address with the most. Those that have called kube-scheduler's verbs go last, those with a certificate never.

TLS connections count, and time out, from before their handshake. asyncio's own server reports a connection after its
handshake and waits a minute for that: silent clients could exhaust the process's files. So the server listens without
TLS, and moves each socket to a TLS transport before reading from it.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter, OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_SMALL_BYTES: Final = 1 << 16
"""Bodies up to this size are not aborted, since buffers hold as much. Growing by less counts as idle."""
_EACH_FRAC: Final = 0.75
"""Share of a pool for one address."""
_ROOM_FRAC: Final = 0.9
"""Fill level after making room, so that not every chunk scans all bodies."""
_MAX_KNOWN: Final = 1024


class Sender(Protocol):
    """A connection that sends a body."""

    address: str
    certified: bool

    @property
    def answering(self) -> bool:
        """Whether the body is complete."""

    def abort(self) -> None:
        """Abort the connection."""


@dataclass(slots=True)
class _Body:
    known: bool
    num_bytes: int = 0
    idle_since: float = 0.0
    """Time at which it had last grown by `_SMALL_BYTES`."""
    bytes_then: int = 0
    """Its size at that time."""

    def take(self, num_bytes: int, now: float) -> None:
        """Count a received chunk."""
        self.num_bytes += num_bytes
        if self.num_bytes - self.bytes_then >= _SMALL_BYTES or not self.bytes_then:
            self.idle_since, self.bytes_then = now, self.num_bytes


class Bodies:
    """The request bodies of one server."""

    def __init__(self, pool_bytes: int) -> None:
        """`pool_bytes` is the size of each of the two pools."""
        self._pool_bytes = pool_bytes
        self._bodies: dict[Sender, _Body] = {}
        self._in_pool = {True: 0, False: 0}
        self._bytes_of: Counter[tuple[str, bool]] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()  # addresses, least recent first
        self.num_aborted = 0

    @property
    def num_bytes(self) -> int:
        """Bytes being received or answered."""
        return sum(self._in_pool.values())

    def add_caller(self, address: str) -> None:
        """Record that an address has called one of kube-scheduler's verbs."""
        self._known[address] = None
        self._known.move_to_end(address)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def add_chunk(self, sender: Sender, num_bytes: int, now: float, *, of_verb: bool) -> None:
        """Count a chunk of a body; if that is too much, abort other bodies or this one."""
        body = self._bodies.get(sender)
        if body is None:
            known = of_verb and (sender.certified or sender.address in self._known)
            body = self._bodies[sender] = _Body(known)
        body.take(num_bytes, now)
        self._in_pool[body.known] += num_bytes
        self._bytes_of[sender.address, body.known] += num_bytes
        if self._bytes_of[sender.address, body.known] > _EACH_FRAC * self._pool_bytes:
            same_address = [one for one in self._bodies if one.address == sender.address]
            self._make_room(same_address, known=body.known, most_bytes=_EACH_FRAC * self._pool_bytes)
        if self._in_pool[body.known] > self._pool_bytes:
            self._make_room(self._bodies, known=body.known, most_bytes=self._pool_bytes)

    def remove(self, sender: Sender) -> None:
        """Forget a body that has been answered or whose connection has ended."""
        body = self._bodies.pop(sender, None)
        if body is None:
            return
        self._in_pool[body.known] -= body.num_bytes
        self._bytes_of[sender.address, body.known] -= body.num_bytes
        if not self._bytes_of[sender.address, body.known]:
            del self._bytes_of[sender.address, body.known]

    def _make_room(self, among: Iterable[Sender], *, known: bool, most_bytes: float) -> None:
        """Abort the bodies of a pool that have been idle longest, until it is at most `_ROOM_FRAC` full."""
        bodies = {one: self._bodies[one] for one in among if self._bodies[one].known is known}
        left = sum(body.num_bytes for body in bodies.values())
        incomplete = [
            one
            for one, body in bodies.items()
            if not one.certified and not one.answering and body.num_bytes > _SMALL_BYTES
        ]
        for one in sorted(incomplete, key=lambda one: bodies[one].idle_since):
            if left <= _ROOM_FRAC * most_bytes:
                return
            left -= bodies[one].num_bytes
            self.remove(one)
            self.num_aborted += 1
            one.abort()


DEFAULT_BODY_BYTES: Final = 128 << 20


class Connection(Protocol):
    """A client's connection."""

    address: str
    certified: bool
    """Whether the client has a verified certificate."""
    scheduling: bool
    """Whether one of kube-scheduler's verbs was called on it."""
    since: float
    """Monotonic time at which it was opened, or its last request was complete."""

    @property
    def answering(self) -> bool:
        """Whether a complete request is being answered."""

    def abort(self) -> None:
        """Abort the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of clients."""

    request_s: float = 10.0
    answer_s: float = 30.0
    """Time for a client to read a response, except for what sockets buffer."""
    connections: int = 1024
    connections_each: int = 256
    """Per address."""
    body_bytes: int = DEFAULT_BODY_BYTES
    """Size of each pool of `Bodies`."""
    verbs_by_certificate: bool = False
    """Whether verbs require a certificate, so that calling one without gives no priority."""


@dataclass
class OpenConnections:
    """The open connections."""

    limits: Limits = field(default_factory=Limits)
    _open: set[Connection] = field(default_factory=set)
    _num_of: Counter[str] = field(default_factory=Counter)
    num_evicted: int = 0
    """Connections closed to make room for others."""
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.body_bytes)

    @property
    def num_open(self) -> int:
        """Number of open connections."""
        return len(self._open)

    def add(self, connection: Connection) -> None:
        """Add a connection; above a limit, close one."""
        self._open.add(connection)
        self._num_of[connection.address] += 1
        if self._num_of[connection.address] > self.limits.connections_each:
            self._make_room(connection, [one for one in self._open if one.address == connection.address])
        elif len(self._open) > self.limits.connections:
            self._make_room(connection, self._open)

    def remove(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self._num_of[connection.address] -= 1
            if not self._num_of[connection.address]:
                del self._num_of[connection.address]

    def _make_room(self, new: Connection, among: Iterable[Connection]) -> None:
        """Close the least important waiting connection, or the new one if none is waiting."""
        waiting = [one for one in among if one is not new and not one.certified and not one.answering]
        evicted = min(waiting, key=lambda one: (one.scheduling, -self._num_of[one.address], one.since), default=new)
        self.remove(evicted)
        self.num_evicted += 1
        evicted.abort()


CLIENT_CERTIFICATE = "client_certificate"
"""Key in the state of requests with a verified client certificate."""


_VERBS = frozenset({b"/filter", b"/prioritize", b"/preempt", b"/bind", b"/others/filter", b"/others/prioritize"})
_quiet_logger = logging.getLogger("uvicorn.error.connections")
_quiet_logger.setLevel(logging.ERROR)  # uvicorn warns of each invalid request: any client could fill the log
_MAX_HEAD_BYTES = 1 << 16
_MAX_AHEAD = 16
"""Most pipelined requests. Kerf's callers use no pipelining, and uvicorn would buffer them all."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with timeouts for slow clients."""

    def __init__(self, *args: Any, opened: OpenConnections | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self.logger = _quiet_logger
        self._opened = opened or OpenConnections()
        self.address, self.certified, self.scheduling, self.since = "", False, False, 0.0
        self._request_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self.receiving = False
        """Whether a part of a request has come."""

    @property
    def answering(self) -> bool:
        """Whether a complete request is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.getpeercert(binary_form=True) is not None:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: True}
            self.certified = True
        super().connection_made(transport)
        self.address, self.since = self.client[0] if self.client else "", self.loop.time()
        self._start_request_timer()
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_write_timer()
        self._opened.remove(self)
        self._opened.bodies.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.receiving = True
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.abort()
        elif self.receiving and self._request_timer is None:  # mostly a request comes at once, and needs none
            self._start_request_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.receiving = True

    def head_complete(self) -> None:
        """Stop counting the head; the body's size is limited by its endpoint."""
        self._head_bytes = -(1 << 62)

    def on_headers_complete(self) -> None:
        self.head_complete()
        super().on_headers_complete()
        if len(self.pipeline) > _MAX_AHEAD:
            self.abort()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if not self.cycle.response_complete:  # data after the response is dropped
            self.count_body(len(body))

    def count_body(self, num_bytes: int) -> None:
        """Count a chunk of the body, which may abort this connection or others."""
        of_verb = self.scope["raw_path"] in _VERBS
        self._opened.bodies.add_chunk(self, num_bytes, self.loop.time(), of_verb=of_verb)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self.receiving = False
        self._head_bytes = 0
        if self.scope["raw_path"] in _VERBS and not self._opened.limits.verbs_by_certificate:
            self.scheduling = True
        self.request_complete()

    def request_complete(self) -> None:
        """Stop the time of the request, and note its caller."""
        self._stop_request_timer()
        self.since = self.loop.time()
        if self.scheduling:
            self._opened.bodies.add_caller(self.address)

    def on_response_complete(self) -> None:
        self._opened.bodies.remove(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._opened.limits.answer_s, self.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_write_timer()

    def abort(self) -> None:
        """Abort the connection; closing would wait for the client to read what is written."""
        self.transport.abort()

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self._opened.limits.request_s, self.abort)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None


class Accepted(asyncio.Protocol):
    """An accepted connection before its TLS handshake."""

    def __init__(self, protocol: TimedProtocol, context: ssl.SSLContext, opened: OpenConnections) -> None:
        self._protocol = protocol
        self._context = context
        self._opened = opened

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        try:
            connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # no file descriptors left
            return
        finally:
            transport.abort()  # nothing has been read, and the duplicate keeps the connection open
        connection.setblocking(False)
        peer = transport.get_extra_info("peername")
        _Handshake(self._protocol, self._opened, connection, peer[0] if peer else "").begin(self._context)


class _Handshake(asyncio.Protocol):
    """A connection during its TLS handshake; `protocol` takes over afterwards."""

    certified, scheduling, answering = False, False, False

    def __init__(
        self, protocol: TimedProtocol, opened: OpenConnections, connection: socket.socket, address: str
    ) -> None:
        self._protocol = protocol
        self._opened = opened
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self.address, self.since = address, protocol.loop.time()

    def begin(self, context: ssl.SSLContext) -> None:
        """Start the handshake, if there is room."""
        self._task = self._protocol.loop.create_task(self._run(context), name="TLS handshake")
        self._opened.add(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Called when the handshake is done."""
        self._opened.remove(self)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)

    def abort(self) -> None:
        """Shut the connection down."""
        with suppress(OSError):  # already closed
            self._connection.shutdown(socket.SHUT_RDWR)

    async def _run(self, context: ssl.SSLContext) -> None:
        limits = self._opened.limits
        try:
            await self._protocol.loop.connect_accepted_socket(
                lambda: self,
                self._connection,
                ssl=context,
                ssl_handshake_timeout=limits.request_s,
                ssl_shutdown_timeout=limits.answer_s,
            )
        except OSError:  # includes TLS errors and timeouts; asyncio has closed it
            pass
        finally:
            self._opened.remove(self)


_ALL: Final = ("", "0.0.0.0", "::")  # noqa: S104 - as configured
"""Hosts that mean all interfaces, IPv4 and IPv6, as in Kubernetes' own servers."""

_BACKLOG: Final = 2048
_NO_SUCH_FAMILY: Final = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}
"""Errors on machines without IPv4 or IPv6."""


class ListenError(Exception):
    """Listening on a port failed; the message says which and why."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets, one for each address of the host, all on the same port; 0 picks a free one.

    0.0.0.0 and :: listen on IPv4, IPv6 or both, as the machine has them. Raises ListenError.
    """
    if host in _ALL:
        addresses: list[tuple[int, tuple[Any, ...]]] = [(socket.AF_INET, ("0.0.0.0", 0)), (socket.AF_INET6, ("::", 0))]  # noqa: S104
    else:
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ListenError(f"{host} is not an address of this machine: {error.strerror}") from None
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in resolved))
    sockets: list[socket.socket] = []
    for position, (family, address) in enumerate(addresses, 1):
        try:
            sockets.append(_listening_socket(family, address, port))
        except OSError as error:
            if error.errno in _NO_SUCH_FAMILY and (sockets or position < len(addresses)):
                continue
            for one in sockets:
                one.close()
            why = (
                "is taken (address already in use)"
                if error.errno == errno.EADDRINUSE
                else f"can't be listened on: {error.strerror}"
            )
            raise ListenError(f"port {port} of {address[0]} {why}") from None
        port = sockets[0].getsockname()[1]
    return sockets


def _listening_socket(family: int, address: tuple[Any, ...], port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a separate socket
        listener.bind((address[0], port, *address[2:]))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
