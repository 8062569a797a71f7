"""The extender protocol on the wire, `k8s.io/kube-scheduler/extender/v1`, as kube-scheduler really sends it.

The Go types carry no JSON tags: keys are written `NodeNames`, and Go reads them in any case. So does Kerf.
"""

from typing import Final, TypeVar

import msgspec

from extender.cluster import objects


class WireError(ValueError):
    """A request body that can't be understood; the sentence says where and why."""


class NodeList(msgspec.Struct, gc=False):
    """Whole Node objects; kept as they came, since they go back as they came."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(msgspec.Struct, gc=False):
    """Body of filter and prioritize."""

    pod: objects.Pod | None = msgspec.field(name="Pod", default=None)
    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)


class ExtenderBindingArgs(msgspec.Struct, gc=False):
    """Body of bind."""

    pod_name: str = msgspec.field(name="PodName", default="")
    pod_namespace: str = msgspec.field(name="PodNamespace", default="")
    pod_uid: str = msgspec.field(name="PodUID", default="")
    node: str = msgspec.field(name="Node", default="")


class FilterResult(msgspec.Struct, gc=False):
    """Answer of filter. `nodes` is what came, for callers that send whole nodes."""

    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(name="FailedAndUnresolvableNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct, gc=False):
    """One line of the answer of prioritize."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindResult(msgspec.Struct, gc=False):
    """Answer of bind; an empty error means bound."""

    error: str = msgspec.field(name="Error", default="")


ArgsT = TypeVar("ArgsT", ExtenderArgs, ExtenderBindingArgs)

_args_decoder: Final = msgspec.json.Decoder(ExtenderArgs)
_binding_decoder: Final = msgspec.json.Decoder(ExtenderBindingArgs)
_raw_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_node_decoder: Final = msgspec.json.Decoder(objects.Node)
_encoder: Final = msgspec.json.Encoder()

encode = _encoder.encode


def read_args(body: bytes) -> ExtenderArgs:
    """The body of filter or prioritize. Raises WireError."""
    args = _decode(_args_decoder, body)
    if args.pod is None or (args.nodes is None and args.node_names is None):
        args = _decode(_args_decoder, _with_exact_keys(body, ExtenderArgs))
    if args.pod is None:
        raise WireError("the request has no Pod")
    return args


def read_binding_args(body: bytes) -> ExtenderBindingArgs:
    """The body of bind, every field of it present. Raises WireError."""
    args = _decode(_binding_decoder, body)
    if not (args.pod_name and args.pod_namespace and args.pod_uid and args.node):
        args = _decode(_binding_decoder, _with_exact_keys(body, ExtenderBindingArgs))
    missing = [
        field.encode_name for field in msgspec.structs.fields(ExtenderBindingArgs) if not getattr(args, field.name)
    ]
    if missing:
        raise WireError(f"the request has no {', '.join(missing)}")
    return args


def names_of(nodes: NodeList) -> list[str]:
    """Names of whole Node objects. Raises WireError."""
    try:
        return [_node_decoder.decode(item).metadata.name for item in nodes.items or ()]
    except msgspec.DecodeError as error:
        raise WireError(f"a node of Nodes can't be read: {error}") from None


def _decode(decoder: msgspec.json.Decoder[ArgsT], body: bytes) -> ArgsT:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"the request can't be read: {error}") from None


def _with_exact_keys(body: bytes, kind: type[ExtenderArgs] | type[ExtenderBindingArgs]) -> bytes:
    """The same object with its keys in the case of the Go types; of keys that differ in case only, the last counts."""
    exact = {field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(kind)}
    try:
        raw = _raw_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WireError(f"the request can't be read: {error}") from None
    return _encoder.encode({exact.get(key.lower(), key): value for key, value in raw.items()})
