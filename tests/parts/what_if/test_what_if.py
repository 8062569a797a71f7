"""What if: plans on a copy of the cluster as it is, without a trace in it."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from extender.core.gauges import Gauge
from extender.demo.cluster import sample_cluster
from extender.explain.processes import BusyError
from extender.explain.what_if import AnswersWhatIf
from extender.parts.what_if.questions import WhatIfResult
from tests.api.bodies import node, pod
from tests.api.services import Clock, Kerf, running
from tests.api.test_api_description import DESCRIPTION, valid
from tests.api.test_blind import cut_off, refuses_while_stale
from tests.api.test_openapi import INVALID, VALID, answers_as_described, description_of_kerf
from tests.explain.killed import ends_when_kerf_was_killed
from tests.explain.sentences.test_pending_pods import EIGHT, explained, held
from tests.explain.test_waiting_pods import made
from tests.parts.test_parts import modules_of
from tests.telemetry.feeds import FakeFeed
from tests.test_weights import loaded_by


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest) -> None:
    """Answers come from this process, but where a test is of the other one: such are slow."""
    if "slow" not in request.keywords:
        request.getfixturevalue("answered_here")


def ask(kerf: Kerf, **question: Any) -> Any:
    answer = kerf.post("/what-if", json.dumps(question).encode())
    assert answer.status == 200, answer.content
    return answer.json()


def test_a_batch_goes_where_there_is_room_and_the_rest_has_reasons() -> None:
    with running([node("n-0", 4), node("n-1", 2), node("cpu-0")]) as kerf:
        told = ask(kerf, pods=[pod("train", 2)], replicas=4)
        assert (told["pods"], told["placed"]) == (4, 3)
        assert sorted(entry["node"] for entry in told["assignments"]) == ["n-0", "n-0", "n-1"]
        assert told["reasons"] == {"needs 2 GPUs, best node: 0 free": 1}
        assert told["unassigned"][0]["pod"] == "default/train-3"
        assert {line["node"]: line["gpusUsed"] for line in told["nodes"]} == {"n-0": 4, "n-1": 2}


def test_reservations_count_and_nothing_is_left_of_a_question() -> None:
    with running([node("n-0", 2)]) as kerf:
        before = kerf.service.placer.snapshot().version
        assert ask(kerf, pods=[pod("train", 2)], addNodes=[{"template": "n-0"}])["placed"] == 1
        assert kerf.service.placer.snapshot().version == before
        assert kerf.service.placer.snapshot().node_names == ("n-0",)
        assert kerf.num_reservations == 0
        assert kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]
        assert ask(kerf, pods=[pod("other", 2)])["placed"] == 0


def test_invalid_requests() -> None:
    with running([node("n-0", 4)]) as kerf:
        for question, fault in ((b'{"drain": ["\xff"]}', "invalid request"), (b'{"drain": ["n-9"]}', "n-9")):
            answer = kerf.post("/what-if", question)
            assert (answer.status, fault in answer.json()["Error"]) == (400, True)


@pytest.mark.slow
def test_a_large_question_is_worked_out_elsewhere(compiled: list[str]) -> None:
    asked = [pod(f"p{number}", annotations={"kerf.dev/gpu-model": f"elsewhere-{number}.*"}) for number in range(200)]
    with running([node("n-0", 4)]) as kerf:
        told = ask(kerf, pods=asked)
        assert told["placed"] == 0
        assert not compiled, "in this process"
        assert kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]


@pytest.mark.slow
def test_one_that_takes_too_long_is_given_up() -> None:
    with running([node("n-0", 4)], access__what_if_s=0.01) as kerf:
        answer = kerf.post("/what-if", b"{}")
    assert answer.status == 503
    assert "access.what_if_s" in answer.json()["Error"]


def test_no_more_than_a_few_wait_for_their_turn() -> None:
    with running([node("n-0", 4)]) as kerf:

        async def ask_many() -> None:
            what_if = kerf.parts.capabilities.get(AnswersWhatIf)
            assert what_if is not None
            body = json.dumps({"pods": [pod("train", 1)]}).encode()
            found = await asyncio.gather(*(what_if.answer(body) for _ in range(8)), return_exceptions=True)
            refused = [answer for answer in found if isinstance(answer, BusyError)]
            assert len(refused) == 4
            assert all(json.loads(answer)["placed"] == 1 for answer in found if isinstance(answer, bytes))

        kerf.run(ask_many())


def test_what_is_in_use_by_nobodys_processes_counts_as_it_does_in_a_live_decision() -> None:
    telemetry = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}
    for policy in ("live", "kerf"):
        feed = FakeFeed(Clock())
        with running([node("n", 4)], feed=feed, decisions__policy=policy, **telemetry) as kerf:
            feed.clock = kerf.clock
            feed.gauges = {"n": {Gauge.MEMORY_USED: [50_000.0, 400.0, 400.0, 400.0]}}
            assert kerf.service.observer is not None
            kerf.run(kerf.service.observer.round())
            told = ask(kerf, pods=[pod("train", 1)], replicas=4)
            placed = [kerf.filter(kerf.create(pod(f"live-{number}", 1)), ["n"])["NodeNames"] for number in range(4)]
        assert told["placed"] == sum(bool(names) for names in placed) == 3


def test_policies_of_plans_are_those_of_the_settings() -> None:
    expected = [{"cpu_milli": 1000, "gpus": 1, "gpu_milli": 500, "count": 1}]
    with running([node("n", 4)], decisions__typical_pods=expected, telemetry__faulty="avoid") as kerf:
        own = kerf.service.placer.policies
        apart = kerf.service.placer.policies_apart()
    assert apart.keys() == own.keys()
    for name, policy in own.items():
        assert apart[name].rules == policy.rules, name
    assert vars(apart["fgd"].score)["_expected"] == vars(own["fgd"].score)["_expected"]
    assert own["live"].rules is not None
    assert not own["live"].rules.excludes_faulty


@pytest.fixture(name="description", scope="module")
def description_fixture() -> schemathesis.BaseSchema:
    return description_of_kerf()


@pytest.mark.slow
@pytest.mark.usefixtures("answered_here")
def test_answers_are_as_described(description: schemathesis.BaseSchema) -> None:
    # As valid a form has a drain of a node that does not exist.
    answers_as_described(description, "POST /what-if", VALID, (positive_data_acceptance,))
    answers_as_described(description, "POST /what-if", INVALID, ())


def test_the_call_is_described_with_its_statuses_and_an_example_that_is_answered() -> None:
    call = DESCRIPTION["paths"]["/what-if"]["post"]
    assert call["responses"].keys() - {"401", "403", "429"} == {"200", "400", "413", "503"}
    assert {"readerToken": []} in call["security"]
    example = call["requestBody"]["content"]["application/json"]["example"]
    with running(sample_cluster()) as kerf:
        told = kerf.post("/what-if", json.dumps(example).encode()).json()
    assert told["objects"][0]["object"] == "Job research/train"
    msgspec.convert(told, WhatIfResult)
    valid({"$ref": "#/components/schemas/WhatIfResult"}, told)
    assert told.keys() <= DESCRIPTION["components"]["schemas"]["WhatIfResult"]["properties"].keys()


def test_nothing_is_worked_out_on_what_was() -> None:
    for synced in (True, False):
        for kerf in cut_off(synced=synced):
            refuses_while_stale(kerf, "/what-if", {"pods": []}, stale=synced)


def test_it_says_where_no_move_helps() -> None:
    with running([node("a", 4), node("b", 4)]) as kerf:
        for name, on in (("one", "a"), ("two", "b")):
            kerf.create(pod(name, 1, node_name=on, annotations={"kerf.dev/assigned-gpus": "0"}))
        odd = pod("odd", 1, annotations={"kerf.dev/gpu-modle": "h100"})
        told = ask(kerf, pods=[pod("p", 4), pod("q", 99), odd])
    assert told["noMoveHelps"] == ["default/q", "default/odd"]
    reasons = {entry["pod"]: entry["reason"] for entry in told["unassigned"]}
    assert reasons["default/odd"].startswith("kerf.dev/gpu-modle: ")


def command(**settings: Any) -> str | None:
    """Of the remedy for a pod that needs another node."""
    with running([node("far", 8)], **settings) as kerf:
        kerf.create(held("all", "far", EIGHT))
        kerf.filter(kerf.create(made("asks", 8, 60)), ["far"])
        found: dict[str, str | None] = {item["text"]: item["command"] for item in explained(kerf, "asks")["remedies"]}
        return found["add a node like far"]


def test_it_is_named_as_a_remedy_where_it_is_answered() -> None:
    assert command() == "kerf what-if --waiting --add-node auto"
    assert command(what_if__enabled=False) is None


@pytest.mark.slow
def test_where_it_is_off_nothing_of_it_is_imported_but_its_settings() -> None:
    assert {name for name in modules_of("what_if.enabled=false") if name.startswith("extender.parts.what_if")} == {
        "extender.parts.what_if",
        "extender.parts.what_if.settings",
    }


def test_where_it_is_off_it_is_not_there_and_its_path_says_how_to_turn_it_on() -> None:
    with running(what_if__enabled=False) as kerf:
        answer = kerf.post("/what-if", b"{}")
        assert (answer.status, "what_if.enabled" in answer.json()["detail"]) == (404, True)
        assert b"what_if" not in kerf.get("/page/parts.js").content
    with running() as kerf:
        assert b"import of_what_if from './parts/what_if/panel.js';" in kerf.get("/page/parts.js").content


QUESTION = b'{"pods": [{"metadata": {"name": "p"}, "spec": {"containers": []}}]}'


@pytest.mark.slow
def test_it_ends_when_its_kerf_was_killed_after_its_question_or_before_any() -> None:
    for question in (QUESTION, b""):
        ends_when_kerf_was_killed("extender.parts.what_if.process", question)


@pytest.mark.slow
def test_it_loads_what_it_needs() -> None:
    assert loaded_by("extender.parts.what_if.process", ["fastapi", "pydantic", "rich"]) == []
