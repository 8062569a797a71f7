"""A Prometheus that answers questions about GPU-hours as a test says."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from extender.parts.usage import asking
from extender.parts.usage.questions import PrometheusQuery
from tests.telemetry.servers import Page, Server, serving

Told = tuple[Mapping[str, str], float | str]
"""Labels and value of one element; of a range query the value at each of its times."""


def answering(told: Mapping[str, Sequence[Told]]) -> AbstractContextManager[Server]:
    """Elements by what is counted, as in `booked`."""

    def answer(path: str, asked: Mapping[str, str], _: Mapping[str, str]) -> Page:
        found = next((told[what] for what in told if f"kerf_{what}_" in asked["query"]), [])
        if path.endswith("_range"):
            times = range(int(float(asked["start"])), int(float(asked["end"])) + 1, int(asked["step"]))
            result: list[Any] = [
                {"metric": labels, "values": [[at, str(value)] for at in times]} for labels, value in found
            ]
        else:
            result = [{"metric": labels, "value": [1e9, str(value)]} for labels, value in found]
        kind = "matrix" if path.endswith("_range") else "vector"
        body = {"status": "success", "data": {"resultType": kind, "result": result}}
        return 200, json.dumps(body).encode()

    return serving(answer)


class Asking:
    """Stands in for the process that asks, and does as that one does."""

    @classmethod
    async def start(cls, *command: str) -> "Asking":
        assert command == (sys.executable, "-m", asking.__name__)
        return cls()

    async def finished(self, told: bytes) -> tuple[int, bytes, str]:
        answer = asking._ask(msgspec.json.decode(told, type=PrometheusQuery))  # noqa: SLF001
        return 0, msgspec.json.encode(answer), ""

    async def end(self) -> None:
        """There is nothing to end."""
