"""Static types of expressions, as cel-go's checker tells them apart."""

from typing import Final, NamedTuple


class Type(NamedTuple):
    """A type; lists, maps and optional values have types of what is in them."""

    name: str
    of: tuple["Type", ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.of))})" if self.of else self.name


DYN: Final = Type("dyn")
"""Known when it is evaluated only; also of what is in an empty list."""
BOOL: Final = Type("bool")
INT: Final = Type("int")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
NULL: Final = Type("null")
QUANTITY: Final = Type("quantity")
SUM: Final = Type("sum")
"""A quantity that was computed: cel-go compares it with others by methods, but not reliably by `==`."""
SEMVER: Final = Type("semver")
DEVICE: Final = Type("device")


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional", (value,))


def joined(one: Type, other: Type) -> Type | None:
    """The type of what may be of either, None where the checker refuses that."""
    if one == other or DYN in (one, other):
        return one if one == other else DYN
    if {one, other} == {QUANTITY, SUM}:
        return SUM
    if one.name != other.name or len(one.of) != len(other.of):
        return None
    parts = [joined(*pair) for pair in zip(one.of, other.of, strict=True)]
    found = tuple(part for part in parts if part is not None)
    return Type(one.name, found) if len(found) == len(parts) and found else None


def holds(kind: Type, sought: Type) -> bool:
    """Whether a type is another, or has it in it."""
    return kind == sought or any(holds(part, sought) for part in kind.of)
