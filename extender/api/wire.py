"""The extender protocol on the wire, `k8s.io/kube-scheduler/extender/v1`, as kube-scheduler really sends it.

The Go types carry no JSON tags: keys are written `NodeNames`, and Go reads them in any case. So does Kerf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec

from extender.core.decisions import MAX_LEVEL
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.kube.paths import is_name


class WireError(ValueError):
    """A request body that can't be understood; the sentence says where and why."""


class NodeList(msgspec.Struct, gc=False):
    """Whole Node objects; kept as they came, since they go back as they came."""

    items: list[msgspec.Raw] | None = None


NULL: Final = msgspec.Raw(b"null")

NamesField = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": "string"}})
]
"""A list of names, or null, that is not decoded with the rest."""


class NodeNames:
    """Names of candidate nodes as they came: thousands of them are read as text unless each is needed.

    Node names hold nothing that JSON would escape, so a name is a candidate when it stands there in quotes.
    """

    __slots__ = ("_raw",)

    def __init__(self, raw: msgspec.Raw | bytes) -> None:
        self._raw = bytes(raw)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeNames) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)

    def __contains__(self, name: object, /) -> bool:
        return isinstance(name, str) and b'"%b"' % name.encode() in self._raw

    def __len__(self) -> int:
        """How many there are; in what is no list of names, some number, and 0 in what is no list at all."""
        return self._raw.count(b",") + (self._raw != b"[]") if self._raw.startswith(b"[") else 0

    @property
    def num_bytes(self) -> int:
        """Size of the text."""
        return len(self._raw)

    def decode(self) -> list[str]:
        """The names. Raises WireError."""
        try:
            return _names_decoder.decode(self._raw)
        except msgspec.DecodeError as error:
            text = str(error).replace("`$", "`$.NodeNames") if "`$" in str(error) else f"{error} - at `$.NodeNames`"
            raise WireError(f"the request can't be read: {text}") from None


class ExtenderArgs(msgspec.Struct, gc=False):
    """Body of filter and prioritize, as it is on the wire."""

    pod: objects.Pod | None = msgspec.field(name="Pod", default=None)
    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: NamesField = msgspec.field(name="NodeNames", default_factory=lambda: NULL)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of filter or prioritize: a pod, and candidates in one of two forms."""

    pod: objects.Pod
    nodes: NodeList | None
    """Whole nodes."""
    names: NodeNames | None
    """Names alone; they go first where both came."""

    def candidates(self) -> list[str]:
        """The candidates' names. Raises WireError."""
        if self.names is not None:
            return self.names.decode()
        try:
            return [_node_decoder.decode(item).metadata.name for item in (self.nodes and self.nodes.items) or ()]
        except msgspec.DecodeError as error:
            raise WireError(f"a node of Nodes can't be read: {error}") from None


class ExtenderBindingArgs(msgspec.Struct, gc=False):
    """Body of bind."""

    pod_name: str = msgspec.field(name="PodName", default="")
    pod_namespace: str = msgspec.field(name="PodNamespace", default="")
    pod_uid: str = msgspec.field(name="PodUID", default="")
    node: str = msgspec.field(name="Node", default="")


