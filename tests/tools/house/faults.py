"""What is built in a way that this house does not want, with the line: splats, assignments from outside, idle names."""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.tools.house.sources import Class, Function, Module, Tree, annotations_of, assignments, is_own, own_name

_REFERENCE: Final = re.compile(r"(extender|model)(\.\w+)+:\w+")
_CLASS: Final = re.compile(r"(.*\.)?_?[A-Z]\w*")
_RAISES: Final = re.compile(r"[Rr]aises ([^.]*)")
_WORD: Final = re.compile(r"\w+")
_ADDERS: Final = frozenset({"add", "append", "appendleft", "extend", "insert", "register", "setdefault", "update"})


class Fault(NamedTuple):
    """A fault and where it is."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def splats(module: Module) -> Iterator[Fault]:
    """Calls that unpack a tuple, list or set written for them, or by keyword a dict whose keys are known; also one that
    a local name holds for nothing else."""
    for scope, nodes in module.scopes:
        held = _held_for_splats(nodes) if isinstance(scope, Function) else set()
        for call in nodes:
            if not isinstance(call, ast.Call):
                continue
            values = [one.value for one in call.args if isinstance(one, ast.Starred)]
            by_name = [one.value for one in call.keywords if one.arg is None]
            if (
                any(
                    isinstance(value, ast.Tuple | ast.List | ast.Set) or _branches_into_tuple(value) for value in values
                )
                or any(_has_names(value) for value in by_name)
                or any(isinstance(value, ast.Name) and value.id in held for value in (*values, *by_name))
            ):
                yield Fault(module.path, call.lineno, ast.unparse(call.func))


def _branches_into_tuple(value: ast.expr) -> bool:
    return isinstance(value, ast.IfExp) and all(
        isinstance(one, ast.Tuple | ast.List) and one.elts for one in (value.body, value.orelse)
    )


def _has_names(value: ast.expr | None) -> bool:
    """Whether a dict has a key that could be the name of a parameter."""
    if isinstance(value, ast.Dict):
        return any(isinstance(key, ast.Constant) and str(key.value).isidentifier() for key in value.keys)
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "dict"
        and bool(value.keywords)
    )


def _held_for_splats(nodes: list[ast.AST]) -> set[str]:
    """Local names that hold a tuple, list or dict written out, and are used in nothing but one splat."""
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    held = {
        target.id
        for target, value in assignments(nodes)
        if isinstance(target, ast.Name) and (isinstance(value, ast.Tuple | ast.List) or _has_names(value))
        if stored[target.id] == 1
    }
    splat = [
        one.value
        for node in nodes
        if isinstance(node, ast.Call)
        for one in (*node.args, *node.keywords)
        if isinstance(one, ast.Starred) or (isinstance(one, ast.keyword) and one.arg is None)
    ]
    used = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return {value.id for value in splat if isinstance(value, ast.Name) and used[value.id] == 1} & held


class Outside:
    """Finds where a callable or a part is given to another object that is made already: by an attribute, by a list or
    dict of it, or by a method that keeps its argument.

    Types are those that annotations and constructor calls tell. What it can't see: an object or a value that comes out
    of a container, a function without annotations or a library; `setattr`; a method of a library that keeps its
    argument. A frozen dataclass is a value and no part, though it hold callables.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def faults(self, module: Module) -> Iterator[Fault]:
        """Those of a module."""
        owners = {id(method): one for one in self._of(module) for method in one.methods.values()}
        for function, nodes in module.scopes:
            if isinstance(function, Function):
                owner = owners.get(id(function))
                yield from self._assigned(module, owner, function, nodes)
                if owner is not None and not function.name.startswith("_") and not _is_maker(function):
                    yield from self._kept(module, owner, function, nodes)

    def _of(self, module: Module) -> Iterator[Class]:
        return (one for one in self._tree.classes.values() if one.module is module)

    def _assigned(
        self, module: Module, owner: Class | None, function: Function, nodes: list[ast.AST]
    ) -> Iterator[Fault]:
        scope = _Types(self._tree, module, owner, function, nodes)
        for node in nodes:
            # What a method of this tree keeps of its arguments is found there.
            added = [(target, value) for target, value in _added(node) if scope.class_of(target) is None]
            for target, value in [*_targets(node), *added]:
                if owner is not None and is_own(target, function):
                    continue
                if isinstance(target, ast.Attribute) and self._is_given(scope, target, value):
                    yield Fault(module.path, target.lineno, f"{ast.unparse(target)} = {_brief(value)}")

    def _is_given(self, scope: "_Types", target: ast.Attribute, value: ast.expr | None) -> bool:
        holder = scope.class_of(target.value)
        declared = self._tree.field_of(holder, target.attr) if holder is not None else None
        if (
            declared is not None
            and not isinstance(value, ast.Constant)
            and (self._tree.holds_callable(*declared) or self._tree.holds_part(*declared))
        ):
            return True
        return any(scope.is_behaviour(one) for one in _elements(value))

    def _kept(self, module: Module, owner: Class, method: Function, nodes: list[ast.AST]) -> Iterator[Fault]:
        """A public method that keeps a callable or a part: a setter."""
        given = {
            name
            for name, annotation in annotations_of(method).items()
            if self._tree.holds_callable(annotation, module) or self._tree.holds_part(annotation, module)
        }
        for node in nodes if given else ():
            for target, value in [*_targets(node), *_added(node)]:
                kept = given & {one.id for one in _elements(value) if isinstance(one, ast.Name)}
                if is_own(target, method) and kept:
                    text = f"{owner.node.name}.{method.name}({', '.join(sorted(kept))})"
                    yield Fault(module.path, target.lineno, text)


