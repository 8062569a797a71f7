"""Values of expressions, and how they are compared and computed with.

bool, int, float, str and None are themselves, a list is a tuple and a map a dict. Everything here tells bool from int,
which Python does not.

Static types of expressions, as cel-go's checker tells them apart.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

from extender.core.dra.devices import Amount
from extender.dra.cel.parsing import AbortError, EvaluationError
from extender.dra.published import is_version


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


Value = Any
_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**63 - 1
_SURE: Final = 10**13
"""Kubernetes keeps integers below it as int64, however they are written."""


@dataclass(frozen=True, slots=True)
class Quantity:
    amount: Amount
    whole: bool = True
    """Whether it may be an integer."""

    def as_int(self) -> int | None:
        """The number that Kubernetes would find by AsInt64, None where that fails; it depends on how a large quantity
        was written, which nobody knows here."""
        if isinstance(self.amount, int) and abs(self.amount) >= _SURE:
            raise AbortError("whether so large a quantity is an integer is not known")
        return self.amount if isinstance(self.amount, int) and self.whole else None


@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version; builds are not looked at."""

    release: tuple[int, int, int]
    pre: tuple[int | str, ...]

    def compare(self, other: "Semver") -> int:
        if self.release != other.release:
            return 1 if self.release > other.release else -1
        if not self.pre or not other.pre:
            return bool(other.pre) - bool(self.pre)
        one, two = ([(isinstance(word, str), word) for word in version.pre] for version in (self, other))
        return (one > two) - (one < two)


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may not be there."""

    value: Value = None
    there: bool = True


NONE: Final = Optional(there=False)


class Domains(dict[str, Any]):
    """Attributes or capacities by domain: one that is not there is empty."""


@lru_cache(maxsize=4096)
def semver_of(text: str) -> Semver | None:
    """A version, None where a text is none."""
    if not is_version(text):
        return None
    plain = text.partition("+")[0]
    release, _, pre = plain.partition("-")
    major, minor, patch = map(int, release.split("."))
    words = tuple(int(word) if word.isdecimal() else word for word in pre.split(".")) if pre else ()
    return Semver((major, minor, patch), words)


def normalized(text: str) -> str:
    """A version written more freely, as `semver(text, true)` takes it; "" where that is refused."""
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part) > 1:
            trimmed = part.lstrip("0")
            parts[index] = trimmed if re.match("[0-9]", trimmed) else "0" + trimmed
    if len(parts) < 3 and ("+" in parts[-1] or "-" in parts[-1]):
        return ""
    return ".".join([*parts, "0", "0"][:3] if len(parts) < 3 else parts)


def no_overload(*values: Value) -> EvaluationError:
    return EvaluationError(f"no such overload for {', '.join(type(value).__name__ for value in values)}")


def is_bool(value: Value) -> bool:
    return value is True or value is False


def is_int(value: Value) -> bool:
    return type(value) is int


def int64(number: int) -> int:
    """An integer. Raises EvaluationError where it has no room in 64 bits."""
    if not _MIN_INT <= number <= _MAX_INT:
        raise EvaluationError("integer overflow")
    return number


# Comparisons


def equal(one: Value, other: Value) -> bool:
    """`==`. Raises EvaluationError."""
    if one is None or other is None:
        return one is other
    if isinstance(one, Quantity) and isinstance(other, Quantity):
        return one.amount == other.amount
    if isinstance(one, Semver) and isinstance(other, Semver):
        return one.compare(other) == 0
    if isinstance(one, Quantity | Semver):
        raise no_overload(other)
    if _is_number(one):
        return _is_number(other) and _order(one, other) == 0
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


def compared(one: Value, other: Value) -> int:
    """-1, 0 or 1. Raises EvaluationError for what has no order."""
    if _is_number(one) and _is_number(other):
        return _order(one, other)
    if (is_bool(one) and is_bool(other)) or (isinstance(one, str) and isinstance(other, str)):
        return int(one > other) - int(one < other)
    raise no_overload(one, other)


def _is_number(value: Value) -> bool:
    return type(value) is int or type(value) is float


def _order(one: int | float, other: int | float) -> int:
    """As cel-go has it, that compares an integer with a double as a double."""
    if type(one) is not type(other):
        one, other = float(one), float(other)
    return (one > other) - (one < other)


def contains(item: Value, items: Value, constant: bool) -> bool:
    """`in`. Raises EvaluationError, AbortError."""
    if isinstance(items, tuple):
        if constant and items and isinstance(item, Semver):
            raise AbortError("versions can't be looked up among constants")  # cel-go panics
        return any(alike(item, other) for other in items)
    if isinstance(items, dict):
        return isinstance(item, str) and item in items
    raise no_overload(items)


def alike(one: Value, other: Value) -> bool:
    """Whether two values are equal; those that can't be compared are not."""
    try:
        return equal(one, other)
    except EvaluationError:
        return False


# Arithmetic


def added(one: Value, other: Value) -> Value:
    if is_int(one) and is_int(other):
        return int64(one + other)
    if type(one) is type(other) and isinstance(one, str | tuple | float):
        return one + other
    raise no_overload(one, other)


def subtracted(one: Value, other: Value) -> Value:
    return _computed(one, other, lambda: one - other)


def multiplied(one: Value, other: Value) -> Value:
    return _computed(one, other, lambda: one * other)


def _computed(one: Value, other: Value, result: Callable[[], Value]) -> Value:
    if is_int(one) and is_int(other):
        return int64(result())
    if type(one) is float and type(other) is float:
        return result()
    raise no_overload(one, other)


def divided(one: Value, other: Value) -> Value:
    if not (is_int(one) and is_int(other)):
        raise no_overload(one, other)
    if other == 0:
        raise EvaluationError("division by zero")
    quotient: int = abs(one) // abs(other)
    return int64(quotient if (one < 0) == (other < 0) else -quotient)


def remainder(one: Value, other: Value) -> Value:
    return one - other * divided(one, other)


def negated(value: Value) -> Value:
    if is_int(value):
        return int64(-value)
    if type(value) is float:
        return -value
    raise no_overload(value)
