"""HTTP routes: verbs and webhooks bypass FastAPI, which serves users and probes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Self, cast

from fastapi import Depends, FastAPI, HTTPException, Query, Response
from fastapi.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from extender import __version__
from extender.api.calls import Endpoint, calls_of
from extender.api.contributions import Contribution, off_paths
from extender.api.openapi import describe_calls
from extender.api.posts import Call, Caller
from extender.api.reads import ProbeStatus, Reads, RunningVersion
from extender.core.resources.requests import NO_REQUEST
from extender.explain import pending
from extender.explain.answers import Explanation, NodeDetails, NodesPage, PendingList, WorkloadList
from extender.explain.workloads import Question
from extender.ranking.descriptions import Rank
from extender.ranking.descriptions import describe as describe_rank
from extender.server import access
from extender.settings.parts import Part
from extender.telemetry.service import describe
from extender.telemetry.status import TelemetryStatus

if TYPE_CHECKING:
    from extender.api.service import Service


@dataclass(frozen=True, slots=True)
class Only:
    """The paths of a Kerf that serves only one part."""

    paths: Collection[str]
    """Paths that are served."""
    refusal: access.Refusal
    """Answer for all other paths."""

    @classmethod
    def of(cls, part: Part, contributions: Iterable[Contribution]) -> Self:
        """Serve the calls of `contributions`, probes and metrics."""
        calls = {call.path for contribution in contributions for call in contribution.calls}
        refusal = access.Refusal(404, f"this Kerf only serves part {part.name} (setting {part.name}.alone)")
        return cls(calls | access.PROBES | {access.METRICS}, refusal)


class KerfApp(FastAPI):
    """A FastAPI application that answers verbs before routing and middleware, which would cost more than a decision."""

    def __init__(self, verbs: Mapping[str, ASGIApp], only: Only | None = None, **options: Any) -> None:
        """`verbs` by path; all but POSTs to them goes to FastAPI, behind the guard. `options` are FastAPI's."""
        super().__init__(**options)
        self._verbs, self._only = verbs, only

    @property
    def plain_verbs(self) -> Mapping[bytes, Endpoint]:
        """The verbs that no part wraps, by path."""
        served = {} if self._only is not None else self._verbs
        return {path.encode(): verb for path, verb in served.items() if isinstance(verb, Endpoint)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._only is not None and scope["type"] == "http" and scope["path"] not in self._only.paths:
            await access.refuse(self._only.refusal, send)
            return
        verb = self._verbs.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (verb or super().__call__)(scope, receive, send)


Endpoints = Mapping[Call, Endpoint]


def endpoints_of(service: Service) -> Endpoints:
    """The endpoint of each call."""
    return {call: Endpoint(call, service) for call in calls_of(service)}


def verbs_of(endpoints: Endpoints) -> Mapping[str, ASGIApp]:
    """The endpoints that bypass the guard, by path: kube-scheduler's verbs and webhooks."""
    return {call.path: endpoint for call, endpoint in endpoints.items() if not call.caller.guarded}


def install_routes(app: FastAPI, service: Service, endpoints: Endpoints) -> Mapping[str, type]:
    """Add the routes to the app. Returns the types of GETs' answers, by path."""
    for call, endpoint in endpoints.items():
        app.router.routes.append(Route(call.path, endpoint, methods=["POST"]))  # answers other methods with 405
    operated = frozenset(call.path for call in endpoints if call.caller is Caller.OPERATOR)
    app.add_middleware(access.Guard, settings=service.settings.access, operated=operated)
    _install_operation(app, service)
    reads = Reads(app.router, service.blindness)
    _install_others(reads, service)
    _install_explanations(reads, service)
    _install_lists(reads, service)
    _install_parts(app, reads, service)
    kinds = {**dict.fromkeys(access.PROBES, ProbeStatus), "/version": RunningVersion, **reads.kinds}
    examples = {kind: one for part in service.contributions.values() for kind, one in part.examples.items()}
    describe_calls(app, list(endpoints), kinds, examples)
    return kinds


def _install_parts(app: FastAPI, reads: Reads, service: Service) -> None:
    """Add the routes of parts, and 404s with a reason for the paths of disabled ones."""
    for contribution in service.contributions.values():
        contribution.routes(reads)

    def refusing(why: str) -> Callable[[], Awaitable[None]]:
        async def refuse() -> None:
            raise HTTPException(404, why)

        return refuse

    for path, why in off_paths(service.settings).items():
        app.api_route(path, methods=["GET", "POST"], include_in_schema=False)(refusing(why))


def _install_operation(app: FastAPI, service: Service) -> None:
    """Add the routes for probes, Prometheus and administrators."""

    @app.get("/healthz", tags=["operation"], responses={503: {"description": "Needs a restart; gives the reason."}})
    async def healthz() -> JSONResponse:
        """Alive: no essential task has died repeatedly. If one has, Kerf needs a restart."""
        return _status(service.needs_restart())

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "Not ready; gives the reason."}})
    async def readyz() -> JSONResponse:
        """Ready: this replica leads, and nodes and pods are synced and current."""
        return _status(service.fault(), service.degraded())

    @app.get("/syncz", tags=["operation"], responses={503: {"description": "Not synced; gives the reason."}})
    async def syncz() -> JSONResponse:
        """Synced: ready to decide, or to take over. A kube-scheduler in the same pod waits for this."""
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


