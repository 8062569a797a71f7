"""Fitted models in the running service: handed in, tried, served and taken back, with other leaders and bad files."""

import json
from pathlib import Path

import pytest

from extender.core.policies.registry import CANDIDATE
from extender.parts.learning.model_store import _COURSE, _PIN
from extender.ranking import files
from tests.parts.learning.rigs import PACKS, SPREADS, Contents, Rig, rig, sha, written

DEEP = b'{"sha256":"x","foresight_load":1,"evaluation":[],"training":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"


@pytest.mark.slow
def test_a_better_model_comes_to_serve_step_by_step(tmp_path: Path) -> None:
    better = written(tmp_path / "fitted", PACKS)
    with rig(tmp_path, SPREADS) as at:
        released = at.serving()
        assert at.look()["stage"] == "none"
        at.hand_in(better)
        told = at.look()
        assert (told["candidate"], told["stage"], told["serving"]) == (sha(better), "shadow", "released")
        assert told["pods"] == 0  # those of before are no evidence
        assert at.see(29) == {"kerf"}
        assert at.look()["stage"] == "shadow"  # too few
        assert at.see(11) == {"kerf"}
        told = at.look()
        assert told["stage"] == "canary" and told["margin"] > told["doubt"] > 0
        assert at.kerf.metric("kerf_learning_stage", stage="canary") == 1
        assert at.see(60) == {"kerf", CANDIDATE}
        assert at.serving() == released
        told = at.look()
        assert (told["serving"], told["candidate"], told["stage"]) == (sha(better), None, "none")
        assert at.serving() == sha(better)
        assert at.see(20) == {"kerf"}
        assert set(at.config_map["binaryData"]) == {"serving.manifest.json", "serving.weights.safetensors"}
        assert at.kerf.metric("kerf_learning_promotions_total") == 1
        assert at.kerf.metric("kerf_learning_serving") == 1
        said = [event["message"] for event in at.kerf.events() if event["reason"] == "RankLearned"]
        assert sorted(line.split(":")[0] for line in said) == [
            f"model {sha(better)[:12]} {what}" for what in ("is tried in shadow", "places part of the pods", "serves")
        ]  # fmt: skip
        assert "serves" in at.kerf.service.status()["model"]["learning"]
        # It is better than the released one on what comes: it stays.
        assert at.look()["serving"] == sha(better)


@pytest.mark.slow
def test_a_worse_model_goes_back_and_never_places_a_pod(tmp_path: Path) -> None:
    worse = written(tmp_path / "fitted", SPREADS)
    with rig(tmp_path, PACKS) as at:
        at.hand_in(worse)
        at.look()
        assert at.see(40) == {"kerf"}
        told = at.look()
        assert (told["candidate"], told["stage"], told["takenBack"]) == (None, "none", 1)
        assert told["refused"] == [sha(worse)[:12]]
        assert "binaryData" in at.config_map and not at.config_map["binaryData"]
        assert at.kerf.metric("kerf_learning_rollbacks_total") == 1
        at.hand_in(worse)  # again
        assert at.look()["candidate"] is None
        assert at.see(40) == {"kerf"}


@pytest.mark.slow
def test_one_that_serves_goes_back_by_itself_when_it_does_worse(tmp_path: Path) -> None:
    worse = written(tmp_path / "fitted", SPREADS)
    with rig(tmp_path, PACKS) as at:
        released = at.serving()
        at.hand_in(worse, "serving")
        at.config_map["metadata"]["annotations"] = {_COURSE: json.dumps({"serving": sha(worse), "promoted": 1})}
        at.kerf.run(at.kerf.service.rank.round())
        at.look()
        assert at.serving() == sha(worse)  # as another leader had decided
        at.see(40)
        told = at.look()
        assert told["serving"] == "released" and "no longer serves: -" in told["said"]
        assert at.serving() == released
        assert not at.config_map["binaryData"]


def test_a_bad_file_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    better = written(tmp_path / "fitted", PACKS)
    with rig(tmp_path, SPREADS) as at:
        released = at.serving()
        for contents, why in (
            ({**better, files.WEIGHTS: better[files.WEIGHTS] + b"x"}, "SHA-256"),
            ({**better, files.MANIFEST: b"{"}, "manifest.json"),
            ({files.MANIFEST: better[files.MANIFEST]}, "has no weights.safetensors"),
            ({**better, files.MANIFEST: DEEP}, "manifest.json"),
        ):
            at.config_map["binaryData"] = {}
            at.hand_in(contents)
            told = at.look()
            assert told["stage"] == "none" and why in told["fault"]
            assert "learning: a model was refused" in at.kerf.get("/readyz").json()["degraded"][0]
        at.config_map["binaryData"] = {"candidate.manifest.json": "no base64", "candidate.weights.safetensors": "?"}
        assert "refused" in at.look()["fault"]
        assert at.serving() == released
        assert at.see(40) == {"kerf"}


def test_a_candidate_whose_files_change_on_trial_is_taken_back(at: Rig, one: Contents, other: Contents) -> None:
    at.hand_in(one)
    assert at.look()["candidate"] == sha(one)
    at.hand_in({files.WEIGHTS: other[files.WEIGHTS]})
    told = at.look()
    assert told["candidate"] is None and "its files are missing or were changed" in told["said"]
    at.hand_in(other)
    assert at.look()["candidate"] == sha(other)


def test_a_person_can_pin_a_model(at: Rig, one: Contents, other: Contents) -> None:
    released = at.serving()
    at.hand_in(one, "serving")
    at.hand_in(other)
    at.config_map["metadata"]["annotations"] = {_COURSE: json.dumps({"serving": sha(one)})}
    for pin, serves in (("released", released), (sha(other)[:12], sha(other)), (sha(one)[:8], sha(one))):
        at.config_map["metadata"]["annotations"][_PIN] = pin
        told = at.look()
        assert (told["pin"], told["fault"]) == (pin, None)
        assert at.serving() == serves
        assert at.see(40) == {"kerf"}
        assert at.look()["trials"] == 0
    at.config_map["metadata"]["annotations"][_PIN] = "f00d"
    assert "f00d is pinned but not available" in at.look()["fault"]
    assert at.serving() == released
    del at.config_map["metadata"]["annotations"][_PIN]
    assert at.look()["serving"] == sha(one)
    assert at.serving() == sha(one)


def test_a_standby_decides_nothing_and_ranks_as_the_leader_does(at: Rig, one: Contents, other: Contents) -> None:
    at.hand_in(one, "serving")
    at.hand_in(other)
    at.kerf.service.fence.shut(lambda: "another leads")
    assert at.look()["candidate"] is None
    assert at.kerf.service.rank.on_trial.model is None, "no leader tries it"
    course = {"serving": sha(one), "candidate": sha(other), "stage": "canary", "since": 1.0}
    at.config_map["metadata"]["annotations"] = {_COURSE: json.dumps(course)}
    before = json.dumps(at.config_map)
    assert at.look()["stage"] == "canary"
    assert at.serving() == sha(one)
    assert json.dumps(at.config_map) == before


def test_of_two_that_write_at_once_one_hears_that_it_was_late(at: Rig, one: Contents) -> None:
    at.hand_in(one)
    learning = at.learning

    async def raced() -> None:
        shelf = await learning._models.read()  # noqa: SLF001
        assert shelf is not None
        at.config_map["metadata"]["resourceVersion"] = "999999"
        await learning._reconcile(shelf)  # noqa: SLF001

    with pytest.raises(Exception, match="has been modified"):
        at.kerf.run(raced())
    assert "annotations" not in at.config_map["metadata"]
    assert at.look()["candidate"] == sha(one)
