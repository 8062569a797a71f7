"""Questions answered in a thread of this process: the one that Kerf starts for each of them takes a second to begin."""

import asyncio
import contextlib
import importlib
import socket
from dataclasses import dataclass
from threading import Thread

from extender.explain.processes import Pipe, _answer


@dataclass(eq=False)
class Here:
    """In a `Child`'s place: a module that answers, and the two ends of what leads to it."""

    thread: Thread
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, *command: str) -> "Here":
        """As of `python -m MODULE`."""
        own, other = socket.socketpair()
        thread = Thread(target=_serve, args=(command[-1], other))
        thread.start()
        return cls(thread, *await asyncio.open_connection(sock=own))

    async def end(self) -> None:
        """It hears that nobody asks any more."""
        self.writer.close()
        await asyncio.to_thread(self.thread.join)


def _serve(module: str, end: socket.socket) -> None:
    """As `processes.serve` does: what it has not foreseen fails the test."""
    with end, contextlib.suppress(EOFError, OSError), end.makefile("rb") as source, end.makefile("wb") as target:
        _answer(Pipe(source, target), importlib.import_module(module)._answered)  # noqa: SLF001
