"""The extender protocol, `k8s.io/kube-scheduler/extender/v1`, as kube-scheduler really sends it.

The Go types have no JSON tags: keys are written `NodeNames`, and read case-insensitively, by Go and by Kerf. Victims of
preempt come by UID or as whole pods; the answer always has UIDs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, TypeVar

import msgspec

from extender.core.decisions import MAX_LEVEL
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.kube.transport import is_name
from extender.ledger.bound_pods import DemandingPod, SpecDemands

_ArgsT = TypeVar("_ArgsT")


class WireError(ValueError):
    """A request body can't be parsed; says where and why."""


class NodeList(msgspec.Struct, gc=False):
    """Whole Node objects, undecoded, since they are returned unchanged."""

    items: list[msgspec.Raw] | None = None


_NULL: Final = msgspec.Raw(b"null")

NamesField = Annotated[
    msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["array", "null"], "items": {"type": "string"}})
]
"""A list of names or null, decoded separately."""


class NodeNames:
    """Names of candidate nodes as undecoded JSON: there may be thousands, and mostly they need not be decoded.

    Node names have no characters that JSON escapes, so a name is a candidate if its quoted form is in the text.
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
        """Number of names; 0 if the JSON is not a list, arbitrary if it is not a list of names."""
        return self._raw.count(b",") + (self._raw != b"[]") if self._raw.startswith(b"[") else 0

    @property
    def num_bytes(self) -> int:
        """Size of the JSON."""
        return len(self._raw)

    @property
    def encoded(self) -> bytes:
        """The JSON."""
        return self._raw

    def decode(self) -> list[str]:
        """The names. Raises WireError."""
        try:
            return _names_decoder.decode(self._raw)
        except msgspec.DecodeError as error:
            text = str(error).replace("`$", "`$.NodeNames") if "`$" in str(error) else f"{error} - at `$.NodeNames`"
            raise WireError(f"the request can't be read: {text}") from None


class ExtenderArgs(msgspec.Struct, gc=False):
    """Body of filter and prioritize."""

    pod: objects.Pod | None = msgspec.field(name="Pod", default=None)
    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: NamesField = msgspec.field(name="NodeNames", default_factory=lambda: _NULL)


class PodCall(msgspec.Struct, frozen=True):
    """A call of filter or prioritize: a pod, and candidates in one of two forms."""

    pod: objects.Pod
    nodes: NodeList | None
    """Whole nodes."""
    names: NodeNames | None
    """Names only; they take precedence over nodes."""

    def candidates(self) -> list[str]:
        """Names of the candidates. Raises WireError."""
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
    """Answer of filter. `nodes` is for callers that send whole nodes."""

    nodes: NodeList | None = msgspec.field(name="Nodes", default=None)
    node_names: NamesField = msgspec.field(name="NodeNames", default_factory=lambda: _NULL)
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    unresolvable: dict[str, str] = msgspec.field(name="FailedAndUnresolvableNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct, gc=False):
    """One item of prioritize's answer."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class PriorityEncoder:
    """Encodes prioritize's answer; node names are encoded once per cluster, not in every call."""

    def __init__(self) -> None:
        self._node_names: tuple[str, ...] = ()
        self._heads: list[bytes] = []

    def encode(
        self, node_names: tuple[str, ...], rows: Sequence[int], scores: Sequence[int], unknown: Sequence[str] = ()
    ) -> bytes:
        """Items of some rows of `node_names` with their scores, then of `unknown` names with score 0."""
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
    """Encode filter's answer. kube-scheduler uses its texts as a format string for the pod's event
    (`handleSchedulingFailure` of pkg/scheduler/schedule_one.go), so percent signs in them are doubled."""
    if result.nodes is None:  # then there are only texts and node names, which have no percent signs
        return encode(result).replace(b"%", b"%%")
    failed, unresolvable = (
        {name: _as_format(text) for name, text in texts.items()} for texts in (result.failed, result.unresolvable)
    )
    escaped = msgspec.structs.replace(result, failed=failed, unresolvable=unresolvable, error=_as_format(result.error))
    return encode(escaped)


