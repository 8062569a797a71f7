"""Type checks and evaluation of operators."""

from collections.abc import Callable, Sequence
from typing import Final

from extender.dra.cel import values
from extender.dra.cel.code import Code, Run, Scope, refuse_types
from extender.dra.cel.parsing import EvaluationError
from extender.dra.cel.values import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    SUM,
    Type,
    Value,
    common_type,
    contains_type,
    list_of,
    no_overload,
)

_Compute = Callable[[Value, Value], Value]
_SCALARS: Final = (BOOL, INT, DOUBLE, STRING)
_ORDERS: Final[dict[str, Callable[[int], bool]]] = {
    "_<_": lambda order: order < 0,
    "_<=_": lambda order: order <= 0,
    "_>_": lambda order: order > 0,
    "_>=_": lambda order: order >= 0,
}
_ARITHMETIC: Final[dict[str, tuple[_Compute, tuple[str, ...]]]] = {
    "_+_": (values.added, ("int", "double", "string", "list")),
    "_-_": (values.subtracted, ("int", "double")),
    "_*_": (values.multiplied, ("int", "double")),
    "_/_": (values.divided, ("int",)),
    "_%_": (values.remainder, ("int",)),
}


def unary(name: str, code: Code) -> Code:
    """`!` or `-`. Raises RefusedError."""
    if name == "!_":
        if code.kind not in (BOOL, DYN):
            raise refuse_types("!", code)
        return Code(lambda scope: not _truth(code.run(scope)), BOOL, code.cost + 1)
    if code.kind not in (INT, DOUBLE, DYN):
        raise refuse_types("-", code)
    return Code(lambda scope: values.negated(code.run(scope)), code.kind, code.cost + 1)


def _truth(value: Value) -> bool:
    if not values.is_bool(value):
        raise no_overload(value)
    return bool(value)


def logical(name: str, codes: Sequence[Code]) -> Code:
    """`&&` or `||` of two or more; an error is raised only if no other operand decides. Raises RefusedError."""
    if any(code.kind not in (BOOL, DYN) for code in codes):
        raise refuse_types(name.strip("_"), *codes)
    deciding = name == "_||_"
    runs = tuple(code.run for code in codes)

    def run(scope: Scope) -> Value:
        fault: EvaluationError | None = None
        for one in runs:
            try:
                value = one(scope)
            except EvaluationError as error:
                fault = fault or error
                continue
            if value is deciding:
                return deciding
            if value is not (not deciding):
                fault = fault or no_overload(value)
        if fault:
            raise fault
        return not deciding

    return Code(run, BOOL, 1 + sum(code.cost for code in codes))


def conditional(condition: Code, then: Code, otherwise: Code) -> Code:
    """`?:`. Raises RefusedError."""
    kind = common_type(then.kind, otherwise.kind)
    if condition.kind not in (BOOL, DYN) or kind is None:
        raise refuse_types("?:", condition, then, otherwise)
    return Code(
        lambda scope: (then if _truth(condition.run(scope)) else otherwise).run(scope),
        kind,
        1 + condition.cost + max(then.cost, otherwise.cost),
        max(then.chars, otherwise.chars),
        max(then.items, otherwise.items),
    )


def binary(name: str, left: Code, right: Code) -> Code:
    """Any other operator. Raises RefusedError."""
    if name == "_in_":
        return _membership(left, right)
    if name in ("_==_", "_!=_"):
        return _equality(left, right, negative=name == "_!=_")
    if name in _ORDERS:
        return _order(name, left, right)
    compute, kinds = _ARITHMETIC[name]
    known = [code.kind for code in (left, right) if code.kind != DYN]
    kind = common_type(*known) if len(known) == 2 else (known or [DYN])[0]
    if kind is None or (kind.name not in kinds and kind != DYN):
        raise refuse_types(name.strip("_"), left, right)
    chars, items = left.chars + right.chars, left.items + right.items
    cost = 1 + left.cost + right.cost + (chars // 10 + items if name == "_+_" else 0)
    return Code(_both(compute, left, right), kind, cost, chars, items)


def _both(compute: _Compute, left: Code, right: Code) -> Run:
    one, other = left.run, right.run
    return lambda scope: compute(one(scope), other(scope))


def _equality(left: Code, right: Code, negative: bool) -> Code:
    kind = common_type(left.kind, right.kind)
    if kind is None or not all(_comparable(code.kind) or _is_empty(code) for code in (left, right)):
        raise refuse_types("==", left, right)
    one, other = left.run, right.run
    cost = 1 + left.cost + right.cost + min(left.chars, right.chars) // 10 + min(left.items, right.items)
    if negative:  # incomparable values are unequal, though `==` of them is an error
        return Code(lambda scope: not values.alike(one(scope), other(scope)), BOOL, cost)
    return Code(lambda scope: values.equal(one(scope), other(scope)), BOOL, cost)


def _comparable(kind: Type) -> bool:
    """Whether `==` on a type works like in cel-go: not for lists of anything but scalars."""
    if kind.name == "list":
        return kind.params[0] in _SCALARS
    return not contains_type(kind, SUM) and kind.name not in ("map", "optional", "device")


def _is_empty(code: Code) -> bool:
    return code.constant and code.kind == list_of(DYN) and not code.items


def _order(name: str, left: Code, right: Code) -> Code:
    kinds = {left.kind, right.kind} - {DYN}
    if not kinds <= set(_SCALARS) or (len(kinds) > 1 and kinds != {INT, DOUBLE}):
        raise refuse_types(name.strip("_"), left, right)
    one, other, judge = left.run, right.run, _ORDERS[name]
    cost = 1 + left.cost + right.cost + min(left.chars, right.chars) // 10
    return Code(lambda scope: judge(values.compared(one(scope), other(scope))), BOOL, cost)


def _membership(left: Code, right: Code) -> Code:
    if right.kind.name == "list":
        item = right.kind.params[0]
        fits = common_type(left.kind, item) is not None and item not in (SUM, DOUBLE)  # cel-go misses some doubles
        fits = fits and _comparable(left.kind) and left.kind.name != "list" and left.kind != NULL
    elif right.kind.name == "map":
        fits = left.kind == STRING  # cel-go panics for some others
    else:
        fits = right.kind == DYN and _comparable(left.kind)
    if not fits:
        raise refuse_types("in", left, right)
    if right.constant and not right.items:
        return Code(lambda _: False, BOOL)  # cel-go does not evaluate the left operand
    one, other, constant = left.run, right.run, right.constant
    cost = 1 + left.cost + right.cost + right.items * (1 + min(left.chars, right.chars) // 10)
    return Code(lambda scope: values.contains(one(scope), other(scope), constant), BOOL, cost)


def list_literal(codes: Sequence[Code]) -> Code:
    """A list. Raises RefusedError if the items differ in type."""
    if len({code.kind for code in codes}) > 1 or any(code.kind.name in ("device", "null") for code in codes):
        raise refuse_types("a list", *codes)
    runs = tuple(code.run for code in codes)
    constant = all(code.constant for code in codes)
    items = tuple(run([]) for run in runs) if constant else ()
    return Code(
        (lambda _: items) if constant else (lambda scope: tuple([run(scope) for run in runs])),
        list_of(codes[0].kind if codes else DYN),
        1 if constant else 1 + sum(code.cost for code in codes),
        max((code.chars for code in codes), default=0),
        max(len(codes), *(code.items for code in codes), 0),
        constant=constant,
    )
