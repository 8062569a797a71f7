"""How far a replay is from what happened, and when nothing is judged by it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from model.pasts.accounts import Account, Steps
from model.pasts.pasts import Past, past
from model.pasts.trust import error_of, spell
from model.pasts.verdicts import _whole_percent, verdict
from tests.history.builders import history, nodes, pods

DAY = 86400.0
NUM_JOBS = 40


def known_of(num_jobs: int = NUM_JOBS, left_out: int = 0) -> Past:
    rows = [{"submitted_s": number * 10 * DAY / (num_jobs - 1), "gpus": 1 + number % 2} for number in range(num_jobs)]
    odd = [{"gpus": 64, "submitted_s": 1.0}] * left_out
    return past(history(pods(*rows, *odd), nodes(8, 8), until_s=10 * DAY))


def account(delay_s: float, gpus: list[float] | None = None, num_jobs: int = NUM_JOBS) -> Account:
    used = np.array(gpus or [4.0, 5, 6, 7, 8, 9, 10, 11, 12, 13])
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


@pytest.mark.parametrize(
    ("actual_s", "replayed_s", "refused"),
    [(0, 60, False), (0, 61, True), (20, 0, False), (1000, 500, False), (1000, 499, True), (1000, 1501, True)],
)
def test_waiting_may_differ_by_half_or_by_a_minute(actual_s: float, replayed_s: float, refused: bool) -> None:
    told = faults(account(actual_s), account(replayed_s))
    assert bool(told) is refused
    assert not refused or "mean wait" in told[0]


def test_gpus_in_use_may_differ_by_a_twentieth() -> None:
    used = [4.0, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert not faults(account(0), account(0, [1.05 * gpus for gpus in used]))
    assert faults(account(0), account(0, [1.06 * gpus for gpus in used])) == [
        "8.5 GPUs were in use, but 9.0 in the replay: 6 % more"
    ]
    assert "6 % fewer" in faults(account(0), account(0, [0.94 * gpus for gpus in used]))[0]


def test_days_have_to_go_up_and_down_together() -> None:
    used = [4.0, 5, 6, 7, 8, 9, 10, 11, 12, 13]
    assert "only -1.00" in faults(account(0), account(0, used[::-1]))[0]
    mixed = [5.0, 4, 6, 9, 8, 7, 10, 13, 12, 11]
    both = np.array([used, mixed]) - 8.5
    by_hand = (both[0] * both[1]).sum() / np.sqrt((both[0] ** 2).sum() * (both[1] ** 2).sum())
    error = error_of(known_of(), account(0), account(0, mixed))
    assert error["daily_correlation"] == pytest.approx(by_hand, abs=1e-4) and error["trusted"]
    flat = error_of(known_of(), account(0, [8.5] * 10), account(0, [8.5] * 10))
    assert flat["daily_correlation"] is None and flat["trusted"]


def test_a_few_days_are_not_compared_one_by_one() -> None:
    days_s = np.array([0.0, DAY, 2 * DAY, 3 * DAY])
    short = replace(account(0), steps=Steps(days_s, np.array([4.0, 5.0, 6.0]), None))
    other = replace(short, steps=Steps(days_s, np.array([6.0, 5.0, 4.0]), None))
    error = error_of(known_of(), short, other)
    assert (error["days"], error["daily_correlation"], error["trusted"]) == (3, None, True)


def test_too_few_jobs_and_too_many_left_out() -> None:
    few = account(0, num_jobs=29)
    assert faults(few, few, num_jobs=29) == ["only 29 jobs requested GPUs; at least 30 are needed"]
    assert not faults(account(0), account(0), left_out=2)
    assert faults(account(0), account(0), left_out=3) == ["3 of 43 pods fit no known node and are not in the replay"]


def figures(delay_s: float, blocked: int = 0) -> dict[str, Any]:
    return {"gpu_delay_s": delay_s, "blocked_starts": blocked}


def fewer(kerf: float, default: float, *, served: bool = True) -> dict[str, Any]:
    waited = {"waited": {"gpu_delay_s": 550.0, "waiting": {"share": 60.0, "1": 120.0, "8+": 0.0}}}
    rows = {
        "kerf": {"gpus": 89, "too_few_gpus": 88, "served": served, "percent": kerf, **waited},
        "kube-default": {"gpus": 97, "too_few_gpus": 96, "served": True, "percent": default, **waited},
    }
    limits = {"gpu_delay_s": 600.0, "waiting": {"share": 0.0, "1": 0.0, "8+": 900.0}}
    return {"gpus": 100, "limits": limits, "policies": rows}


TRUSTED: dict[str, Any] = {"trusted": True, "faults": []}


def test_the_headline() -> None:
    slow, fast = figures(600.0, 12), figures(60.0)
    told = verdict("kerf", fast, slow, TRUSTED, fewer(11.98, 0.0))
    assert told[:2] == [
        "You would have needed 11 % fewer GPUs with Kerf",
        "With 89 of 100 GPUs, the mean wait for GPUs is no longer than it was (10 min); with 88 GPUs it is.",
    ]
    assert told[2] == "Some jobs then wait longer: those of 1 GPU 2.0 min instead of 0 s."
    assert (
        told[3] == "With all GPUs, the mean wait would have been 60 s with Kerf, 10 min with kube-scheduler's default."
    )
    assert told[4].startswith("No multi-GPU job waited because") and told[4].endswith("default 12 did.")
    assert verdict("kerf", fast, slow, TRUSTED, fewer(11.0, 3.0))[0].endswith("GPUs with Kerf, 3 % fewer without")
    assert "all of your GPUs" in verdict("kerf", fast, slow, TRUSTED, fewer(0.99, 0.0))[0]
    assert "not have needed fewer" in verdict("kerf", fast, slow, TRUSTED, fewer(0.0, 0.0, served=False))[0]
    assert verdict("kerf", fast, slow, TRUSTED, None)[0].startswith("With all GPUs, the mean wait would have been 60 s")
    assert _whole_percent(10.9999) == "10 %"


def test_nothing_is_claimed_where_the_replay_is_wrong_or_cannot_be_checked() -> None:
    wrong = {"trusted": False, "faults": ["pods waited long"]}
    told = verdict("kerf", figures(0.0), figures(9.0), wrong, fewer(11.0, 0.0))
    assert told[0].startswith("No verdict") and told[1] == "Pods waited long."
    assert not any("fewer GPUs" in sentence for sentence in told)
    unknown = verdict("kerf", figures(0.0), figures(9.0), {"trusted": None, "faults": []}, fewer(11.0, 0.0))
    assert unknown[0].startswith("In a replay you would have needed 11 % fewer")
    assert "could not be checked" in unknown[-1] and "under kube-scheduler's default on all nodes" in unknown[1]
    assert error_of(known_of(), None, account(0.0))["trusted"] is None


def test_times_as_people_say_them() -> None:
    told = {0.4: "0 s", 59.6: "60 s", 119: "119 s", 120: "2.0 min", 600: "10 min", 7200: "2.0 h", 172_800: "2.0 days"}
    assert {seconds: spell(seconds) for seconds in told} == told
    with pytest.raises(ValueError, match="not a duration"):
        spell(float("inf"))