def encode_bind_result(error: str = "") -> bytes:
    """Encode bind's answer, with percent signs doubled as in `encode_filter_result`."""
    return encode(BindResult(_as_format(error)))


def _as_format(text: str) -> str:
    return text.replace("%", "%%")


_SCORE_TAILS: Final = [b"%d}," % score for score in range(MAX_LEVEL + 1)]
_names_decoder: Final = Decoder(list[str])
_args_decoder: Final = Decoder(ExtenderArgs)
_binding_decoder: Final = Decoder(ExtenderBindingArgs)
_fields_decoder: Final = Decoder(dict[str, msgspec.Raw])
_node_decoder: Final = Decoder(objects.Node)
_encoder: Final = msgspec.json.Encoder()

encode = _encoder.encode


def read_args(body: bytes) -> PodCall:
    """Parse the body of filter or prioritize. Raises WireError."""
    args = _decode(_args_decoder, body)
    if args.pod is None or (args.nodes is None and args.node_names == _NULL):
        args = _decode(_args_decoder, _with_exact_keys(body, ExtenderArgs))
    if args.pod is None:
        raise WireError("the request has no Pod")
    if args.nodes is not None:
        _check_text(body)  # which the answer repeats
    return PodCall(args.pod, args.nodes, None if args.node_names == _NULL else NodeNames(args.node_names))


def read_binding_args(body: bytes) -> ExtenderBindingArgs:
    """Parse the body of bind, all of whose fields are required. Raises WireError."""
    args = _decode(_binding_decoder, body)
    if not (args.pod_name and args.pod_namespace and args.pod_uid and args.node):
        args = _decode(_binding_decoder, _with_exact_keys(body, ExtenderBindingArgs))
    if not (args.pod_name and args.pod_namespace and args.pod_uid and args.node):
        fields = msgspec.structs.fields(ExtenderBindingArgs)
        missing = ", ".join(field.encode_name for field in fields if not getattr(args, field.name))
        raise WireError(f"the request has no {missing}")
    check_name("PodNamespace", args.pod_namespace)
    check_name("PodName", args.pod_name)
    return args


def check_name(key: str, name: str) -> None:
    """Raise WireError unless a name is valid in Kubernetes: names become parts of the API server's paths."""
    if not is_name(name):
        raise WireError(f"{key}: {name[:80]!r} is not a valid Kubernetes name")


def _decode(decoder: Decoder[_ArgsT], body: bytes | msgspec.Raw) -> _ArgsT:
    """Decode a body or a part of one. Raises WireError."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise WireError(f"the request can't be read: {error}") from None


def _check_text(body: bytes) -> None:
    """Raise WireError unless a body is UTF-8: values that are not read are not checked."""
    if body.isascii():
        return
    try:
        body.decode()
    except UnicodeDecodeError as error:
        raise WireError(f"the request can't be read: it is not UTF-8: {error}") from None


def _fields(raw: bytes | msgspec.Raw, names: Sequence[str]) -> dict[str, msgspec.Raw]:
    """A JSON object with its keys in the case of `names`; of keys that differ only in case, the last counts.

    Raises WireError.
    """
    exact = {name.lower(): name for name in names}
    return {exact.get(key.lower(), key): value for key, value in _decode(_fields_decoder, raw).items()}


def _with_exact_keys(body: bytes, kind: type[ExtenderArgs] | type[ExtenderBindingArgs]) -> bytes:
    """The same JSON object with its keys in the case of the Go types."""
    return _encoder.encode(_fields(body, [field.encode_name for field in msgspec.structs.fields(kind)]))


@dataclass(frozen=True, slots=True)
class Proposal:
    """Pods that kube-scheduler would evict from a node."""

    node: str
    uids: tuple[str, ...]
    """Without duplicates."""
    num_pdb_violations: int


@dataclass(frozen=True, slots=True)
class PreemptCall:
    """A call of preempt: a pod, and the proposed victims on each node."""

    pod: objects.Pod
    demands: SpecDemands
    proposals: list[Proposal]


Violations = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""Number of victims whose disruption budgets an eviction would violate."""


