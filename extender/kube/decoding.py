"""Decoding of API objects of any depth, with null read as in Go. Ordinary objects take one pass of msgspec.

The API server accepts 10,000 levels of nesting, msgspec about 1,000. Authors can nest fields that Kerf never reads:
parameters of a ResourceClaim's driver, `managedFields`. So an object that is too deep is decoded again without what
lies deeper than anything that Kerf reads.

Go encodes unset times and nil slices and maps as null unless the field has `omitempty`, which many lack before
Kubernetes 1.34 (`creationTimestamp` of every object not stored yet, as webhooks see it, and of every template). Go's
decoder accepts null for any field, and so does this one, by the field's type.
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
    """Remove the nulls that a type does not accept: fields are dropped, items of lists and values of maps become empty,
    as Go decodes them. A null at the top level and other faults remain."""
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
        pass  # of another type: left for the caller's decoder to report
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
    """Return the member of a union that has fields or items, if any."""
    if not isinstance(kind, msgspec.inspect.UnionType):
        return kind
    with_parts = (msgspec.inspect.StructType, msgspec.inspect.DictType, msgspec.inspect.ListType)
    return next((each for each in kind.types if isinstance(each, with_parts)), kind)


def _takes_null(kind: msgspec.inspect.Type) -> bool:
    if isinstance(kind, msgspec.inspect.UnionType):
        return any(map(_takes_null, kind.types))
    return isinstance(kind, (msgspec.inspect.NoneType, msgspec.inspect.AnyType, msgspec.inspect.RawType))


def _zero(kind: msgspec.inspect.Type) -> msgspec.Raw:
    """Return Go's zero value of a type."""
    if isinstance(kind, msgspec.inspect.UnionType):  # 0 for a quantity
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
    """A decoder of one type for Go's JSON of any depth; fails with DecodeError only."""

    def __init__(self, kind: type[T], *, whole: bool = False) -> None:
        """`whole` makes excessive depth an error, for objects that are written back completely."""
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
        except UnicodeDecodeError as error:  # not wrapped by msgspec
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
    """Convert plain data to a type, with null as in `Decoder`. Raises msgspec.ValidationError with the path."""
    try:
        return msgspec.convert(manifest, kind)
    except msgspec.ValidationError as error:
        try:
            content = _without_nulls(msgspec.json.encode(manifest), kind)
        except (TypeError, ValueError, OverflowError, RecursionError):  # not JSON
            raise error from None
        return msgspec.json.decode(content, type=kind)


class Outline(msgspec.Struct, gc=False):
    """Identity of an object that can't be decoded; unknown fields are ""."""

    name: str
    namespace: str
    uid: str
    resource_version: str
    node: str
    """A pod's node."""
    phase: str

    @property
    def key(self) -> str:
        """`namespace/name`, or the name without a namespace."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def finished(self) -> bool:
        """Whether a pod has finished."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def metadata(self) -> objects.Metadata:
        """Metadata with the known fields."""
        return objects.Metadata(self.name, self.namespace, self.uid, self.resource_version)


def outline(content: bytes | msgspec.Raw) -> Outline:
    """Return the identity of an object that can't be decoded. Never fails."""
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
    """As `depths.shallow`, imported late: the node agent needs NumPy for nothing else."""
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