class _Types:
    """What types the names of a function have."""

    def __init__(
        self, tree: Tree, module: Module, owner: Class | None, function: Function, nodes: list[ast.AST]
    ) -> None:
        self._tree, self._module, self._owner = tree, module, owner
        self._own = own_name(function) if owner is not None else ""
        self._annotated = annotations_of(function)
        self._locals: dict[str, ast.expr] = {}
        self._functions = {node.name for node in nodes if isinstance(node, Function)}
        for target, value in assignments(nodes):
            if isinstance(target, ast.Name) and value is not None:
                self._locals.setdefault(target.id, value)

    def class_of(self, expression: ast.expr, depth: int = 0) -> Class | None:
        """The class of the tree that an expression's value is of, None where that can't be told."""
        if depth > 8:
            return None
        if isinstance(expression, ast.Name):
            if expression.id == self._own:
                return self._owner
            if expression.id in self._annotated:
                return self._tree.class_of(self._annotated[expression.id], self._module)
            if expression.id in self._locals:
                return self.class_of(self._locals[expression.id], depth + 1)
        if isinstance(expression, ast.Attribute):
            holder = self.class_of(expression.value, depth + 1)
            declared = self._tree.field_of(holder, expression.attr) if holder is not None else None
            return self._tree.class_of(*declared) if declared is not None else None
        if isinstance(expression, ast.Call):
            made = self._tree.class_of(expression.func, self._module)
            if made is not None:
                return made
            if isinstance(expression.func, ast.Attribute):
                holder = self.class_of(expression.func.value, depth + 1)
                for one in self._tree.lineage(holder) if holder is not None else ():
                    if (method := one.methods.get(expression.func.attr)) is not None:
                        return self._tree.class_of(method.returns, one.module)
            name = self._tree.dotted(expression.func, self._module)
            owner, _, last = name.rpartition(".")
            found = self._tree.modules[owner].defined.get(last) if owner in self._tree.modules else None
            if isinstance(found, Function):
                return self._tree.class_of(found.returns, self._tree.modules[owner])
        return None

    def is_behaviour(self, value: ast.expr) -> bool:
        """Whether a value is a function, a bound method or a part."""
        if isinstance(value, ast.Lambda):
            return True
        found = self.class_of(value)
        if found is not None:
            return found.name in self._tree.parts
        if isinstance(value, ast.Name):
            if value.id in self._annotated:
                return self._tree.holds_callable(self._annotated[value.id], self._module)
            if value.id in self._locals:
                return False
            defined = self._module.defined.get(value.id)
            return value.id in self._functions or isinstance(defined, Function)
        if isinstance(value, ast.Attribute):
            holder = self.class_of(value.value)
            return holder is not None and any(
                value.attr in one.methods and value.attr not in one.fields for one in self._tree.lineage(holder)
            )
        return False


def _targets(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        for target, value in assignments([node]):
            yield _collection(target), value
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.BitOr):
        yield node.target, node.value


def _collection(target: ast.expr) -> ast.expr:
    return _collection(target.value) if isinstance(target, ast.Subscript) else target


