"""A process that answers questions ends when its Kerf is killed."""

import subprocess
import sys
from typing import BinaryIO, cast

from extender.explain.processes import ChildPipe


def ends_when_kerf_was_killed(module: str, question: bytes) -> None:
    """Assert that it ends once its input closes, also while it waits for what a question needs."""
    process = subprocess.Popen([sys.executable, "-m", module], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if question:
            ChildPipe(cast(BinaryIO, process.stdout), cast(BinaryIO, process.stdin)).send(question)
            assert process.stdout.read(1)
        process.stdin.close()
        assert process.wait(120.0) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
