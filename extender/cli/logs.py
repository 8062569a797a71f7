"""Logging to standard error, as text or as one JSON object a line."""

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Protocol

from extender.cli.printing import as_json, shown
from extender.core.texts import printable


class LogOptions(Protocol):
    """How to log: `LogSettings`, or what stands in for them."""

    @property
    def level(self) -> str:
        """`debug`, `info`, `warning` or `error`."""

    @property
    def format(self) -> str:
        """`text` or `json`."""


class TextFormatter(logging.Formatter):
    """One record a line, an exception's trace apart: nobody's text begins a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in logging
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name in logging
        return shown(super().formatException(ei))


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return as_json(entry, indent=None)


def configure_logs(settings: LogOptions) -> None:
    """Send all logs to standard error in the form that the settings ask for."""
    handler = logging.StreamHandler(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn.error", "aiohttp.client", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
