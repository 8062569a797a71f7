"""The calls and their types in the OpenAPI description: FastAPI knows nothing of what is answered ahead of it."""

from collections.abc import Callable, Sequence
from http import HTTPMethod
from typing import Any, Final

import msgspec
from fastapi import FastAPI

from extender.api import wire
from extender.api.calls import BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE, UNAVAILABLE, Call, Caller
from extender.server import access

_SCHEMAS: Final = "#/components/schemas/"
_FAULTS: Final = {
    BAD_REQUEST: "The request can't be understood.",
    TOO_LARGE: "The body is too large.",
    UNAVAILABLE: "The mirror of the cluster can't be used.",
    NOT_FOUND: "No such plan is kept.",
    REFUSED: "The plan can't be carried out, or another one is.",
}
_REFUSALS: Final = {
    "401": {"description": "No token, or an unknown one (docs/reference/access.md)."},
    "403": {"description": "Open to clients on loopback only."},
    "429": {"description": "Too many requests; `retry-after` says how long to wait."},
}
"""What the guard answers to readers."""


def describe_calls(app: FastAPI, calls: Sequence[Call]) -> None:
    """Add the calls to what `/openapi.json` tells."""
    components = _components(calls)
    paths = {call.path: {HTTPMethod.POST.lower(): _operation(call)} for call in calls}
    open_paths = access.PROBES | {call.path for call in calls if not call.caller.guarded}
    generate: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        description = generate()
        for path, operations in paths.items():
            description["paths"][path] = operations | description["paths"].get(path, {})
        for path, operations in description["paths"].items():
            if path not in open_paths:
                for operation in operations.values():
                    operation["responses"].update(_REFUSALS)
        schemas = description.setdefault("components", {}).setdefault("schemas", {})
        for name, schema in components.items():
            schemas.setdefault(name, schema)
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _operation(call: Call) -> dict[str, Any]:
    def content(kind: type | str) -> dict[str, Any]:
        name = kind if isinstance(kind, str) else kind.__name__
        return {"application/json": {"schema": {"$ref": _SCHEMAS + name}}}

    responses = {"200": {"description": "The answer.", "content": content(call.answers)}}
    for status in call.faults:
        responses[str(status)] = {"description": _FAULTS[status], "content": content("Fault")}
    return {
        "tags": [call.caller.value if call.caller.guarded else Caller.SCHEDULER.value],
        "summary": call.summary,
        "requestBody": {"required": True, "content": content(call.asks)},
        "responses": responses,
    }


def _components(calls: Sequence[Call]) -> dict[str, Any]:
    """Schemas of all bodies, by name."""
    kinds = {kind: None for call in calls for kind in (call.asks, call.answers) if not isinstance(kind, str)}
    _, components = msgspec.json.schema_components((*kinds, wire.HostPriority), ref_template=_SCHEMAS + "{name}")
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
    return dict(components)
