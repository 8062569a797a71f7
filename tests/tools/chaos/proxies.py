"""The hop between Kerf and the API server: it passes on what it is given, late, twice over, not at all, or untruly."""

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from aiohttp import web

from tests.tools.chaos import answers, hops
from tests.tools.chaos.boards import Board
from tests.tools.chaos.devices import writes
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.moves import writes as of_moves

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "date"}
_TICK_S = 0.02
_BINDINGS_S = 0.4
"""For so long after the first one Bindings meet the same fate: requests pass, answers don't."""
_WATCHLESS_S = 1.5
"""How much later watches come through again than other calls: they wait longer between two attempts."""
_LATER_S = 1.2


@dataclass(eq=False)
class _Watch:
    """An open watch of a client."""

    request: web.BaseRequest
    injected: list[bytes] = field(default_factory=list)
    silent_until: float = 0.0


class ApiProxy:
    """One replica's way to the API server: plain HTTP on loopback, from `start` to `stop`, in the running loop."""

    def __init__(
        self, board: Board, replica: int, upstream: str, certificate: Path | None, *, extender: bool = True
    ) -> None:
        """Without an `extender` what lets a pod go suffers what Bindings would."""
        self._extender = extender
        self._board = board
        self._replica = replica
        self._upstream = upstream
        self._certificate = certificate
        self._watches: set[_Watch] = set()
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.ServerRunner | None = None
        self._ticking: asyncio.Task[None] | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen."""
        trusted = ssl.create_default_context(cafile=str(self._certificate)) if self._certificate else True
        connector = aiohttp.TCPConnector(ssl=trusted, limit=0)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False)
        self._runner, self.url = await hops.listen(self._handle)
        self._ticking = asyncio.create_task(self._tick())

    async def stop(self) -> None:
        """End, open requests too."""
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        for watch in list(self._watches):
            hops.abort(watch.request)
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _tick(self) -> None:
        """Faults that nothing has to happen to before they take effect."""
        while True:
            await asyncio.sleep(_TICK_S)
            now = asyncio.get_running_loop().time()
            if self._watches and self._board.take(Kind.WATCH_CUT):
                self._board.record(Kind.WATCH_CUT)
                self._cut()
            if self._watches and (fault := self._board.take(Kind.WATCH_STALE)):
                self._board.record(Kind.WATCH_STALE)
                for watch in self._watches:
                    watch.silent_until = now + fault.for_s
            if self._watches and self._board.take(Kind.WATCH_GONE):
                self._board.record(Kind.WATCH_GONE)
                line = json.dumps({"type": "ERROR", "object": answers.status_of(Kind.GONE)[1]}).encode() + b"\n"
                for watch in self._watches:
                    watch.injected.append(line)
            if self._watches and (fault := self._board.lasting(Kind.UNREACHABLE)):
                self._board.record_once(fault)
                self._cut()
            if self._watches and self._board.is_watchless:
                self._cut()
            if self._watches and (fault := self._board.take(Kind.PAUSE)):
                self._board.pause(fault, self._board.leader)
            if self._watches:  # it runs, and is past its start
                self._board.jump(self._replica)

    def _cut(self) -> None:
        for watch in list(self._watches):
            hops.abort(watch.request)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        board = self._board
        if fault := board.lasting(Kind.UNREACHABLE):
            board.record_once(fault)
            return hops.abort(request)
        if board.is_cut_off or (board.is_watchless and "watch" in request.query):
            return await self._cut_off_call(request)
        body = await request.read()
        if fault := board.lasting(Kind.LATENCY):
            board.record_once(fault)
            await asyncio.sleep(fault.for_s / 4)
        if "watch" in request.query:
            return await self._watch(request)
        if request.method == "POST" and request.path.endswith("/binding"):
            with board.holding():
                return await self._binding(request, body)
        if request.method == "PATCH" and _lets_go(body):
            with board.holding():
                return await self._letting_go(request, body, nominates=b'"nominatedNodeName"' in body)
        if writes.writes_claim(request):
            with board.holding():
                return await writes.write_claim(self, board, self._replica, request, body)
        if of_moves.moves(request):
            with board.holding():
                return await of_moves.write(self, board, self._replica, request, body)
        if request.method == "GET" and (fault := board.take(Kind.GONE)):
            return self.untrue(fault.kind)
        if fault := board.take(Kind.THROTTLED, Kind.SERVER_ERROR):
            return self.untrue(fault.kind)
        return await self.pass_on(request, body)

    async def _binding(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        """A Binding, with all that can happen to it."""
        board = self._board
        if board.kill(Kind.KILL_BINDING_LOST, self._replica):
            return hops.abort(request)
        if fault := board.kill(Kind.KILL_BINDING_ASKED, self._replica):
            board.later(self.write_late(request, body, fault.for_s))
            return hops.abort(request)
        if fault := board.take(Kind.LAPSE_ANSWER_LOST, Kind.LAPSE_LATE_BINDING):
            return await self.lapse(fault, request, body)
        if fault := board.take(Kind.PAUSE_IN_BIND, Kind.VM_PAUSE):
            board.pause(fault, self._replica)
            await asyncio.sleep(fault.for_s + (0.05 if fault.late else -0.05))
        elif fault := board.take(Kind.LATE_BINDING):
            board.record(fault.kind)
            await asyncio.sleep(fault.for_s)
        elif board.take(Kind.RESET_BEFORE_WRITE):
            board.record(Kind.RESET_BEFORE_WRITE)
            return hops.abort(request)
        elif fault := board.take(Kind.CONFLICT, Kind.THROTTLED, Kind.SERVER_ERROR):
            return self.untrue(fault.kind)
        answer = await self.pass_on(request, body)
        if board.kill(Kind.KILL_BINDING_WRITTEN, self._replica):
            return hops.abort(request)
        if fault := board.take(Kind.RESET_AFTER_WRITE):
            board.record(fault.kind)
            return hops.abort(request)
        if fault := board.take(Kind.ERROR_AFTER_WRITE):
            return self.untrue(fault.kind)
        if board.due(Kind.KILL_BINDING_ANSWERED):
            with contextlib.suppress(*hops.FAILURES):
                await answer.prepare(request)
                await answer.write_eof()
            board.kill(Kind.KILL_BINDING_ANSWERED, self._replica)
        return answer

    async def lapse(self, fault: Fault, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        """The outcome of a Binding is not known, and no replica can ask before the lease has run out."""
        self._board.record(fault.kind)
        self._board.cut_off(fault, _BINDINGS_S, _WATCHLESS_S)
        return await self._unanswered(fault, request, body)

    async def _cut_off_call(self, request: web.BaseRequest) -> web.StreamResponse:
        """Nothing comes through, but for Bindings that had left before anybody knew."""
        fault = self._board.lapse
        body = await request.read()
        binds = request.path.endswith("/binding") or (not self._extender and _lets_go(body))
        if fault is None or not (binds or writes.allocates(request, body)):
            return hops.abort(request)
        with self._board.holding():
            return await self._unanswered(fault, request, body)

    async def _unanswered(self, fault: Fault, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        """A Binding that is written, now or late."""
        if fault.kind is Kind.LAPSE_ANSWER_LOST:
            with contextlib.suppress(*hops.FAILURES):
                await self._exchange(request, body)
        else:
            self._board.later(self.write_late(request, body, fault.for_s + (_LATER_S if fault.late else 0.0)))
        return hops.abort(request)

    async def _letting_go(self, request: web.BaseRequest, body: bytes, *, nominates: bool) -> web.StreamResponse:
        """The nomination of a queued pod, or the opening of its gate."""
        board = self._board
        if not nominates and board.kill(Kind.KILL_OPENING_LOST, self._replica):
            return hops.abort(request)
        kills = (Kind.KILL_NOMINATION_WRITTEN, Kind.KILL_OPENING_WRITTEN)
        if not self._extender and not any(map(board.due, kills)):
            return await self._binding(request, body)
        if fault := board.take(Kind.CONFLICT, Kind.THROTTLED, Kind.SERVER_ERROR):
            return self.untrue(fault.kind)
        answer = await self.pass_on(request, body)
        if board.kill(Kind.KILL_NOMINATION_WRITTEN if nominates else Kind.KILL_OPENING_WRITTEN, self._replica):
            return hops.abort(request)
        if fault := board.take(Kind.RESET_AFTER_WRITE):
            board.record(fault.kind)
            return hops.abort(request)
        return answer

    async def write_late(self, request: web.BaseRequest, body: bytes, after_s: float) -> None:
        """What a process that is dead by now had sent."""
        await asyncio.sleep(after_s)
        with contextlib.suppress(*hops.FAILURES):
            await self._exchange(request, body)

    def untrue(self, kind: Kind) -> web.Response:
        """An answer that the API server never gave."""
        self._board.record(kind)
        code, status = answers.status_of(kind)
        return web.json_response(status, status=code)

    async def pass_on(self, request: web.BaseRequest, body: bytes) -> web.StreamResponse:
        try:
            status, headers, content = await self._exchange(request, body)
        except hops.FAILURES:
            return hops.abort(request)  # the API server does not answer: nor does this
        return web.Response(status=status, headers=headers, body=content)

    async def _exchange(self, request: web.BaseRequest, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        limit = aiohttp.ClientTimeout(total=30.0)
        async with self._send(request, body, limit) as answer:
            return answer.status, _headers(answer.headers), await answer.read()

    async def _watch(self, request: web.BaseRequest) -> web.StreamResponse:
        if fault := self._board.take(Kind.GONE, Kind.THROTTLED, Kind.SERVER_ERROR):
            return self.untrue(fault.kind)
        watch = _Watch(request)
        self._watches.add(watch)
        try:
            async with self._send(request, b"", aiohttp.ClientTimeout(total=None)) as answer:
                response = web.StreamResponse(status=answer.status, headers=_headers(answer.headers))
                await response.prepare(request)
                await self._relay(watch, answer, response)
                return response
        except hops.FAILURES:
            return hops.abort(request)
        finally:
            self._watches.discard(watch)

    async def _relay(self, watch: _Watch, answer: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        """The lines of a watch, as they come or when the fault that holds them is over."""
        loop = asyncio.get_running_loop()
        reading = loop.create_task(answer.content.readany())
        between_lines = True
        try:
            while watch.request.transport is not None:
                await asyncio.wait([reading], timeout=_TICK_S)
                if loop.time() < watch.silent_until or self._board.is_watchless:
                    continue
                if watch.injected and between_lines:
                    await response.write(watch.injected.pop())
                    return
                if reading.done():
                    chunk = reading.result()
                    if not chunk:
                        return
                    await response.write(chunk)
                    between_lines = chunk.endswith(b"\n")
                    reading = loop.create_task(answer.content.readany())
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    def _send(
        self, request: web.BaseRequest, body: bytes, limit: aiohttp.ClientTimeout
    ) -> "aiohttp.client._RequestContextManager":
        if self._session is None:
            raise RuntimeError("the proxy is used before start()")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        return self._session.request(
            request.method, self._upstream + request.path_qs, data=body or None, headers=headers, timeout=limit
        )


def _lets_go(body: bytes) -> bool:
    """Whether a patch is the nomination of a queued pod, or the opening of its gate."""
    return b'"nominatedNodeName"' in body or b'"schedulingGates"' in body


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}
