"""Adds the calls, which bypass FastAPI, and an example of each body to the OpenAPI description.

Tests check the examples against their schemas.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from http import HTTPMethod
from typing import Annotated, Any, Final, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import msgspec
from fastapi import FastAPI, Response

from extender.api import reviews, wire
from extender.api.posts import BAD_REQUEST, NOT_FOUND, REFUSED, TOO_LARGE, UNAVAILABLE, Call, Caller
from extender.api.readiness import Stale
from extender.api.reads import Detail, ProbeStatus, RunningVersion
from extender.core.vendors.registry import DEFAULT
from extender.server import access

EXAMPLE_POD: Final[Mapping[str, Any]] = {
    "metadata": {"name": "train-1", "namespace": "research", "uid": "5f6c2f5e-6f0c-4e37-8c0e-1f6f3f3c9d11"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {DEFAULT.resource: "2"}}}]},
}
EXAMPLE_JOB: Final[Mapping[str, Any]] = {
    **{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "research"}},
    "spec": {"parallelism": 2, "completions": 2, "template": {"spec": EXAMPLE_POD["spec"]}},
}
_UID: Final = EXAMPLE_POD["metadata"]["uid"]
_CANDIDATES: Final = {"Pod": EXAMPLE_POD, "NodeNames": ["a100-0", "t4-1"]}

_ASKED: Final[dict[str, Any]] = {
    **dict.fromkeys(("/filter", "/prioritize", "/others/filter", "/others/prioritize"), _CANDIDATES),
    "/preempt": {
        "Pod": EXAMPLE_POD,
        "NodeNameToMetaVictims": {"a100-0": {"Pods": [{"UID": "77c1"}], "NumPDBViolations": 0}},
    },
    "/bind": {"PodName": "train-1", "PodNamespace": "research", "PodUID": _UID, "Node": "a100-0"},
}
"""Example bodies of the kernel's POSTs, by path."""

_OF_TEXTS: Final = {
    "/metrics": 'kerf_cluster_nodes{kind="gpu"} 34.0\n',
    "/live": 'event: tick\ndata: {"waiting": {"total": 1}}\n\n',
}
"""Example answers of GETs that are not JSON, by path."""

_VICTIMS: Final = {"a100-0": wire.MetaVictims([wire.MetaPod("77c1")])}
_ANSWERED: Final[dict[type | str, Any]] = {
    wire.FilterResult: wire.FilterResult(
        node_names=msgspec.Raw(b'["a100-0"]'), failed={"t4-1": "needs 2 GPUs, best here: 1 free"}
    ),
    "HostPriorityList": [wire.HostPriority("a100-0", 10), wire.HostPriority("t4-1", 0)],
    wire.BindResult: wire.BindResult(),
    wire.PreemptionResult: wire.PreemptionResult(_VICTIMS),
    reviews.AdmissionAnswer: reviews.AdmissionAnswer(reviews.AdmissionResponse("0d8ab0d8", allowed=True)),
}
"""Example answers of the kernel that are msgspec structs, by type or schema name."""

_OF_SCALARS: Final = {str: "", int: 0, float: 0.0, bool: False, dict: {}}


def _of(kind: Any, structs: Mapping[type | str, Any]) -> Any:
    """An example of an answer's type, as JSON data.

    A TypedDict has all its required keys, with the example given in `Annotated`, else an empty value, the first
    Literal, or a list of one TypedDict. `structs` has the examples of other types.
    """
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return arguments[1]
    if kind in structs:
        return msgspec.json.decode(msgspec.json.encode(structs[kind]))
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [_of(arguments[0], structs)] if is_typeddict(arguments[0]) else []
    if type(None) in arguments:
        return _of(arguments[0], structs) if is_typeddict(arguments[0]) else None
    if origin in _OF_SCALARS:
        return _OF_SCALARS[origin]
    keys = get_type_hints(kind, include_extras=True).items()
    return {name: _of(value, structs) for name, value in keys if get_origin(value) is not NotRequired}


_SCHEMAS: Final = "#/components/schemas/"
_FAULTS: Final = {
    BAD_REQUEST: "The request can't be parsed.",
    TOO_LARGE: "The body is too large.",
    UNAVAILABLE: "Kerf's view of the cluster is stale.",
    NOT_FOUND: "The named object does not exist, or no longer.",
    REFUSED: "It can't be done now; gives the reason.",
}
_REFUSALS: Final = {
    "401": {"description": "No token, or an unknown one (docs/reference/access.md)."},
    "403": {"description": "Open to clients on loopback only."},
    "429": {"description": "Too many requests; `retry-after` says how long to wait."},
}
"""Error answers of the guard to readers."""


_CERTIFICATE, _TOKEN, _OPERATOR = "clientCertificate", "readerToken", "operatorToken"
_SECURITY: Final = {
    _CERTIFICATE: {
        "type": "mutualTLS",
        "description": "A client certificate of the CA in server.tls_client_ca_file, if set: kube-scheduler's; "
        "readers may use one too.",
    },
    _TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of access.token_file. Clients on loopback need none by default (access.open_to).",
    },
    _OPERATOR: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of access.apply_token_file; nothing else is accepted (docs/reference/access.md).",
    },
}
_ANYBODY: Final[dict[str, list[str]]] = {}
_READERS: Final = [{_TOKEN: []}, {_CERTIFICATE: []}, {_OPERATOR: []}, _ANYBODY]
"""The last is for clients on loopback, or others that access.open_to allows."""
_ALLOWED: Final = {
    Caller.SCHEDULER: [{_CERTIFICATE: []}, _ANYBODY],
    Caller.API_SERVER: [],
    Caller.READER: _READERS,
    Caller.OPERATOR: [{_OPERATOR: []}],
}
_TEXT: Final = {"type": "string"}
_BINARY: Final = {"type": "string", "format": "binary"}


