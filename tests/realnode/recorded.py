"""Stand-ins of the tests that write down what they are asked, and wait where they are told to."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


class Recorded:
    """What a stand-in's files say."""

    _calls: Path
    """A line of JSON for each call."""
    _holds: Path
    """A folder: calls wait as long as it has a file of their name."""

    @contextlib.contextmanager
    def held(self, call: str) -> Iterator[Callable[[], bool]]:
        """Calls of that name wait until the end; gives what tells whether one waits."""
        before = len(self.calls(f"Held {call}"))
        held = self._holds / call
        held.touch()
        try:
            yield lambda: len(self.calls(f"Held {call}")) > before
        finally:
            held.unlink()

    def calls(self, call: str = "") -> list[dict[str, Any]]:
        """What it was asked, or told the kubelet: `call`, `resource` of a device plugin, `request`, `response`, `time`,
        `error`."""
        if not self._calls.exists():
            return []
        lines = self._calls.read_text().splitlines()
        return [record for record in map(json.loads, lines) if call in ("", record["call"])]
