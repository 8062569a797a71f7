"""HTTP routes: bytes in, bytes out for the verbs; JSON for people and probes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import FastAPI, Query, Response
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from extender import __version__
from extender.cluster.transports import ClusterError
from extender.core.quantities import MIB
from extender.core.requests import NO_REQUEST, RequestError
from extender.service import admissions, gates, guards, wire
from extender.service.enquiries import EnquiryError
from extender.service.explanations import explain
from extender.service.protocols import CLIENT_CERTIFICATE
from extender.service.rates import Rates
from extender.service.remedies import Question, now, settled, suggestions
from extender.service.telemetries import describe, interference_of
from extender.service.trial_plans import TrialError, WhatIf
from extender.service.trials import BusyError
from extender.service.verbs import UnavailableError

if TYPE_CHECKING:
    from extender.service.app import Service

_JSON: Final = "application/json"
_BURST_S: Final = 4
_MANY: Final = 1 << 30
_SCHEMAS: Final = "#/components/schemas/"


_FAULTS: Final = {
    "400": "The request can't be understood.",
    "413": "The body is too large.",
    "503": "The mirror of the cluster is not fit for use.",
}
_FAULT_STATUSES: Final = {
    "HostPriorityList": ("400", "413", "503"),
    "PreemptionResult": ("400", "413"),
    "WhatIfResult": ("400", "413", "503"),
}
"""Of the verbs whose answers have no field for a fault."""

_REFUSALS: Final = {
    "401": {"description": "No token, or an unknown one (docs/access.md)."},
    "403": {"description": "Open to clients on loopback only."},
    "429": {"description": "Too many calls; `retry-after` says for how long to wait."},
}
"""What the guard answers to readers."""
_NO_CERTIFICATE: Final = guards.Refusal(403, "a client certificate is needed (setting server.tls_client_ca_file)")

_Reply = tuple[int, bytes]
"""Status and body."""


class BodyTooLargeError(Exception):
    """A request body over the limit."""


class KerfApp(FastAPI):
    """A FastAPI application that answers the verbs ahead of routing and middleware: those cost more than a decision."""

    verbs: Mapping[str, ASGIApp] = {}
    """By path; what is not a POST to one of them is FastAPI's, behind the guard."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        verb = self.verbs.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (verb or super().__call__)(scope, receive, send)


def install_routes(app: KerfApp, service: Service) -> None:
    """Give the app its routes."""
    app.verbs = _verbs(service)
    for path, endpoint in (*app.verbs.items(), ("/what-if", _what_if(service))):
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))  # answers other methods with 405
    app.add_middleware(guards.Guard, settings=service.settings.access)
    _install_operation(app, service)
    _install_explanations(app, service)
    _describe_wire(app)


def _verbs(service: Service) -> Mapping[str, ASGIApp]:
    """What kube-scheduler calls, by path."""
    verbs = service.verbs

    def devices() -> admissions.Devices:
        return admissions.settled(service.settings.webhook.devices, service.placer.snapshot())

    async def filter(body: bytes) -> _Reply:
        return 200, verbs.filter(body)

    async def filter_others(body: bytes) -> _Reply:
        return 200, verbs.filter(body, others=True)

    async def prioritize_others(body: bytes) -> _Reply:
        return await prioritize(body, others=True)

    async def prioritize(body: bytes, *, others: bool = False) -> _Reply:
        try:
            return 200, verbs.prioritize(body, others=others)
        except (wire.WireError, RequestError) as error:
            return 400, _fault(error)
        except UnavailableError as error:
            return 503, _fault(error)

    async def preempt(body: bytes) -> _Reply:
        try:
            return 200, await verbs.preempt(body)
        except wire.WireError as error:
            return 400, _fault(error)

    async def mutate(body: bytes) -> _Reply:
        return 200, admissions.mutate(body, devices)

    async def gate(body: bytes) -> _Reply:
        return 200, gates.gate(body)

    async def bind(body: bytes) -> _Reply:
        return 200, await verbs.bind(body)

    def filter_too_large(error: BodyTooLargeError) -> _Reply:
        return 200, wire.encode(wire.FilterResult(error=str(error)))

    def mutate_too_large(error: BodyTooLargeError) -> _Reply:
        return 200, admissions.allow("", str(error))

    def bind_too_large(error: BodyTooLargeError) -> _Reply:
        return 200, wire.encode(wire.BindResult(str(error)))

    return {
        "/filter": VerbEndpoint("filter", filter, filter_too_large, service),
        "/prioritize": VerbEndpoint("prioritize", prioritize, _too_large, service),
        # The second entry of kube-scheduler's configuration, which it may skip: extender.cluster.managed.
        "/others/filter": VerbEndpoint("others-filter", filter_others, filter_too_large, service),
        "/others/prioritize": VerbEndpoint("others-prioritize", prioritize_others, _too_large, service),
        "/preempt": VerbEndpoint("preempt", preempt, _too_large, service),
        # The API server has no certificate for them by default, and there is nothing to be had by them.
        "/mutate": VerbEndpoint("mutate", mutate, mutate_too_large, service, caller=Caller.API_SERVER),
        "/gate": VerbEndpoint("gate", gate, mutate_too_large, service, caller=Caller.API_SERVER),
        "/bind": VerbEndpoint("bind", bind, bind_too_large, service),
    }


