"""Of the nightly tests those run that a change asks for."""

import subprocess
from pathlib import Path

import pytest

from tests.changes import KERNEL, PROMISED, ROOT, belongings, belongs, changed_files

pytest_plugins = ["pytester"]


def commit(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    git(root, "add", "--all")
    git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "one")


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], check=True, cwd=root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    commit(tmp_path, "a/old", "b")
    return tmp_path


def test_all_of_a_branch_counts_and_what_is_not_committed(root: Path) -> None:
    git(root, "switch", "--quiet", "--create", "work")
    commit(root, "c")
    git(root, "mv", "a/old", "a/new")
    commit(root, "d")
    (root / "b").write_text("changed")
    (root / "e").write_text("new")
    assert changed_files(root) == frozenset({"a/old", "a/new", "b", "c", "d", "e"})


def test_what_main_has_gained_meanwhile_does_not_count(root: Path) -> None:
    git(root, "switch", "--quiet", "--create", "work")
    commit(root, "c")
    git(root, "switch", "--quiet", "main")
    commit(root, "d")
    git(root, "switch", "--quiet", "work")
    assert changed_files(root) == frozenset({"c"})


def test_on_main_it_is_the_last_commit(root: Path) -> None:
    commit(root, "c")
    commit(root, "d")
    assert changed_files(root) == frozenset({"d"})


def test_without_anything_to_compare_with_everything_counts(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert changed_files(root) is None
    assert changed_files(tmp_path_factory.mktemp("no-repository")) is None


@pytest.mark.parametrize(
    ("of", "changed", "expected"),
    [
        (("a/", "b"), ["a/new"], True),
        (("a/", "b"), ["b"], True),
        (("a/",), ["b/a/", "ab"], False),
        (("a/",), [], False),
        ((), ["b"], True),
        (("a/",), None, True),
    ],
)
def test_what_belongs_to_a_change(of: tuple[str, ...], changed: list[str] | None, expected: bool) -> None:
    assert belongs(of, changed) is expected


def test_those_that_are_not_asked_for_are_left_out(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_addoption, pytest_collection_modifyitems")
    pytester.makeini("[pytest]\nmarkers = nightly: of\n")
    pytester.makepyfile(
        "import pytest\n"
        "@pytest.mark.nightly(of=('a/',))\ndef test_of_a(): pass\n"
        "@pytest.mark.nightly(of=('b/',))\ndef test_of_b(): pass\n"
        "def test_of_every_day(): pass\n"
    )
    git(pytester.path, "init", "--quiet", "--initial-branch", "main")
    commit(pytester.path, "c")
    commit(pytester.path, "a/b")
    pytester.runpytest_inprocess("-m", "nightly", "--changed").assert_outcomes(passed=1, deselected=2)
    pytester.runpytest_inprocess("-m", "nightly").assert_outcomes(passed=2, deselected=1)


def test_a_test_on_a_control_plane_belongs_to_the_kernel_its_part_and_what_it_is_made_of() -> None:
    assert {"extender/core/", "extender/scheduling/", "manifests/"} <= set(KERNEL)
    assert all((ROOT / path).is_dir() for path in KERNEL)
    assert not any(path.startswith("extender/parts/") for path in KERNEL)
    assert belongings("tests/e2e/test_a.py") == (*KERNEL, "tests/e2e/")
    of_a_part = belongings("tests/parts/usage/deep/test_a.py")
    assert of_a_part == (*KERNEL, "tests/parts/usage/deep/", "extender/parts/usage/")


def test_on_a_control_plane_a_verdict_has_what_is_promised_and_what_says_so(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("from tests.conftest import pytest_itemcollected")
    pytester.makeini("[pytest]\nmarkers =\n controlplane\n nightly: of\n verdict\n")
    promised = min(PROMISED)
    pytester.makepyfile(
        "import pytest\n"
        f"@pytest.mark.controlplane\n@pytest.mark.parametrize('a', [1, 2])\ndef {promised}(a): pass\n"
        "@pytest.mark.controlplane\n@pytest.mark.verdict\ndef test_that_says_so(): pass\n"
        "@pytest.mark.controlplane\ndef test_of_the_night(): pass\n"
        "def test_of_no_plane(): pass\n"
    )
    pytester.runpytest_inprocess("-m", "verdict or not nightly").assert_outcomes(passed=4, deselected=1)
    pytester.runpytest_inprocess("-m", "nightly and not verdict").assert_outcomes(passed=1, deselected=4)
