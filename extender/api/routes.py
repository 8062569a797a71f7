"""HTTP routes: the calls, ahead of everything else; and what people and probes read, by FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

from fastapi import APIRouter, FastAPI, Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from extender import __version__
from extender.api import wire
from extender.api.blindness import UNSYNCED, route_of
from extender.api.calls import Call, Caller, calls_of
from extender.api.endpoints import Endpoint
from extender.api.openapi import describe_calls
from extender.api.reads.workloads import install_workloads
from extender.core.resources.requests import NO_REQUEST, RequestError
from extender.explain import pending
from extender.explain.undecided_pods import UndecidedError
from extender.history import archives
from extender.ranking.descriptions import describe as describe_rank
from extender.server import access
from extender.telemetry.service import describe
from extender.usage.over_time import over_time
from extender.usage.questions import PastError, seconds_of
from extender.usage.steps import span_of

if TYPE_CHECKING:
    from extender.api.service import Service


_WEBHOOKS_ALONE: Final = access.Refusal(404, "this Kerf answers webhooks alone (setting webhook.alone)")

_NOT_COUNTED: Final = "no GPU-hours are counted (setting usage.enabled)"


class KerfApp(FastAPI):
    """A FastAPI application that answers the verbs ahead of routing and middleware: those cost more than a decision."""

    def __init__(self, verbs: Mapping[str, ASGIApp], only: Collection[str] = (), **options: Any) -> None:
        """`verbs` by path: what is not a POST to one of them is FastAPI's, behind the guard. `only` these paths are
        answered at all, none for every one; `options` are FastAPI's."""
        super().__init__(**options)
        self._verbs, self._only = verbs, only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._only and scope["type"] == "http" and scope["path"] not in self._only:
            await access.refuse(_WEBHOOKS_ALONE, send)
            return
        verb = self._verbs.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (verb or super().__call__)(scope, receive, send)


Endpoints = Mapping[Call, Endpoint]


def endpoints_of(service: Service) -> Endpoints:
    """What answers each call."""
    return {call: Endpoint(call, service) for call in calls_of(service)}


def verbs_of(endpoints: Endpoints) -> Mapping[str, ASGIApp]:
    """Those that the guard does not come before, by path."""
    return {call.path: endpoint for call, endpoint in endpoints.items() if not call.caller.guarded}


def paths_alone(endpoints: Endpoints) -> Collection[str]:
    """What is answered where webhooks are all that is served."""
    hooks = {call.path for call in endpoints if call.caller is Caller.API_SERVER}
    return hooks | access.PROBES | {access.METRICS}


def install_routes(app: FastAPI, service: Service, endpoints: Endpoints) -> None:
    """Give the app its routes."""
    for call, endpoint in endpoints.items():
        app.router.routes.append(Route(call.path, endpoint, methods=["POST"]))  # answers other methods with 405
    app.add_middleware(access.Guard, settings=service.settings.access)
    of_cluster = APIRouter(route_class=route_of(service.blindness), responses=UNSYNCED)
    of_others = APIRouter(route_class=route_of(service.blindness, needs_sync=False))
    _install_operation(app, service)
    _install_others(of_others, service)
    _install_explanations(of_cluster, service)
    _install_lists(of_cluster, service)
    install_workloads(of_cluster, service)
    _install_usage(of_cluster, service)
    app.include_router(of_others)
    app.include_router(of_cluster)
    describe_calls(app, list(endpoints))


