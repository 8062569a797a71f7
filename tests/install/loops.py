"""What goes on beside a test."""

import threading
from types import TracebackType
from typing import ClassVar, Self


class Loop:
    """Does something again and again in a thread of its own, from entry to exit, which raises what has failed there."""

    interval_s: ClassVar[float] = 0.05
    _failure: BaseException | None = None

    def __enter__(self) -> Self:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self.interval_s):
                self.turn()
        except BaseException as error:
            self._failure = error
        finally:
            self.finish()

    def turn(self) -> None:
        """Do it once."""
        raise NotImplementedError

    def finish(self) -> None:
        """Stop what was started: child processes die with the thread that started them, so it is done there."""
