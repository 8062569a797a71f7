"""The route of all workloads: for the page's table and search, and `kerf workloads`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Response

from extender.api import wire
from extender.explain.workload_tables.selections import By, Question, Sort, State

if TYPE_CHECKING:
    from extender.api.service import Service

_MAX_OFFSET = 100_000


def install_workloads(app: APIRouter, service: Service) -> None:
    """Give the app the route."""

    @app.get("/workloads", tags=["explanation"])
    async def workloads(  # noqa: PLR0913, PLR0917 - parameters of the query
        namespace: Annotated[str, Query(max_length=63, description="Of the pods; empty: all.")] = "",
        owner: Annotated[str, Query(max_length=128, description="Kind/name, as in Job/train; empty: all.")] = "",
        gang: Annotated[str, Query(max_length=128, description="namespace/name; empty: all.")] = "",
        node: Annotated[str, Query(max_length=253, description="Where they are; empty: anywhere.")] = "",
        state: Annotated[State, Query(description="Of the pods; empty: all.")] = "",
        idle: Annotated[bool, Query(description="Only pods that have been idle for usage.idle_after_s.")] = False,
        q: Annotated[str, Query(max_length=200, description="Words that all have to be found.")] = "",
        by: Annotated[By, Query(description="What a row is of.")] = "pod",
        sort: Annotated[Sort, Query(description="What comes first.")] = "idle",
        reverse: Annotated[bool, Query(description="The other way round.")] = False,
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum rows.")] = 100,
        offset: Annotated[int, Query(ge=0, le=_MAX_OFFSET, description="Rows before the first.")] = 0,
    ) -> Response:
        """Every pod that has GPUs or asks for some: running, pending or gated, with owner, age, GPUs and their use."""
        asked = Question(
            namespace=namespace,
            owner=owner,
            gang=gang,
            node=node,
            state=state,
            idle=idle,
            q=q,
            by=by,
            sort=sort,
            reverse=reverse,
            limit=limit,
            offset=offset,
        )
        told = await service.workloads.answer(asked)
        content = await asyncio.to_thread(wire.encode, told)
        return Response(content, media_type="application/json")
