"""Queries Prometheus for the past counts of all leaders.

Queries run in a separate process, one at a time, as answers may be large and slow and the client's libraries are big.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from extender.children import Child
from extender.parts.usage.questions import PastError, PrometheusAnswer, PrometheusQuery, Step
from extender.parts.usage.steps import Span
from extender.telemetry.sources.source import Access

_MAX_S: Final = 60.0
_MAX_WAITING: Final = 4
_FRESH_S: Final = 30.0
"""Time for which an answer is cached."""
_MAX_KEPT: Final = 16
"""Cached answers."""
_MAX_NAMES: Final = 50
"""Namespaces with separate figures in each step."""
_SLOW_S: Final = 30.0
"""Timeout of a query over weeks."""


@dataclass(eq=False)
class Past:
    """Queries one Prometheus."""

    url: str
    access: Access
    matchers: str
    clock: Callable[[], float]
    always: Sequence[str] = ()
    """Namespaces that always get a row: those with a budget."""
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _num_waiting: int = field(default=0, init=False)
    _kept: dict[tuple[int, str, int], tuple[float, PrometheusAnswer]] = field(default_factory=dict, init=False)

    async def answer(self, window_s: int, by: str) -> PrometheusAnswer:
        """The counts of the last `window_s` seconds. Raises PastError."""
        return await self._cached((window_s, by, 0), self._question(window_s, by))

    async def steps(self, span: Span, now: float) -> list[Step]:
        """The counts step by step up to `now`, a Unix time. Raises PastError."""
        question = self._question(span.window_s, "namespace")
        question.step_s, question.first = span.step_s, span.first(now)
        question.most = _MAX_NAMES
        question.last = -int(-now // span.step_s) * span.step_s
        return (await self._cached((span.window_s, question.by, span.step_s), question)).steps

    def _question(self, window_s: int, by: str) -> PrometheusQuery:
        access = msgspec.structs.replace(self.access, timeout_s=max(self.access.timeout_s, _SLOW_S))
        return PrometheusQuery(self.url, access, window_s, by, self.matchers, always=list(self.always))

    async def _cached(self, key: tuple[int, str, int], question: PrometheusQuery) -> PrometheusAnswer:
        if self._num_waiting >= _MAX_WAITING:
            raise PastError(f"{_MAX_WAITING} questions are waiting already; try again later")
        self._num_waiting += 1
        try:
            async with self._busy:
                now = self.clock()
                self._kept = {old: kept for old, kept in self._kept.items() if now - kept[0] < _FRESH_S}
                if key in self._kept:
                    return self._kept[key][1]
                found = await self._ask(question)
                while len(self._kept) >= _MAX_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = self.clock(), found
                return found
        finally:
            self._num_waiting -= 1

    async def _ask(self, question: PrometheusQuery) -> PrometheusAnswer:
        try:
            child = await Child.start(sys.executable, "-m", "extender.parts.usage.asking")
            try:
                async with asyncio.timeout(_MAX_S):
                    _, printed, _ = await child.finished(msgspec.json.encode(question))
            finally:
                await child.end()
            answer = msgspec.json.decode(printed, type=PrometheusAnswer)
        except TimeoutError:
            raise PastError(f"{self.url}: no answer within {_MAX_S:g} s") from None
        except (OSError, msgspec.DecodeError) as error:
            raise PastError(f"{self.url} can't be queried: {error}") from None
        if answer.fault:
            raise PastError(answer.fault)
        return answer