class MetaPod(msgspec.Struct, gc=False):
    """A pod by its UID only."""

    uid: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, gc=False):
    """The victims on one node."""

    pods: list[MetaPod] = msgspec.field(name="Pods", default_factory=list)
    num_pdb_violations: Violations = msgspec.field(name="NumPDBViolations", default=0)


class ProposedMetaVictims(msgspec.Struct, gc=False):
    """The proposed victims on one node; Go encodes an empty list as null."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: Violations | None = msgspec.field(name="NumPDBViolations", default=None)


class ProposedVictims(msgspec.Struct, gc=False):
    """The same with whole pods, if kube-scheduler sends whole objects."""

    pods: list[objects.Pod] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: Violations | None = msgspec.field(name="NumPDBViolations", default=None)


class ExtenderPreemptionArgs(msgspec.Struct, gc=False):
    """Body of preempt."""

    pod: objects.Pod | None = msgspec.field(name="Pod", default=None)
    victims: dict[str, ProposedVictims | None] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta_victims: dict[str, ProposedMetaVictims | None] | None = msgspec.field(
        name="NodeNameToMetaVictims", default=None
    )


class PreemptionResult(msgspec.Struct, gc=False):
    """Answer of preempt: the remaining nodes and their victims, by UID."""

    meta_victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default_factory=dict)


_list_decoder: Final[Decoder[list[msgspec.Raw] | None]] = Decoder(list[msgspec.Raw] | None)  # type: ignore[arg-type]
_violations_decoder: Final[Decoder[int | None]] = Decoder(Violations | None)  # type: ignore[arg-type]
_text_decoder: Final = Decoder(str)
_pod_decoder: Final = Decoder(objects.Pod)
_demands_decoder: Final = Decoder(DemandingPod)


def read_preemption_args(body: bytes) -> PreemptCall:
    """Parse the body of preempt in either form; UIDs take precedence. Raises WireError."""
    outer = _fields(body, ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims"))
    pod = outer.get("Pod", _NULL)
    if pod == _NULL:
        raise WireError("the request has no Pod")
    by_uid = _proposals(outer.get("NodeNameToMetaVictims", _NULL), _uid_of_meta)
    by_pod = _proposals(outer.get("NodeNameToVictims", _NULL), _uid_of_pod)
    demands = _decode(_demands_decoder, pod).spec
    proposals = by_uid if by_uid is not None else by_pod or []
    return PreemptCall(_decode(_pod_decoder, pod), demands, proposals)


def _proposals(raw: msgspec.Raw, uid_of: Callable[[msgspec.Raw], str]) -> list[Proposal] | None:
    """Proposals by node, None if the map is null. Raises WireError."""
    if raw == _NULL:
        return None
    result: list[Proposal] = []
    for node, raw_victims in _decode(_fields_decoder, raw).items():
        victims = {} if raw_victims == _NULL else _fields(raw_victims, ("Pods", "NumPDBViolations"))
        num_violations = _decode(_violations_decoder, victims.get("NumPDBViolations", _NULL)) or 0
        uids = [uid_of(pod) for pod in _decode(_list_decoder, victims.get("Pods", _NULL)) or ()]
        if not all(uids):
            raise WireError(f"a victim on node {node[:80]!r} has no UID")
        result.append(Proposal(node, tuple(dict.fromkeys(uids)), num_violations))
    return result


def _uid_of_meta(raw: msgspec.Raw) -> str:
    uid = _fields(raw, ("UID",)).get("UID")
    return "" if uid is None else _decode(_text_decoder, uid)


def _uid_of_pod(raw: msgspec.Raw) -> str:
    return _decode(_pod_decoder, raw).metadata.uid
