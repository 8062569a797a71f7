"""The cluster as server-sent events: everything once, then changes.

Nothing is queued. Each event is made from the current cluster once the client has received the one before: slow clients
get fewer and larger changes, and stalled ones are disconnected. A client that reconnects sends `Last-Event-ID` and gets
the changes since.
"""

import asyncio
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from extender.core.clusters import Cluster, Rows
from extender.kube.background import until_set
from extender.page.view import PageView

_MAX_STREAMS: Final = 32
_HEARTBEAT_S: Final = 5.0
"""A page gets an event at least this often, and so knows that it is current."""
_NODES_PER_EVENT: Final = 100
"""Limits the time for which an event delays kube-scheduler's calls to about half a millisecond."""
_MAX_EVENTS_KEPT: Final = 128
"""Events kept for other clients, about 20 KB each."""
_NUMBERS: Final = re.compile(r"[0-9]{1,18}-[0-9]{1,18}")
_HEADERS: Final = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # proxies that buffer would keep events back
]


class _Position(msgspec.Struct, frozen=True):
    """A client's position in the stream; as text, the id of an event."""

    run: str
    """Identifies the process: versions of other processes don't count."""
    version: int = -1
    """Version of the cluster."""
    decision: int = 0
    """Number of the newest decision."""

    def __str__(self) -> str:
        return f"{self.run}-{self.version}-{self.decision}"


class Streams:
    """Opens streams, a bounded number at a time."""

    def __init__(
        self, view: PageView, draining: Callable[[], bool], tick_s: float = 1.0, stall_s: float = 30.0
    ) -> None:
        self.view = view
        self._draining = draining
        self._tick_s = tick_s
        self._stall_s = stall_s
        self._run = secrets.token_hex(4)
        self._seen: tuple[float, Cluster] | None = None
        self._made: OrderedDict[tuple[int, int, int], Message] = OrderedDict()
        self.num_open = 0
        """Streams open now."""

    def open(self, last_event_id: str) -> Response:
        """A stream that continues after an event or starts over; 503 if too many are open."""
        if self.num_open >= _MAX_STREAMS:
            return Response("too many live views are open\n", 503, {"retry-after": "30"}, "text/plain")
        return _Stream(self, self._position(last_event_id))

    def _position(self, event_id: str) -> _Position:
        run, _, rest = event_id.partition("-")
        version, _, decision = rest.partition("-")
        if run == self._run and _NUMBERS.fullmatch(rest):
            position = _Position(run, int(version), int(decision))
            if position.version <= self._cluster().version and position.decision <= self.view.num_decisions:
                return position  # issued by this process
        return _Position(self._run)

    async def send(self, position: _Position, send: Send, gone: asyncio.Event) -> None:
        """Send until the client is gone or the service stops. Raises TimeoutError if the client stalls."""
        self.num_open += 1
        try:
            await self._send(position, send, gone)
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._seen = None
                self._made.clear()

    async def _send(self, position: _Position, send: Send, gone: asyncio.Event) -> None:

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._stall_s):
                await send(message)

        await send_in_time({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        sections: dict[str, Any] = {}
        num_quiet = 0
        while not gone.is_set() and not self._draining():
            if position.version < 0:
                await send_in_time(_event("begin", {}))
            position, moved = await self._send_nodes(position, send_in_time)
            position, tick, sections = self._changes(position, sections)
            num_quiet += 1
            if moved or tick:
                await send_in_time(_event("tick", tick, str(position)))
                num_quiet = 0
            elif num_quiet * self._tick_s >= _HEARTBEAT_S:
                await send_in_time(_event("still", {}))
                num_quiet = 0
            await until_set(gone, self._tick_s)
        if not gone.is_set():
            await send_in_time({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_nodes(self, position: _Position, send: Send) -> tuple[_Position, bool]:
        """Send the changed nodes, a few at a time. Returns the new position, and whether any changed."""
        cluster = self._cluster()
        if cluster.version <= position.version:
            return position, False
        rows = np.flatnonzero(cluster.row_version > position.version)
        for begin in range(0, len(rows), _NODES_PER_EVENT):
            await send(self._nodes_event(position.version, cluster, rows[begin : begin + _NODES_PER_EVENT]))
            await asyncio.sleep(0)  # yield to the event loop
        return msgspec.structs.replace(position, version=cluster.version), True

    def _cluster(self) -> Cluster:
        """The cluster, at most one tick old and the same for all clients, so that they share events."""
        now = self.view.clock()
        if self._seen is None or now - self._seen[0] >= self._tick_s:
            self._seen = now, self.view.cluster()
        return self._seen[1]

    def _nodes_event(self, since: int, cluster: Cluster, rows: Rows) -> Message:
        """An event with some of the rows that changed after a version; shared by clients at that version."""
        key = since, cluster.version, int(rows[0])
        event = self._made.get(key)
        if event is None:
            event = self._made[key] = _event("nodes", self.view.nodes(cluster, rows))
            if len(self._made) > _MAX_EVENTS_KEPT:
                self._made.popitem(last=False)
        return event

    def _changes(self, position: _Position, sent: dict[str, Any]) -> tuple[_Position, dict[str, Any], dict[str, Any]]:
        """The new position, the changed sections with new decisions, and all sections."""
        sections = self.view.sections()
        tick = {key: value for key, value in sections.items() if sent.get(key) != value}
        if decisions := self.view.decisions(position.decision):
            tick["decisions"] = decisions
            position = msgspec.structs.replace(position, decision=decisions[-1]["number"])
        return position, tick, sections


class _Stream(Response):
    """A response that does not end."""

    def __init__(self, streams: Streams, position: _Position) -> None:
        super().__init__(media_type="text/event-stream")
        self._streams = streams
        self._position = position

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.Event()
        watch = asyncio.create_task(_watch(receive, gone), name="live view")
        try:
            await self._streams.send(self._position, send, gone)
        except TimeoutError:
            return  # the server closes connections with an incomplete response
        finally:
            watch.cancel()


async def _watch(receive: Receive, gone: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


def _event(kind: str, data: Any, event_id: str = "") -> Message:
    head = f"id: {event_id}\n" if event_id else ""
    content = msgspec.json.encode(data)  # JSON escapes line breaks
    return _body(b"%bevent: %b\ndata: %b\n\n" % (head.encode(), kind.encode(), content))


def _body(content: bytes) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": True}
