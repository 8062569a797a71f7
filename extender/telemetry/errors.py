"""What goes wrong with a source of telemetry."""

import contextlib
from collections.abc import Iterator


class TelemetryError(Exception):
    """Base of all.

    TelemetryError
    ├── SourceError         the source could not be asked, or answers nothing of use
    │   ├── UnreachableError    no connection, or no answer in time
    │   └── RefusedError        an answer with a status that says so
    └── ReaderError         the process that reads has ended, hangs, or talks nonsense
    """


class SourceError(TelemetryError):
    """Prometheus or an exporter: unreachable, refused, too slow, or unreadable. Says which and why."""


class UnreachableError(SourceError):
    """Nobody answers there."""


class RefusedError(SourceError):
    """Somebody answers, with another HTTP status than 200."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class ReaderError(TelemetryError):
    """The reading process has ended, hangs, or does not keep to the form."""


@contextlib.contextmanager
def faults_of(source: str) -> Iterator[None]:
    """Whatever an answer brings about is a fault of its source, and says whose. Raises SourceError alone."""
    try:
        yield
    except SourceError as error:
        if source not in str(error):
            error.args = (f"{source}: {error}",)
        raise
    except MemoryError:
        raise SourceError(f"{source}: its answers take more memory than telemetry may have") from None
    except Exception as error:
        text = f"{type(error).__name__} {error}"[:200]
        raise SourceError(f"{source}: the answer can't be read: {text}") from None


def bare(error: SourceError) -> SourceError:
    """A fault that is kept: without what it came from, which holds all that was read by then."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
