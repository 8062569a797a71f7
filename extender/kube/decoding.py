"""Decoding what the API server sends, as deep as it may be: objects go to 10,000 levels there, msgspec to about 1,000.

Whoever writes an object can nest what Kerf never reads: the parameters of a ResourceClaim's driver, a pod's own
`managedFields`. So what can't be decoded for its depth is decoded once more without what lies deeper than anything
that Kerf reads. And null is read as Go reads it. Ordinary objects are decoded as by msgspec alone, in one
pass.

What Go writes as null read as what it is: absent, or empty.

Go's encoder knows no absence of a value that is no pointer: a time that is not set, a slice and a map that nobody made
are null unless the field says `omitempty`, and before Kubernetes 1.34 many say nothing (`creationTimestamp` of every
object that is not stored yet, as webhooks see it, and of every template). Go's decoder takes null back for any field:
so does this, for any structure, by the structure's own types.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, Generic, TypeVar

import msgspec

from extender.kube import objects

T = TypeVar("T")

_Text = bytes | bytearray | msgspec.Raw

_NULL: Final = msgspec.Raw(b"null")
_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_type_of: Final = cache(msgspec.inspect.type_info)


def _without_nulls(content: _Text, kind: Any) -> bytes:
    """The JSON of a type without the nulls that the type does not take: fields are left out, items of lists and values
    of maps are empty instead, as Go decodes them. What else is wrong with it stays so; the whole may be no null."""
    raw = msgspec.Raw(content)
    return bytes(raw if raw == _NULL else _filled(raw, _type_of(kind)))


def _filled(content: msgspec.Raw, kind: msgspec.inspect.Type) -> msgspec.Raw:
    if content == _NULL:
        return content if _takes_null(kind) else _zero(kind)
    try:
        match _one_of(kind):
            case msgspec.inspect.StructType(fields=fields):
                return _without_null_fields(content, {field.encode_name: field.type for field in fields})
            case msgspec.inspect.DictType(value_type=inner):
                values = _fields_decoder.decode(content)
                return _encoded({key: _filled(value, inner) for key, value in values.items()})
            case msgspec.inspect.ListType(item_type=inner):
                return _encoded([_filled(item, inner) for item in _items_decoder.decode(content)])
    except msgspec.ValidationError:
        pass  # of another type: the structure's own decoder says so
    return content


def _without_null_fields(content: msgspec.Raw, types: dict[str, msgspec.inspect.Type]) -> msgspec.Raw:
    kept = {}
    for key, value in _fields_decoder.decode(content).items():
        kind = types.get(key)
        if kind is None:
            kept[key] = value
        elif value != _NULL or _takes_null(kind):
            kept[key] = _filled(value, kind)
    return _encoded(kept)


def _one_of(kind: msgspec.inspect.Type) -> msgspec.inspect.Type:
    """Of a union the type that has parts, where one has."""
    if not isinstance(kind, msgspec.inspect.UnionType):
        return kind
    with_parts = (msgspec.inspect.StructType, msgspec.inspect.DictType, msgspec.inspect.ListType)
    return next((each for each in kind.types if isinstance(each, with_parts)), kind)


def _takes_null(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_takes_null, kind.types))
    return isinstance(kind, (msgspec.inspect.NoneType, msgspec.inspect.AnyType, msgspec.inspect.RawType))


def _zero(kind: msgspec.inspect.Type) -> msgspec.Raw:
    """What Go has for null where it has to have something."""
    if isinstance(kind, msgspec.inspect.UnionType):  # of a quantity the number
        return min(map(_zero, kind.types), key=lambda zero: bytes(zero) != b"0")
    match kind:
        case msgspec.inspect.StructType() | msgspec.inspect.DictType():
            return msgspec.Raw(b"{}")
        case msgspec.inspect.ListType():
            return msgspec.Raw(b"[]")
        case msgspec.inspect.StrType():
            return msgspec.Raw(b'""')
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return msgspec.Raw(b"0")
        case msgspec.inspect.BoolType():
            return msgspec.Raw(b"false")
    return _NULL


def _encoded(value: dict[str, msgspec.Raw] | list[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


_text_decoder: Final = msgspec.json.Decoder(str)


class Decoder(Generic[T]):
    """A decoder of one type for what Go writes, of any depth. What it can't decode is always a DecodeError."""

    def __init__(self, kind: type[T], *, whole: bool = False) -> None:
        """With `whole` what is too deep is an error: of what goes back to the API server nothing may be left out."""
        self._kind = kind
        self._decode: Callable[[bytes | bytearray | msgspec.Raw], T] = msgspec.json.Decoder(kind).decode
        self._whole = whole

    def decode(self, content: bytes | bytearray | msgspec.Raw) -> T:
        """Raises DecodeError."""
        try:
            return self._decode_shallow(content)
        except RecursionError as error:
            if self._whole:
                raise msgspec.DecodeError(f"it is nested too deep: {error}") from None
        except UnicodeDecodeError as error:  # the one error of text that msgspec lets through
            raise msgspec.DecodeError(f"it is not UTF-8: {error}") from None
        try:
            return self._decode_shallow(shallow(content))
        except (RecursionError, UnicodeDecodeError) as error:
            raise msgspec.DecodeError(str(error)) from None

    def _decode_shallow(self, content: bytes | bytearray | msgspec.Raw) -> T:
        try:
            return self._decode(content)
        except msgspec.ValidationError:
            if b"null" not in bytes(content):
                raise
        return self._decode(_without_nulls(content, self._kind))


def convert(manifest: Any, kind: type[T]) -> T:
    """Data as a type, null as `Decoder` reads it. Raises msgspec.ValidationError, which names the place."""
    try:
        return msgspec.convert(manifest, kind)
    except msgspec.ValidationError as error:
        try:
            content = _without_nulls(msgspec.json.encode(manifest), kind)
        except (TypeError, ValueError, OverflowError, RecursionError):  # it is no JSON
            raise error from None
        return msgspec.json.decode(content, type=kind)


class Outline(msgspec.Struct, gc=False):
    """Which object it is, of one that can't be decoded: what can't be told is ""."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    node: str
    """Of a pod."""
    phase: str

    @property
    def key(self) -> str:
        """`namespace/name`, or the name."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def finished(self) -> bool:
        """Of a pod: whether it has ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def metadata(self) -> objects.Metadata:
        """As far as it is known."""
        return objects.Metadata(self.name, self.namespace, self.uid, self.resource_version)


def outline(content: bytes | msgspec.Raw) -> Outline:
    """What can be told of an object whose fields are not as they should be. Never fails."""
    item = _fields(shallow(content))
    metadata, spec, status = (_fields(item.get(part, b"null")) for part in ("metadata", "spec", "status"))
    return Outline(
        name=_text(metadata, "name"),
        namespace=_text(metadata, "namespace"),
        uid=_text(metadata, "uid"),
        resource_version=_text(metadata, "resourceVersion"),
        node=_text(spec, "nodeName"),
        phase=_text(status, "phase"),
    )


def shallow(content: bytes | bytearray | msgspec.Raw, *limits: int) -> bytearray:
    """As `depths.shallow`, which loads NumPy: no sooner than a text is too deep, since the node agent needs it for
    nothing else."""
    from extender.kube import depths  # noqa: PLC0415

    return depths.shallow(content, *limits)


def _fields(content: Any) -> Mapping[str, msgspec.Raw]:
    try:
        return _fields_decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _text(fields: Mapping[str, msgspec.Raw], name: str) -> str:
    try:
        return _text_decoder.decode(fields.get(name, b'""'))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
