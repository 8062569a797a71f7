"""Work in the background that is not to die unnoticed: it begins anew, and if that does not help the process does.

An exception that nobody has foreseen ends a task, and asyncio says nothing of it. Here its work begins anew after a
pause. Work that the service can't do without, and that has died several times in a row, fails `/healthz`: the kubelet
then restarts the process, which begins with nothing remembered. Other work is tried for as long as the process lives.
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
"""In a row, after which the process had better begin anew."""
_FIRST_PAUSE_S: Final = 0.5
_MAX_PAUSE_S: Final = 15.0
_STEADY_S: Final = 60.0
"""Work that goes on for so long is well again."""

Work = Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class _Worker:
    work: Work
    needed: bool
    task: asyncio.Task[None]
    why: str = ""
    """Why it died last, "" if it never did."""
    dead: bool = False
    """Whether it is to begin anew in a while."""
    began: float = 0.0
    """Time of the loop at which it began last."""
    num_deaths: int = 0
    """In a row."""

    def deaths_at(self, now: float) -> int:
        """In a row, 0 once it is well again."""
        return 0 if not self.dead and now - self.began > _STEADY_S else self.num_deaths


class Tasks:
    """The background work of one part of the service, by name. Work that returns is done."""

    def __init__(self, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        self._first_pause_s = first_pause_s
        self._workers: dict[str, _Worker] = {}
        self.num_deaths = 0
        """Since the start, all together."""

    @property
    def names(self) -> Iterable[str]:
        """Of all work that was begun."""
        return self._workers.keys()

    def begin(self, name: str, work: Work, *, needed: bool = True) -> None:
        """Begin some work, in the running event loop; `needed` if the service can't do without."""
        self._workers[name] = _Worker(work, needed, asyncio.create_task(self._keep_up(name), name=name))

    async def end(self, *names: str) -> None:
        """End some work, or all of it: when this returns it has ended."""
        tasks = [self._workers[name].task for name in names or tuple(self._workers)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def fault(self) -> str:
        """Which needed work is not being done now and why, "" for none."""
        return next(self._faults(needed=True), "")

    def lacking(self) -> list[str]:
        """The same of all work that is not needed."""
        return list(self._faults(needed=False))

    def hopeless(self) -> str:
        """Which needed work has died too often, "" for none: the process should end."""
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

    async def _keep_up(self, name: str) -> None:
        worker, loop = self._workers[name], asyncio.get_running_loop()
        while True:
            worker.dead, worker.began = False, loop.time()
            try:
                await worker.work()
                return
            except Exception as error:
                worker.num_deaths = worker.deaths_at(loop.time()) + 1  # before it is called dead
                worker.dead, worker.why = True, str(error) or type(error).__name__
                self.num_deaths += 1
                pause_s = min(self._first_pause_s * 2.0 ** (worker.num_deaths - 1), _MAX_PAUSE_S)
                logger.exception("the %s has died, restarting in %.1f s", name, pause_s)
            await asyncio.sleep(pause_s)


class Backoff:
    """How long to wait before what has failed is tried again: ever longer, and never all at the same time."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.num_failures = 0
        """In a row."""
        self.is_news = False
        """Whether it failed for another reason than the time before: what is to be logged once."""
        self._why = ""

    def failed(self, why: object = "") -> float:
        """It has failed once more, and why; seconds until the next try."""
        self.is_news, self._why = not self.num_failures or str(why) != self._why, str(why)
        pause_s = min(self._first_s * 2.0 ** min(self.num_failures, 32), self._most_s)
        self.num_failures += 1
        return pause_s * random.uniform(0.5, 1.5)

    def succeeded(self) -> None:
        """It is well again."""
        self.num_failures = 0


class Background:
    """A part of the service that works in the background from `start` to `stop`: base of all that do."""

    def __init__(self, name: str, *, needed: bool = True) -> None:
        self._name = name
        self._needed = needed
        self.tasks = Tasks()
        """What goes on in the background."""

    def start(self) -> None:
        """Begin, in the running event loop."""
        self.tasks.begin(self._name, self.run, needed=self._needed)

    async def stop(self) -> None:
        """End: when this returns it has ended."""
        await self.tasks.end()

    async def run(self) -> None:
        """The work, until cancelled."""
        raise NotImplementedError


async def until_set(event: asyncio.Event, most_s: float) -> None:
    """Wait until an event is set, so long at most.

    Not by asyncio.wait_for: that of Python 3.11 loses a cancellation as the event is set, and `stop` never ends.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most_s):
            await event.wait()


async def repeat(work: Work, interval_s: float, what: str) -> None:
    """Work again and again, a while after the last time; one time that fails costs that time only."""
    while True:
        await asyncio.sleep(interval_s)
        try:
            await work()
        except Exception:
            logger.exception("%s failed", what)


async def all_of(writes: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all writes give, once the last one has ended. Raises the first error."""
    results = await asyncio.gather(*writes, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def give_way() -> None:
    """Let others of the event loop go on between two steps of something long."""
    await asyncio.sleep(0)
