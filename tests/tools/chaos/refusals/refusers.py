"""An extender behind Kerf, which refuses some pods always and nodes for a while."""

import json
from typing import Any

from aiohttp import web

from tests.tools.chaos import hops
from tests.tools.chaos.boards import Board
from tests.tools.chaos.faults import Kind
from tests.tools.chaos.refusals.manifests import REFUSED, WORDS_BEHIND


class Refuser:
    """From `start` to `stop`, in the running loop."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._runner: web.ServerRunner | None = None
        self.url = ""

    async def start(self) -> None:
        """Listen."""
        self._runner, self.url = await hops.listen(self._answer)

    async def stop(self) -> None:
        """End."""
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def entry(self) -> dict[str, Any]:
        """Its place in a KubeSchedulerConfiguration: the last of the extenders."""
        return {"urlPrefix": self.url, "filterVerb": "filter", "nodeCacheCapable": True, "httpTimeout": "5s"}

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(await request.read())
        names = asked["NodeNames"] or []
        refused = set(names) if REFUSED in (asked["Pod"]["metadata"].get("labels") or {}) else self._refused(names)
        if refused:
            left = [name for name in names if name not in refused]
            return web.json_response({"NodeNames": left, "FailedNodes": dict.fromkeys(sorted(refused), WORDS_BEHIND)})
        return web.json_response({"NodeNames": names})

    def _refused(self, names: list[str]) -> set[str]:
        """Of these nodes, those that nobody may have now."""
        refused = set()
        for fault in self._board.going_on(Kind.NODE_REFUSED_BEHIND):
            # Nodes of one zone have names that end alike.
            if found := {name for name in names if name.endswith(fault.target[-1:])}:
                self._board.record_once(fault)
                refused |= found
        return refused