def _what_if(service: Service) -> ASGIApp:
    """What people ask with a body."""

    async def what_if(body: bytes) -> _Reply:
        if fault := service.mirror.fault():
            return 503, _fault(UnavailableError(fault))
        try:
            return 200, await service.trials.answer(body)
        except TrialError as error:
            return 400, _fault(error)
        except (ClusterError, BusyError) as error:
            return 503, _fault(error)

    return VerbEndpoint("what-if", what_if, _too_large, service, caller=Caller.READER)


def _too_large(error: BodyTooLargeError) -> _Reply:
    return 413, _fault(error)


class Caller(Enum):
    """Who an endpoint is for, which settles what it asks of a caller."""

    SCHEDULER = "kube-scheduler"
    """A certificate, where there is a CA for them."""
    API_SERVER = "the API server"
    """Nothing."""
    READER = "people"
    """Nothing more than the guard has asked."""


class VerbEndpoint:
    """One verb as an ASGI application: the whole body in, one answer out."""

    def __init__(
        self,
        verb: str,
        answer: Callable[[bytes], Awaitable[_Reply]],
        too_large: Callable[[BodyTooLargeError], _Reply],
        service: Service,
        *,
        caller: Caller = Caller.SCHEDULER,
    ) -> None:
        settings = service.settings
        self._answer = answer
        self._too_large = too_large
        self._service = service
        section = {Caller.READER: "access", Caller.API_SERVER: "webhook"}.get(caller, "server")
        calls_per_s = settings.webhook.calls_per_s
        burst = max(int(_BURST_S * calls_per_s), 1)
        self._rates = Rates(calls_per_s, burst, _MANY, time.monotonic) if section == "webhook" else None
        self._max_mib: int = getattr(settings, section).max_body_mib
        self._max_setting = f"{section}.max_body_mib"
        self._latency = service.metrics.latency.labels(verb)
        self._is_verb = caller is Caller.SCHEDULER
        self._needs_certificate = self._is_verb and settings.server.tls_client_ca_file is not None
        self._own_hosts = frozenset(settings.access.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        if self._needs_certificate and not scope.get("state", {}).get(CLIENT_CERTIFICATE):
            await guards.refuse(_NO_CERTIFICATE, send, "Error")
            return
        if self._rates is not None and (wait_s := self._rates.wait_s(guards.client_of(scope))):
            await guards.refuse(guards.too_many("webhook.calls_per_s", wait_s), send, "Error")
            return
        if self._is_verb and (foreign := guards.foreign_page(scope, self._own_hosts)):
            await guards.refuse(foreign, send, "Error")
            return
        try:
            status, content = await self._answer(await self._body(receive))
        except BodyTooLargeError as error:
            status, content = self._too_large(error)
        except ClientDisconnect:
            return  # nobody is left to answer
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        if self._service.draining:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})
        self._latency.observe(time.perf_counter() - began)

    async def _body(self, receive: Receive) -> bytes:
        """The body of a request. Raises BodyTooLargeError, ClientDisconnect."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > self._max_mib * MIB:
                raise BodyTooLargeError(
                    f"the request body is larger than {self._max_mib} MiB (setting {self._max_setting})"
                )
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks)


def _install_operation(app: FastAPI, service: Service) -> None:
    """What probes, Prometheus and administrators call."""

    @app.get("/healthz", tags=["operation"], responses={503: {"description": "To be restarted, with the reason."}})
    async def healthz() -> JSONResponse:
        """Alive: nothing that is needed has died again and again. Where it has, a restart is the remedy."""
        return _status(service.hopeless())

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "Not ready, with the reason."}})
    async def readyz() -> JSONResponse:
        """Ready where this replica leads, once nodes and pods are synced, for as long as they are current."""
        return _status(service.fault(), service.degraded())

    @app.get("/syncz", tags=["operation"], responses={503: {"description": "Not synced, with the reason."}})
    async def syncz() -> JSONResponse:
        """Synced: ready to decide, or to take over. What a sidecar's kube-scheduler has to wait for."""
        return _status(service.mirror.fault())

    @app.get("/telemetry", tags=["operation"])
    async def telemetry() -> JSONResponse:
        """Where samples of GPUs come from, how old they are, and which nodes they were matched to."""
        return JSONResponse(describe(service.observer, service.owners))

    @app.get("/model", tags=["operation"])
    async def model() -> JSONResponse:
        """The learned rank: its model, the mix of pods that it expects, and whether it is served."""
        return JSONResponse(service.rank.describe())

    @app.get("/version", tags=["operation"])
    async def version() -> dict[str, str]:
        """Version, mode and policy."""
        policy = service.placer.policy_of(NO_REQUEST)
        return {"version": __version__, "mode": service.settings.decisions.mode.value, "policy": policy.name}

    @app.get("/metrics", tags=["operation"], response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _install_explanations(app: FastAPI, service: Service) -> None:
    """What people call who want to know why."""

    @app.get(
        "/explain/pod/{namespace}/{name}",
        tags=["explanation"],
        responses={404: {"description": "No decision about this pod is kept, and it is not pending for GPUs."}},
    )
    async def explain_pod(namespace: str, name: str) -> Response:
        """Why a pod is where it is, or is pending: the newest decision that is still kept, and how it looks by now.

        Of a pending pod that no decision is kept of: what it would be now, among all nodes, with `offered` false.
        """
        kept = service.placer.last(namespace, name)
        try:
            placement = kept or await service.enquiries.consider(namespace, name)
        except EnquiryError as error:
            return JSONResponse({"detail": str(error)}, status_code=404)
        question = service.remedies.ask(placement)
        # In a thread: what is asked by people must not keep kube-scheduler waiting.
        told = await asyncio.to_thread(_explained, question)
        told["offered"] = kept is not None
        if kept is None:
            told = {"wouldFit": []} | told | {"verdict": "unasked"}
        for suggestion in told.get("wouldFit", []):
            if suggestion["change"] == "room":
                suggestion.update(service.remedies.occupied(question, suggestion["nodes"][0]))
        if (cost := interference_of(placement, service.owners)) is not None:
            told["interference"] = cost
        content = await asyncio.to_thread(wire.encode, told)  # megabytes where there are thousands of candidates
        return Response(content, media_type=_JSON)

    @app.get("/nodes", tags=["explanation"])
    async def nodes(
        limit: Annotated[int, Query(ge=1, le=1000, description="How many at most.")] = 100,
        after: Annotated[str, Query(max_length=253, description="The `next` of the page before.")] = "",
        gpus: Annotated[bool, Query(description="Only nodes with GPUs.")] = False,
    ) -> JSONResponse:
        """What is booked and used: totals of the cluster, and its nodes page by page."""
        return JSONResponse(service.overviews.page(limit, after, gpus_only=gpus))

    @app.get(
        "/nodes/{node}",
        tags=["explanation"],
        responses={404: {"description": "There is no node of that name."}},
    )
    async def one_node(node: str) -> JSONResponse:
        """A node's GPUs, what is booked and used of each, and who holds them."""
        told = service.overviews.node(node)
        if told is None:
            return JSONResponse({"detail": f"no node is named {node}"}, status_code=404)
        return JSONResponse(told | {"holders": service.remedies.held_on(node)})


def _explained(question: Question) -> dict[str, Any]:
    told = explain(question.placement, question.rules, question.policy.rules)
    told["now"] = now(question)
    told |= settled(question)
    if told["verdict"] != "placed":
        told["wouldFit"] = suggestions(question)
    return told


def _status(fault: str, degraded: list[str] | None = None) -> JSONResponse:
    body: dict[str, Any] = {"status": fault or "ok"}
    if degraded:
        body["degraded"] = degraded
    return JSONResponse(body, status_code=503 if fault else 200)


def _fault(error: Exception) -> bytes:
    return wire.encode({"Error": str(error)})


def _operation(summary: str, request: str, answer: str, tag: str = "kube-scheduler") -> dict[str, Any]:
    """OpenAPI of a verb; FastAPI knows nothing of the plain routes."""

    def content(name: str) -> dict[str, Any]:
        return {_JSON: {"schema": {"$ref": _SCHEMAS + name}}}

    responses = {"200": {"description": "The answer.", "content": content(answer)}}
    for status in _FAULT_STATUSES.get(answer, ()):
        responses[status] = {"description": _FAULTS[status], "content": content("Fault")}
    return {
        "post": {
            "tags": [tag],
            "summary": summary,
            "requestBody": {"required": True, "content": content(request)},
            "responses": responses,
        }
    }


def _describe_wire(app: KerfApp) -> None:
    """Put the verbs and their types into the OpenAPI description."""
    _, components = msgspec.json.schema_components(
        (
            *(wire.ExtenderArgs, wire.FilterResult, wire.HostPriority, wire.ExtenderBindingArgs, wire.BindResult),
            *(wire.ExtenderPreemptionArgs, wire.PreemptionResult),
            *(admissions.AdmissionReview, admissions.AdmissionAnswer),
            WhatIf,
        ),
        ref_template=_SCHEMAS + "{name}",
    )
    # What msgspec can't know: answers always have all their keys, and which parts of a request have to be there.
    for name in ("FilterResult", "PreemptionResult", "BindResult", "ExtenderBindingArgs"):
        components[name]["required"] = list(components[name]["properties"])
    for value in components["ExtenderBindingArgs"]["properties"].values():
        del value["default"]
        value["minLength"] = 1
    for name in ("ExtenderArgs", "ExtenderPreemptionArgs"):
        components[name]["required"] = ["Pod"]
        components[name]["properties"]["Pod"] = {"$ref": _SCHEMAS + "Pod"}
    components["HostPriorityList"] = {"type": "array", "items": {"$ref": _SCHEMAS + "HostPriority"}}
    components["WhatIfResult"] = {
        "type": "object",
        "required": ["pods", "placed", "assignments", "unassigned", "reasons"],
    }
    components["Fault"] = {"type": "object", "properties": {"Error": {"type": "string"}}, "required": ["Error"]}
    verbs = {
        "/filter": _operation(
            "Which candidate nodes a pod may go to. A fault is a sentence in Error, always with status 200.",
            "ExtenderArgs",
            "FilterResult",
        ),
        "/prioritize": _operation(
            "How good each candidate node is, 0 to 10. The protocol has no field for a fault: those get a status.",
            "ExtenderArgs",
            "HostPriorityList",
        ),
        "/others/filter": _operation(
            "As /filter, for the second extender entry: GPU pods of the first pass, those of neither are refused.",
            "ExtenderArgs",
            "FilterResult",
        ),
        "/others/prioritize": _operation(
            "As /prioritize, for the second extender entry: no scores for pods of the first.",
            "ExtenderArgs",
            "HostPriorityList",
        ),
        "/preempt": _operation(
            "Which evictions would make room for a pod, and which of them it needs. In doubt none.",
            "ExtenderPreemptionArgs",
            "PreemptionResult",
        ),
        "/mutate": _operation(
            "What the containers of a pod are told about its GPUs. Always allowed, a fault is a warning.",
            "AdmissionReview",
            "AdmissionAnswer",
        ),
        "/gate": _operation(
            "A pod that opts in gets the scheduling gate of the queue. Always allowed, a fault is a warning.",
            "AdmissionReview",
            "AdmissionAnswer",
        ),
        "/bind": _operation(
            "Bind a pod to a node, with its GPUs. A fault is a sentence in Error, always with status 200.",
            "ExtenderBindingArgs",
            "BindResult",
        ),
        "/what-if": _operation(
            "Where a batch of pods would go and what would stay pending, on a copy of the cluster. Changes nothing.",
            "WhatIf",
            "WhatIfResult",
            "explanation",
        ),
    }
    generate: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        description = generate()
        description["paths"] = verbs | description["paths"]
        for path, operations in description["paths"].items():
            if path not in guards.PROBES and path not in app.verbs:
                for operation in operations.values():
                    operation["responses"].update(_REFUSALS)
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in components.items():
            schemas.setdefault(name, schema)
        return description

    app.openapi = openapi  # type: ignore[method-assign]
