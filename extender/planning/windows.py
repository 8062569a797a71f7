"""Weekly windows of time, such as `Mon-Fri 22:00-06:00 Europe/Berlin`: days, hours and a zone."""

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
    """On some days of the week, from one minute of the day to another one."""

    days: frozenset[int]
    """On which it begins: 0 is Monday."""
    begin: int
    """Minute of the day."""
    end: int
    """The minute at which it is over; of the next day where it is not after `begin`."""
    zone: tzinfo

    def is_open(self, now: float) -> bool:
        """Whether it is at a Unix time, by the clocks of its zone: an hour that they skip is missing, one that they
        repeat counts twice."""
        local = datetime.fromtimestamp(now, self.zone)
        minute, today = 60 * local.hour + local.minute, local.weekday()
        if self.begin < self.end:
            return today in self.days and self.begin <= minute < self.end
        yesterday = (today - 1) % len(_DAYS)
        return (today in self.days and minute >= self.begin) or (yesterday in self.days and minute < self.end)


def window_of(text: str) -> Window:
    """A window as it is written. Days are every day, and the zone UTC, where they are left out. Raises ValueError."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:80]!r} is no window: {_EXAMPLE}")
    begin, end = _minute(found["begin"], text), _minute(found["end"], text)
    if begin in {end, _MINUTES_A_DAY}:
        raise ValueError(f"{text[:80]!r} has no length: for the whole day write 00:00-24:00")
    return Window(_days(found["days"] or "", text), begin, end, _zone(found["zone"] or "UTC", text))


def are_open(windows: Sequence[Window], now: float) -> bool:
    """Whether one of them is at a Unix time; where there are none, always."""
    return not windows or any(window.is_open(now) for window in windows)


def _minute(text: str, window: str) -> int:
    hours, minutes = int(text[:2]), int(text[3:])
    if minutes > 59 or 60 * hours + minutes > _MINUTES_A_DAY:
        raise ValueError(f"{window[:80]!r}: {text} is no time of the day: {_EXAMPLE}")
    return 60 * hours + minutes


def _days(text: str, window: str) -> frozenset[int]:
    if not text:
        return frozenset(range(len(_DAYS)))
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in _DAYS or (dash and last not in _DAYS):
            raise ValueError(f"{window[:80]!r}: {part!r} are no days: write days such as Mon, Sat,Sun or Mon-Fri")
        begin = _DAYS.index(first)
        num = (_DAYS.index(last) - begin) % len(_DAYS) + 1 if dash else 1
        found |= {(begin + day) % len(_DAYS) for day in range(num)}
    return frozenset(found)


def _zone(name: str, window: str) -> tzinfo:
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        raise ValueError(f"{window[:80]!r}: no time zone is named {name!r}: write one such as Europe/Berlin") from None
