"""Errors of telemetry sources."""

import contextlib
from collections.abc import Iterator


class TelemetryError(Exception):
    """Base class.

    TelemetryError
    ├── SourceError         the source failed
    │   ├── UnreachableError    no connection or a timeout
    │   └── RefusedError        an HTTP status other than 200
    └── ReaderError         the reader process failed
    """


class SourceError(TelemetryError):
    """A Prometheus or an exporter is unreachable, too slow, refuses or is unreadable. The message names it."""


class UnreachableError(SourceError):
    """The source did not respond."""


class RefusedError(SourceError):
    """The source responded with an HTTP status other than 200."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


class ReaderError(TelemetryError):
    """The reader process has ended, hangs, or violates the protocol."""


@contextlib.contextmanager
def faults_of(source: str) -> Iterator[None]:
    """Turn every exception in the block into a SourceError that names its source."""
    try:
        yield
    except SourceError as error:
        if source not in str(error):
            error.args = (f"{source}: {error}",)
        raise
    except MemoryError:
        raise SourceError(f"{source}: its responses take more memory than telemetry may use") from None
    except Exception as error:
        text = f"{type(error).__name__} {error}"[:200]
        raise SourceError(f"{source}: the response can't be read: {text}") from None


def bare(error: SourceError) -> SourceError:
    """The error without its traceback and causes, which would keep all data read so far alive."""
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)
