"""CEL functions: strings as in google/cel-go `ext/strings.go`, others as in `k8s.io/apiserver/pkg/cel/library`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import re2

from extender.dra.cel.code import Code
from extender.dra.cel.parsing import AbortError, EvaluationError, RefusedError
from extender.dra.cel.values import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    QUANTITY,
    SEMVER,
    STRING,
    SUM,
    Quantity,
    Semver,
    Type,
    Value,
    int64,
    list_of,
    normalized,
    semver_of,
)
from extender.dra.results import amount_of

_MAX_CHARS: Final = 256
_MAX_AUTOMATON_BYTES: Final = 1 << 18
_DIFFERENT: Final = re.compile(r"\\[CpPQzZ]|\(\?[^:imsU-]|[^\x20-\x7e]", re.ASCII)
"""Pattern syntax that Go's regexp and RE2 may treat differently: single bytes, Unicode classes, group names."""


def cost_of(pattern: str, chars: int) -> int:
    """Steps of a search in a string of length `chars`."""
    return (chars // 10 + 1) * (len(pattern) // 4 + 1)


def search_of(pattern: str) -> Callable[[str], bool]:
    """Compile a pattern to a function that searches a string for it. Raises RefusedError."""
    if len(pattern) > _MAX_CHARS:
        raise RefusedError(f"a pattern of more than {_MAX_CHARS} characters", "patterns")
    if found := _DIFFERENT.search(pattern):
        raise RefusedError(f"{found[0]!r} in a pattern", "patterns")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_AUTOMATON_BYTES
    try:
        automaton = re2.compile(pattern, options)
    except re2.error as error:
        raise RefusedError(f"pattern: {error}", "patterns") from None
    return lambda text: automaton.search(text) is not None


_SPACES: Final = "\t\n\v\f\r \u0085\u00a0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""Characters that Go's `strings.TrimSpace` trims."""
_LOWER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
_UPPER: Final = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_SUFFIX: Final = r"(?:[numkMGTPE]|[KMGTPE]i)?"
_NUMBER: Final = r"(?:[0-9]{1,30}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})"
_QUANTITY: Final = re.compile(rf"[+-]?{_NUMBER}(?:{_SUFFIX}|[eE][+-]?[0-9])", re.ASCII)
_PERHAPS: Final = re.compile(rf"[+-]?[0-9]*\.?[0-9]*(?:{_SUFFIX}|[eE][+-]?[0-9]+)", re.ASCII)
"""Other texts that Kubernetes might parse as a quantity."""
_NO_DIGITS: Final = re.compile(rf"[+-]?\.?{_SUFFIX}", re.ASCII)
"""Kubernetes parses a suffix without a number as 0."""
_TRUE: Final = ("1", "t", "T", "TRUE", "true", "True")
_FALSE: Final = ("0", "f", "F", "FALSE", "false", "False")


@dataclass(frozen=True, slots=True)
class Overload:
    """A function for certain argument types; a method's receiver comes first."""

    kinds: tuple[Type, ...]
    result: Type
    call: Callable[..., Value]
    chars: Callable[[Sequence[Code]], int] = lambda args: args[0].chars
    """Upper bound of the length of the longest string in the result."""
    cost: Callable[[Sequence[Code]], int] = lambda args: 1 + sum(arg.chars for arg in args) // 10


# Strings


def _char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise EvaluationError("index out of range")
    return text[index : index + 1]


def _index_of(text: str, sought: str, offset: int = 0) -> int:
    if offset < 0:
        raise EvaluationError("index out of range")
    return min(offset, len(text)) if not sought else text.find(sought, offset)


def _last_index_of(text: str, sought: str, offset: int | None = None) -> int:
    if offset is None:
        return text.rfind(sought) if sought else len(text)
    if offset < 0:
        raise EvaluationError("index out of range")
    if not sought:
        return min(offset, len(text))
    return -1 if offset >= len(text) else text.rfind(sought, 0, offset + len(sought))


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    if not 0 <= start <= end <= len(text):
        raise EvaluationError("index out of range")
    return text[start:end]


def _split(text: str, separator: str, limit: int = -1) -> tuple[str, ...]:
    if limit == 0:
        return ()
    if not separator:
        cut = len(text) if limit < 0 else limit - 1
        head, tail = tuple(text[:cut]), text[cut:]
        return (*head, tail) if tail else head
    return tuple(text.split(separator, -1 if limit < 0 else limit - 1))


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, -1 if limit < 0 else limit)


