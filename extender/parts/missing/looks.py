"""Which nodes are missing, worked out now and then while pods wait for long: for metrics and the page.

In the process that answers what-if questions, and in its turn: requests pay nothing for it.
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
_LOOKS_EVERY_S: Final = 10.0
_MAX_TEXT: Final = 500


class _Answer(msgspec.Struct):
    """What is read of a `WhatIfResult`."""

    pods: int
    missing: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Standing:
    """What was missing when it was worked out last."""

    at: float
    """Unix time."""
    pods: int
    """Asked about."""
    unplaced: int
    """Of them those that no new node would help."""
    sentence: str
    nodes: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of each GPU model and number of GPUs: how many."""


class MissingNodes(Background):
    """Runs from `start` to `stop`; asks while this process leads and a pod has waited for long."""

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
        """`ask` answers what-if questions; `oldest` is the Unix time since which the pod waits that waits for longest,
        infinity where none does."""
        super().__init__("missing nodes", needed=False)
        self._ask, self._oldest, self._standby = ask, oldest, standby
        self._after_s, self._every_s = after_s, every_s
        self._clock, self._wall_clock = clock, wall_clock
        self._asked_at = float("-inf")
        self.standing: _Standing | None = None
        """None while nothing is known to be missing."""

    async def run(self) -> None:
        """Look whether to ask, again and again."""
        await repeat(self.look, min(_LOOKS_EVERY_S, self._every_s), "working out the missing nodes")

    async def look(self) -> None:
        """Ask where it is time to; what was found is forgotten as soon as nobody waits for long any more."""
        if self._standby() or self._wall_clock() - self._oldest() < self._after_s:
            self.standing = None
            return
        if self._clock() - self._asked_at < self._every_s:
            return
        self._asked_at = self._clock()
        try:
            answer = msgspec.json.decode(await self._ask(_QUESTION), type=_Answer)
        except (BusyError, QuestionError, ClusterError, msgspec.DecodeError) as error:
            logger.warning("which nodes are missing is not known: %s", error)
            self.standing = None
            return
        nodes: dict[tuple[str, int], int] = {}
        missing = answer.missing
        for item in missing["nodes"]:
            key = item["model"], item["gpus"]
            nodes[key] = nodes.get(key, 0) + item["count"]
        sentence = missing["sentence"][:_MAX_TEXT]
        self.standing = _Standing(self._wall_clock(), answer.pods, len(missing["stillUnplaced"]), sentence, nodes)

    def told(self) -> dict[str, Any]:
        """For the page."""
        known = self.standing
        if known is None:
            return {}
        return {"at": round(known.at), "pods": known.pods, "unplaced": known.unplaced, "sentence": known.sentence}
