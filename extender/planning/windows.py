"""Weekly time windows such as `Mon-Fri 22:00-06:00 Europe/Berlin`: days, hours and a time zone."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MINUTES_A_DAY: Final = 24 * 60
_FORM: Final = re.compile(
    r"(?:(?P<days>[A-Za-z,-]+)\s+)?(?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d)(?:\s+(?P<zone>[\w/+-]+))?", re.ASCII
)
_EXAMPLE: Final = "write DAYS HH:MM-HH:MM ZONE, as in Mon-Fri 22:00-06:00 Europe/Berlin"


@dataclass(frozen=True, slots=True)
class Window:
    """A weekly window."""

    days: frozenset[int]
    """Days on which it begins: 0 is Monday."""
    begin: int
    """Minute of the day."""
    end: int
    """Minute of the day at which it ends; on the next day if not after `begin`."""
    zone: tzinfo

    def is_open(self, now: float) -> bool:
        """Whether the window is open at a Unix time, by its zone's local time; daylight saving changes its length."""
        local = datetime.fromtimestamp(now, self.zone)
        minute, today = 60 * local.hour + local.minute, local.weekday()
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        yesterday = (today - 1) % len(_DAYS)
        return (today in self.days and minute >= self.begin) or (yesterday in self.days and minute < self.end)


def window_of(text: str) -> Window:
    """Parse a window; days default to every day and the zone to UTC. Raises ValueError."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:80]!r} is not a time window: {_EXAMPLE}")
    begin, end = _minute(match["begin"], text), _minute(match["end"], text)
    if begin in {end, _MINUTES_A_DAY}:
        raise ValueError(f"{text[:80]!r} has no length: for the whole day write 00:00-24:00")
    return Window(_days(match["days"] or "", text), begin, end, _zone(match["zone"] or "UTC", text))


def are_open(windows: Sequence[Window], now: float) -> bool:
    """Whether any window is open at a Unix time; without windows, always."""
    return not windows or any(window.is_open(now) for window in windows)


def _minute(text: str, window: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if minutes > 59 or 60 * hours + minutes > _MINUTES_A_DAY:
        raise ValueError(f"{window[:80]!r}: {text} is not a time of day: {_EXAMPLE}")
    return 60 * hours + minutes


def _days(text: str, window: str) -> frozenset[int]:
    if not text:
        return frozenset(range(len(_DAYS)))
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            raise ValueError(f"{window[:80]!r}: {part!r} is not a day or range of days: write Mon, Sat,Sun or Mon-Fri")
        begin = _DAYS.index(first)
        num = (_DAYS.index(last) - begin) % len(_DAYS) + 1 if dash else 1
        days |= {(begin + day) % len(_DAYS) for day in range(num)}
    return frozenset(days)


def _zone(name: str, window: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ValueError(f"{window[:80]!r}: no time zone is named {name!r}: write one such as Europe/Berlin") from None
