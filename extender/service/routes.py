"""HTTP routes: bytes in, bytes out for the verbs; JSON for people and probes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from extender import __version__
from extender.core.requests import RequestError
from extender.service import wire
from extender.service.explanations import explain
from extender.service.verbs import UnavailableError

if TYPE_CHECKING:
    from extender.service.app import Service

_JSON: Final = "application/json"
_SCHEMAS: Final = "#/components/schemas/"


class BodyTooLargeError(Exception):
    """A request body over the limit."""


def install_routes(app: FastAPI, service: Service) -> None:
    """Give the app its routes."""
    _install_verbs(app, service)
    _install_operation(app, service)
    _install_explanations(app, service)
    _describe_wire(app)


def _install_verbs(app: FastAPI, service: Service) -> None:
    """What kube-scheduler calls."""
    max_body_mib = service.settings.server.max_body_mib

    def reply(began: float, verb: str, content: bytes, status: int = 200) -> Response:
        service.metrics.latency.labels(verb).observe(time.perf_counter() - began)
        return Response(content, status, {"Connection": "close"} if service.draining else None, _JSON)

    @app.post("/filter", openapi_extra=_operation("ExtenderArgs", "FilterResult"), tags=["kube-scheduler"])
    async def filter(request: Request) -> Response:
        """Which of the candidate nodes a pod may go to. A fault is a sentence in `Error`, always with status 200."""
        began = time.perf_counter()
        try:
            answer = service.verbs.filter(await _body(request, max_body_mib))
        except BodyTooLargeError as error:
            answer = wire.encode(wire.FilterResult(error=str(error)))
        return reply(began, "filter", answer)

    @app.post("/prioritize", openapi_extra=_operation("ExtenderArgs", "HostPriorityList"), tags=["kube-scheduler"])
    async def prioritize(request: Request) -> Response:
        """How good each candidate node is, 0 to 10. The protocol has no field for a fault: those get a status."""
        began = time.perf_counter()
        try:
            return reply(began, "prioritize", service.verbs.prioritize(await _body(request, max_body_mib)))
        except (wire.WireError, RequestError, BodyTooLargeError, UnavailableError) as error:
            status = (
                413 if isinstance(error, BodyTooLargeError) else 503 if isinstance(error, UnavailableError) else 400
            )
            return reply(began, "prioritize", wire.encode({"Error": str(error)}), status)

    @app.post("/bind", openapi_extra=_operation("ExtenderBindingArgs", "BindResult"), tags=["kube-scheduler"])
    async def bind(request: Request) -> Response:
        """Bind a pod to a node, with its GPUs. A fault is a sentence in `Error`, always with status 200."""
        began = time.perf_counter()
        try:
            answer = await service.verbs.bind(await _body(request, max_body_mib))
        except BodyTooLargeError as error:
            answer = wire.encode(wire.BindResult(str(error)))
        return reply(began, "bind", answer)


def _install_operation(app: FastAPI, service: Service) -> None:
    """What probes, Prometheus and administrators call."""

    @app.get("/healthz", tags=["operation"])
    async def healthz() -> dict[str, str]:
        """Alive."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "Not ready, with the reason."}})
    async def readyz() -> JSONResponse:
        """Ready once nodes and pods are synced, for as long as they are current."""
        fault = service.fault()
        return JSONResponse({"status": fault or "ok"}, status_code=503 if fault else 200)

    @app.get("/version", tags=["operation"])
    async def version() -> dict[str, str]:
        """Version, mode and policy."""
        decisions = service.settings.decisions
        return {"version": __version__, "mode": decisions.mode.value, "policy": decisions.policy}

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _install_explanations(app: FastAPI, service: Service) -> None:
    """What people call who want to know why."""

    @app.get(
        "/explain/pod/{namespace}/{name}",
        tags=["explanation"],
        responses={404: {"description": "No decision about this pod is kept."}},
    )
    async def explain_pod(namespace: str, name: str) -> JSONResponse:
        """The newest decision about a pod that is still kept: every candidate, what was required and available."""
        placement = service.placer.last(namespace, name)
        if placement is None:
            detail = f"no decision about pod {namespace}/{name} is kept; only the newest are"
            return JSONResponse({"detail": detail}, status_code=404)
        return JSONResponse(explain(placement))


async def _body(request: Request, max_mib: int) -> bytes:
    """The body of a request. Raises BodyTooLargeError."""
    max_bytes = max_mib * 1024 * 1024
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) <= max_bytes:
        return await request.body()
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise BodyTooLargeError(f"the request body is larger than {max_mib} MiB (setting server.max_body_mib)")
        chunks.append(chunk)
    return b"".join(chunks)


def _operation(request: str, answer: str) -> dict[str, Any]:
    """OpenAPI of a verb. The handlers read bytes, so FastAPI can't know."""

    def content(name: str) -> dict[str, Any]:
        return {_JSON: {"schema": {"$ref": _SCHEMAS + name}}}

    responses = {"200": {"description": "The answer.", "content": content(answer)}}
    if answer == "HostPriorityList":
        for status, description in (
            ("400", "The request can't be understood."),
            ("413", "The body is too large."),
            ("503", "The mirror of the cluster is not fit for use."),
        ):
            responses[status] = {"description": description, "content": content("Fault")}
    return {"requestBody": {"required": True, "content": content(request)}, "responses": responses}


def _describe_wire(app: FastAPI) -> None:
    """Put the wire types into the OpenAPI description."""
    _, components = msgspec.json.schema_components(
        (wire.ExtenderArgs, wire.FilterResult, wire.HostPriority, wire.ExtenderBindingArgs, wire.BindResult),
        ref_template=_SCHEMAS + "{name}",
    )
    components["HostPriorityList"] = {"type": "array", "items": {"$ref": _SCHEMAS + "HostPriority"}}
    components["Fault"] = {"type": "object", "properties": {"Error": {"type": "string"}}, "required": ["Error"]}
    generate: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        description = generate()
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in components.items():
            schemas.setdefault(name, schema)
        return description

    app.openapi = openapi  # type: ignore[method-assign]
