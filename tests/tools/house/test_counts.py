"""What is counted, on small sources with the numbers worked out by hand."""

from pathlib import Path

import pytest

from tests.tools.house import walks
from tests.tools.house.__main__ import table
from tests.tools.house.counts import callable_fields, counts, lines_of_code, pod_stores, writes
from tests.tools.house.sources import Tree

SOURCE = '''"""A module.

Of two paragraphs."""

from collections.abc import Callable

LIMIT = 1  # of something


class Pod:
    """A pod."""


class Store:
    """Keeps pods."""

    def __init__(self, read: Callable[[], int]) -> None:
        self._read = read
        self._pods: dict[str, Pod] = {}

    def upsert(self, item: Pod) -> None:
        # It is known.
        self._pods["a"] = item


class Asks:
    """Keeps nothing."""

    def upsert(self, item: Pod) -> None: ...


def bind(transport, pods):
    transport.post(
        "/bind", b""
    )
    pods.post("/bind")
    transport.get("/bind")
'''


def test_a_module_is_counted() -> None:
    found = counts(Tree.of_texts({"extender/pods.py": SOURCE, "extender/__init__.py": ""}))
    assert found == {
        "files": 2,
        "lines": SOURCE.count("\n"),
        "lines of code": 17,  # import, LIMIT, Pod, Store (6), Asks (2), bind (6)
        "AST nodes": found["AST nodes"],
        "classes": 3,
        "public names": 5,  # LIMIT, Pod, Store, Asks, bind
        "callables as fields": 1,
        "splats of tuples made for the purpose": 0,
        "callables and parts given to what is made": 0,
        "places that write to the API server": 1,
        "stores of pods": 1,
    }


@pytest.mark.parametrize(
    ("text", "num"), [("", 0), ('"""A."""\n', 0), ("a = (\n  1,\n  # 2\n)\n", 3), ("f()\n\n#\n", 1)]
)
def test_lines_of_code_are_neither_comments_nor_docstrings(text: str, num: int) -> None:
    assert lines_of_code(text) == num


def test_nodes_are_all_of_them() -> None:
    # Module, Assign, Name, Store, Constant
    assert counts(Tree.of_texts({"extender/a.py": "a = 1"}))["AST nodes"] == 5


@pytest.mark.parametrize(
    ("field", "num"),
    [
        ("a: Callable[[], int]", 1),
        ("a: Callable[[], int] | None = None", 1),
        ("a: dict[str, Callable[[], int]]", 1),
        ("a: Read", 1),
        ("a: One", 1),
        ("a: 'One | None'", 1),
        ("a: Two", 0),
        ("a: int", 0),
    ],
)
def test_callables_as_fields(field: str, num: int) -> None:
    protocol = "class {}(Protocol):\n    def f(self) -> int: ...\n"
    text = (
        "from collections.abc import Callable\nfrom typing import Protocol\nRead = Callable[[], int]\n"
        f"{protocol.format('One')}{protocol.format('Two')}    def g(self) -> int: ...\n"
        f"class Holder:\n    {field}\n"
    )
    assert len(list(callable_fields(Tree.of_texts({"extender/a.py": text})))) == num


def test_stores_and_writes_are_named() -> None:
    tree = Tree.of_texts({"extender/pods.py": SOURCE})
    assert list(pod_stores(tree)) == ["extender.pods.Store"]
    assert list(writes(tree.modules["extender.pods"])) == [
        f"extender/pods.py:{SOURCE[: SOURCE.index('transport.post')].count(chr(10)) + 1}"
    ]


def test_the_wheel_is_read_without_what_is_generated() -> None:
    tree = Tree.of(Path.cwd())
    assert {"extender.api.app", "model.cli.commands"} <= tree.modules.keys()
    assert not any(name.endswith("_pb2") for name in tree.modules)


def test_the_walks_begin_where_a_call_comes_in_and_reach_the_other_end() -> None:
    filtering, binding = walks.walk_of_call("/filter"), walks.walk_of_call("/bind")
    assert filtering["files"][0] == binding["files"][0] == "extender/api/routes.py"
    assert "extender/core/fit/fits.py" in filtering["files"]
    assert "extender/core/fit/fits.py" not in binding["files"]
    assert "extender/kube/memory.py" not in binding["files"]  # the API server's part
    for walk in (filtering, binding):
        assert len(walk["files"]) < walk["ways"] < walk["entries"]


def test_an_event_is_walked_from_the_watch_and_a_claim_to_its_write() -> None:
    assert "extender/kube/watches.py" in walks.walk_of_event()["files"]
    claim = walks.walk_of_claim()
    assert {"extender/queueing/controller.py", "extender/dra/results.py"} <= set(claim["files"])


def test_revisions_stand_beside_each_other() -> None:
    walk = {"files": ["a.py", "b.py"], "ways": 3, "entries": 4}
    figures = {"old": ({"files": 1000}, {"fault": "no module"}), "checkout": ({"files": 900}, {"/filter": walk})}
    lines = table({name: {"counts": found, "walks": walked} for name, (found, walked) in figures.items()})
    assert [line.split() for line in lines[:3]] == [
        ["old", "checkout"],
        ["files", "1,000", "900"],
        ["/filter:", "files", "?", "2"],
    ]
    assert "old: no walks: no module" in lines
    assert lines[lines.index("/filter") + 1 :][:2] == ["  a.py", "  b.py"]
