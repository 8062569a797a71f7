"""Compiles expressions to cached programs. Checks types and refuses everything unsupported."""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from extender.dra.cel import fields, operators
from extender.dra.cel.code import Code, Names, Run, Scope, check_cost, refuse_types
from extender.dra.cel.functions import CONVERSIONS, FUNCTIONS, METHODS, Overload, cost_of, search_of
from extender.dra.cel.macros import macro
from extender.dra.cel.parsing import (
    Call,
    Conditional,
    EvaluationError,
    Index,
    ListOf,
    Literal,
    MapOf,
    Name,
    Node,
    RefusedError,
    Select,
    parse,
)
from extender.dra.cel.values import (
    BOOL,
    DOUBLE,
    DYN,
    INT,
    NULL,
    STRING,
    Optional,
    Quantity,
    Semver,
    Type,
    Value,
    common_type,
    is_bool,
    is_int,
    map_of,
    no_overload,
    optional_of,
)

_MAX_DEPTH: Final = 48
_KIND_OF: Final = {bool: BOOL, int: INT, float: DOUBLE, str: STRING, type(None): NULL}


class _Compiler:
    """Compiles one expression."""

    def __init__(self) -> None:
        self.read: set[str] | None = set()
        """Attributes and capacities read; None for all."""
        self.num_slots = 1  # the device's
        self._depth = 0

    def compile(self, expression: str) -> Code:
        """Compile an expression over the variable `device` of type bool or dyn. Raises RefusedError."""
        code = self.value(parse(expression), {"device": fields.THE_DEVICE})
        if code.kind not in (BOOL, DYN):
            raise RefusedError(f"returns {code.kind}, not a bool", "types")
        return code

    # Interface for macros: see code.Compiling

    def value(self, node: Node, names: Names) -> Code:
        return self._whole(self.part(node, names))

    def _whole(self, code: Code) -> Code:
        """The whole of a value; for a map in the device, all attributes count as read."""
        if code.path is None:
            return code
        if code.path == ():
            raise RefusedError("the device used as a value", "types")
        self.read = None
        return Code(code.run, code.kind, code.cost, code.chars, code.items)

    def part(self, node: Node, names: Names) -> Code:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RefusedError(f"nested more than {_MAX_DEPTH} levels deep", "nesting")
        code = self._code(node, names)
        self._depth -= 1
        check_cost(code.cost)
        return code

    def slot(self) -> int:
        self.num_slots += 1
        return self.num_slots - 1

    def reads(self, name: str) -> None:
        if self.read is not None:
            self.read.add(name)

    # Nodes

    def _code(self, node: Node, names: Names) -> Code:
        if isinstance(node, Literal):
            return _literal(node.value)
        if isinstance(node, Name):
            if node.name not in names:
                raise RefusedError(f"unknown name {node.name}", "names")
            return names[node.name]
        if isinstance(node, Select):
            return self._select(node, names)
        if isinstance(node, Index):
            return self._index(node, names)
        if isinstance(node, Call):
            return self._call(node, names)
        if isinstance(node, Conditional):
            return operators.conditional(
                *(self.value(part, names) for part in (node.condition, node.then, node.otherwise))
            )
        if isinstance(node, ListOf):
            return operators.list_literal([self.value(item, names) for item in node.items])
        return self._map(node, names)

    def _map(self, node: MapOf, names: Names) -> Code:
        keys = [key.value for key, _ in node.items if isinstance(key, Literal) and isinstance(key.value, str)]
        if len(set(keys)) < len(node.items):
            raise RefusedError("a map whose keys are not distinct strings", "maps")
        items = operators.list_literal([self.value(value, names) for _, value in node.items])
        run = items.run
        return Code(
            lambda scope: dict(zip(keys, run(scope), strict=True)),
            map_of(STRING, items.kind.params[0]),
            1 + items.cost + len(keys),
            max(items.chars, *map(len, keys), 0),
            items.items,
        )

    # Parts

    def _select(self, node: Select, names: Names) -> Code:
        return self._part(self.part(node.operand, names), _literal(node.field), node.field, node.optional)

    def _index(self, node: Index, names: Names) -> Code:
        code, key = self.part(node.operand, names), self.value(node.key, names)
        if code.path == ():
            raise refuse_types("[]", code, key)
        name = node.key.value if isinstance(node.key, Literal) and isinstance(node.key.value, str) else None
        return self._part(code, key, name, node.optional)

    def _part(self, code: Code, key: Code, name: str | None, optional: bool) -> Code:
        """A part of a value by key. `name` is the key's value if it is a string literal, else None."""
        if code.path == () and name is not None:
            if optional:
                raise refuse_types(".?", code)
            if name == "driver":
                self.reads("driver")
            elif name == "allowMultipleAllocations":
                self.reads("allowMultipleAllocations")
            return fields.field_of_device(name)
        if code.path and len(code.path) == 1:
            if optional or key.kind != STRING:
                raise refuse_types("[?]" if optional else "[]", code, key)
            if name is not None:
                return fields.domain_of(code.path[0], name)
        if code.path and len(code.path) == 2 and name is not None:
            self.reads(f"{code.path[1]}/{name}")
            value = fields.value_of(*code.path, name)
            if not optional:
                return value
            run = fields.option_of(*code.path, name)
            return Code(run, optional_of(value.kind), value.cost + 1, value.chars)
        return self._part_of_value(code, key, optional)

    def _part_of_value(self, code: Code, key: Code, optional: bool) -> Code:
        if code.path is not None:
            self.read = None
        wanted = {"map": STRING, "list": INT}.get(code.kind.name)
        if code.kind == DYN:
            fits = key.kind in (STRING, INT) or (key.kind == DYN and not optional)
        else:
            fits = wanted is not None and (key.kind == wanted or (key.kind == DYN and not optional))
        if not fits:
            raise refuse_types("[]", code, key)
        container, at, find = code.run, key.run, fields.optional_part if optional else fields.part_of
        kind = code.kind.params[-1] if code.kind.params else DYN
        return Code(
            lambda scope: find(container(scope), at(scope)),
            optional_of(kind) if optional else kind,
            1 + code.cost + key.cost,
            code.chars,
            code.items,
        )

    def _has(self, call: Call, names: Names) -> Code:
        node = call.args[0] if len(call.args) == 1 else None
        if not isinstance(node, Select) or node.optional:
            raise RefusedError("has() of something other than a field", "macros")
        code = self.part(node.operand, names)
        if code.path is not None and len(code.path) < 2:
            if code.path == ():
                fields.field_of_device(node.field)
            return Code(lambda _: True, BOOL)  # an unknown domain is an empty map
        if code.path:
            self.reads(f"{code.path[1]}/{node.field}")
            return fields.presence_of(code.path[0], code.path[1], node.field)
        if code.kind.name not in ("map", "dyn"):
            raise refuse_types("has()", code)
        container = code.run
        return Code(lambda scope: fields.has_part(container(scope), node.field), BOOL, code.cost + 1)

    # Calls

    def _call(self, call: Call, names: Names) -> Code:
        if call.target is None and call.name == "has":
            return self._has(call, names)
        if code := macro(call, names, self):
            return code
        if call.name in ("_&&_", "_||_"):
            return operators.logical(call.name, [self.value(arg, names) for arg in call.args])
        if call.name in ("!_", "-_"):
            return operators.unary(call.name, self.value(call.args[0], names))
        if call.name == "_in_":
            return self._in(call, names)
        if call.name.startswith("_"):
            return operators.binary(call.name, *(self.value(arg, names) for arg in call.args))
        if call.name == "matches":
            return self._matches(call, names)
        args = [self.value(arg, names) for arg in ([call.target] if call.target else []) + list(call.args)]
        code = _function(call.name, (METHODS if call.target else FUNCTIONS).get(call.name, ()), args)
        return _folded(code) if call.name in CONVERSIONS and args[0].constant else code

    def _in(self, call: Call, names: Names) -> Code:
        item, container = call.args
        code = self.part(container, names)
        if code.path and len(code.path) == 2 and isinstance(item, Literal) and isinstance(item.value, str):
            self.reads(f"{code.path[1]}/{item.value}")
            return fields.presence_of(*code.path, item.value)
        return operators.binary("_in_", self.value(item, names), self._whole(code))

    def _matches(self, call: Call, names: Names) -> Code:
        text, pattern = (
            (call.target, *call.args) if call.target and len(call.args) == 1 else (*call.args, None, None)[:2]
        )
        if text is None or not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise RefusedError("a pattern that is not a literal", "patterns")
        code = self.value(text, names)
        if code.kind not in (STRING, DYN):
            raise refuse_types("matches()", code)
        search = search_of(pattern.value)
        run_text = code.run

        def run(scope: Scope) -> Value:
            value = run_text(scope)
            if not isinstance(value, str):
                raise no_overload(value)
            return search(value)

        return Code(run, BOOL, 1 + code.cost + cost_of(pattern.value, code.chars))


