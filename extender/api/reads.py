"""GET routes for users. A handler returns the answer, and its return type gives the OpenAPI schema.

While Kerf's view of the cluster is stale, all these answers carry its age.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Final, NotRequired, TypedDict, TypeVar, get_type_hints

from fastapi import APIRouter, HTTPException, Response
from fastapi.responses import JSONResponse

from extender.api import wire
from extender.api.readiness import Blindness
from extender.core.resources.requests import RequestError
from extender.explain.pod_answers import UndecidedError

_STATUSES: Final[dict[type[Exception], int]] = {UndecidedError: 404, RequestError: 400}
_UNSYNCED: Final = {503: "Kerf has not synced with the API server yet; gives the reason."}

HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Any]])


class Detail(TypedDict):
    """The body of an error."""

    detail: Any


class ProbeStatus(TypedDict):
    """The answer of a probe; with status 200, `degraded` may name what works less well than it should."""

    status: Annotated[str, "ok"]
    degraded: NotRequired[list[str]]


class RunningVersion(TypedDict):
    version: Annotated[str, "0.1.0"]
    mode: Annotated[str, "decisive"]
    policy: Annotated[str, "tightest"]


class Reads:
    """Adds GET routes to a router."""

    def __init__(self, router: APIRouter, blindness: Callable[[], Blindness]) -> None:
        self._router, self._blindness = router, blindness
        self.kinds: dict[str, type] = {}
        """Type of each path's answer with status 200: a TypedDict, or Response for other media types."""

    def get(
        self,
        path: str,
        statuses: Mapping[int, str] | None = None,
        *,
        tag: str = "explanation",
        needs_sync: bool = True,
        form: str = "application/json",
    ) -> Callable[[HandlerT], HandlerT]:
        """A decorator that adds a route.

        `form` is the media type, `statuses` describes error statuses; `needs_sync` means that it answers 503 before the
        first sync.
        """
        meanings = {**(_UNSYNCED if needs_sync else {}), **(statuses or {})}
        responses: dict[int | str, dict[str, Any]] = {
            status: {"description": text} for status, text in meanings.items()
        }
        if form != "application/json":
            responses[200] |= {"content": {form: {}}}

        def add(handler: HandlerT) -> HandlerT:
            self.kinds[path] = get_type_hints(handler)["return"]

            @wraps(handler)
            async def answer(**given: Any) -> Response:
                blind = self._blindness()
                status, result = 200, None
                try:
                    if needs_sync and blind.unsynced:
                        raise HTTPException(503, blind.sentence)
                    result = await handler(**given)
                except HTTPException as error:
                    status, result = error.status_code, Detail(detail=error.detail)
                except tuple(_STATUSES) as error:
                    status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
                    result = Detail(detail=str(error))
                if isinstance(result, Response):
                    result.headers.update(blind.headers)
                    return result
                content = await asyncio.to_thread(wire.encode, result)  # megabytes with thousands of nodes
                return Response(blind.marked(content), status, blind.headers, "application/json")

            kind = Response if 200 in responses else JSONResponse
            route = self._router.get(path, tags=[tag], responses=responses, response_model=None, response_class=kind)
            route(answer)
            return handler

        return add
