"""Logging to standard error, as text or one JSON object per line; repeated warnings are suppressed."""

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
"""An unchanged warning is logged again after `_FIRST_S`, then after twice as long each time, at most `_MOST_S`."""
_QUIET_S: Final = 600.0
"""A warning that did not occur for this long counts as new."""
_MAX_KEPT: Final = 2_000
_VARIES: Final = re.compile(r"\b\d+(?:\.\d+)? (?:ms|s|min|h)\b|\b0x[0-9a-f]+\b")
"""Parts of a text that vary between occurrences: durations, memory addresses."""


class LogOptions(Protocol):
    """How to log: `LogSettings`, or a substitute."""

    @property
    def level(self) -> str:
        """`debug`, `info`, `warning` or `error`."""

    @property
    def format(self) -> str:
        """`text` or `json`."""


class _TextFormatter(logging.Formatter):
    """One line per record, except tracebacks: untrusted text can't start a new line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in logging
        record.message = printable(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802 - its name in logging
        return shown(super().formatException(ei))


class _JsonFormatter(logging.Formatter):
    """One JSON object per line."""

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
class _Logged:
    at: float
    """Time when it was last logged, in seconds."""
    came: float
    """Time when it last occurred, in seconds."""
    again_s: float = _FIRST_S
    num_since: int = 0
    """Occurrences since it was last logged."""


class _Once(logging.Filter):
    """Passes a warning once, again when it changes, and while unchanged after ever longer times, with a count.

    Warnings are the same if their texts are, apart from numbers and durations. An API server error or a missing
    permission is the same for all objects.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._logged: dict[Hashable, _Logged] = {}  # least recent first

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it is logged."""
        if record.levelno < logging.WARNING:
            return True
        key, now = _key(record), record.created
        with self._lock:
            logged = self._logged.pop(key, None)
            if logged is None or now - logged.came > max(_QUIET_S, 2 * logged.again_s):
                logged = _Logged(now, now)
                self._keep(key, logged)
                return True
            logged.came = now
            self._keep(key, logged)
            if now - logged.at < logged.again_s:
                logged.num_since += 1
                return False
            since, logged.num_since = logged.num_since, 0
            minutes = round((now - logged.at) / 60)
            logged.at, logged.again_s = now, min(2 * logged.again_s, _MOST_S)
        if since:
            times = "once" if since == 1 else f"{since} times"
            record.msg, record.args = f"{record.getMessage()} (and {times} more in the last {minutes} min)", ()
        return True

    def _keep(self, key: Hashable, logged: _Logged) -> None:
        self._logged[key] = logged
        if len(self._logged) > _MAX_KEPT:
            del self._logged[next(iter(self._logged))]


def _key(record: logging.LogRecord) -> Hashable:
    """Equal for records that say the same."""
    given = record.args if isinstance(record.args, tuple) else (record.args,) if record.args else ()
    raised = record.exc_info[1] if record.exc_info else None
    errors = [arg for arg in (*given, raised) if isinstance(arg, BaseException)]
    troubles = tuple(error.general_fault for error in errors if isinstance(error, ClusterError) and error.general_fault)
    if troubles:
        return record.name, str(record.msg), troubles
    texts = tuple(_VARIES.sub("", str(arg)) for arg in (*given, *errors) if not isinstance(arg, int | float))
    return record.name, _VARIES.sub("", str(record.msg)), texts


def configure_logs(settings: LogOptions) -> None:
    """Send all logs to standard error in the configured format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_Once())
    if settings.format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for noisy in ("uvicorn.error", "aiohttp.client", "asyncio"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLogger().level))