def _literal(value: str | int | float | bool | None) -> Code:
    chars = len(value) if isinstance(value, str) else 0
    return Code(lambda _: value, _KIND_OF[type(value)], 1, chars, constant=True)


def _folded(code: Code) -> Code:
    """A conversion of a literal, which cel-go folds at compile time. Raises RefusedError."""
    try:
        value = code.run([])
    except EvaluationError as error:
        raise RefusedError(f"a conversion that fails: {error}", "types") from None
    return Code(lambda _: value, code.kind, 1, code.chars, code.items, constant=True)


# Functions


def _function(name: str, overloads: tuple[Overload, ...], args: list[Code]) -> Code:
    """A call of one of several overloads, chosen by static types, or by values if those are ambiguous."""
    if not overloads:
        raise RefusedError(f"function {name} is not supported", f"function {name}")
    fitting = [one for one in overloads if _fits(one, args)]
    if not fitting:
        raise refuse_types(f"{name}()", *args)
    results = {one.result for one in fitting}
    cost = 1 + sum(arg.cost for arg in args) + max(one.cost(args) for one in fitting)
    chars = max(one.chars(args) for one in fitting)
    items = max([arg.items for arg in args] + [chars + 1 if name == "split" else 0])
    runs = tuple(arg.run for arg in args)
    known = len(fitting) == 1 and all(arg.kind == kind for arg, kind in zip(args, fitting[0].kinds, strict=True))
    run = _known(fitting[0], runs) if known else _dispatch(fitting, runs)
    return Code(run, results.pop() if len(results) == 1 else DYN, cost, chars, items)