def _join(texts: tuple[str, ...], separator: str = "") -> str:
    if not all(isinstance(text, str) for text in texts):
        raise EvaluationError("join of a value that is not a string")
    return separator.join(texts)


def _replaced_chars(args: Sequence[Code]) -> int:
    return args[0].chars + (args[0].chars + 1) * args[2].chars


def _joined_chars(args: Sequence[Code]) -> int:
    return args[0].items * sum(arg.chars for arg in args)


def _of_both(args: Sequence[Code]) -> int:
    return 1 + (args[0].chars // 10 + 1) * (args[1].chars // 10 + 1)


def _by_chars(chars: Callable[[Sequence[Code]], int]) -> Callable[[Sequence[Code]], int]:
    return lambda args: 1 + (sum(arg.chars for arg in args) + chars(args)) // 10


# Conversions


def _int_of(value: str | int | float) -> int:
    if isinstance(value, str):
        if not _DECIMAL.fullmatch(value):
            raise EvaluationError("not a number")
        return int64(int(value))
    if isinstance(value, float) and not -(2.0**63) < value < 2.0**63:
        raise EvaluationError("integer overflow")
    return int(value)


def _bool_of(value: str | bool) -> bool:
    if value in _TRUE or value is True:
        return True
    if value in _FALSE or value is False:
        return False
    raise EvaluationError("not a bool")


def _string_of(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# Quantities and versions


def _quantity(text: str) -> Quantity:
    if _QUANTITY.fullmatch(text):
        # Kubernetes keeps fractions with a binary suffix as decimals, which are never integers.
        return Quantity(amount_of(text), whole="." not in text or not text.endswith("i"))
    if text and _NO_DIGITS.fullmatch(text):
        return Quantity(0)
    if text and _PERHAPS.fullmatch(text):
        raise AbortError("a quantity in a notation that is not supported")
    raise EvaluationError("not a quantity")


def _is_quantity(text: str) -> bool:
    try:
        _quantity(text)
    except EvaluationError:
        return False
    return True


def _compare(one: Quantity, other: Quantity) -> int:
    return (one.amount > other.amount) - (one.amount < other.amount)


def _integer(quantity: Quantity) -> int:
    number = quantity.as_int()
    if number is None:
        raise EvaluationError("not an integer")
    return number


def _semver(text: str, normalize: bool = False) -> Semver:
    version = semver_of(normalized(text) if normalize else text)
    if version is None:
        raise EvaluationError("not a semantic version")
    return version


def _is_semver(text: str, normalize: bool = False) -> bool:
    return semver_of(normalized(text) if normalize else text) is not None


def _int_part(index: int) -> Callable[[Semver], int]:
    def part(version: Semver) -> int:
        number = version.release[index]
        return number - 2**64 if number >= 2**63 else number  # as Go converts it

    return part


_TEXT, _TEXTS = (STRING,), (STRING, STRING)
FUNCTIONS: Final[dict[str, tuple[Overload, ...]]] = {
    "size": (
        Overload((STRING,), INT, len, lambda _: 0),
        Overload((list_of(DYN),), INT, len, lambda _: 0),
        Overload((Type("map", (DYN, DYN)),), INT, len, lambda _: 0),
    ),
    "int": (Overload((INT,), INT, _int_of), Overload((DOUBLE,), INT, _int_of), Overload(_TEXT, INT, _int_of)),
    "double": (Overload((DOUBLE,), DOUBLE, float), Overload((INT,), DOUBLE, float)),
    "string": (
        Overload(_TEXT, STRING, _string_of),
        Overload((INT,), STRING, _string_of, lambda _: 20),
        Overload((BOOL,), STRING, _string_of, lambda _: 5),
    ),
    "bool": (Overload((BOOL,), BOOL, _bool_of), Overload(_TEXT, BOOL, _bool_of)),
    "dyn": (Overload((DYN,), DYN, lambda value: value),),
    "quantity": (Overload(_TEXT, QUANTITY, _quantity),),
    "isQuantity": (Overload(_TEXT, BOOL, _is_quantity),),
    "sign": (Overload((QUANTITY,), INT, lambda one: (one.amount > 0) - (one.amount < 0)),),
    "semver": (Overload(_TEXT, SEMVER, _semver), Overload((STRING, BOOL), SEMVER, _semver)),
    "isSemver": (Overload(_TEXT, BOOL, _is_semver), Overload((STRING, BOOL), BOOL, _is_semver)),
}

CONVERSIONS: Final = ("bool", "double", "dyn", "int", "string")

METHODS: Final[dict[str, tuple[Overload, ...]]] = {
    "size": FUNCTIONS["size"],
    "contains": (Overload(_TEXTS, BOOL, lambda text, part: part in text, cost=_of_both),),
    "startsWith": (Overload(_TEXTS, BOOL, str.startswith),),
    "endsWith": (Overload(_TEXTS, BOOL, str.endswith),),
    "lowerAscii": (Overload(_TEXT, STRING, lambda text: text.translate(_LOWER)),),
    "upperAscii": (Overload(_TEXT, STRING, lambda text: text.translate(_UPPER)),),
    "trim": (Overload(_TEXT, STRING, lambda text: text.strip(_SPACES)),),
    "charAt": (Overload((STRING, INT), STRING, _char_at),),
    "indexOf": (
        Overload(_TEXTS, INT, _index_of, cost=_of_both),
        Overload((*_TEXTS, INT), INT, _index_of, cost=_of_both),
    ),
    "lastIndexOf": (
        Overload(_TEXTS, INT, _last_index_of, cost=_of_both),
        Overload((*_TEXTS, INT), INT, _last_index_of, cost=_of_both),
    ),
    "substring": (Overload((STRING, INT), STRING, _substring), Overload((STRING, INT, INT), STRING, _substring)),
    "split": (
        Overload(_TEXTS, list_of(STRING), _split),
        Overload((*_TEXTS, INT), list_of(STRING), _split),
    ),
    "replace": (
        Overload((*_TEXTS, STRING), STRING, _replace, _replaced_chars, _by_chars(_replaced_chars)),
        Overload((*_TEXTS, STRING, INT), STRING, _replace, _replaced_chars, _by_chars(_replaced_chars)),
    ),
    "join": (
        Overload((list_of(STRING),), STRING, _join, _joined_chars, _by_chars(_joined_chars)),
        Overload((list_of(STRING), STRING), STRING, _join, _joined_chars, _by_chars(_joined_chars)),
    ),
    "isGreaterThan": (
        Overload((QUANTITY, QUANTITY), BOOL, lambda one, other: one.amount > other.amount),
        Overload((SEMVER, SEMVER), BOOL, lambda one, other: one.compare(other) > 0),
    ),
    "isLessThan": (
        Overload((QUANTITY, QUANTITY), BOOL, lambda one, other: one.amount < other.amount),
        Overload((SEMVER, SEMVER), BOOL, lambda one, other: one.compare(other) < 0),
    ),
    "compareTo": (
        Overload((QUANTITY, QUANTITY), INT, _compare),
        Overload((SEMVER, SEMVER), INT, Semver.compare),
    ),
    "isInteger": (Overload((QUANTITY,), BOOL, lambda one: one.as_int() is not None),),
    "asInteger": (Overload((QUANTITY,), INT, _integer),),
    "add": (
        Overload((QUANTITY, QUANTITY), SUM, lambda one, other: Quantity(one.amount + other.amount)),
        Overload((QUANTITY, INT), SUM, lambda one, other: Quantity(one.amount + other)),
    ),
    "sub": (
        Overload((QUANTITY, QUANTITY), SUM, lambda one, other: Quantity(one.amount - other.amount)),
        Overload((QUANTITY, INT), SUM, lambda one, other: Quantity(one.amount - other)),
    ),
    "major": (Overload((SEMVER,), INT, _int_part(0)),),
    "minor": (Overload((SEMVER,), INT, _int_part(1)),),
    "patch": (Overload((SEMVER,), INT, _int_part(2)),),
}
