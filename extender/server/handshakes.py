"""TLS connections that are counted, and closed in time, from when they are made: before their handshake too.

A server of asyncio's own tells of a connection once its handshake is done, and waits a minute for it: whoever opens
connections and says nothing would have as many as the process may have files. So the server listens without TLS, and
each connection's socket goes on to a transport with TLS before anything is read from it.
"""

import asyncio
import os
import socket
import ssl
from contextlib import suppress

from extender.server.connection_limits import Doors
from extender.server.http import Protocol


class Accepted(asyncio.Protocol):
    """A connection that TLS has yet to begin on."""

    def __init__(self, protocol: Protocol, context: ssl.SSLContext, doors: Doors) -> None:
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

    def __init__(self, protocol: Protocol, doors: Doors, connection: socket.socket, address: str) -> None:
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
