"""How large the wheel is, in what a reader pays for: files, lines, names, callables as fields, writes, stores."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Final

from tests.tools.house.faults import Outside, splats
from tests.tools.house.sources import Class, Module, Tree, annotations_of, assignments

_WRITERS: Final = frozenset({"delete", "ensure", "patch", "post", "put"})
_CLIENT: Final = re.compile(r"(.*\.)?_?(transport|api)")
_HEARS: Final = re.compile(r"upsert.*|.*changed")
_COLLECTION: Final = re.compile(
    r"\b(bytearray|Counter|defaultdict|deque|dict|FairCache|Index|list|Mapping|OrderedDict|set|Sequence|Store)\b"
)
_SILENT: Final = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)


def counts(tree: Tree) -> dict[str, int]:
    """The figures by what they count."""
    modules, outside = tree.modules.values(), Outside(tree)
    given = [fault for module in modules for fault in outside.faults(module)]
    return {
        "files": len(modules),
        "lines": sum(module.text.count("\n") for module in modules),
        "lines of code": sum(lines_of_code(module.text) for module in modules),
        "AST nodes": sum(len(module.nodes) for module in modules),
        "classes": len(tree.classes),
        "public names": sum(1 for module in modules for name in module.defined if not name.startswith("_")),
        "callables as fields": len(list(callable_fields(tree))),
        "splats of tuples made for the purpose": sum(1 for module in modules for _ in splats(module)),
        "callables and parts given to what is made": len(given),
        "places that write to the API server": sum(1 for module in modules for _ in writes(module)),
        "stores of pods": len(list(pod_stores(tree))),
    }


def lines_of_code(text: str) -> int:
    """Lines with something that is neither comment nor docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def callable_fields(tree: Tree) -> Iterator[str]:
    """Fields that hold callables: annotated so, or filled from a parameter that is; one-method protocols too."""
    for one in tree.classes.values():
        for name, annotation in one.fields.items():
            if tree.holds_callable(annotation, one.module):
                yield f"{one.name}.{name}"


def writes(module: Module) -> Iterator[str]:
    """Calls that write to the API server: of a client (a name that ends with transport or api) by one of its verbs."""
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        if node.func.attr in _WRITERS and _CLIENT.fullmatch(ast.unparse(node.func.value)):
            yield f"{module.path}:{node.lineno}"


def pod_stores(tree: Tree) -> Iterator[str]:
    """Classes that hear of pods and keep something: with a method `upsert...` or `...changed` that takes a pod, and
    with a field that is a collection, its own or a base's."""
    for one in tree.classes.values():
        if "Protocol" not in one.base_names and any(_hears_of_pods(tree, one)) and any(_keeps(tree, one)):
            yield one.name


def _hears_of_pods(tree: Tree, one: Class) -> Iterator[bool]:
    for name, method in one.methods.items():
        given = [tree.class_of(annotation, one.module) for annotation in annotations_of(method).values()]
        first = given[0] if given else None
        yield bool(_HEARS.fullmatch(name)) and first is not None and first.node.name.endswith("Pod")


def _keeps(tree: Tree, one: Class) -> Iterator[bool]:
    for owner in tree.lineage(one):
        made = [value for method in owner.methods.values() for _, value in assignments(ast.walk(method))]
        yield any(isinstance(value, ast.Dict | ast.List | ast.Set) for value in made)
        yield any(_COLLECTION.search(ast.unparse(annotation)) for annotation in owner.fields.values())
    yield any(_COLLECTION.search(ast.unparse(base)) for base in one.node.bases)