def _install_operation(app: FastAPI, service: Service) -> None:
    """What probes, Prometheus and administrators call."""

    @app.get("/healthz", tags=["operation"], responses={503: {"description": "Needs a restart; gives the reason."}})
    async def healthz() -> JSONResponse:
        """Alive: no essential task has died repeatedly. If one has, Kerf needs a restart."""
        return _status(service.hopeless())

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "Not ready; gives the reason."}})
    async def readyz() -> JSONResponse:
        """Ready: this replica leads, and nodes and pods are synced and current."""
        return _status(service.fault(), service.degraded())

    @app.get("/syncz", tags=["operation"], responses={503: {"description": "Not synced; gives the reason."}})
    async def syncz() -> JSONResponse:
        """Synced: ready to decide, or to take over. The kube-scheduler beside a sidecar waits for this."""
        return _status(service.mirror.fault())

    @app.get("/version", tags=["operation"])
    async def version() -> dict[str, str]:
        """Version, mode and policy."""
        policy = service.placer.policy_of(NO_REQUEST)
        return {"version": __version__, "mode": service.settings.decisions.mode.value, "policy": policy.name}

    @app.get("/metrics", tags=["operation"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _install_others(app: APIRouter, service: Service) -> None:
    """What tells of something else besides the cluster, and can before the cluster is known."""

    @app.get("/telemetry", tags=["operation"])
    async def telemetry() -> JSONResponse:
        """Where GPU samples come from, how old they are, and which nodes they match."""
        return JSONResponse(describe(service.observer, service.owners))

    @app.get("/model", tags=["operation"])
    async def model() -> JSONResponse:
        """The learned rank: its model, the expected mix of pods, and whether it is in use."""
        return JSONResponse(describe_rank(service.rank, service.evidence, service.learning))

    @app.get(
        "/history",
        tags=["operation"],
        response_class=Response,
        responses={
            200: {"content": {"application/x-tar": {}}, "description": "A tar archive of the folder."},
            404: {"description": "No history is kept, or another replica leads."},
        },
    )
    async def history() -> Response:
        """The history that is kept, for kerf history --server: pods and nodes as Parquet, and what is newer."""
        recorder = service.recorder
        why_not = service.fence.standby() if recorder else "no history is kept: setting history.path"
        if recorder is None or why_not:
            return JSONResponse({"detail": why_not}, status_code=404)
        opened = await asyncio.to_thread(archives.opened, recorder.writer.directory)
        return StreamingResponse(archives.archive(opened), media_type="application/x-tar")


def _install_explanations(app: APIRouter, service: Service) -> None:
    """What people call who want to know why."""

    @app.get(
        "/explain/pod/{namespace}/{name}",
        tags=["explanation"],
        responses={
            400: {"description": "No policy has the name given."},
            404: {"description": "No recent decision about this pod, and it has no GPUs and is not waiting for some."},
        },
    )
    async def explain_pod(
        namespace: str,
        name: str,
        policy: Annotated[str, Query(max_length=63, description="Another policy, to compare with; empty: none.")] = "",
    ) -> Response:
        """Why a pod is where it is, or pending: the newest recorded decision, and what has changed since.

        For a pending pod without one: what Kerf would decide now among all nodes, with `offered` false. For one with a
        node: what it has there, as `workload`.
        """
        try:
            told = await service.pods.told(namespace, name, policy)
        except UndecidedError as error:
            return JSONResponse({"detail": str(error)}, status_code=404)
        except RequestError as error:
            return JSONResponse({"detail": str(error)}, status_code=400)
        content = await asyncio.to_thread(wire.encode, told)  # megabytes where there are thousands of candidates
        return Response(content, media_type="application/json")

    @app.get("/defrag", tags=["explanation"])
    async def moves() -> Response:
        """How far the plan is that is carried out to make room, or was last."""
        return Response(service.applying.state(), media_type="application/json")


def _install_lists(app: APIRouter, service: Service) -> None:
    """What waits, and where."""

    @app.get("/pending", tags=["explanation"])
    async def pending_pods(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most pods on the page.")] = 100,
        namespace: Annotated[str, Query(max_length=63, description="Of the pods; empty: all.")] = "",
    ) -> Response:
        """Every pod that asks for GPUs and has no node, in scheduling order: who keeps it waiting, and why."""
        page = service.pending.page(limit, namespace)
        looked = await asyncio.to_thread(pending.looked_at, page)
        told = pending.told(page, looked, service.fixes)
        content = await asyncio.to_thread(wire.encode, told)
        return Response(content, media_type="application/json")

    @app.get("/nodes", tags=["explanation"])
    async def nodes(
        limit: Annotated[int, Query(ge=1, le=1000, description="Most nodes on the page.")] = 100,
        after: Annotated[str, Query(max_length=253, description="`next` of the previous page.")] = "",
        gpus: Annotated[bool, Query(description="Only nodes with GPUs.")] = False,
    ) -> JSONResponse:
        """What is booked and used: totals of the cluster, and its nodes in pages."""
        return JSONResponse(service.overviews.page(limit, after, gpus_only=gpus))

    @app.get(
        "/nodes/{node}",
        tags=["explanation"],
        responses={404: {"description": "No node has that name."}},
    )
    async def one_node(node: str) -> JSONResponse:
        """A node's GPUs: what is booked and used of each, and which pods hold them."""
        told = service.overviews.node(node)
        if told is None:
            return JSONResponse({"detail": f"no node is named {node}"}, status_code=404)
        return JSONResponse(told | {"holders": service.fixes.held_on(node)})


def _install_usage(app: APIRouter, service: Service) -> None:
    """GPU-hours, for those who share them out."""

    @app.get(
        "/usage",
        tags=["explanation"],
        responses={
            400: {"description": "`since` or `by` can't be understood."},
            404: {"description": "No GPU-hours are counted: setting usage.enabled."},
            503: {"description": "Another replica leads, or Prometheus does not answer; gives the reason."},
        },
    )
    async def usage(
        since: Annotated[str, Query(max_length=16, description="How far back: 7d, 36h. Empty: since the start.")] = "",
        by: Annotated[str, Query(pattern="^(namespace|owner|model)$", description="What a row is of.")] = "namespace",
        source: Annotated[str, Query(pattern="^(auto|kerf|prometheus)$", description="Who is asked.")] = "auto",
    ) -> JSONResponse:
        """GPU-hours booked, used and idle: in a time up to now by Prometheus, else since the start by this Kerf."""
        if service.usage is None:
            return JSONResponse({"detail": _NOT_COUNTED}, status_code=404)
        try:
            window_s = seconds_of(since) if since else None
            return JSONResponse(await service.usage.report(by, window_s, source))
        except ValueError as error:
            return JSONResponse({"detail": f"since: {error}"}, status_code=400)
        except PastError as error:
            return JSONResponse({"detail": str(error)}, status_code=503)

    @app.get(
        "/usage/over-time",
        tags=["explanation"],
        responses={
            400: {"description": "`since` or `step` can't be understood, or would be too many steps."},
            404: {"description": "No GPU-hours are counted: setting usage.enabled."},
            503: {"description": "Another replica leads, or Prometheus does not answer; gives the reason."},
        },
    )
    async def usage_over_time(
        since: Annotated[str, Query(max_length=16, description="How far back: 7d, 36h.")] = "24h",
        step: Annotated[str, Query(max_length=16, description="Length of a step. Empty: as suits.")] = "",
        source: Annotated[str, Query(pattern="^(auto|kerf|prometheus)$", description="Who is asked.")] = "auto",
    ) -> JSONResponse:
        """GPU-hours step by step: by this Kerf where it has counted for so long, else by Prometheus."""
        if service.usage is None:
            return JSONResponse({"detail": _NOT_COUNTED}, status_code=404)
        try:
            return JSONResponse(await over_time(service.usage, span_of(since, step), source))
        except ValueError as error:
            return JSONResponse({"detail": str(error)}, status_code=400)
        except PastError as error:
            return JSONResponse({"detail": str(error)}, status_code=503)


def _status(fault: str, degraded: list[str] | None = None) -> JSONResponse:
    body: dict[str, Any] = {"status": fault or "ok"}
    if degraded:
        body["degraded"] = degraded
    return JSONResponse(body, status_code=503 if fault else 200)
