"""From an expression to what evaluates it: types are checked, and everything that is not handled is refused.

What evaluates expressions, made once and kept in bounded memory.
"""

from collections import OrderedDict
from dataclasses import dataclass
from threading import Lock
from typing import Final

from extender.dra.cel import fields, operators
from extender.dra.cel.code import Code, Names, Run, Scope, bounded, refuse_types
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
    is_bool,
    is_int,
    joined,
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
        """Attributes and capacities that are looked at, None for all."""
        self.num_slots = 1  # the device's
        self._depth = 0

    def compile(self, expression: str) -> Code:
        """An expression of the variable `device` that gives a bool, or that may. Raises RefusedError."""
        code = self.value(parse(expression), {"device": fields.THE_DEVICE})
        if code.kind not in (BOOL, DYN):
            raise RefusedError(f"gives {code.kind}, not a bool", "types")
        return code

    # What macros use: see code.Compiling

    def value(self, node: Node, names: Names) -> Code:
        return self._whole(self.part(node, names))

    def _whole(self, code: Code) -> Code:
        """All of a value: where it is a map in the device, whatever is in it is looked at."""
        if code.path is None:
            return code
        if code.path == ():
            raise RefusedError("the device as a value", "types")
        self.read = None
        return Code(code.run, code.kind, code.cost, code.chars, code.items)

    def part(self, node: Node, names: Names) -> Code:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise RefusedError(f"nested more than {_MAX_DEPTH} deep", "nesting")
        code = self._code(node, names)
        self._depth -= 1
        bounded(code.cost)
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
                raise RefusedError(f"name {node.name} is not known", "names")
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
            return operators.listed([self.value(item, names) for item in node.items])
        return self._map(node, names)

    def _map(self, node: MapOf, names: Names) -> Code:
        keys = [key.value for key, _ in node.items if isinstance(key, Literal) and isinstance(key.value, str)]
        if len(set(keys)) < len(node.items):
            raise RefusedError("a map whose keys are no texts, or not different ones", "maps")
        items = operators.listed([self.value(value, names) for _, value in node.items])
        run = items.run
        return Code(
            lambda scope: dict(zip(keys, run(scope), strict=True)),
            map_of(STRING, items.kind.of[0]),
            1 + items.cost + len(keys),
            max(items.chars, *map(len, keys), 0),
            items.items,
        )

    # Parts

    def _select(self, node: Select, names: Names) -> Code:
        return self._part(self.part(node.of, names), _literal(node.field), node.field, node.optional)

    def _index(self, node: Index, names: Names) -> Code:
        code, key = self.part(node.of, names), self.value(node.key, names)
        if code.path == ():
            raise refuse_types("[]", code, key)
        name = node.key.value if isinstance(node.key, Literal) and isinstance(node.key.value, str) else None
        return self._part(code, key, name, node.optional)

    def _part(self, code: Code, key: Code, name: str | None, optional: bool) -> Code:
        """A part by a key, of which the value is known where it is a literal."""
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
            found = fields.value_of(*code.path, name)
            if not optional:
                return found
            run = fields.option_of(*code.path, name)
            return Code(run, optional_of(found.kind), found.cost + 1, found.chars)
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
            raise refuse_types("a part", code, key)
        of, at, find = code.run, key.run, fields.optional_part if optional else fields.part_of
        kind = code.kind.of[-1] if code.kind.of else DYN
        return Code(
            lambda scope: find(of(scope), at(scope)),
            optional_of(kind) if optional else kind,
            1 + code.cost + key.cost,
            code.chars,
            code.items,
        )

    def _has(self, call: Call, names: Names) -> Code:
        node = call.args[0] if len(call.args) == 1 else None
        if not isinstance(node, Select) or node.optional:
            raise RefusedError("has() of what is no field", "macros")
        code = self.part(node.of, names)
        if code.path is not None and len(code.path) < 2:
            if code.path == ():
                fields.field_of_device(node.field)
            return Code(lambda _: True, BOOL)  # an unknown domain is an empty one
        if code.path:
            self.reads(f"{code.path[1]}/{node.field}")
            return fields.presence_of(code.path[0], code.path[1], node.field)
        if code.kind.name not in ("map", "dyn"):
            raise refuse_types("has()", code)
        of = code.run
        return Code(lambda scope: fields.has_part(of(scope), node.field), BOOL, code.cost + 1)

    # Calls

    def _call(self, call: Call, names: Names) -> Code:
        if call.of is None and call.name == "has":
            return self._has(call, names)
        if found := macro(call, names, self):
            return found
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
        args = [self.value(arg, names) for arg in ([call.of] if call.of else []) + list(call.args)]
        code = _function(call.name, (METHODS if call.of else FUNCTIONS).get(call.name, ()), args)
        return _folded(code) if call.name in CONVERSIONS and args[0].constant else code

    def _in(self, call: Call, names: Names) -> Code:
        item, of = call.args
        there = self.part(of, names)
        if there.path and len(there.path) == 2 and isinstance(item, Literal) and isinstance(item.value, str):
            self.reads(f"{there.path[1]}/{item.value}")
            return fields.presence_of(*there.path, item.value)
        return operators.binary("_in_", self.value(item, names), self._whole(there))

    def _matches(self, call: Call, names: Names) -> Code:
        text, pattern = (call.of, *call.args) if call.of and len(call.args) == 1 else (*call.args, None, None)[:2]
        if text is None or not isinstance(pattern, Literal) or not isinstance(pattern.value, str):
            raise RefusedError("a pattern that is no literal", "patterns")
        code = self.value(text, names)
        if code.kind not in (STRING, DYN):
            raise refuse_types("matches()", code)
        search = search_of(pattern.value)
        of = code.run

        def run(scope: Scope) -> Value:
            value = of(scope)
            if not isinstance(value, str):
                raise no_overload(value)
            return search(value)

        return Code(run, BOOL, 1 + code.cost + cost_of(pattern.value, code.chars))