def _install_others(reads: Reads, service: Service) -> None:
    """Add the routes that don't need a synced cluster."""

    @reads.get("/telemetry", tag="operation", needs_sync=False)
    async def telemetry() -> TelemetryStatus:
        """Where GPU samples come from, how old they are, and which nodes they match."""
        return cast("TelemetryStatus", describe(service.observer, service.owners))

    @reads.get("/model", tag="operation", needs_sync=False)
    async def model() -> Rank:
        """The learned rank: its model, the expected mix of pods, and whether it is in use."""
        return describe_rank(service.rank, service.judges)


def _install_explanations(reads: Reads, service: Service) -> None:
    """Add the routes that explain pods."""

    @reads.get(
        "/explain/pod/{namespace}/{name}",
        {
            400: "No policy has the name given.",
            404: "No recent decision about this pod, and it neither has nor requests GPUs.",
        },
    )
    async def explain_pod(
        namespace: str,
        name: str,
        policy: Annotated[str, Query(max_length=63, description="Another policy to compare with; empty: none.")] = "",
    ) -> Explanation:
        """Why a pod is on its node or pending: the newest recorded decision, and what has changed since.

        Without a recorded decision: for a pending pod, what Kerf would decide now among all nodes, with `offered`
        false; for a bound pod, what it has on its node, as `workload`.
        """
        return await service.pods.explain(namespace, name, policy)


def _install_lists(reads: Reads, service: Service) -> None:
    """Add the routes that list pods and nodes."""

    @reads.get("/pending")
    async def pending_pods(
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum pods on the page.")] = 100,
        namespace: Annotated[str, Query(max_length=63, description="Namespace of the pods; empty: all.")] = "",
    ) -> PendingList:
        """Every pending GPU pod in scheduling order: where it waits, and why."""
        page = service.pending.page(limit, namespace)
        return pending.answer(page, await asyncio.to_thread(pending.compare_nodes, page), service.fixes)

    @reads.get("/workloads")
    async def workloads(asked: Annotated[Question, Depends()]) -> WorkloadList:
        """Every pod that has or requests GPUs: running, pending or gated, with owner, age, GPUs and their use."""
        return await service.workloads.answer(asked)

    @reads.get("/nodes")
    async def nodes(
        limit: Annotated[int, Query(ge=1, le=1000, description="Maximum nodes on the page.")] = 100,
        after: Annotated[str, Query(max_length=253, description="`next` of the previous page.")] = "",
        gpus: Annotated[bool, Query(description="Only nodes with GPUs.")] = False,
    ) -> NodesPage:
        """Bookings and use of GPUs: totals of the cluster, and its nodes in pages."""
        return service.overviews.page(limit, after, gpus_only=gpus)

    @reads.get("/nodes/{node}", {404: "No node has that name."})
    async def one_node(node: str) -> NodeDetails:
        """A node's GPUs: bookings and use of each, and which pods hold them."""
        details = service.overviews.node(node, service.fixes.held_on(node))
        if details is None:
            raise HTTPException(404, f"no node is named {node}")
        return details


def _status(fault: str, degraded: list[str] | None = None) -> JSONResponse:
    body: ProbeStatus = {"status": fault or "ok"}
    if degraded:
        body["degraded"] = degraded
    return JSONResponse(body, status_code=503 if fault else 200)
