"""HTTP connections: how many there may be, what comes in and goes out in time, and the sockets on which Kerf listens.

How much of bodies may be on its way in is bounded: what is half read takes memory for as long as its caller likes.
Verbs of addresses that have called some before share one pool of bytes, all else another: neither takes the other's.
Where a pool is full, or an address has more than its part of it, the bodies that have been idle longest are cut off:
who sends a list in earnest goes on sending, who only holds what he can does not, and a few bytes now and then do not
count as sending. Bodies that have come in whole, until they are answered, and those of callers with a certificate
count, but are never cut off.

Nobody is locked out by others: where there are too many connections, one that waits for the rest of a request, or for
a next one, makes room, of the address that has most. Those that have called kube-scheduler's verbs go last, and those
with a certificate never do.

TLS connections that are counted, and closed in time, from when they are made: before their handshake too.

A server of asyncio's own tells of a connection once its handshake is done, and waits a minute for it: whoever opens
connections and says nothing would have as many as the process may have files. So the server listens without TLS, and
each connection's socket goes on to a transport with TLS before anything is read from it.
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
"""Nothing is to be had from cutting those off: as many may wait in a connection's buffers. Fewer are still idleness."""
_EACH_FRAC: Final = 0.75
"""Of a pool, for one address."""
_ROOM_FRAC: Final = 0.9
"""How full a pool is left by making room: not every piece that comes is to look at all bodies."""
_MAX_KNOWN: Final = 1024


class Sender(Protocol):
    """A connection, as far as it matters here."""

    address: str
    certified: bool

    @property
    def answering(self) -> bool:
        """Whether its body has come in whole."""

    def leave(self) -> None:
        """Cut it off."""


@dataclass(slots=True)
class _Body:
    known: bool
    num_bytes: int = 0
    at: float = 0.0
    """When it had last grown by `_SMALL_BYTES`: idle since then."""
    had: int = 0
    """Its bytes by then."""

    def take(self, num_bytes: int, now: float) -> None:
        """A piece has come."""
        self.num_bytes += num_bytes
        if self.num_bytes - self.had >= _SMALL_BYTES or not self.had:
            self.at, self.had = now, self.num_bytes


class Bodies:
    """The bodies of one server's requests."""

    def __init__(self, pool_bytes: int) -> None:
        """`pool_bytes` is the most of each of the two pools."""
        self._pool_bytes = pool_bytes
        self._bodies: dict[Sender, _Body] = {}
        self._in_pool = {True: 0, False: 0}
        self._of_address: Counter[tuple[str, bool]] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()  # addresses, the one that called last at the end
        self.num_cut_off = 0

    @property
    def num_bytes(self) -> int:
        """What is on its way, or being answered."""
        return sum(self._in_pool.values())

    def knows(self, address: str) -> None:
        """An address has called a verb of kube-scheduler."""
        self._known[address] = None
        self._known.move_to_end(address)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def came(self, sender: Sender, num_bytes: int, now: float, *, of_verb: bool) -> None:
        """A piece of a body has come in; cuts off others, or its sender, where that is too much."""
        body = self._bodies.get(sender)
        if body is None:
            known = of_verb and (sender.certified or sender.address in self._known)
            body = self._bodies[sender] = _Body(known)
        body.take(num_bytes, now)
        self._in_pool[body.known] += num_bytes
        self._of_address[sender.address, body.known] += num_bytes
        if self._of_address[sender.address, body.known] > _EACH_FRAC * self._pool_bytes:
            of_address = [one for one in self._bodies if one.address == sender.address]
            self._make_room(of_address, known=body.known, most_bytes=_EACH_FRAC * self._pool_bytes)
        if self._in_pool[body.known] > self._pool_bytes:
            self._make_room(self._bodies, known=body.known, most_bytes=self._pool_bytes)

    def ended(self, sender: Sender) -> None:
        """A body has been answered, or its connection has ended."""
        body = self._bodies.pop(sender, None)
        if body is None:
            return
        self._in_pool[body.known] -= body.num_bytes
        self._of_address[sender.address, body.known] -= body.num_bytes
        if not self._of_address[sender.address, body.known]:
            del self._of_address[sender.address, body.known]

    def _make_room(self, among: Iterable[Sender], *, known: bool, most_bytes: float) -> None:
        """Cut off the bodies of a pool that have been idle longest, until it is no more than `_ROOM_FRAC` full."""
        bodies = {one: self._bodies[one] for one in among if self._bodies[one].known is known}
        left = sum(body.num_bytes for body in bodies.values())
        half_read = [
            one
            for one, body in bodies.items()
            if not one.certified and not one.answering and body.num_bytes > _SMALL_BYTES
        ]
        for one in sorted(half_read, key=lambda one: bodies[one].at):
            if left <= _ROOM_FRAC * most_bytes:
                return
            left -= bodies[one].num_bytes
            self.ended(one)
            self.num_cut_off += 1
            one.leave()


