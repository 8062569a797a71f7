"""An event loop beside the thread that carries a run out."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

ResultT = TypeVar("ResultT")


class Loop:
    """An event loop in a thread of its own, which ends with all that still goes on in it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
        self._loop = self._runner.get_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """What a coroutine returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60.0)

    def call(self, function: Callable[..., ResultT], *arguments: Any) -> ResultT:
        """What a function returns when the loop calls it."""

        async def work() -> ResultT:
            return function(*arguments)

        return self.run(work())

    def stop(self) -> None:
        """End it: tasks are cancelled, generators and threads ended, connections closed."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._stopped.wait())
