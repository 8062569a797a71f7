"""Weekly windows: what is written is read, and they are open when the clocks of their zone say so."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from extender.planning.windows import are_open, window_of


def at(text: str, hours_from_utc: float = 0.0) -> float:
    """Unix time of what clocks show."""
    return datetime.fromisoformat(text).replace(tzinfo=timezone(timedelta(hours=hours_from_utc))).timestamp()


def test_a_window_is_open_on_its_days_from_its_first_minute_until_its_last() -> None:
    night = "Mon-Fri 22:00-06:00"
    for window, when, expected in (  # 2026-11-23 is a Monday
        ("Mon-Fri 09:00-17:00", "2026-11-23 09:00", True),
        ("Mon-Fri 09:00-17:00", "2026-11-23 08:59", False),
        ("Mon-Fri 09:00-17:00", "2026-11-27 16:59", True),
        ("Mon-Fri 09:00-17:00", "2026-11-27 17:00", False),
        ("Mon-Fri 09:00-17:00", "2026-11-28 12:00", False),
        ("09:00-17:00", "2026-11-29 12:00", True),
        ("Sat,Sun 00:00-24:00", "2026-11-29 23:59", True),
        ("Sat,Sun 00:00-24:00", "2026-11-30 00:00", False),
        ("Fri-Mon 10:00-11:00", "2026-11-29 10:30", True),
        ("Fri-Mon 10:00-11:00", "2026-11-24 10:30", False),
        ("mon-tue,FRI 10:00-11:00", "2026-11-27 10:30", True),
        (night, "2026-11-23 00:30", False),  # Sunday's night
        (night, "2026-11-23 22:00", True),
        (night, "2026-11-24 05:59", True),
        (night, "2026-11-24 06:00", False),
        (night, "2026-11-28 03:00", True),  # Saturday, in Friday's night
        (night, "2026-11-28 22:30", False),
    ):
        assert window_of(window).is_open(at(when)) is expected, (window, when)


def test_hours_are_those_of_its_zone_in_summer_and_in_winter() -> None:
    window = window_of("22:00-23:00 Europe/Berlin")
    assert window.is_open(at("2026-07-01 22:30", 2))
    assert window.is_open(at("2026-12-01 22:30", 1))
    assert not window.is_open(at("2026-12-01 22:30", 2))
    assert window_of("22:00-23:00").zone is UTC


def test_an_hour_that_clocks_repeat_counts_twice_and_one_that_they_skip_is_missing() -> None:
    window = window_of("02:00-03:00 Europe/Berlin")
    # Clocks go back from 03:00 to 02:00 on 2026-10-25, and on from 02:00 to 03:00 on 2026-03-29.
    minutes = [at("2026-10-25 00:00") + 60 * minute for minute in range(6 * 60)]
    assert sum(window.is_open(minute) for minute in minutes) == 120
    minutes = [at("2026-03-29 00:00") + 60 * minute for minute in range(6 * 60)]
    assert sum(window.is_open(minute) for minute in minutes) == 0


def test_what_is_no_window_is_refused_with_what_would_be_right() -> None:
    for text, message in (
        ("always", "is not a time window"),
        ("Mon-Fri", "is not a time window"),
        ("9:00-17:00", "is not a time window"),
        ("Mon-Fri 22:00-06:00 Europe/Berlin please", "is not a time window"),
        ("Mon-Fry 09:00-17:00", "'mon-fry' is not a day"),
        ("Mo 09:00-17:00", "'mo' is not a day"),
        ("Mon, 09:00-17:00", "'' is not a day"),
        ("25:00-17:00", "25:00 is not a time"),
        ("09:60-17:00", "09:60 is not a time"),
        ("09:00-24:01", "24:01 is not a time"),
        ("09:00-09:00", "has no length"),
        ("24:00-06:00", "has no length"),
        ("09:00-17:00 Europe/Berlim", "no time zone is named 'Europe/Berlim'"),
        ("09:00-17:00 Europe", "no time zone is named 'Europe'"),
        ("09:00-17:00 /etc/passwd", "no time zone"),
        ("09:00-17:00 ../../etc/passwd", "is not a time window"),
    ):
        with pytest.raises(ValueError, match="write") as refused:
            window_of(text)
        assert message in str(refused.value)


def test_one_of_several_is_enough_and_none_are_always_open() -> None:
    windows = [window_of("Sat 00:00-24:00"), window_of("Mon 10:00-11:00")]
    assert are_open(windows, at("2026-11-23 10:30"))
    assert not are_open(windows, at("2026-11-23 11:30"))
    assert are_open([], at("2026-11-23 11:30"))
