"""Each rule finds what is planted, and nothing in what only looks like it."""

import pytest

from tests.tools.house.faults import Outside, idle_names, splats
from tests.tools.house.sources import Module, Tree


@pytest.mark.parametrize(
    "call",
    [
        "f(*(a, b))",
        "f(a, *[b, c])",
        "f(*((a, b) if b else (c, d)), e)",
        "f(**{'a': b})",
        "f(**dict(a=b))",
        "g(f(*(a, b)))",
        "[f(*(one, a)) for one in b]",
    ],
)
def test_a_splat_made_for_a_call_is_found(call: str) -> None:
    assert len(list(splats(Module("m", "m.py", f"a = {call}")))) == 1


def test_so_is_one_that_a_local_name_holds() -> None:
    text = "def g(a, b):\n    both = a, b\n    f(*both)\n    named = {'a': b}\n    f(**named)"
    assert sorted(fault.line for fault in splats(Module("m", "m.py", text))) == [3, 5]


@pytest.mark.parametrize(
    "text",
    [
        "f(*given, **more)",
        "f(*(one for one in a))",
        "f(*[one for one in a])",
        "f(**{'kerf.dev/a': b})",
        "f(**{name: b})",
        "a = (*(b, c), d)",
        "f(*([a] if b else []))",
        "def g(a):\n    both = a, 1\n    f(*both)\n    return both",
        "def g(a):\n    both = [a]\n    both += [1]\n    f(*both)",
        "def g(a):\n    both = {'a': a}\n    return f(**both) or f(b=1, **both)",
    ],
)
def test_other_splats_are_not(text: str) -> None:
    assert not list(splats(Module("m", "m.py", text)))


PARTS = """
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Read = Callable[[], int]


class Hears(Protocol):
    def hear(self, word: str) -> None: ...


@dataclass(frozen=True)
class Score:
    of: Callable[[int], float]


class Part:
    def __init__(self, read: Read, listeners: list[Hears]) -> None:
        self.read, self.listeners = read, listeners
        self.count = 0
        self.score: Score | None = None
        self.named: dict[str, Read] = {}
        self.store = Store()

    async def work(self) -> None: ...

    def told(self) -> int:
        return self.count


class Store:
    def add(self, given: Read) -> None:
        given()


class Holder:
    def __init__(self, part: Part) -> None:
        self.part = part
"""


def faults_of(text: str) -> list[int]:
    tree = Tree.of_texts({"extender/parts.py": PARTS, "extender/build.py": f"from extender.parts import *\n{text}"})
    module = tree.modules["extender.build"]
    module.imported.update({name: f"extender.parts.{name}" for name in tree.modules["extender.parts"].defined})
    return [fault.line - 1 for fault in Outside(tree).faults(module)]


@pytest.mark.parametrize(
    "assignment",
    [
        "part.read = lambda: 1",
        "part.read = given",
        "part.read, part.count = given, 1",
        "part.listeners += [given]",
        "part.listeners.append(given)",
        "part.named['a'] = given",
        "part.named.update(a=given)",
        "holder.part = part",
        "holder.part.read = part.told",
        "holder.part.listeners.append(part)",
        "holder.part.anything = part.told",
        "Holder(part).part = part",
    ],
)
def test_a_part_given_to_what_is_made_is_found(assignment: str) -> None:
    assert faults_of(f"def build(part: Part, holder: Holder, given: object) -> None:\n    {assignment}") == [2]


@pytest.mark.parametrize(
    "assignment",
    [
        "part.count = part.told()",
        "part.count += 1",
        "part.score = score",
        "part.listeners",
        "read = part.told",
        "numbers.append(part)",
        "part.store.add(given)",
        "part.read = None",
    ],
)
def test_data_are_not(assignment: str) -> None:
    parameters = "part: Part, score: Score, numbers: list[object], given: Read"
    assert not faults_of(f"def build({parameters}) -> None:\n    {assignment}")


SETTERS = """
class Keeps:
    def __init__(self, read: Read) -> None:
        self._read = read
        self._all: list[object] = []

    def {}(self, given: {}) -> None:
        {}
"""


@pytest.mark.parametrize(
    ("method", "kind", "body", "num_found"),
    [
        ("follow", "Read", "self._read = given", 1),
        ("follow", "Hears | None", "self._all.append((given, 1))", 1),
        ("follow", "Part", "self._all.append(Holder(given))", 1),
        ("follow", "Score", "self._all.append(given)", 0),
        ("follow", "Read", "self._all.append(given())", 0),
        ("_follow", "Read", "self._read = given", 0),
    ],
)
def test_a_method_that_keeps_a_part_is_a_setter(method: str, kind: str, body: str, num_found: int) -> None:
    assert len(faults_of(SETTERS.format(method, kind, body))) == num_found


NAMES = """
from dataclasses import dataclass

LIMIT = 1
_OWN = 2
BOTH = (LIMIT, LIMIT)


class Answer:
    pass


class Fault(Exception):
    pass


def ask(number: int) -> "Answer | None":
    '''Raises Fault.'''


def idle() -> None:
    ask(LIMIT)


@commands.command()
def command() -> None: ...
"""


@pytest.mark.parametrize(
    ("user", "idle"),
    [
        ("", ["Answer", "BOTH", "Fault", "LIMIT", "ask", "idle"]),
        ("from extender.names import ask", ["BOTH", "LIMIT", "idle"]),
        ("from extender import names\nnames.ask(1)", ["BOTH", "LIMIT", "idle"]),
        ("import extender.names\nextender.names.idle()", ["Answer", "BOTH", "Fault", "LIMIT", "ask"]),
        ("from extender.names import BOTH", ["Answer", "Fault", "ask", "idle"]),
        ("LOADED = 'extender.names:idle'", ["Answer", "BOTH", "Fault", "LIMIT", "ask"]),
        ("ask = 1\nidle = 2", ["Answer", "BOTH", "Fault", "LIMIT", "ask", "idle"]),
    ],
)
def test_names_that_nobody_else_uses_are_found(user: str, idle: list[str]) -> None:
    tree = Tree.of_texts({"extender/names.py": NAMES})
    found = idle_names(tree, [Module("extender.user", "extender/user.py", user)])
    assert [fault.text for fault in found] == idle


def test_a_name_that_a_package_hands_on_is_used_where_it_is_defined() -> None:
    texts = {"extender/a/__init__.py": "from extender.a.b import f", "extender/a/b.py": "def f(): ...\ndef g(): ..."}
    tree = Tree.of_texts({**texts, "extender/user.py": "from extender.a import f"})
    assert [fault.text for fault in idle_names(tree, [])] == ["g"]
