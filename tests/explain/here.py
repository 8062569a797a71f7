"""Answers questions in a thread of this process: a process of its own takes a second to start."""

import asyncio
import contextlib
import importlib
import socket
from dataclasses import dataclass
from threading import Thread

from extender.explain.processes import ChildPipe, _answer


@dataclass(eq=False)
class Here:
    """Stands in for a `Child`: a module that answers, and the streams to it."""

    thread: Thread
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def start(cls, *command: str) -> "Here":
        """Start the module of `python -m MODULE`."""
        own, other = socket.socketpair()
        thread = Thread(target=_serve, args=(command[-1], other))
        thread.start()
        return cls(thread, *await asyncio.open_connection(sock=own))

    async def end(self) -> None:
        """Close the connection and wait for the thread."""
        self.writer.close()
        await asyncio.to_thread(self.thread.join)


def _serve(module: str, end: socket.socket) -> None:
    """Serve as `processes.serve` does; unexpected errors fail the test."""
    with end, contextlib.suppress(EOFError, OSError), end.makefile("rb") as source, end.makefile("wb") as target:
        _answer(ChildPipe(source, target), importlib.import_module(module)._answered)  # noqa: SLF001
