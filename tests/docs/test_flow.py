"""What docs/how-a-pod-flows.md names is in the code: files, and the classes, methods and functions in them."""

import ast
import re

from tests.docs.pages import DOCS, ROOT

PAGE = (DOCS / "how-a-pod-flows.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", PAGE)
"""Files below `extender`, and what each is said to have, "" for nothing."""


def defined(tree: ast.AST, inside: str = "") -> set[str]:
    """Classes and functions by their dotted names."""
    found: set[str] = set()
    for item in ast.iter_child_nodes(tree):
        if isinstance(item, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found |= {inside + item.name, *defined(item, f"{inside}{item.name}.")}
    return found


def test_what_the_page_names_is_there() -> None:
    assert len(NAMED) > 40
    missing = []
    for name, what in NAMED:
        path = ROOT / "extender" / name
        if not path.is_file() or (what and what not in defined(ast.parse(path.read_text()))):
            missing.append(f"{name}: {what}")
    assert not missing