def operation_id(name: str) -> str:
    """The name in camel case: `explain_pod` and `explain-pod` become `explainPod`."""
    first, *rest = name.replace("-", "_").split("_")
    return first + "".join(word.capitalize() for word in rest)


def describe_calls(
    app: FastAPI, calls: Sequence[Call], reads: Mapping[str, type], examples: Mapping[type | str, Any]
) -> None:
    """Add the calls, and the answers of the paths of `reads`, to the app's OpenAPI description.

    Schemas are made when the description is first requested. `examples` are those of parts' answers.
    """
    structs = {**_ANSWERED, **examples}
    open_paths = access.PROBES | {call.path for call in calls if not call.caller.guarded}
    generate: Callable[[], dict[str, Any]] = app.openapi
    components = cache(partial(_components, calls, reads))

    def openapi() -> dict[str, Any]:
        description = generate()
        for call in calls:
            operations = {HTTPMethod.POST.lower(): _operation(call, structs)}
            description["paths"][call.path] = operations | description["paths"].get(call.path, {})
        for path, operations in description["paths"].items():
            if read := operations.get("get"):
                _describe_read(path, read, reads.get(path, Response), structs)
            if path not in open_paths:
                for operation in operations.values():
                    operation["responses"].update(_REFUSALS)
        all_components = description.setdefault("components", {})
        all_components["securitySchemes"] = _SECURITY
        for name, schema in components().items():
            all_components.setdefault("schemas", {}).setdefault(name, schema)
        return description

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_read(path: str, operation: dict[str, Any], kind: type, structs: Mapping[type | str, Any]) -> None:
    """Add what FastAPI does not know of a GET: the type of its answer, an example, and its callers."""
    public = path in access.PROBES or path == access.METRICS
    operation["security"] = [] if public else _READERS
    answer = operation["responses"]["200"]
    if kind is Response:
        example = {"example": _OF_TEXTS[path]} if path in _OF_TEXTS else {}
        schema = _TEXT if example else _BINARY
        answer["content"] = {form: {"schema": schema, **example} for form in answer["content"]}
    else:
        answer["content"] = _content(kind, _of(kind, structs))
    fault = _content(ProbeStatus if path in access.PROBES else Detail)
    for status, response in operation["responses"].items():
        if status not in ("200", "422"):
            response["content"] = (
                fault if kind is not Response or path == "/history" else {"text/plain": {"schema": _TEXT}}
            )


def _content(kind: type | str, example: Any = None) -> dict[str, Any]:
    name = kind if isinstance(kind, str) else kind.__name__
    examples = {} if example is None else {"example": example}
    return {"application/json": {"schema": {"$ref": _SCHEMAS + name}, **examples}}


def _operation(call: Call, structs: Mapping[type | str, Any]) -> dict[str, Any]:
    answered = _content(call.answers, _of(call.answers, structs))
    request = _ASKED[call.path] if call.example is None else call.example
    responses = {"200": {"description": "The answer.", "content": answered}}
    for status in call.faults:
        responses[str(status)] = {"description": _FAULTS[status], "content": _content("Fault")}
    return {
        "tags": [call.caller.value if call.caller.guarded else Caller.SCHEDULER.value],
        "summary": call.summary,
        "operationId": operation_id(call.verb),
        "security": _ALLOWED[call.caller],
        "requestBody": {"required": True, "content": _content(call.asks, request)},
        "responses": responses,
    }


def _components(calls: Sequence[Call], reads: Mapping[str, type]) -> dict[str, Any]:
    """Schemas of all bodies, by name."""
    bodies = {kind for call in calls for kind in (call.asks, call.answers) if not isinstance(kind, str)}
    answers = set(reads.values()) - {Response}
    kinds = (*bodies, *answers, Detail, Stale, wire.HostPriority)
    _, components = msgspec.json.schema_components(kinds, ref_template=_SCHEMAS + "{name}")
    # msgspec can't know that answers always have all their keys, nor which parts of a request are required.
    for name in ("FilterResult", "PreemptionResult", "BindResult", "ExtenderBindingArgs"):
        components[name]["required"] = list(components[name]["properties"])
    for value in components["ExtenderBindingArgs"]["properties"].values():
        del value["default"]
        value["minLength"] = 1
    for name in ("ExtenderArgs", "ExtenderPreemptionArgs"):
        components[name]["required"] = ["Pod"]
        components[name]["properties"]["Pod"] = {"$ref": _SCHEMAS + "Pod"}
    # All answers about the cluster may carry the age of a stale view.
    stale = components.pop(Stale.__name__)["properties"]
    for kind in (answers | {Detail}) - {ProbeStatus, RunningVersion}:
        components[kind.__name__]["properties"] |= stale
    components["HostPriorityList"] = {"type": "array", "items": {"$ref": _SCHEMAS + "HostPriority"}}
    components["Fault"] = {"type": "object", "properties": {"Error": {"type": "string"}}, "required": ["Error"]}
    return dict(components)