class FilterResult(msgspec.Struct, gc=False):
    """Answer of filter. `nodes` is what came, for callers that send whole nodes."""

    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: NamesField = msgspec.field(name="NodeNames", default_factory=lambda: NULL)
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(name="FailedAndUnresolvableNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct, gc=False):
    """One line of the answer of prioritize."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class PriorityEncoder:
    """Writes the answer of prioritize: the names of a cluster are put into JSON once, not in every call."""

    def __init__(self) -> None:
        self._node_names: tuple[str, ...] = ()
        self._heads: list[bytes] = []

    def encode(
        self, node_names: tuple[str, ...], rows: Sequence[int], scores: Sequence[int], unknown: Sequence[str] = ()
    ) -> bytes:
        """The lines of some rows of `node_names` with their scores, then of names that are no row's, with score 0."""
        if node_names is not self._node_names:
            self._heads = [b'{"Host":%b,"Score":' % encode(name) for name in node_names]
            self._node_names = node_names
        parts = [b""] * (2 * len(rows))
        parts[::2] = map(self._heads.__getitem__, rows)
        parts[1::2] = map(_SCORE_TAILS.__getitem__, scores)
        text = b"".join(parts) + b"".join(b'{"Host":%b,"Score":0},' % encode(name) for name in unknown)
        return b"[" + text[:-1] + b"]"


class BindResult(msgspec.Struct, gc=False):
    """Answer of bind; an empty error means bound."""

    error: str = msgspec.field(name="Error", default="")


def encode_filter_result(result: FilterResult) -> bytes:
    """The answer of filter. kube-scheduler takes its texts for a format when it makes the pod's event of them
    (`handleSchedulingFailure` of pkg/scheduler/schedule_one.go): a percent sign is written twice there."""
    if result.nodes is None:  # then names of nodes are all that is beside the texts, and they have none
        return encode(result).replace(b"%", b"%%")
    failed, unresolvable = (
        {name: _as_format(text) for name, text in texts.items()} for texts in (result.failed, result.unresolvable)
    )
    escaped = msgspec.structs.replace(result, failed=failed, unresolvable=unresolvable, error=_as_format(result.error))
    return encode(escaped)


def encode_bind_result(error: str = "") -> bytes:
    """The answer of bind, its text for the pod's event too."""
    return encode(BindResult(_as_format(error)))


def _as_format(text: str) -> str:
    return text.replace("%", "%%")


ArgsT = TypeVar("ArgsT")

_SCORE_TAILS: Final = [b"%d}," % score for score in range(MAX_LEVEL + 1)]
_names_decoder: Final = Decoder(list[str])
_args_decoder: Final = Decoder(ExtenderArgs)
_binding_decoder: Final = Decoder(ExtenderBindingArgs)
_fields_decoder: Final = Decoder(dict[str, msgspec.Raw])
_node_decoder: Final = Decoder(objects.Node)
_encoder: Final = msgspec.json.Encoder()

encode = _encoder.encode


def read_args(body: bytes) -> Asked:
    """The body of filter or prioritize. Raises WireError."""
    args = decode(_args_decoder, body)
    if args.pod is None or (args.nodes is None and args.node_names == NULL):
        args = decode(_args_decoder, _with_exact_keys(body, ExtenderArgs))
    if args.pod is None:
        raise WireError("the request has no Pod")
    return Asked(args.pod, args.nodes, None if args.node_names == NULL else NodeNames(args.node_names))


def read_binding_args(body: bytes) -> ExtenderBindingArgs:
    """The body of bind, every field of it present. Raises WireError."""
    args = decode(_binding_decoder, body)
    if not (args.pod_name and args.pod_namespace and args.pod_uid and args.node):
        args = decode(_binding_decoder, _with_exact_keys(body, ExtenderBindingArgs))
    if not (args.pod_name and args.pod_namespace and args.pod_uid and args.node):
        fields = msgspec.structs.fields(ExtenderBindingArgs)
        missing = ", ".join(field.encode_name for field in fields if not getattr(args, field.name))
        raise WireError(f"the request has no {missing}")
    check_name("PodNamespace", args.pod_namespace)
    check_name("PodName", args.pod_name)
    return args


def check_name(key: str, name: str) -> None:
    """Raise WireError unless a name is one that Kubernetes takes: names become parts of the API server's paths."""
    if not is_name(name):
        raise WireError(f"{key}: {name[:80]!r} is not a valid Kubernetes name")


def decode(decoder: Decoder[ArgsT], body: bytes | msgspec.Raw) -> ArgsT:
    """A body, or a part of one. Raises WireError."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WireError(f"the request can't be read: {error}") from None


def fields(raw: bytes | msgspec.Raw, names: Sequence[str]) -> dict[str, msgspec.Raw]:
    """An object with these keys in the case of the Go types; of keys that differ in case only, the last counts.

    Raises WireError.
    """
    exact = {name.lower(): name for name in names}
    return {exact.get(key.lower(), key): value for key, value in decode(_fields_decoder, raw).items()}


def _with_exact_keys(body: bytes, kind: type[ExtenderArgs] | type[ExtenderBindingArgs]) -> bytes:
    """The same object with its keys in the case of the Go types."""
    return _encoder.encode(fields(body, [field.encode_name for field in msgspec.structs.fields(kind)]))
