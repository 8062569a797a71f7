"""What goes wrong with a source of telemetry."""


class TelemetryError(Exception):
    """Base of all.

    TelemetryError
    ├── SourceError         the source could not be asked, or answers nothing of use
    └── ReaderError         the process that reads has ended, hangs, or talks nonsense
    """


class SourceError(TelemetryError):
    """Prometheus or an exporter: unreachable, refused, too slow, or unreadable. Says which and why."""


class ReaderError(TelemetryError):
    """The reading process has ended, hangs, or does not keep to the form."""
