"""The wheel's modules as syntax trees, and what can be told of the types in them without running anything."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

WHEEL: Final = ("extender", "model")
_GENERATED: Final = "_pb2.py"
_DATA_BASES: Final = frozenset(
    {
        "BaseModel",
        "BaseSettings",
        "Enum",
        "IntEnum",
        "IntFlag",
        "NamedTuple",
        "Section",
        "StrEnum",
        "Struct",
        "TypedDict",
    }
)

_CALLABLES: Final = frozenset({"ASGIApp", "Callable"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Module:
    """A module: its dotted name, its path below the root, its text."""

    name: str
    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The text, parsed; string annotations stay strings."""
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes."""
        return list(ast.walk(self.tree))

    @cached_property
    def scopes(self) -> list[tuple[ast.AST, list[ast.AST]]]:
        """The module and each function in it with the nodes that are in no function within it."""
        found: list[tuple[ast.AST, list[ast.AST]]] = []

        def enter(scope: ast.AST) -> None:
            nodes: list[ast.AST] = []
            found.append((scope, nodes))
            waiting = list(ast.iter_child_nodes(scope))
            while waiting:
                node = waiting.pop()
                nodes.append(node)
                if isinstance(node, Function):
                    waiting += (*node.decorator_list, node.args)
                    enter(node)
                else:
                    waiting += ast.iter_child_nodes(node)

        enter(self.tree)
        return found

    @cached_property
    def imported(self) -> dict[str, str]:
        """What is imported anywhere in the module: dotted name by local name, the last where functions differ."""
        return dict(self.imports)

    @cached_property
    def imports(self) -> list[tuple[str, str]]:
        """All imports: local name and dotted name."""
        found: list[tuple[str, str]] = []
        for statement in self.nodes:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                found += ((alias.asname or alias.name, f"{statement.module}.{alias.name}") for alias in statement.names)
            elif isinstance(statement, ast.Import):
                for alias in statement.names:
                    top = alias.name.partition(".")[0]
                    found.append((alias.asname, alias.name) if alias.asname else (top, top))
        return found

    @cached_property
    def defined(self) -> dict[str, ast.stmt]:
        """What the module defines at its top, by name."""
        return dict(_definitions(self.tree.body))


@dataclass(eq=False)
class Class:
    """A class of the tree, and the annotations of its fields."""

    name: str
    module: Module
    node: ast.ClassDef

    @cached_property
    def methods(self) -> dict[str, Function]:
        """Its own methods by name."""
        return {item.name: item for item in self.node.body if isinstance(item, Function)}

    @cached_property
    def fields(self) -> dict[str, ast.expr]:
        """Its fields with the annotations that they have, the parameter's whose value they get, or the class called."""
        found: dict[str, ast.expr] = {}
        for method in self.methods.values():
            if {"property", "cached_property"} & {ast.unparse(one) for one in method.decorator_list}:
                if method.returns is not None:
                    found[method.name] = method.returns
                continue
            annotated = annotations_of(method)
            for target, value in assignments(ast.walk(method)):
                if is_own(target, method) and isinstance(target, ast.Attribute):
                    if isinstance(value, ast.Name) and value.id in annotated:
                        found.setdefault(target.attr, annotated[value.id])
                    elif isinstance(value, ast.Call):
                        found.setdefault(target.attr, value.func)
            for statement in ast.walk(method):
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Attribute):
                    found[statement.target.attr] = statement.annotation
        for item in self.node.body:
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                found[item.target.id] = item.annotation
        return found

    @property
    def is_value(self) -> bool:
        """Whether its objects hold data and never change: frozen dataclasses, structs, errors, enums."""
        frozen = any("frozen=True" in ast.unparse(one) for one in self.node.decorator_list)
        bases = self.base_names
        return frozen or bool(bases & _DATA_BASES) or any(base.endswith(("Error", "Exception")) for base in bases)

    @cached_property
    def base_names(self) -> set[str]:
        """The last part of each base's name."""
        return {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in self.node.bases}


