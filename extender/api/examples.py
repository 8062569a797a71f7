"""An example of each body in the OpenAPI description; tests hold each to its schema."""

from typing import Annotated, Any, Final, Literal, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

import msgspec

from extender.api import preemption_wire, wire
from extender.api.webhooks import reviews
from extender.core.vendors.registry import DEFAULT
from extender.explain.defrag.applying import Applied, Stopped
from extender.explain.defrag.room_answers import Figures, RoomAnswer
from extender.queueing.defrag.state import RoomState, state_of

_POD: Final[dict[str, Any]] = {
    "metadata": {"name": "train-1", "namespace": "research", "uid": "5f6c2f5e-6f0c-4e37-8c0e-1f6f3f3c9d11"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {DEFAULT.resource: "2"}}}]},
}
_JOB: Final = {
    **{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "research"}},
    "spec": {"parallelism": 2, "completions": 2, "template": {"spec": _POD["spec"]}},
}
_UID: Final = _POD["metadata"]["uid"]
_CANDIDATES: Final = {"Pod": _POD, "NodeNames": ["a100-0", "t4-1"]}
_REVIEW: Final = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "0d8ab0d8", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}, "object": _POD},
}

ASKED: Final[dict[str, Any]] = {
    **dict.fromkeys(("/filter", "/prioritize", "/others/filter", "/others/prioritize"), _CANDIDATES),
    "/preempt": {
        "Pod": _POD,
        "NodeNameToMetaVictims": {"a100-0": {"Pods": [{"UID": "77c1"}], "NumPDBViolations": 0}},
    },
    "/bind": {"PodName": "train-1", "PodNamespace": "research", "PodUID": _UID, "Node": "a100-0"},
    **dict.fromkeys(("/mutate", "/gate"), _REVIEW),
    "/what-if": {"objects": [_JOB], "drain": ["t4-1"]},
    "/defrag": {"for": "research/train-1", "maxMoves": 10},
    "/defrag/apply": {"id": "3f9a"},
    "/defrag/stop": {"why": "maintenance begins"},
}
"""Of each POST, what it takes."""

OF_TEXTS: Final = {
    "/metrics": 'kerf_cluster_nodes{kind="gpu"} 34.0\n',
    "/live": 'event: tick\ndata: {"waiting": {"total": 1}}\n\n',
}
"""Of the GETs that answer no JSON."""

_VICTIMS: Final = {"a100-0": preemption_wire.MetaVictims([preemption_wire.MetaPod("77c1")])}
_ANSWERED: Final[dict[type | str, Any]] = {
    wire.FilterResult: wire.FilterResult(
        node_names=msgspec.Raw(b'["a100-0"]'), failed={"t4-1": "needs 2 GPUs, best here: 1 free"}
    ),
    "HostPriorityList": [wire.HostPriority("a100-0", 10), wire.HostPriority("t4-1", 0)],
    wire.BindResult: wire.BindResult(),
    preemption_wire.PreemptionResult: preemption_wire.PreemptionResult(_VICTIMS),
    reviews.AdmissionAnswer: reviews.AdmissionAnswer(reviews.AdmissionResponse("0d8ab0d8", allowed=True)),
    RoomAnswer: RoomAnswer(False, [], 0.0, [], [], ["no moves help"], before=Figures(1, 8), after=Figures(1, 8)),
    RoomState: state_of(None, [], 0, ""),
    Applied: Applied("3f9a"),
    Stopped: Stopped(True),
}
"""Answers that are structs of msgspec."""

_OF_SCALARS: Final = {str: "", int: 0, float: 0.0, bool: False, dict: {}}


def of(kind: Any) -> Any:
    """An example of an answer's type, as JSON data. Of a TypedDict each key that is never missing: what stands beside
    its type, else nothing, the first of several values, a list of one TypedDict."""
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if origin is Annotated:
        return arguments[1]
    if kind in _ANSWERED:
        return msgspec.json.decode(msgspec.json.encode(_ANSWERED[kind]))
    if origin is Literal:
        return arguments[0]
    if origin is list:
        return [of(arguments[0])] if is_typeddict(arguments[0]) else []
    if type(None) in arguments:
        return of(arguments[0]) if is_typeddict(arguments[0]) else None
    if origin in _OF_SCALARS:
        return _OF_SCALARS[origin]
    keys = get_type_hints(kind, include_extras=True).items()
    return {name: of(value) for name, value in keys if get_origin(value) is not NotRequired}
