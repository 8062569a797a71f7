"""Static types of expressions, and comparison and arithmetic of their values.

Lists are tuples, maps are dicts, scalars are Python's. bool and int are distinct types, unlike in Python.
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
    """A type as cel-go's checker knows it; `params` are the item types of lists, maps and optional values."""

    name: str
    params: tuple["Type", ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.params))})" if self.params else self.name


DYN: Final = Type("dyn")
"""Known only at evaluation; also the item type of an empty list."""
BOOL: Final = Type("bool")
INT: Final = Type("int")
DOUBLE: Final = Type("double")
STRING: Final = Type("string")
NULL: Final = Type("null")
QUANTITY: Final = Type("quantity")
SUM: Final = Type("sum")
"""A computed quantity: cel-go compares it reliably by methods, but not by `==`."""
SEMVER: Final = Type("semver")
DEVICE: Final = Type("device")


def list_of(item: Type) -> Type:
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    return Type("optional", (value,))


def common_type(one: Type, other: Type) -> Type | None:
    """The common type of two; None if the checker rejects the pair."""
    if one == other or DYN in (one, other):
        return one if one == other else DYN
    if {one, other} == {QUANTITY, SUM}:
        return SUM
    if one.name != other.name or len(one.params) != len(other.params):
        return None
    parts = [common_type(*pair) for pair in zip(one.params, other.params, strict=True)]
    params = tuple(part for part in parts if part is not None)
    return Type(one.name, params) if len(params) == len(parts) and params else None


def contains_type(kind: Type, sought: Type) -> bool:
    """Whether `kind` is `sought` or has it among its parameters, at any depth."""
    return kind == sought or any(contains_type(part, sought) for part in kind.params)


Value = Any
_MIN_INT: Final = -(2**63)
_MAX_INT: Final = 2**63 - 1
_MAX_CERTAIN: Final = 10**13
"""Kubernetes keeps integers below this as int64 in every notation."""


@dataclass(frozen=True, slots=True)
class Quantity:
    amount: Amount
    whole: bool = True
    """Whether it may be an integer."""

    def as_int(self) -> int | None:
        """The result of Kubernetes' AsInt64; None if it fails.

        Raises AbortError for large quantities, for which the result depends on the lost notation.
        """
        if isinstance(self.amount, int) and abs(self.amount) >= _MAX_CERTAIN:
            raise AbortError("a quantity this large may or may not be an integer")
        return self.amount if isinstance(self.amount, int) and self.whole else None


@dataclass(frozen=True, slots=True)
class Semver:
    """A semantic version, without build metadata."""

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
    """An optional value."""

    value: Value = None
    present: bool = True


NONE: Final = Optional(present=False)


class Domains(dict[str, Any]):
    """Attributes or capacities by domain. In expressions a missing domain is empty."""


@lru_cache(maxsize=4096)
def semver_of(text: str) -> Semver | None:
    """A parsed semantic version; None if invalid."""
    if not is_version(text):
        return None
    plain = text.partition("+")[0]
    release, _, pre = plain.partition("-")
    major, minor, patch = map(int, release.split("."))
    words = tuple(int(word) if word.isdecimal() else word for word in pre.split(".")) if pre else ()
    return Semver((major, minor, patch), words)


def normalized(text: str) -> str:
    """A version normalized like `semver(text, true)` does; "" if that rejects it."""
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
    """Return `number`. Raises EvaluationError if it overflows 64 bits."""
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
    """-1, 0 or 1. Raises EvaluationError for values without an order."""
    if _is_number(one) and _is_number(other):
        return _order(one, other)
    if (is_bool(one) and is_bool(other)) or (isinstance(one, str) and isinstance(other, str)):
        return int(one > other) - int(one < other)
    raise no_overload(one, other)


def _is_number(value: Value) -> bool:
    return type(value) is int or type(value) is float


def _order(one: int | float, other: int | float) -> int:
    """-1, 0 or 1; an integer is compared with a double as a double, like in cel-go."""
    if type(one) is not type(other):
        one, other = float(one), float(other)
    return (one > other) - (one < other)


def contains(item: Value, items: Value, constant: bool) -> bool:
    """`in`. Raises EvaluationError, AbortError."""
    if isinstance(items, tuple):
        if constant and items and isinstance(item, Semver):
            raise AbortError("a version can't be looked up in a list of constants")  # cel-go panics
        return any(alike(item, other) for other in items)
    if isinstance(items, dict):
        return isinstance(item, str) and item in items
    raise no_overload(items)


def alike(one: Value, other: Value) -> bool:
    """Whether two values are equal; False if they can't be compared."""
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
