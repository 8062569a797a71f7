"""The processes that answer questions: one whose Kerf was killed does not go on without it."""

import subprocess
import sys
from typing import BinaryIO, cast

import pytest

from extender.explain.processes import Pipe

WHAT_IF = b'{"pods": [{"metadata": {"name": "p"}, "spec": {"containers": []}}]}'


@pytest.mark.parametrize("asked", [True, False], ids=["after-its-question", "before-any"])
def test_a_process_whose_kerf_was_killed_ends(asked: bool) -> None:
    ends_when_kerf_was_killed("extender.explain.what_if.process", WHAT_IF if asked else b"")


def ends_when_kerf_was_killed(module: str, question: bytes) -> None:
    """It waits for what the question needs, if one is asked, and hears that nobody writes any more."""
    process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if question:
            Pipe(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin)).send(question)
            assert process.stdout.read(1)
        process.stdin.close()
        assert process.wait(120.0) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