def _fits(overload: Overload, args: list[Code]) -> bool:
    if len(overload.kinds) != len(args):
        return False
    return all(common_type(arg.kind, kind) is not None for arg, kind in zip(args, overload.kinds, strict=True))


def _known(overload: Overload, runs: tuple[Run, ...]) -> Run:
    call = overload.call
    return lambda scope: call(*[run(scope) for run in runs])


def _dispatch(overloads: list[Overload], runs: tuple[Run, ...]) -> Run:
    def run(scope: Scope) -> Value:
        values = [one(scope) for one in runs]
        for overload in overloads:
            if all(_is(value, kind) for value, kind in zip(values, overload.kinds, strict=True)):
                return overload.call(*values)
        raise no_overload(*values)

    return run


_PYTHON: Final[dict[str, type]] = {
    "string": str, "double": float, "quantity": Quantity, "semver": Semver, "list": tuple, "map": dict,
    "optional": Optional,
}  # fmt: skip


def _is(value: Value, kind: Type) -> bool:
    """Whether a value is of a type; the items of lists and maps are not checked."""
    if kind == DYN:
        return True
    if kind == BOOL:
        return is_bool(value)
    return is_int(value) if kind == INT else isinstance(value, _PYTHON[kind.name])


MAX_MESSAGE_CHARS: Final = 200
"""Longest error message about an expression."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled expression with its number of slots, cost bound and the attributes read (None for all)."""

    run: Run
    num_slots: int
    cost: int
    reads: frozenset[str] | None


class Programs:
    """An LRU cache of programs and compile errors by expression. Thread-safe."""

    def __len__(self) -> int:
        return len(self._cache)

    def __init__(self, max_chars: int) -> None:
        """`max_chars` bounds the total length of cached expressions; programs take thirty times as many bytes."""
        self._max_chars = max_chars
        self._num_chars = 0
        self._lock = Lock()
        self._cache: OrderedDict[str, Program | RefusedError] = OrderedDict()

    def of(self, expression: str) -> Program:
        """The program of an expression. Raises RefusedError."""
        with self._lock:
            cached = self._cache.get(expression)
            if cached is None:
                try:
                    cached = self._cache[expression] = _compiled(expression)
                except RecursionError:  # depends on the caller's stack depth: not cached
                    raise RefusedError("nested too deeply", "nesting") from None
                self._num_chars += len(expression)
                while self._num_chars > self._max_chars and len(self._cache) > 1:
                    self._num_chars -= len(self._cache.popitem(last=False)[0])
            else:
                self._cache.move_to_end(expression)
        if isinstance(cached, RefusedError):
            raise RefusedError(str(cached), cached.kind)
        return cached


def _compiled(expression: str) -> Program | RefusedError:
    compiler = _Compiler()
    try:
        code = compiler.compile(expression)
    except RefusedError as error:
        return RefusedError(str(error)[:MAX_MESSAGE_CHARS], error.kind[:MAX_MESSAGE_CHARS])
    return Program(code.run, compiler.num_slots, code.cost, None if compiler.read is None else frozenset(compiler.read))
