"""What can go wrong while fitted models are tried: it costs nobody a decision, and no model comes further by it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from extender.core.policies.registry import CANDIDATE
from extender.kube.client import UnreachableError
from extender.parts.learning import controller
from extender.parts.learning.model_store import _COURSE, _PIN
from extender.ranking import files
from extender.ranking.demands import Kind
from extender.ranking.files import Actor
from extender.ranking.worker import WorkerError
from tests.api.bodies import pod
from tests.parts.learning.rigs import NAMES, PACKS, SPREADS, Contents, Rig, objects_of, rig, sha, written


def test_pods_drawn_for_a_model_that_is_gone_are_placed_by_the_one_that_serves(at: Rig, one: Contents) -> None:
    kerf, placer = at.kerf, at.kerf.service.placer
    at.hand_in(one)
    at.config_map["metadata"]["annotations"] = {_COURSE: json.dumps({"candidate": sha(one), "stage": "canary"})}
    at.look()
    drawn, waits = [], []
    for number in range(40):
        manifest = kerf.create(pod(f"drawn-{number}", 1))
        kerf.filter(manifest, NAMES)
        kept = placer.decided.last("default", manifest["metadata"]["name"])
        assert kept is not None
        if kept.decision.policy == CANDIDATE:
            drawn.append(manifest)
        placer.release(manifest["metadata"]["uid"])
        manifest = kerf.create(pod(f"waits-{number}", 8))
        kerf.filter(manifest, NAMES)
        waits += [manifest] if placer.read_request(objects_of(manifest)).policy == CANDIDATE else []
    assert drawn and waits
    at.config_map["binaryData"] = {}
    assert at.look()["candidate"] is None
    assert kerf.bind(drawn[0], NAMES[0]) == ""
    assert kerf.get(f"/explain/pod/default/{drawn[1]['metadata']['name']}").status == 200
    remembered = placer.remembered(waits[0]["metadata"]["uid"])
    assert remembered is not None and not placer.fits_somewhere(remembered)  # as the waker asks


def test_no_pod_chooses_to_be_placed_by_a_model_on_trial(at: Rig, one: Contents) -> None:
    at.hand_in(one)
    assert at.look()["stage"] == "shadow"
    chooses = pod("chooses", 1, annotations={"kerf.dev/policy": CANDIDATE})
    (why,) = set(at.kerf.filter(chooses, NAMES)["FailedAndUnresolvableNodes"].values())
    assert why.startswith(f'kerf.dev/policy: "{CANDIDATE}" is not a policy; use one of tightest')
    assert why.count(CANDIDATE) == 1


def course(at: Rig, **told: Any) -> None:
    """The ConfigMap says how far things have come."""
    at.config_map["metadata"]["annotations"] = {_COURSE: json.dumps(told)}


def answered(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, list[float]] | Exception) -> list[set[str]]:
    """Trials give these answers, the last one again and again; the ranks that were tried are kept."""
    left, asked = list(answers), []

    async def tried(_demand: object, ranks: dict[str, object], *_: object) -> dict[str, list[float]]:
        asked.append(set(ranks))
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return {name: values for name, values in answer.items() if name in (*ranks, "fgd", "tightest")}

    monkeypatch.setattr(controller, "tried_aside", tried)
    return asked


BETTER = {"kerf": [90.0] * 8, "rival": [80.0] * 8, "fgd": [81.0] * 8, "tightest": [70.0] * 8}
WORSE = {"kerf": [70.0] * 8, "rival": [80.0] * 8, "fgd": [70.0] * 8, "tightest": [60.0] * 8}
EQUAL = dict.fromkeys(BETTER, [80.0] * 8)


def test_what_somebody_wrote_by_hand_breaks_nothing(at: Rig, one: Contents) -> None:
    at.hand_in(one)
    course(at, candidate=sha(one), stage="shadow", since=1e18)
    assert at.look()["since"] is None
    at.config_map["metadata"]["annotations"] = {_COURSE: '{"stage": 7}', _PIN: " "}
    assert at.look()["stage"] == "shadow"  # from its beginning
    at.config_map["binaryData"] = {"candidate.manifest.json": 5, "candidate.weights.safetensors": None}
    assert "refused" in at.look()["fault"]


def test_a_deleted_config_map_is_an_empty_one(at: Rig, one: Contents, other: Contents) -> None:
    released = at.serving()
    at.hand_in(one, "serving")
    at.hand_in(other)
    course(at, serving=sha(one), candidate=sha(other), stage="canary")
    at.look()
    assert at.serving() == sha(one) and at.see() == {"kerf", CANDIDATE}
    at.kerf.cluster._config_maps.clear()  # noqa: SLF001
    told = at.look()
    assert told["fault"] == "there is no ConfigMap kerf-system/kerf-learned"
    assert (at.serving(), told["serving"], told["candidate"]) == (released, "released", None)
    assert at.see() == {"kerf"}


def test_a_model_that_comes_to_serve_is_what_auto_is(at: Rig, one: Contents, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = answered(monkeypatch, BETTER, {**BETTER, "fgd": [99.0] * 8}, {**WORSE, "fgd": [60.0] * 8})
    at.hand_in(one)
    course(at, candidate=sha(one), stage="canary")
    at.look()
    at.kerf.service.rank.prefer("fgd")
    assert at.see() <= {"fgd", CANDIDATE}
    assert at.look()["said"] == f"model {sha(one)[:12]} serves: +9.00 ± 0.00 points against fgd on newly arrived pods"
    assert at.see() == {"kerf"}
    # Whether it stays goes by the released one, whatever `auto` is meanwhile.
    at.kerf.service.rank.prefer("fgd")
    assert at.look()["serving"] == sha(one)
    at.see()
    assert "-10.00 ± 0.00 points against the released one" in at.look()["said"]
    assert tried == [{"kerf"}, {"kerf", "rival"}, {"kerf", "rival"}]


def test_a_pinned_model_serves_whatever_is_better(at: Rig, one: Contents) -> None:
    at.hand_in(one)
    at.config_map["metadata"]["annotations"] = {_PIN: sha(one)[:12]}
    at.look()
    at.kerf.service.rank.prefer("fgd")
    assert at.see() == {"kerf"} and at.serving() == sha(one)
    at.config_map["metadata"]["annotations"] = {_PIN: "released"}
    at.look()
    assert at.see() == {"fgd"}  # nothing fitted serves: `auto` is what it is without


def test_a_verdict_that_could_not_be_written_is_not_forgotten(
    at: Rig, one: Contents, other: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = answered(monkeypatch, WORSE)
    models = at.learning._models  # noqa: SLF001
    refuse = AsyncMock(side_effect=UnreachableError("the API server is away"))
    for slot, model, told in (
        ("candidate", one, {"candidate": sha(one), "stage": "canary"}),
        ("serving", other, {"serving": sha(other)}),
    ):
        at.config_map["binaryData"] = {}
        at.hand_in(model, slot)
        course(at, **told)
        at.look()
        at.see()
        with monkeypatch.context() as patched:
            patched.setattr(models, "write", refuse)
            assert "away" in at.look()["fault"]
        assert at.look()["takenBack"] == 1  # by the pods that came before
    assert len(tried) == 4


def test_a_trial_that_comes_to_nothing_is_said_and_not_repeated_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = written(tmp_path / "one", PACKS)
    tried = answered(monkeypatch, WorkerError("no memory"), {}, BETTER)
    with rig(tmp_path, SPREADS, learning__stage_s=3600.0) as at:
        at.hand_in(one)
        at.look()
        at.see()
        at.kerf.clock.now += 3601
        for why in ("a trial failed: no memory", "no model can be tried"):
            for _ in range(3):
                told = at.look()
                assert why in told["fault"] and told["stage"] == "shadow"
            at.kerf.clock.now += 601
        told = at.look()
        assert (told["stage"], told["fault"]) == ("canary", None)
        assert len(tried) == 3


def test_beside_a_model_with_attention_none_is_tried_and_that_is_said(
    at: Rig, one: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = answered(monkeypatch, BETTER)
    at.hand_in(one)
    at.look()
    at.see()
    released = at.kerf.service.rank.base
    assert released is not None
    at.kerf.service.rank.base = Actor(None, released.manifest)  # type: ignore[arg-type]
    at.kerf.run(at.learning.round())
    assert "one with attention" in at.learning.fault and at.learning.course.stage == "shadow"
    assert not tried


def test_a_clock_that_is_set_ends_no_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = written(tmp_path / "one", PACKS)
    answered(monkeypatch, BETTER)
    with rig(tmp_path, SPREADS, learning__stage_s=3600.0) as at:
        around = at.learning._around  # noqa: SLF001
        at.hand_in(one)
        at.look()
        at.see()
        at.learning._around = replace(around, wall_clock=lambda: 1e12)  # noqa: SLF001
        assert at.look()["stage"] == "shadow"
        at.learning._around = replace(around, wall_clock=lambda: 1.0)  # noqa: SLF001
        at.kerf.clock.now += 3601
        assert at.look()["stage"] == "canary"


def test_values_that_are_not_finite_take_a_model_back_at_once(
    at: Rig, one: Contents, other: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = answered(monkeypatch, BETTER)
    rank = at.kerf.service.rank
    at.hand_in(one, "serving")
    at.hand_in(other)
    course(at, serving=sha(one), candidate=sha(other), stage="canary")
    at.look()
    rank.on_trial.score.fault = "the model gives values that are not finite"
    rank.look = None
    at.kerf.run(rank.round())  # another outlook meanwhile, on which it gives others
    assert at.see() == {"kerf"}
    assert "withdrawn from canary: the model gives values that are not finite" in at.look()["said"]
    at.look()
    rank.score.fault = "the model gives values that are not finite"
    told = at.look()
    assert told["serving"] == "released" and told["said"].endswith(
        "no longer serves: the model gives values that are not finite"
    )
    assert not tried


def test_pods_that_ask_for_no_gpu_are_no_evidence(at: Rig) -> None:
    mix = at.kerf.service.rank.mix
    for number in range(50):
        mix.pod_changed(None, objects_of(pod(f"cpu-{number}", node_name="n-0")))
    mix.pod_changed(None, objects_of(pod("gpu", 1, node_name="n-0")))
    assert (mix.num_seen, mix.fresh.num) == (51, 1)
    assert len(mix.fresh.counts({})) == 2  # they take CPU all the same


def test_who_floods_takes_no_model_back(at: Rig, one: Contents, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, EQUAL)
    seen: list[Any] = []
    monkeypatch.setattr(controller, "demand_of", lambda _, counts: seen.append(counts))
    at.hand_in(one, "serving")
    course(at, serving=sha(one))
    at.look()
    fresh = at.kerf.service.rank.mix.fresh
    for _ in range(20):
        fresh.add("research", Kind(0, 0, 1, 1000))
    for _ in range(5000):
        fresh.add("flood", Kind(0, 0, 1, 130))
    at.learning._around = replace(at.learning._around, held=lambda: {"research": 8.0})  # noqa: SLF001
    at.kerf.clock.now += 1
    assert at.look()["serving"] == sha(one)
    (counts,) = seen
    assert counts[Kind(0, 0, 1, 130)] / sum(counts.values()) == pytest.approx(0.02)
    assert at.look()["pods"] == 0  # tried once on them
    assert len(seen) == 1


def test_a_model_a_night_ends_no_trial(at: Rig, one: Contents, other: Contents) -> None:
    models = at.learning._models  # noqa: SLF001
    left: list[str] = []

    async def hand_in(contents: dict[str, bytes], *, replace: bool = False) -> None:
        left.append(await models.hand_in(contents, replace=replace))

    at.kerf.run(hand_in(one))
    assert at.look()["candidate"] == sha(one)
    at.kerf.run(hand_in(other))
    assert at.look()["candidate"] == sha(one)
    at.kerf.run(hand_in(other, replace=True))
    assert at.look()["candidate"] == sha(other)
    at.config_map["binaryData"] = {}  # withdrawn: there is room for another
    at.look()
    at.kerf.run(hand_in({**one, files.MANIFEST: b"{"}))
    assert "refused" in at.look()["fault"]
    at.kerf.run(hand_in(one))  # one that was refused is in nobody's way
    assert left == ["", sha(one), "", "", ""]


def test_the_fault_of_the_one_before_is_not_the_new_ones(at: Rig, one: Contents) -> None:
    rank = at.kerf.service.rank
    at.hand_in(one, "serving")
    course(at, serving=sha(one))
    at.kerf.run(at.learning.round())  # its tables are still to be made
    rank.score.fault = "the model gives values that are not finite"
    assert at.look()["serving"] == sha(one)
    assert at.serving() == sha(one) and not rank.score.fault


ROW = {"trace": "t", "seeds": [1], "kerf": {"100": [1.0]}, "fgd": {"100": [1.0]}, "start": {"100": [0.5]}}
ODD: tuple[dict[str, Any], ...] = (
    {"start": {"full": [0.5]}, "kerf": {"full": [1.0]}},  # a load that is no number
    {"start": {"90": [0.5]}},  # a load that it was not tried at
    {"start": {"100": []}},
    {"kerf": {"100": []}},
    {"kerf": {"100": [1e308, 1e308, 1e308]}, "start": {"100": [-1e308, -1e308]}},  # no finite number
)


def test_a_candidate_with_an_odd_evaluation_is_withdrawn_and_says_why(at: Rig, other: Contents, tmp_path: Path) -> None:
    refused = []
    for number, odd in enumerate(ODD, start=1):
        better = written(tmp_path / "fitted", PACKS | {"gpus_idle": float(number)})
        manifest = json.loads(better[files.MANIFEST]) | {"evaluation": [ROW | odd]}
        at.hand_in({**better, files.MANIFEST: json.dumps(manifest).encode()})
        told = at.look()
        refused.append(sha(better)[:12])
        assert (told["candidate"], told["trials"], told["takenBack"]) == (None, 0, number)
        assert set(told["refused"]) == set(refused)
        assert "its evaluation can't be read" in told["said"]
        assert not at.config_map["binaryData"]
        assert at.kerf.metric("kerf_learning_rollbacks_total") == number
    at.hand_in(other)
    assert at.look()["candidate"] == sha(other)


def test_a_candidate_whose_trials_come_to_no_end_is_withdrawn(
    at: Rig, one: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(*_: Any) -> Any:
        raise WorkerError("it took longer than 1800 s")

    monkeypatch.setattr(controller, "tried_aside", ends)
    at.hand_in(one)
    at.look()
    at.see(40)
    for _ in range(2):
        assert at.look()["candidate"] == sha(one)
        at.kerf.clock.now += 1_000
    told = at.look()
    assert (told["candidate"], told["takenBack"]) == (None, 1)
    assert "3 trials of it failed" in told["said"]


def test_a_trial_without_a_step_is_no_event(at: Rig, one: Contents, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(monkeypatch, EQUAL)
    at.hand_in(one)
    for number in range(3):
        told = at.look()
        assert told["stage"] == "shadow" and told["trials"] == number
        at.see()
    assert len([event for event in at.kerf.events() if event["reason"] == "RankLearned"]) == 1
