"""The rooms of `extender` stay small: modules in a room, lines of a module, lines of a function."""

import ast
from pathlib import Path

import extender

HOUSE = Path(extender.__file__).parent
MODULES = sorted(HOUSE.rglob("*.py"))
MOST_MODULES, MOST_LINES, MOST_LINES_OF_A_FUNCTION = 15, 300, 60


def name(path: Path) -> str:
    return str(path.relative_to(HOUSE))


def test_no_room_has_too_many_modules() -> None:
    rooms = {path.parent for path in MODULES}
    assert len(rooms) > 17
    num_modules = {name(room): len([path for path in room.glob("*.py") if path.stem != "__init__"]) for room in rooms}
    assert {room: number for room, number in num_modules.items() if number > MOST_MODULES} == {}


def test_no_module_is_too_long() -> None:
    num_lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {module: number for module, number in num_lines.items() if number > MOST_LINES} == {}


def test_no_function_is_too_long() -> None:
    num_lines = {
        f"{name(path)}:{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {function: number for function, number in num_lines.items() if number > MOST_LINES_OF_A_FUNCTION} == {}
