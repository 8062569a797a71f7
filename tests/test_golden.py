"""Golden files are held against what is said, and rewritten on demand."""

from pathlib import Path

import pytest

from tests.golden import FOLDER, Golden

pytest_plugins = ["pytester"]


def test_what_differs_is_shown_and_rewritten_on_demand(tmp_path: Path) -> None:
    holds, rewrites = Golden(rewrite=False, folder=tmp_path), Golden(rewrite=True, folder=tmp_path)
    with pytest.raises(AssertionError, match="make goldens"):
        holds("of/a.txt", "one")
    rewrites("of/a.txt", ["one", "two"])
    holds("of/a.txt", "one\ntwo\n")
    with pytest.raises(AssertionError, match=r"-two\n\+three"):
        holds("of/a.txt", ["one", "three"])


def test_those_alone_run_that_have_a_golden_file(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import golden, pytest_addoption, pytest_collection_modifyitems")
    pytester.makepyfile("def test_with(golden): pass\ndef test_without(): pass\n")
    pytester.runpytest_inprocess("--goldens").assert_outcomes(passed=1, deselected=1)
    pytester.runpytest_inprocess().assert_outcomes(passed=2)


def test_every_golden_file_is_used() -> None:
    tests = "".join(path.read_text() for path in FOLDER.parent.rglob("test_*.py"))
    assert [path.name for path in FOLDER.rglob("*.*") if f'"{path.relative_to(FOLDER)}"' not in tests] == []
