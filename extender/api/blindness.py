"""Answers of a Kerf that can't see the cluster: how old its view is stands in all that speak of the cluster.

Before the first sync there is nothing to speak of, and such questions get 503.
"""

import math
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute

from extender.api import wire
from extender.explain.sentences.blind import blind_for

_STALE_HEADER: Final = "kerf-stale-seconds"
"""Of every answer that speaks of the cluster, while Kerf is blind: how old its view is."""
UNSYNCED: Final[dict[int | str, dict[str, Any]]] = {
    503: {"description": "The API server has told nothing yet; gives the reason."}
}


@dataclass(frozen=True, slots=True)
class Blindness:
    """How far Kerf sees the cluster: not at all, as it was some time ago, or as it is."""

    why: str
    """Why nothing is decided by this view, "" for one that is current."""
    age_s: float
    """Of the view; inf where there never was one."""

    def __bool__(self) -> bool:
        return bool(self.why)

    @property
    def unsynced(self) -> bool:
        """Whether nothing of the cluster is known at all."""
        return bool(self.why) and not math.isfinite(self.age_s)

    @property
    def told(self) -> dict[str, Any]:
        """The keys of an answer, none where the view is current."""
        if not self:
            return {}
        return {"staleSeconds": None if self.unsynced else round(self.age_s, 1), "notReady": self.why}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of an answer."""
        return {_STALE_HEADER: f"{self.age_s:.1f}"} if self and not self.unsynced else {}

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{blind_for(None if self.unsynced else self.age_s)}: {self.why}"

    def marked(self, body: bytes) -> bytes:
        """A JSON object with the keys before its own; anything else as it is."""
        if not self or not body.startswith(b"{"):
            return body
        head = wire.encode(self.told)[:-1]
        return head + (b"}" if body == b"{}" else b"," + body[1:])


def route_of(blindness: Callable[[], Blindness], *, needs_sync: bool = True) -> type[APIRoute]:
    """The class of routes whose answers speak of the cluster; `needs_sync`: of nothing else."""

    class ClusterRoute(APIRoute):
        """A route of the cluster."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            """What answers."""
            answer = super().get_route_handler()

            async def told(request: Request) -> Response:
                blind = blindness()
                if needs_sync and blind.unsynced:
                    return JSONResponse({"detail": blind.sentence} | blind.told, 503)
                response = await answer(request)
                if blind:
                    response.headers.update(blind.headers)
                    if response.headers.get("content-type") == "application/json":
                        response.body = blind.marked(bytes(response.body))
                        response.headers["content-length"] = str(len(response.body))
                return response

            return told

    return ClusterRoute