def _literal(value: str | int | float | bool | None) -> Code:
    chars = len(value) if isinstance(value, str) else 0
    return Code(lambda _: value, _KIND_OF[type(value)], 1, chars, constant=True)


def _folded(code: Code) -> Code:
    """A conversion of a literal, which cel-go works out when it compiles. Raises RefusedError."""
    try:
        value = code.run([])
    except EvaluationError as error:
        raise RefusedError(f"a conversion that fails: {error}", "types") from None
    return Code(lambda _: value, code.kind, 1, code.chars, code.items, constant=True)


# Functions


def _function(name: str, overloads: tuple[Overload, ...], args: list[Code]) -> Code:
    """A call of one of several overloads, by the types known beforehand, and by values where they are not."""
    if not overloads:
        raise RefusedError(f"function {name} is not handled", f"function {name}")
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
    return all(joined(arg.kind, kind) is not None for arg, kind in zip(args, overload.kinds, strict=True))


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
    """Whether a value is of a type; what is in lists is not looked at."""
    if kind == DYN:
        return True
    if kind == BOOL:
        return is_bool(value)
    return is_int(value) if kind == INT else isinstance(value, _PYTHON[kind.name])


MAX_SAID_CHARS: Final = 200
"""Of what is wrong with an expression."""


@dataclass(frozen=True, slots=True)
class Program:
    """What evaluates an expression."""

    run: Run
    num_slots: int
    cost: int
    reads: frozenset[str] | None


class Programs:
    """Programs by expression, those that were used last; and why there is none. Thread-safe."""

    def __len__(self) -> int:
        return len(self._found)

    def __init__(self, max_chars: int) -> None:
        """`max_chars` is the length of all expressions that are kept: programs take thirty times as many bytes."""
        self._max_chars = max_chars
        self._num_chars = 0
        self._lock = Lock()
        self._found: OrderedDict[str, Program | RefusedError] = OrderedDict()

    def of(self, expression: str) -> Program:
        """The program of an expression. Raises RefusedError."""
        with self._lock:
            found = self._found.get(expression)
            if found is None:
                try:
                    found = self._found[expression] = _compiled(expression)
                except RecursionError:  # whoever asks is deep in the stack already: not to be remembered
                    raise RefusedError("nested too deep", "nesting") from None
                self._num_chars += len(expression)
                while self._num_chars > self._max_chars and len(self._found) > 1:
                    self._num_chars -= len(self._found.popitem(last=False)[0])
            else:
                self._found.move_to_end(expression)
        if isinstance(found, RefusedError):
            raise RefusedError(str(found), found.kind)
        return found


def _compiled(expression: str) -> Program | RefusedError:
    compiler = _Compiler()
    try:
        code = compiler.compile(expression)
    except RefusedError as error:
        return RefusedError(str(error)[:MAX_SAID_CHARS], error.kind[:MAX_SAID_CHARS])
    return Program(code.run, compiler.num_slots, code.cost, None if compiler.read is None else frozenset(compiler.read))
