"""Logging to standard error, as text or as one JSON object a line; what is wrong and stays so is logged once."""

import logging
import re
import sys
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from extender.cli.printing import as_json, shown
from extender.core.texts import printable
from extender.kube.transport import ClusterError

_FIRST_S: Final = 60.0
_MOST_S: Final = 3600.0
"""After which a warning that stays the same is logged again: twice as long each time."""
_QUIET_S: Final = 600.0
"""After which one that did not come is new."""
_MAX_KEPT: Final = 2_000
_VARIES: Final = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min|h)\b|\b0x[0-9a-f]+\b")
"""What changes in a text from one time to the next: lengths of time, addresses in memory."""


class LogOptions(Protocol):
    """How to log: `LogSettings`, or what stands in for them."""

    @property
    def level(self) -> str:
        """`debug`, `info`, `warning` or `error`."""

    @property
    def format(self) -> str:
        """`text` or `json`."""


class _TextFormatter(logging.Formatter):
    """One record a line, an exception's trace apart: nobody's text begins a line of its own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in logging
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name in logging
        return shown(super().formatException(ei))


class _JsonFormatter(logging.Formatter):
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


@dataclass(slots=True)
class _Told:
    at: float
    """When it was logged last, and when it came last, in seconds."""
    came: float
    again_s: float = _FIRST_S
    num_since: int = 0


class _Once(logging.Filter):
    """Lets a warning through once, again when it changes, and if it stays the same after ever longer times, with how
    often it came meanwhile.

    The same is what says the same: numbers and lengths of time apart. What is wrong with the API server, or a right
    that Kerf lacks there, is the same whichever object it was about.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._told: dict[Hashable, _Told] = {}  # the one that came longest ago first

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        if record.levelno < logging.WARNING:
            return True
        key, now = _what(record), record.created
        with self._lock:
            told = self._told.pop(key, None)
            if told is None or now - told.came > max(_QUIET_S, 2 * told.again_s):
                told = _Told(now, now)
                self._keep(key, told)
                return True
            told.came = now
            self._keep(key, told)
            if now - told.at < told.again_s:
                told.num_since += 1
                return False
            since, told.num_since = told.num_since, 0
            minutes = round((now - told.at) / 60)
            told.at, told.again_s = now, min(2 * told.again_s, _MOST_S)
        if since:
            times = "once" if since == 1 else f"{since} times"
            record.msg, record.args = f"{record.getMessage()} (and {times} more in the last {minutes} min)", ()
        return True

    def _keep(self, key: Hashable, told: _Told) -> None:
        self._told[key] = told
        if len(self._told) > _MAX_KEPT:
            del self._told[next(iter(self._told))]


def _what(record: logging.LogRecord) -> Hashable:
    """Equal for records that say the same."""
    given = record.args if isinstance(record.args, tuple) else (record.args,) if record.args else ()
    raised = record.exc_info[1] if record.exc_info else None
    errors = [arg for arg in (*given, raised) if isinstance(arg, BaseException)]
    troubles = tuple(error.trouble for error in errors if isinstance(error, ClusterError) and error.trouble)
    if troubles:
        return record.name, str(record.msg), troubles
    said = tuple(_VARIES.sub("", str(arg)) for arg in (*given, *errors) if not isinstance(arg, int | float))
    return record.name, _VARIES.sub("", str(record.msg)), said


def configure_logs(settings: LogOptions) -> None:
    """Send all logs to standard error in the form that the settings ask for."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Once())
    if settings.format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn.error", "aiohttp.client", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
