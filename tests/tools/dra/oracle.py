"""kube-scheduler's own allocator, asked case by case."""

import json
import subprocess
from types import TracebackType
from typing import Any, Self

from tests.controlplane.binaries import find_program

Json = dict[str, Any]


class Oracle:
    """The program `allocator` of tests/controlplane/go, while the context lasts."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([find_program("allocator")], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def ask(self, case: Json) -> list[Json]:
        """What is possible on each node: `outcome` (possible, impossible, error, timeout), `error` and `results`."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(case).encode() + b"\n")
        self._process.stdin.flush()
        answers: list[Json] = json.loads(self._process.stdout.readline())
        return answers