DEFAULT_BODY_BYTES: Final = 128 << 20


class Connection(Protocol):
    """One of a client's."""

    address: str
    certified: bool
    """Whether it came with a certificate that was verified."""
    scheduling: bool
    """Whether a verb of kube-scheduler was called on it."""
    since: float
    """Monotonic time at which it was made, or its last request came in whole."""

    @property
    def answering(self) -> bool:
        """Whether a request of it has come in whole, and is being answered."""

    def leave(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may take."""

    request_s: float = 10.0
    answer_s: float = 30.0
    """Within which a client takes what is written, but for what sockets buffer."""
    connections: int = 1024
    connections_each: int = 256
    """From one address."""
    body_bytes: int = DEFAULT_BODY_BYTES
    """Of bodies on their way, in each pool (`Bodies`)."""
    verbs_by_certificate: bool = False
    """Whether verbs are answered to those with a certificate alone: then to call one without gains nothing."""


@dataclass
class Doors:
    """The connections that are open."""

    limits: Limits = field(default_factory=Limits)
    _open: set[Connection] = field(default_factory=set)
    _num_of: Counter[str] = field(default_factory=Counter)
    num_turned_out: int = 0
    """Connections closed for others."""
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.body_bytes)

    @property
    def num_open(self) -> int:
        """How many there are."""
        return len(self._open)

    def enter(self, connection: Connection) -> None:
        """A connection was made."""
        self._open.add(connection)
        self._num_of[connection.address] += 1
        if self._num_of[connection.address] > self.limits.connections_each:
            self._make_room(connection, [one for one in self._open if one.address == connection.address])
        elif len(self._open) > self.limits.connections:
            self._make_room(connection, self._open)

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self._num_of[connection.address] -= 1
            if not self._num_of[connection.address]:
                del self._num_of[connection.address]

    def _make_room(self, new: Connection, among: Iterable[Connection]) -> None:
        """Close the one that is missed least; the new one where all are at work."""
        waiting = [one for one in among if one is not new and not one.certified and not one.answering]
        least = min(waiting, key=lambda one: (one.scheduling, -self._num_of[one.address], one.since), default=new)
        self.leave(least)
        self.num_turned_out += 1
        least.leave()


CLIENT_CERTIFICATE = "client_certificate"
"""In the state of a request that came with a certificate which the TLS context has verified."""


_VERBS = frozenset({b"/filter", b"/prioritize", b"/preempt", b"/bind", b"/others/filter", b"/others/prioritize"})
_quiet = logging.getLogger("uvicorn.error.connections")
_quiet.setLevel(logging.ERROR)  # uvicorn warns of each request that is none: whoever reaches a port would fill the log
_MAX_HEAD_BYTES = 1 << 16
_MAX_AHEAD = 16
"""Requests that a client may send before earlier ones are answered. No caller of Kerf's sends any, and uvicorn, which
reads on whenever one is answered, would keep them all."""


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1, with an end for whoever is slow."""

    def __init__(self, *args: Any, doors: Doors | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self.logger = _quiet
        self._doors = doors or Doors()
        self.address, self.certified, self.scheduling, self.since = "", False, False, 0.0
        self._coming_in: asyncio.TimerHandle | None = None
        self._not_taken: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    @property
    def answering(self) -> bool:
        """Whether a request has come in whole, and is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.getpeercert(binary_form=True) is not None:
            self.app_state = {**self.app_state, CLIENT_CERTIFICATE: True}
            self.certified = True
        super().connection_made(transport)
        self.address, self.since = self.client[0] if self.client else "", self.loop.time()
        self._begin()
        self._doors.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._taken()
        self._doors.leave(self)
        self._doors.bodies.ended(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._coming_in is None:
            self._begin()
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.leave()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._coming_in is None:
            self._begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -(1 << 62)  # what follows is the body, whose endpoint knows how large it may be
        super().on_headers_complete()
        if len(self.pipeline) > _MAX_AHEAD:
            self.leave()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if not self.cycle.response_complete:  # what comes after an answer is not kept
            of_verb = self.scope["raw_path"] in _VERBS
            self._doors.bodies.came(self, len(body), self.loop.time(), of_verb=of_verb)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._end()
        self._head_bytes, self.since = 0, self.loop.time()
        if self.scope["raw_path"] in _VERBS and not self._doors.limits.verbs_by_certificate:
            self.scheduling = True
            self._doors.bodies.knows(self.address)

    def on_response_complete(self) -> None:
        self._doors.bodies.ended(self)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._not_taken = self.loop.call_later(self._doors.limits.answer_s, self.leave)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._taken()

    def leave(self) -> None:
        """End the connection at once: to close it would wait until the client has taken what is written."""
        self.transport.abort()

    def _taken(self) -> None:
        if self._not_taken is not None:
            self._not_taken.cancel()
            self._not_taken = None

    def _begin(self) -> None:
        self._coming_in = self.loop.call_later(self._doors.limits.request_s, self.leave)

    def _end(self) -> None:
        if self._coming_in is not None:
            self._coming_in.cancel()
            self._coming_in = None


class Accepted(asyncio.Protocol):
    """A connection that TLS has yet to begin on."""

    def __init__(self, protocol: TimedProtocol, context: ssl.SSLContext, doors: Doors) -> None:
        self._protocol = protocol
        self._context = context
        self._doors = doors

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        try:
            connection = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError:  # no more files
            return
        finally:
            transport.abort()  # nothing is read before this returns, and the connection stays open as its copy
        connection.setblocking(False)
        peer = transport.get_extra_info("peername")
        _Handshake(self._protocol, self._doors, connection, peer[0] if peer else "").begin(self._context)


class _Handshake(asyncio.Protocol):
    """A connection until its handshake is done; from then on it is the protocol's."""

    certified, scheduling, answering = False, False, False

    def __init__(self, protocol: TimedProtocol, doors: Doors, connection: socket.socket, address: str) -> None:
        self._protocol = protocol
        self._doors = doors
        self._connection = connection
        self._task: asyncio.Task[None] | None = None
        self.address, self.since = address, protocol.loop.time()

    def begin(self, context: ssl.SSLContext) -> None:
        """Shake hands, if there is room."""
        self._task = self._protocol.loop.create_task(self._run(context), name="TLS handshake")
        self._doors.enter(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """The handshake is done."""
        self._doors.leave(self)
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)

    def leave(self) -> None:
        """End the connection: whatever waits for it reads its end."""
        with suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)

    async def _run(self, context: ssl.SSLContext) -> None:
        limits = self._doors.limits
        try:
            await self._protocol.loop.connect_accepted_socket(
                lambda: self,
                self._connection,
                ssl=context,
                ssl_handshake_timeout=limits.request_s,
                ssl_shutdown_timeout=limits.answer_s,
            )
        except OSError:  # of TLS too, and of time: the loop has closed it
            pass
        finally:
            self._doors.leave(self)


_ALL: Final = ("", "0.0.0.0", "::")  # noqa: S104 - as asked
"""Hosts that stand for all interfaces and both families of addresses, as they do for Kubernetes' own servers."""

_BACKLOG: Final = 2048
_NOT_THERE: Final = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}
"""Errors of a machine on which a family of addresses is switched off."""


class ListenError(Exception):
    """A port can't be listened on; says which, and why."""


def listen(host: str, port: int) -> list[socket.socket]:
    """Listening sockets, one for each address that the host stands for, all on the same port; 0 picks a free one.

    Of 0.0.0.0 and :: those that the machine has: IPv4, IPv6 or both. Raises ListenError.
    """
    if host in _ALL:
        addresses: list[tuple[int, tuple[Any, ...]]] = [(socket.AF_INET, ("0.0.0.0", 0)), (socket.AF_INET6, ("::", 0))]  # noqa: S104
    else:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        except OSError as error:
            raise ListenError(f"{host} is no address of this machine: {error.strerror}") from None
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    sockets: list[socket.socket] = []
    for position, (family, address) in enumerate(addresses, 1):
        try:
            sockets.append(_opened(family, address, port))
        except OSError as error:
            if error.errno in _NOT_THERE and (sockets or position < len(addresses)):
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


def _opened(family: int, address: tuple[Any, ...], port: int) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # IPv4 has a socket of its own
        made.bind((address[0], port, *address[2:]))
        made.listen(_BACKLOG)
    except OSError:
        made.close()
        raise
    return made
