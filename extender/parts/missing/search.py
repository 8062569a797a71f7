"""Periodically finds the missing nodes while pods are pending for long, for metrics and the page.

The search is a what-if question: it runs in a separate process, one at a time, and does not delay requests.
"""

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from extender.explain.processes import BusyError, QuestionError
from extender.kube.background import Background, repeat
from extender.kube.client import ClusterError

logger = logging.getLogger(__name__)

_QUESTION: Final = b'{"waiting": true, "findNodes": true}'
_CHECK_EVERY_S: Final = 10.0
_MAX_TEXT: Final = 500
"""Characters of the sentence."""


class _Answer(msgspec.Struct):
    """The fields of a `WhatIfResult` that are read."""

    pods: int
    missing: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Missing:
    """The result of the last search."""

    at: float
    """Unix time."""
    pods: int
    """Pending pods that were asked about."""
    unplaced: int
    """Pods that no new node would help."""
    sentence: str
    nodes: dict[tuple[str, int], int] = field(default_factory=dict)
    """Number of missing nodes by GPU model and GPUs of a node."""


class MissingNodes(Background):
    """Searches from `start` to `stop`, while this process leads and a pod has been pending for long."""

    def __init__(
        self,
        ask: Callable[[bytes], Awaitable[bytes]],
        oldest: Callable[[], float],
        standby: Callable[[], str],
        *,
        after_s: float,
        every_s: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`ask` answers what-if questions; `oldest` returns the Unix time since which the longest-pending pod waits,
        infinity if none does."""
        super().__init__("missing nodes", needed=False)
        self._ask, self._oldest, self._standby = ask, oldest, standby
        self._after_s, self._every_s = after_s, every_s
        self._clock, self._wall_clock = clock, wall_clock
        self._asked_at = float("-inf")
        self.standing: _Missing | None = None
        """The last result; None while nothing is known to be missing."""

    async def run(self) -> None:
        await repeat(self.look, min(_CHECK_EVERY_S, self._every_s), "working out the missing nodes")

    async def look(self) -> None:
        """Search if it is time to; drop the result as soon as no pod has been pending for long."""
        if self._standby() or self._wall_clock() - self._oldest() < self._after_s:
            self.standing = None
            return
        if self._clock() - self._asked_at < self._every_s:
            return
        self._asked_at = self._clock()
        try:
            answer = msgspec.json.decode(await self._ask(_QUESTION), type=_Answer)
        except (BusyError, QuestionError, ClusterError, msgspec.DecodeError) as error:
            logger.warning("the search for missing nodes failed: %s", error)
            self.standing = None
            return
        nodes: dict[tuple[str, int], int] = {}
        missing = answer.missing
        for item in missing["nodes"]:
            key = item["model"], item["gpus"]
            nodes[key] = nodes.get(key, 0) + item["count"]
        sentence = missing["sentence"][:_MAX_TEXT]
        self.standing = _Missing(self._wall_clock(), answer.pods, len(missing["stillUnplaced"]), sentence, nodes)

    def to_json(self) -> dict[str, Any]:
        """The last result as JSON data for the page, {} if there is none."""
        known = self.standing
        if known is None:
            return {}
        return {"at": round(known.at), "pods": known.pods, "unplaced": known.unplaced, "sentence": known.sentence}
