"""What a run says at its end of what it has skipped."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.skips import not_tested

ROOT = Path(__file__).parents[1]


def skipped(nodeid: str, reason: object) -> SimpleNamespace:
    return SimpleNamespace(nodeid=nodeid, longrepr=reason)


def test_it_is_one_sentence_with_folders_numbers_and_reasons() -> None:
    at = "/somewhere/tests/a/test_x.py", 7
    told = not_tested(
        [
            skipped("tests/a/test_x.py::test_1", (*at, "Skipped: this needs the package that")),
            skipped("tests/a/test_x.py::test_2[b/c]", (*at, "Skipped: this needs the package that")),
            skipped("tests/b/test_y.py", (*at, "Skipped: no torch:\nmake setup-train.\n")),
        ]
    )
    assert told == (
        "Not tested here: 2 in tests/a (this needs the package that); 1 in tests/b (no torch: make setup-train)."
    )
    assert not_tested([]) == ""


@pytest.mark.slow
def test_without_the_programs_of_a_real_node_its_tests_are_skipped_and_the_run_says_so(tmp_path: Path) -> None:
    """Run side by side, as `make test` does; no program is found in an empty folder."""
    command = [sys.executable, "-m", "pytest", "-q", "--numprocesses=2", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    environment.pop("PYTEST_ADDOPTS", None)
    result = subprocess.run(
        [*command, "tests/realnode/test_node.py"],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    (told,) = [line for line in result.stdout.splitlines() if line.startswith("Not tested here: ")]
    assert "in tests/realnode (a real node needs Debian's packages " in told
    assert "runc" in told
