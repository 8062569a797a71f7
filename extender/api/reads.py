"""GETs that people make: a handler returns what is answered, and its return type is what OpenAPI describes.

While Kerf is blind, how old its view of the cluster is stands in all of these answers.
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
_UNSYNCED: Final = {503: "The API server has told nothing yet; gives the reason."}

HandlerT = TypeVar("HandlerT", bound=Callable[..., Awaitable[Any]])


class Detail(TypedDict):
    """Why there is no answer."""

    detail: Any


class ProbeStatus(TypedDict):
    """Of a probe; with 200 `degraded` may name parts that work less well."""

    status: Annotated[str, "ok"]
    degraded: NotRequired[list[str]]


class RunningVersion(TypedDict):
    version: Annotated[str, "0.1.0"]
    mode: Annotated[str, "decisive"]
    policy: Annotated[str, "tightest"]


class Reads:
    """Adds such routes to a router."""

    def __init__(self, router: APIRouter, blindness: Callable[[], Blindness]) -> None:
        self._router, self._blindness = router, blindness
        self.kinds: dict[str, type] = {}
        """What each path answers with 200: a TypedDict, or a Response of a form of its own."""

    def get(
        self,
        path: str,
        statuses: Mapping[int, str] | None = None,
        *,
        tag: str = "explanation",
        needs_sync: bool = True,
        form: str = "application/json",
    ) -> Callable[[HandlerT], HandlerT]:
        """Add a route that answers in a `form`; `statuses` says what each means, and `needs_sync` whether it speaks of
        nothing but the cluster."""
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
                status, told = 200, None
                try:
                    if needs_sync and blind.unsynced:
                        raise HTTPException(503, blind.sentence)
                    told = await handler(**given)
                except HTTPException as error:
                    status, told = error.status_code, Detail(detail=error.detail)
                except tuple(_STATUSES) as error:
                    status = next(status for kind, status in _STATUSES.items() if isinstance(error, kind))
                    told = Detail(detail=str(error))
                if isinstance(told, Response):
                    told.headers.update(blind.headers)
                    return told
                content = await asyncio.to_thread(wire.encode, told)  # megabytes where there are thousands of nodes
                return Response(blind.marked(content), status, blind.headers, "application/json")

            kind = Response if 200 in responses else JSONResponse
            route = self._router.get(path, tags=[tag], responses=responses, response_model=None, response_class=kind)
            route(answer)
            return handler

        return add
