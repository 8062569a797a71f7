"""The hop between kube-schedulers and Kerf: follows the replica that is ready, and kills it between two calls."""

import asyncio
import contextlib
import json
from collections.abc import Sequence

import aiohttp
from aiohttp import web

from tests.tools.chaos import hops
from tests.tools.chaos.boards import Board
from tests.tools.chaos.faults import Kind

_POLL_S = 0.1
_TIMEOUT_S = 30.0


class Router:
    """One address for each scheduler, from `start` to `stop`, in the running loop."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._targets: Sequence[str] = ()
        self._led: int | None = None  # the replica that was last seen to lead
        self._led_to = [0, 0]  # by scheduler
        self._following: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None
        self._runners: list[web.ServerRunner] = []
        self._deciding: list[set[str]] = [set(), set()]  # by scheduler: uids of pods between filter and bind
        self._overlapped = False
        self.urls: list[str] = []
        """Where each scheduler finds Kerf."""

    async def start(self) -> None:
        """Listen."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S))
        for scheduler in range(2):
            runner, url = await hops.listen(self._handler(scheduler))
            self._runners.append(runner)
            self.urls.append(url)
        self._following = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """End."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        for runner in self._runners:
            await runner.cleanup()
        if self._session is not None:
            await self._session.close()

    def lead_to(self, targets: Sequence[str]) -> None:
        """Another run begins: these are its replicas."""
        self._targets = targets
        self._led = None
        self._led_to = [0, 0]
        self._board.leader = 0
        self._deciding = [set(), set()]
        self._overlapped = False

    async def _follow(self) -> None:
        """One replica is called blindly, as a static pod is; of two the one that says it is ready.

        When both say so, each scheduler has its own, as with connections of a Service that are kept.
        """
        while True:
            await asyncio.sleep(_POLL_S)
            targets = self._targets
            if len(targets) < 2:
                continue
            ready = await asyncio.gather(*map(self._is_ready, targets))
            leading = [replica for replica, leads in enumerate(ready) if leads]
            if not leading or targets is not self._targets:
                continue
            if self._led not in (None, leading[0]):
                self._board.record(Kind.FAILOVER)
            self._led = self._board.leader = leading[0]
            self._led_to = [leading[0], leading[-1]]

    async def _is_ready(self, url: str) -> bool:
        if self._session is None:
            return False
        try:
            async with self._session.get(f"{url}/readyz", timeout=aiohttp.ClientTimeout(total=0.5)) as answer:
                return answer.status == 200
        except hops.FAILURES:
            return False

    def _handler(self, scheduler: int) -> hops.Handler:
        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await self._call(scheduler, request)

        return handle

    async def _call(self, scheduler: int, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        if not self._targets or self._session is None:
            return web.Response(status=503)
        replica = self._led_to[scheduler] if len(self._targets) > 1 else 0
        verb = request.path.rpartition("/")[2]
        if verb == "bind":
            self._board.kill(Kind.KILL_BIND_CALLED, replica)
        try:
            async with self._session.post(self._targets[replica] + request.path, data=body) as answer:
                status, content = answer.status, await answer.read()
        except hops.FAILURES:
            return web.Response(status=502)
        finally:
            if verb == "bind":
                self._deciding[scheduler].discard(json.loads(body)["PodUID"])
        if verb == "filter" and status == 200 and json.loads(content).get("NodeNames"):
            self._decided(scheduler, json.loads(body)["Pod"]["metadata"]["uid"])
            self._board.kill(Kind.KILL_FILTER_ANSWERED, replica)
        if verb == "bind":
            self._board.kill(Kind.KILL_BIND_ANSWERED, replica)
        return web.Response(status=status, body=content, content_type="application/json")

    def _decided(self, scheduler: int, uid: str) -> None:
        self._deciding[scheduler].add(uid)
        if self._deciding[1 - scheduler] and not self._overlapped:
            self._overlapped = True
            self._board.record(Kind.TWO_SCHEDULERS)
