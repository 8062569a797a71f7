"""An event loop beside the thread that carries a run out."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import uvloop

ResultT = TypeVar("ResultT")


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos", daemon=True)

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
        """End it, and what still runs in it."""
        self.run(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
