"""The error of a replay, and the verdict that it allows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.pasts.accounts import Account, Steps
from model.pasts.pasts import HistoryWorkload, past
from model.pasts.trust import error_of, spell
from model.pasts.verdicts import _whole_percent, verdict
from tests.golden import Golden
from tests.history.builders import history, nodes, pods

DAY = 86400.0
NUM_JOBS = 40
USED = [4.0, 5, 6, 7, 8, 9, 10, 11, 12, 13]


def known_of(num_jobs: int = NUM_JOBS, left_out: int = 0) -> HistoryWorkload:
    rows = [{"submitted_s": number * 10 * DAY / (num_jobs - 1), "gpus": 1 + number % 2} for number in range(num_jobs)]
    odd = [{"gpus": 64, "submitted_s": 1.0}] * left_out
    return past(history(pods(*rows, *odd), nodes(8, 8), until_s=10 * DAY))


def account(delay_s: float, gpus: list[float] | None = None, num_jobs: int = NUM_JOBS) -> Account:
    used = np.array(gpus or USED)
    steps = Steps(np.arange(len(used) + 1) * 10 * DAY / len(used), used, None)
    return Account(np.full(num_jobs, delay_s), np.zeros(num_jobs, np.bool_), steps, None)


def faults(actual: Account, replayed: Account, **known: Any) -> list[str]:
    error = error_of(known_of(**known), actual, replayed)
    assert error["trusted"] is not bool(error["faults"])
    found: list[str] = error["faults"]
    return found


def test_a_replay_like_what_happened_is_trusted() -> None:
    error = error_of(known_of(), account(100.0), account(90.0))
    assert (error["trusted"], error["faults"], error["daily_correlation"], error["days"]) == (True, [], 1.0, 10)
    assert error["gpus"] == {"actual": 8.5, "replayed": 8.5, "off_frac": 0.0}
    assert error["gpu_delay_s"] == {"actual": 100.0, "replayed": 90.0, "off_s": -10.0, "trusted": True}
    assert error["waiting"]["2-3"] == {"actual": 100.0, "replayed": 90.0, "off_s": -10.0, "trusted": True, "jobs": 20}


def test_waiting_may_differ_by_half_or_by_a_minute_and_gpus_in_use_by_a_twentieth() -> None:
    for actual_s, replayed_s in ((0, 60), (20, 0), (1000, 500)):
        assert not faults(account(actual_s), account(replayed_s))
    for actual_s, replayed_s in ((0, 61), (1000, 499), (1000, 1501)):
        assert "mean wait" in faults(account(actual_s), account(replayed_s))[0]
    for factor, told in ((1.05, ""), (1.06, "6 % more"), (0.94, "6 % fewer")):
        found = faults(account(0), account(0, [factor * gpus for gpus in USED]))
        assert "".join(fault.rpartition(": ")[2] for fault in found) == told


def test_days_have_to_go_up_and_down_together() -> None:
    assert "only -1.00" in faults(account(0), account(0, USED[::-1]))[0]
    mixed = [5.0, 4, 6, 9, 8, 7, 10, 13, 12, 11]
    error = error_of(known_of(), account(0), account(0, mixed))
    assert error["daily_correlation"] == pytest.approx(np.corrcoef(USED, mixed)[0, 1], abs=1e-4) and error["trusted"]
    flat = error_of(known_of(), account(0, [8.5] * 10), account(0, [8.5] * 10))
    assert flat["daily_correlation"] is None and flat["trusted"]
    days_s = np.arange(4, dtype=np.float64) * DAY  # too few to correlate
    short, other = (
        replace(account(0), steps=Steps(days_s, np.array(used), None)) for used in ([4.0, 5, 6], [6.0, 5, 4])
    )
    error = error_of(known_of(), short, other)
    assert (error["days"], error["daily_correlation"], error["trusted"]) == (3, None, True)


def test_too_few_jobs_and_too_many_left_out() -> None:
    few = account(0, num_jobs=29)
    assert "at least 30" in faults(few, few, num_jobs=29)[0]
    assert not faults(account(0), account(0), left_out=2)
    assert "3 of 43 pods" in faults(account(0), account(0), left_out=3)[0]


def fewer(kerf: float, default: float, *, served: bool = True) -> dict[str, Any]:
    waited = {"waited": {"gpu_delay_s": 550.0, "waiting": {"share": 60.0, "1": 120.0, "8+": 0.0}}}
    rows = {
        "kerf": {"gpus": 89, "too_few_gpus": 88, "served": served, "percent": kerf, **waited},
        "kube-default": {"gpus": 97, "too_few_gpus": 96, "served": True, "percent": default, **waited},
    }
    limits = {"gpu_delay_s": 600.0, "waiting": {"share": 0.0, "1": 0.0, "8+": 900.0}}
    return {"gpus": 100, "limits": limits, "policies": rows}


def test_verdicts(golden: Golden) -> None:
    slow, fast = {"gpu_delay_s": 600.0, "blocked_starts": 12}, {"gpu_delay_s": 60.0, "blocked_starts": 0}
    trusted: dict[str, Any] = {"trusted": True, "faults": []}
    wrong, unknown = trusted | {"trusted": False, "faults": ["pods waited long"]}, trusted | {"trusted": None}
    verdicts = [
        ("fewer GPUs", verdict("kerf", fast, slow, trusted, fewer(11.98, 0.0))),
        ("the default needs fewer, too", verdict("kerf", fast, fast, trusted, fewer(11.0, 3.0))),
        ("less than 1 %", verdict("kerf", fast, fast, trusted, fewer(0.99, 0.0))),
        ("too slow on all nodes", verdict("kerf", fast, fast, trusted, fewer(0.0, 0.0, served=False))),
        ("no search", verdict("kerf", fast, fast, trusted, None)),
        ("not trusted", verdict("kerf", fast, slow, wrong, fewer(11.0, 0.0))),
        ("not checked", verdict("kerf", fast, fast, unknown, fewer(11.0, 0.0))),
    ]
    golden("replay_verdicts.txt", [line for case, found in verdicts for line in (f"# {case}", *found)])
    assert error_of(known_of(), None, account(0.0))["trusted"] is None
    assert _whole_percent(10.9999) == "10 %"


def test_durations_for_people() -> None:
    told = {0.4: "0 s", 119: "119 s", 120: "2.0 min", 600: "10 min", 7200: "2.0 h", 172_800: "2.0 days"}
    assert {seconds: spell(seconds) for seconds in told} == told
    with pytest.raises(ValueError, match="not a duration"):
        spell(float("inf"))