@dataclass(eq=False)
class Tree:
    """All modules below a root, and the classes in them by dotted name."""

    modules: dict[str, Module]
    classes: dict[str, Class] = field(init=False)

    def __post_init__(self) -> None:
        self.classes = {
            f"{module.name}.{node.name}": Class(f"{module.name}.{node.name}", module, node)
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
        }

    @classmethod
    def of(cls, root: Path, folders: tuple[str, ...] = WHEEL) -> "Tree":
        """The modules of these folders, without what is generated."""
        paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
        texts = {str(path.relative_to(root)): path.read_text() for path in paths if not path.name.endswith(_GENERATED)}
        return cls.of_texts(texts)

    @classmethod
    def of_texts(cls, texts: dict[str, str]) -> "Tree":
        """The modules of these texts by path."""
        made = (
            Module(path.removesuffix(".py").removesuffix("/__init__").replace("/", "."), path, text)
            for path, text in texts.items()
        )
        return cls({module.name: module for module in made})

    def dotted(self, expression: ast.expr, module: Module) -> str:
        """The dotted name that an expression is, followed to where it is defined; "" for what is no name."""
        if isinstance(expression, ast.Name):
            name = module.imported.get(expression.id) or f"{module.name}.{expression.id}"
            return self.origin(name)
        if isinstance(expression, ast.Attribute):
            base = self.dotted(expression.value, module)
            return base and self.origin(f"{base}.{expression.attr}")
        return ""

    def origin(self, name: str) -> str:
        """Where a name that a module imports from another is defined."""
        seen: set[str] = set()
        while name not in seen:
            seen.add(name)
            owner, _, last = name.rpartition(".")
            module = self.modules.get(owner)
            if module is None or last in module.defined or last not in module.imported:
                break
            name = module.imported[last]
        return name

    def class_of(self, annotation: ast.expr | None, module: Module) -> Class | None:
        """The class of this tree that an annotation names, alone or beside None."""
        annotation = _parsed(annotation)
        if isinstance(annotation, ast.BinOp):
            sides = [self.class_of(side, module) for side in (annotation.left, annotation.right)]
            return next((side for side in sides if side is not None), None)
        if isinstance(annotation, ast.Subscript):
            name = ast.unparse(annotation.value).rpartition(".")[2]
            if name in ("Final", "ClassVar", "Annotated", "Optional"):
                inner = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
                return self.class_of(inner, module)
            annotation = annotation.value
        return self.classes.get(self.dotted(annotation, module)) if annotation is not None else None

    def field_of(self, owner: Class, name: str) -> tuple[ast.expr, Module] | None:
        """The annotation of a field, and the module that it stands in; a base's where the class has none."""
        for one in self.lineage(owner):
            if name in one.fields:
                return one.fields[name], one.module
        return None

    def lineage(self, owner: Class) -> Iterator[Class]:
        """A class and its bases in this tree."""
        yield owner
        for base in owner.node.bases:
            found = self.class_of(base, owner.module)
            if found is not None and found is not owner:
                yield from self.lineage(found)

    def holds_callable(self, annotation: ast.expr | None, module: Module) -> bool:
        """Whether values of this type are called or contain such: Callable, an alias of it, a one-method protocol."""
        return any(
            name.rpartition(".")[2] in _CALLABLES or name in self._one_method_protocols
            for name in self._named(annotation, module)
        )

    def holds_part(self, annotation: ast.expr | None, module: Module) -> bool:
        """Whether values of this type are parts or contain such."""
        return any(name in self.parts for name in self._named(annotation, module))

    @cached_property
    def _one_method_protocols(self) -> frozenset[str]:
        return frozenset(
            one.name for one in self.classes.values() if "Protocol" in one.base_names and len(one.methods) == 1
        )

    @cached_property
    def parts(self) -> frozenset[str]:
        """Classes whose objects do something beside holding data: protocols, and what waits, or holds callables or
        other parts."""
        candidates = {name: one for name, one in self.classes.items() if not one.is_value}
        found = {
            name
            for name, one in candidates.items()
            if ("Protocol" in one.base_names and one.methods)
            or any(isinstance(method, ast.AsyncFunctionDef) for method in one.methods.values())
            or any(self.holds_callable(annotation, one.module) for annotation in one.fields.values())
        }
        while True:
            more = {
                name
                for name, one in candidates.items()
                if name not in found
                and any(found.intersection(self._named(annotation, one.module)) for annotation in one.fields.values())
            }
            if not more:
                return frozenset(found)
            found |= more

    def _named(self, annotation: ast.expr | None, module: Module, depth: int = 0) -> Iterator[str]:
        """The names in an annotation, aliases of this tree unfolded; not what a Callable takes and returns."""
        annotation = _parsed(annotation)
        if isinstance(annotation, ast.Name | ast.Attribute):
            name = self.dotted(annotation, module)
            owner, _, last = name.rpartition(".")
            defined = self.modules[owner].defined.get(last) if owner in self.modules else None
            if isinstance(defined, ast.Assign | ast.AnnAssign) and defined.value is not None and depth < 5:
                yield from self._named(defined.value, self.modules[owner], depth + 1)
            yield name
        elif isinstance(annotation, ast.Subscript):
            yield from self._named(annotation.value, module, depth)
            if ast.unparse(annotation.value).rpartition(".")[2] != "Callable":
                yield from self._named(annotation.slice, module, depth)
        elif isinstance(annotation, ast.Tuple | ast.List):
            for element in annotation.elts:
                yield from self._named(element, module, depth)
        elif isinstance(annotation, ast.BinOp):
            yield from self._named(annotation.left, module, depth)
            yield from self._named(annotation.right, module, depth)


def annotations_of(function: Function) -> dict[str, ast.expr]:
    """The annotations of a function's parameters."""
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return {one.arg: one.annotation for one in every if one.annotation is not None}


def own_name(function: Function) -> str:
    """What a method calls its own object or class: its first parameter."""
    every = (*function.args.posonlyargs, *function.args.args)
    return every[0].arg if every else ""


def is_own(target: ast.expr, method: Function) -> bool:
    """Whether a target is an attribute of the method's own object."""
    holder = target.value if isinstance(target, ast.Attribute) else None
    return isinstance(holder, ast.Name) and holder.id == own_name(method)


def assignments(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Each target that is assigned with its value, None where that is not told apart from others."""
    for statement in nodes:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                yield from _pairs(target, statement.value)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield statement.target, statement.value


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(target, ast.Tuple | ast.List):
        alike = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
        for position, one in enumerate(target.elts):
            if alike and isinstance(value, ast.Tuple | ast.List):
                yield from _pairs(one, value.elts[position])
            else:
                yield one, None
    else:
        yield target, value


def _parsed(annotation: ast.expr | None) -> ast.expr | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            return ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return None
    return annotation


def _definitions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Name):
                        yield one.id, statement
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement
        elif isinstance(statement, ast.If | ast.Try):
            for part in (statement.body, statement.orelse):
                yield from _definitions(part)
            for handler in getattr(statement, "handlers", []):
                yield from _definitions(handler.body)
