"""`auto` is what was better on the pods that were seen, and says so."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extender.parts.learning.evidence import _Pace
from tests.api.bodies import pod
from tests.api.services import Kerf, running
from tests.parts.learning.rigs import NAMES, NODES, PACKS, SPREADS, judges_of, written


@contextmanager
def serving(path: Path, weights: dict[str, float], **flags: Any) -> Iterator[Kerf]:
    written(path, weights)
    given = {"model__mode": "serve", "model__prices": "plain", "model__check_s": 3600.0}
    with running(NODES, **{**given, "model__path": str(path), "model__prior_pods": 0.0, **flags}) as kerf:
        trials = judges_of(kerf).trials
        if trials is not None:
            trials.pace = _Pace(pods=20)
        yield kerf


def see(kerf: Kerf, num_pods: int = 40) -> None:
    """Ones and fours come by, and the model looks at them."""
    kerf.run(kerf.service.rank.round())
    for number in range(num_pods):
        manifest = pod(f"p{number}", 1 if number % 4 else 4)
        kerf.filter(manifest, NAMES)
        kerf.service.placer.release(manifest["metadata"]["uid"])
    kerf.clock.now += 1000
    kerf.run(kerf.service.rank.round())


def try_out(kerf: Kerf) -> dict[str, Any]:
    trials = judges_of(kerf).trials
    assert trials is not None
    kerf.run(trials.round())
    told: dict[str, Any] = kerf.get("/model").json()
    return told


@pytest.mark.slow
def test_a_rank_that_loses_gives_way_and_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path, SPREADS) as kerf:
        see(kerf)
        assert kerf.get("/version").json()["policy"] == "kerf"
        told = try_out(kerf)
        assert told["auto"] in ("fgd", "tightest")
        assert told["evidence"]["tried"] == 1 and told["evidence"]["margin"] > 1
        assert "points better than kerf" in told["evidence"]["reason"]
        percent = told["evidence"]["percent"]
        assert percent[told["auto"]] > percent["kerf"] + 1
        assert kerf.get("/version").json()["policy"] == told["auto"]
        assert kerf.metric("kerf_auto_policy", policy=told["auto"]) == 1
        assert kerf.metric("kerf_auto_policy", policy="kerf") == 0
        assert kerf.metric("kerf_evidence_changes_total") == 1
        assert kerf.filter(pod("next", 1), NAMES)["NodeNames"]  # it serves
        # A better model is a reason to try again, after a while.
        written(tmp_path, PACKS)
        for _ in range(2):
            kerf.run(kerf.service.rank.round())
        assert try_out(kerf)["evidence"]["tried"] == 1  # not so soon
        kerf.clock.now += 20_000
        kerf.run(kerf.service.rank.round())
        again = try_out(kerf)
        assert again["evidence"]["tried"] == 2
        assert again["evidence"]["percent"]["kerf"] > percent["kerf"] + 5
        assert "best of those tried" in again["evidence"]["reason"]  # as good is no reason to change


def test_nothing_is_tried_before_enough_was_seen_or_without_a_change(tmp_path: Path) -> None:
    with serving(tmp_path, PACKS) as kerf:
        see(kerf, num_pods=10)
        assert try_out(kerf)["evidence"] == {
            "tried": 0, "ageSeconds": None, "percent": {}, "margin": None, "reason": None, "fault": None,
        }  # fmt: skip


def test_who_has_chosen_a_policy_is_not_overruled(tmp_path: Path) -> None:
    flags: tuple[dict[str, Any], ...] = (
        {"decisions__policy": "kerf"},
        {"model__mode": "shadow"},
        {"model__mode": "off"},
    )
    for chosen in flags:
        with serving(tmp_path, PACKS, **chosen) as kerf:
            assert judges_of(kerf).trials is None
            assert kerf.get("/model").json()["evidence"] is None


def test_a_standby_tries_nothing_until_it_leads_and_a_trial_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.parts.learning.evidence._MAX_S", 0.01)  # a trial that begins is seen by its end
    with serving(tmp_path, SPREADS) as kerf:
        see(kerf)
        fence = kerf.service.fence
        fence.shut(lambda: "b leads")
        assert try_out(kerf)["evidence"]["fault"] is None
        fence.take_over("", lambda: float("inf"), lambda: "")
        fence.open("1")
        told = try_out(kerf)
        assert (told["auto"], told["evidence"]["tried"]) == ("kerf", 0)
        assert "did not finish within" in told["evidence"]["fault"]
