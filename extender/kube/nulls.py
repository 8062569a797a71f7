"""What Go writes as null read as what it is: absent, or empty.

Go's encoder knows no absence of a value that is no pointer: a time that is not set, a slice and a map that nobody made
are null unless the field says `omitempty`, and before Kubernetes 1.34 many say nothing (`creationTimestamp` of every
object that is not stored yet, as webhooks see it, and of every template). Go's decoder takes null back for any field:
so does this, for any structure, by the structure's own types.
"""

from functools import cache
from typing import Any, Final

import msgspec

Text = bytes | bytearray | msgspec.Raw

_NULL: Final = msgspec.Raw(b"null")
_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items_decoder: Final = msgspec.json.Decoder(list[msgspec.Raw])
_type_of: Final = cache(msgspec.inspect.type_info)


def without_nulls(content: Text, kind: Any) -> bytes:
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
                return _text({key: _filled(value, inner) for key, value in values.items()})
            case msgspec.inspect.ListType(item_type=inner):
                return _text([_filled(item, inner) for item in _items_decoder.decode(content)])
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
    return _text(kept)


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


def _text(value: dict[str, msgspec.Raw] | list[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))
