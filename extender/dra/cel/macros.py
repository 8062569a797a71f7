"""Macros: loops, bindings and optional values. They are evaluated directly, unlike in cel-go, which expands them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from extender.dra.cel.code import Code, Compiling, Names, Run, Scope, check_cost, refuse_types
from extender.dra.cel.parsing import Call, EvaluationError, Name, Node, RefusedError
from extender.dra.cel.values import (
    BOOL,
    DYN,
    NONE,
    Optional,
    Type,
    Value,
    common_type,
    list_of,
    no_overload,
    optional_of,
)

_UNSET: Final = object()
_UNBOUNDED_ITEMS: Final = 64
"""Bound for values of unknown type; not reached, since attributes are not lists."""


def macro(call: Call, names: Names, compiling: Compiling) -> Code | None:
    """Compile a macro call; None if the call is not one. Raises RefusedError."""
    if call.target is None:
        return None
    if isinstance(call.target, Name) and call.target.name not in names and call.target.name in ("cel", "optional"):
        if (call.target.name, call.name) == ("cel", "bind") and len(call.args) == 3:
            return _bind(call, names, compiling)
        if (call.target.name, call.name) == ("optional", "of") and len(call.args) == 1:
            return _optional(compiling.value(call.args[0], names))
        if (call.target.name, call.name) == ("optional", "none") and not call.args:
            return Code(lambda _: NONE, optional_of(DYN))
        function = f"{call.target.name}.{call.name}"
        raise RefusedError(f"{function} is not supported", f"function {function}")
    if (call.name in _LOOPS and len(call.args) == 2) or (call.name == "map" and len(call.args) == 3):
        return _loop(call, compiling.value(call.target, names), names, compiling)
    if call.name in ("optMap", "optFlatMap") and len(call.args) == 2:
        return _opt_map(call, compiling.value(call.target, names), names, compiling)
    if call.name in ("or", "orValue", "hasValue", "value"):
        return _of_optional(call, compiling.value(call.target, names), names, compiling)
    return None


def _variable(node: Node) -> str:
    if not isinstance(node, Name) or node.name.startswith("__"):
        raise RefusedError("a macro whose variable is not a name", "macros")
    return node.name


def _reader(slot: int) -> Run:
    return lambda scope: scope[slot]


# Bindings


def _bind(call: Call, names: Names, compiling: Compiling) -> Code:
    """`cel.bind(name, value, body)`: the value is evaluated when the name is first read."""
    name = _variable(call.args[0])
    bound = compiling.part(call.args[1], names)
    if bound.path is not None:
        return compiling.value(call.args[2], {**names, name: bound})
    slot = compiling.slot()

    def read(scope: Scope) -> Value:
        value = scope[slot]
        if value is _UNSET:
            try:
                value = bound.run(scope)
            except EvaluationError as error:
                value = error
            scope[slot] = value
        if isinstance(value, EvaluationError):
            raise value
        return value

    body = compiling.value(call.args[2], {**names, name: replace(bound, run=read, cost=1, constant=False)})

    def run(scope: Scope) -> Value:
        scope[slot] = _UNSET
        return body.run(scope)

    return replace(body, run=run, cost=check_cost(2 + bound.cost + body.cost), constant=False)


# Loops

_Predicate = Callable[[Scope], Value]


def _exists(items: Any, slot: int, scope: Scope, run: _Predicate, sought: bool = True) -> bool:
    """Whether any result is `sought`. Raises the first error if none is."""
    fault: EvaluationError | None = None
    for scope[slot] in items:
        try:
            value = run(scope)
        except EvaluationError as error:
            fault = fault or error
            continue
        if value is sought:
            return bool(sought)
        if value is not (not sought):
            fault = fault or no_overload(value)
    if fault:
        raise fault
    return not sought


def _all(items: Any, slot: int, scope: Scope, run: _Predicate) -> bool:
    return _exists(items, slot, scope, run, sought=False)


def _exists_one(items: Any, slot: int, scope: Scope, run: _Predicate) -> bool:
    return len(_filter(items, slot, scope, run)) == 1


def _filter(items: Any, slot: int, scope: Scope, run: _Predicate) -> tuple[Value, ...]:
    found = []
    for item in items:
        scope[slot] = item
        if _truth(run(scope)):
            found.append(item)
    return tuple(found)


def _map(items: Any, slot: int, scope: Scope, run: _Predicate) -> tuple[Value, ...]:
    found = []
    for scope[slot] in items:
        found.append(run(scope))
    return tuple(found)


def _truth(value: Value) -> bool:
    if value is not True and value is not False:
        raise no_overload(value)
    return bool(value)


_LOOPS: Final[dict[str, Callable[[Any, int, Scope, _Predicate], Value]]] = {
    "all": _all,
    "exists": _exists,
    "exists_one": _exists_one,
    "existsOne": _exists_one,
    "filter": _filter,
    "map": _map,
}


def _loop(call: Call, over: Code, names: Names, compiling: Compiling) -> Code:
    if over.kind.name not in ("list", "map", "dyn"):
        raise refuse_types(call.name, over)
    ordered = call.name in ("map", "filter")
    if ordered and over.kind.name != "list":
        raise RefusedError(f"{call.name}() of something other than a list", "macros")
    slot = compiling.slot()
    item = over.kind.params[0] if over.kind.params else DYN
    variable = Code(_reader(slot), item, 1, over.chars, over.items)
    inner = {**names, _variable(call.args[0]): variable}
    bodies = [compiling.value(node, inner) for node in call.args[1:]]
    if (call.name != "map" or len(bodies) == 2) and bodies[0].kind not in (BOOL, DYN):
        raise refuse_types(call.name, bodies[0])
    items = over.items if over.kind != DYN else _UNBOUNDED_ITEMS
    cost = check_cost(2 + over.cost + items * sum(body.cost + 3 for body in bodies))
    if not ordered:
        return Code(_run_loop(over.run, slot, _LOOPS[call.name], bodies[0].run), BOOL, cost)
    if call.name == "filter":
        return Code(_run_loop(over.run, slot, _filter, bodies[0].run), over.kind, cost, over.chars, over.items)
    last = bodies[-1]
    run = _run_loop(over.run, slot, _map, last.run) if len(bodies) == 1 else _run_both(over.run, slot, *bodies)
    return Code(run, list_of(last.kind), cost, last.chars, max(items, last.items))


def _run_loop(over: Run, slot: int, loop: Callable[[Any, int, Scope, _Predicate], Value], body: Run) -> Run:
    def run(scope: Scope) -> Value:
        items = over(scope)
        if not isinstance(items, tuple | dict):
            raise no_overload(items)
        return loop(items, slot, scope, body)

    return run


def _run_both(over: Run, slot: int, condition: Code, mapped: Code) -> Run:
    """`map` with a filter condition."""

    def run(scope: Scope) -> Value:
        return _map(_filter(over(scope), slot, scope, condition.run), slot, scope, mapped.run)

    return run


# Optional values


def _optional(code: Code) -> Code:
    return replace(code, run=lambda scope: Optional(code.run(scope)), kind=optional_of(code.kind), constant=False)


def _inner_type(code: Code, call: Call) -> Type:
    """The type of the value in an optional value. Raises RefusedError for any other type."""
    if code.kind.name != "optional":
        raise refuse_types(call.name, code)
    return code.kind.params[0]


def _opt_map(call: Call, option: Code, names: Names, compiling: Compiling) -> Code:
    slot = compiling.slot()
    variable = Code(_reader(slot), _inner_type(option, call), 1, option.chars, option.items)
    body = compiling.value(call.args[1], {**names, _variable(call.args[0]): variable})
    flat = call.name == "optFlatMap"
    if flat:
        _inner_type(body, call)

    def run(scope: Scope) -> Value:
        found = option.run(scope)
        if not found.present:
            return NONE
        scope[slot] = found.value
        value = body.run(scope)
        return value if flat else Optional(value)

    kind = body.kind if flat else optional_of(body.kind)
    return Code(run, kind, check_cost(2 + 2 * option.cost + body.cost), body.chars, body.items)


def _of_optional(call: Call, option: Code, names: Names, compiling: Compiling) -> Code:
    inner = _inner_type(option, call)
    if call.name in ("hasValue", "value"):
        if call.args:
            raise refuse_types(call.name, option)
        if call.name == "hasValue":
            return Code(lambda scope: bool(option.run(scope).present), BOOL, option.cost + 1)
        return replace(option, run=lambda scope: _value(option.run(scope)), kind=inner, cost=option.cost + 1)
    if len(call.args) != 1:
        raise refuse_types(call.name, option)
    other = compiling.value(call.args[0], names)
    kind = common_type(option.kind, other.kind) if call.name == "or" else common_type(inner, other.kind)
    if kind is None:
        raise refuse_types(call.name, option, other)
    unwraps = call.name == "orValue"

    def run(scope: Scope) -> Value:
        found = option.run(scope)
        if not found.present:
            return other.run(scope)
        return found.value if unwraps else found

    cost = check_cost(1 + option.cost + other.cost)
    return Code(run, kind, cost, max(option.chars, other.chars), max(option.items, other.items))


def _value(option: Optional) -> Value:
    if not option.present:
        raise EvaluationError("optional.none() dereference")
    return option.value