def _added(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """The collections to which a call adds something."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _ADDERS:
        for value in (*node.args, *(one.value for one in node.keywords)):
            yield node.func.value, value


def _elements(value: ast.expr | None) -> Iterator[ast.expr]:
    """The parts of a value that is put together: of a tuple, of a choice, of a call of a class."""
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        for one in value.elts:
            yield from _elements(one)
    elif isinstance(value, ast.Call):
        yield value
        if _CLASS.fullmatch(ast.unparse(value.func)):
            for one in (*value.args, *(keyword.value for keyword in value.keywords)):
                yield from _elements(one)
    elif isinstance(value, ast.BoolOp):
        for one in value.values:
            yield from _elements(one)
    elif isinstance(value, ast.IfExp):
        yield from (*_elements(value.body), *_elements(value.orelse))
    elif value is not None:
        yield value


def _is_maker(method: Function) -> bool:
    return any(isinstance(one, ast.Name) and one.id in ("classmethod", "staticmethod") for one in method.decorator_list)


def _brief(value: ast.expr | None) -> str:
    return ast.unparse(value)[:40] if value is not None else "..."


def idle_names(tree: Tree, others: Iterable[Module]) -> Iterator[Fault]:
    """Public functions, classes and constants that no other module of the tree uses, nor one of `others`: an entry
    point, an example of the documented plugin API.

    Used is what is imported or reached through its module, what a string names (`package.module:Name`), what a
    decorator registers, `main` of a module that is run, and what a used name shows: in annotations and bases, as
    elements of a constant, as errors that its docstring says are raised. `logger` is everybody's name for his own.
    """
    used = {name for module in (*tree.modules.values(), *others) for name in _uses(tree, module)}
    for module in tree.modules.values():
        public = {name: node for name, node in module.defined.items() if not name.startswith("_")}
        own = {"logger", *(["main"] if '__name__ == "__main__"' in module.text else [])}
        alive = {name for name in public if f"{module.name}.{name}" in used or name in own}
        alive |= {name for name, node in public.items() if _is_registered(node)}
        waiting = list(alive)
        while waiting:
            met = _surface(module.defined[waiting.pop()]) & public.keys() - alive
            alive |= met
            waiting += met
        for name in sorted(public.keys() - alive):
            yield Fault(module.path, public[name].lineno, name)


def _uses(tree: Tree, module: Module) -> Iterator[str]:
    """Dotted names that a module takes from others."""
    for _, name in module.imports:
        if (origin := tree.origin(name)).rpartition(".")[0] != module.name:
            yield origin
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and (name := tree.dotted(node, module)):
            if name.rpartition(".")[0] != module.name:
                yield name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _REFERENCE.fullmatch(node.value):
            yield node.value.replace(":", ".")


def _is_registered(node: ast.stmt) -> bool:
    """Whether a framework has it: a decorator that is an object's method takes it, a command or a route, or it is a
    group of commands."""
    if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("typer.Typer("):
        return True
    decorators = node.decorator_list if isinstance(node, Function | ast.ClassDef) else []
    return any(isinstance(one.func if isinstance(one, ast.Call) else one, ast.Attribute) for one in decorators)


def _surface(node: ast.stmt) -> set[str]:
    """The names that a definition shows to whoever uses it."""
    shown: list[ast.AST] = []
    for one in (node, *node.body) if isinstance(node, ast.ClassDef) else (node,):
        if isinstance(one, Function):
            shown += [*annotations_of(one).values(), *([one.returns] if one.returns else [])]
        if isinstance(one, Function | ast.ClassDef):
            raised = _RAISES.findall(ast.get_docstring(one) or "")
            shown += [ast.Name(word) for text in raised for word in _WORD.findall(text)]
        if isinstance(one, ast.ClassDef):
            shown += one.bases
        elif isinstance(one, ast.AnnAssign):
            shown.append(one.annotation)
        if isinstance(one, ast.Assign | ast.AnnAssign):
            shown += _shown_elements(one.value)
    texts = [child.value for one in shown for child in ast.walk(one) if isinstance(child, ast.Constant)]
    names = {child.id for one in shown for child in ast.walk(one) if isinstance(child, ast.Name)}
    return names | {word for text in texts if isinstance(text, str) for word in _WORD.findall(text)}


def _shown_elements(value: ast.expr | None) -> Iterator[ast.expr]:
    """The names in a constant's tuple, list or dict, and what an alias stands for."""
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        for one in value.elts:
            yield from _shown_elements(one)
    elif isinstance(value, ast.Dict):
        for one in value.values:
            yield from _shown_elements(one)
    elif isinstance(value, ast.Call):
        for one in value.args:
            yield from _shown_elements(one)
    elif isinstance(value, ast.Name | ast.BinOp | ast.Subscript):
        yield value
