"""Supervised background tasks.

asyncio does not report an unexpected exception that ends a task. Here it is logged, and the task restarts after a
pause. A needed task that has died several times in a row fails `/healthz`, so that the kubelet restarts the process.
Other tasks are restarted for as long as the process runs.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_DEATHS: Final = 5
"""Deaths in a row after which the process should be restarted."""
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 15.0
_STEADY_S: Final = 60.0
"""Seconds after which a running task counts as recovered."""

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Worker:
    work: Work
    needed: bool
    task: asyncio.Task[None]
    why: str = ""
    """Why it last died, "" if it never did."""
    dead: bool = False
    """Whether it is waiting for its restart."""
    began: float = 0.0
    """Loop time of its last start."""
    num_deaths: int = 0
    """Deaths in a row."""

    def deaths_at(self, now: float) -> int:
        """Return the deaths in a row, 0 once it has recovered."""
        return 0 if not self.dead and now - self.began > _STEADY_S else self.num_deaths


class Tasks:
    """The background tasks of one component, by name. A task that returns is done."""

    def __init__(self, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._workers: dict[str, _Worker] = {}
        self.num_deaths = 0
        """Deaths of all tasks since the start."""

    @property
    def names(self) -> Iterable[str]:
        """Names of all tasks."""
        return self._workers.keys()

    def begin(self, name: str, work: Work, *, needed: bool = True) -> None:
        """Start a task in the running event loop; `needed` if the service depends on it."""
        self._workers[name] = _Worker(work, needed, asyncio.create_task(self._supervise(name), name=name))

    async def end(self, *names: str) -> None:
        """Cancel the named tasks, or all, and wait until they have ended."""
        tasks = [self._workers[name].task for name in names or tuple(self._workers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fault(self) -> str:
        """Return which needed task is not running and why, "" for none."""
        return next(self._faults(needed=True), "")

    def lacking(self) -> list[str]:
        """Return which other tasks are not running and why."""
        return list(self._faults(needed=False))

    def needs_restart(self) -> str:
        """Return which needed task has died too often, so that the process should end; "" for none."""
        for name, worker in self._workers.items():
            deaths = worker.deaths_at(worker.task.get_loop().time()) if worker.needed else 0
            if deaths >= _MAX_DEATHS:
                return f"the {name} has died {deaths} times in a row: {worker.why}"
        return ""

    def _faults(self, *, needed: bool) -> Iterator[str]:
        for name, worker in self._workers.items():
            why = "cancelled" if needed and worker.task.cancelled() else worker.why if worker.dead else ""
            if why and worker.needed is needed:
                yield f"the {name} has stopped: {why}"

    async def _supervise(self, name: str) -> None:
        worker, loop = self._workers[name], asyncio.get_running_loop()
        while True:
            worker.dead, worker.began = False, loop.time()
            try:
                await worker.work()
                return
            except Exception as error:
                worker.num_deaths = worker.deaths_at(loop.time()) + 1  # reads `dead`
                worker.dead, worker.why = True, str(error) or type(error).__name__
                self.num_deaths += 1
                pause_s = min(self._first_pause_s * 2.0 ** (worker.num_deaths - 1), _MAX_PAUSE_S)
                logger.exception("the %s has died, restarting in %.1f s", name, pause_s)
            await asyncio.sleep(pause_s)


class Backoff:
    """Exponential backoff with jitter."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.num_failures = 0
        """Failures in a row."""
        self.is_news = False
        """Whether the last failure's reason differs from that of the one before, and should be logged."""
        self._why = ""

    def failed(self, why: object = "") -> float:
        """Record a failure; returns the seconds until the next try."""
        self.is_news, self._why = not self.num_failures or str(why) != self._why, str(why)
        pause_s = min(self._first_s * 2.0 ** min(self.num_failures, 32), self._most_s)
        self.num_failures += 1
        return pause_s * random.uniform(0.5, 1.5)

    def succeeded(self) -> None:
        """Reset the backoff."""
        self.num_failures = 0


class Background:
    """Base of components with a background task from `start` to `stop`."""

    def __init__(self, name: str, *, needed: bool = True) -> None:
        self._name = name
        self._needed = needed
        self.tasks = Tasks()
        """Its background tasks."""

    def start(self) -> None:
        """Start in the running event loop."""
        self.tasks.begin(self._name, self.run, needed=self._needed)

    async def stop(self) -> None:
        """Stop, and wait until the tasks have ended."""
        await self.tasks.end()

    async def run(self) -> None:
        """Run until cancelled."""
        raise NotImplementedError


async def until_set(event: asyncio.Event, most_s: float) -> None:
    """Wait until an event is set, at most `most_s` seconds.

    Not by asyncio.wait_for: in Python 3.11 it loses a cancellation as the event is set, and `stop` never ends.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


async def repeat(work: Work, interval_s: float, what: str) -> None:
    """Call `work` with a pause of `interval_s` before each; log its exceptions and go on."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except Exception:
            logger.exception("%s failed", what)


async def gather_all(writes: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait for all writes and return their results. Raises the first error."""
    results = await asyncio.gather(*writes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def give_way() -> None:
    """Let the event loop run other tasks."""
    await asyncio.sleep(0)
