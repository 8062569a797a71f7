"""What-if in a service: its call, what it says of pods that were written wrongly, and that it can be turned off."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from extender.demo.cluster import sample_cluster
from extender.parts.what_if.questions import WhatIfResult
from tests.api.bodies import node, pod
from tests.api.services import Kerf, Shared, running
from tests.api.test_api_description import DESCRIPTION, valid
from tests.api.test_blind import asks_nothing_of_what_was, cut_off
from tests.api.test_openapi import INVALID, VALID, Check, answers_as_described, description_of_kerf
from tests.api.test_wrong_words import WRONG
from tests.explain.sentences.test_pending_pods import EIGHT, explained, held
from tests.explain.test_waiting_pods import made
from tests.parts.test_parts import modules_of

pytestmark = pytest.mark.usefixtures("answered_here")

OFF = "what-if questions are not answered here (setting what_if.enabled)"


@pytest.fixture(name="description", scope="module")
def description_fixture() -> schemathesis.BaseSchema:
    return description_of_kerf()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "excluded"),
    [
        # As valid a form has a drain of a node that does not exist.
        pytest.param(VALID, (positive_data_acceptance,), id="valid"),
        pytest.param(INVALID, (), id="invalid"),
    ],
)
def test_answers_are_as_described(
    description: schemathesis.BaseSchema, mode: schemathesis.GenerationMode, excluded: tuple[Check, ...]
) -> None:
    answers_as_described(description, "POST /what-if", mode, excluded)


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


@pytest.mark.parametrize("synced", [True, False], ids=["stale", "unsynced"])
def test_nothing_is_worked_out_on_what_was(synced: bool) -> None:
    for kerf in cut_off(synced=synced):
        asks_nothing_of_what_was(kerf, "/what-if", {"pods": []}, stale=synced)


def asked_what_if(kerf: Kerf, annotations: Mapping[str, str], labels: Mapping[str, str]) -> Any:
    template = pod("one", 1, annotations=annotations, labels=labels)
    asked = {key: template[key] for key in ("apiVersion", "kind", "metadata", "spec")}
    answer = kerf.post("/what-if", json.dumps({"objects": [asked]}).encode())
    assert answer.status == 200, answer.content
    return answer.json()


@pytest.mark.parametrize(("annotations", "labels", "sentence"), WRONG, ids=[case[2][:60] for case in WRONG])
def test_what_was_written_wrongly_is_said_and_no_move_helps(
    annotations: Mapping[str, str], labels: Mapping[str, str], sentence: str, shared: Shared
) -> None:
    kerf = shared([node("n", 4, "t4")])
    guessed = asked_what_if(kerf, annotations, labels)
    assert next(iter(guessed["reasons"])).startswith(sentence)
    assert (guessed["placed"], guessed["noMoveHelps"]) == (0, [guessed["unassigned"][0]["pod"]])


@pytest.mark.parametrize(("gpus", "helps"), [(99, False), (4, True)])
def test_it_says_where_no_move_helps(gpus: int, helps: bool) -> None:
    with running([node("a", 4), node("b", 4)]) as kerf:
        for name, on in (("one", "a"), ("two", "b")):
            kerf.create(pod(name, 1, node_name=on, annotations={"kerf.dev/assigned-gpus": "0"}))
        answer = kerf.post("/what-if", json.dumps({"pods": [pod("p", gpus)]}).encode()).json()
    assert answer["noMoveHelps"] == ([] if helps else ["default/p"])


def commands_that_help(kerf: Kerf) -> dict[str, str | None]:
    """By text."""
    kerf.create(held("all", "far", EIGHT))
    kerf.filter(kerf.create(made("asks", 8, 60)), ["far"])
    return {remedy["text"]: remedy["command"] for remedy in explained(kerf, "asks")["remedies"]}


def test_it_is_named_as_a_remedy_where_it_is_answered() -> None:
    with running([node("far", 8)]) as kerf:
        assert commands_that_help(kerf)["add a node like far"] == "kerf what-if --waiting --add-node auto"
    with running([node("far", 8)], what_if__enabled=False) as kerf:
        assert commands_that_help(kerf)["add a node like far"] is None


@pytest.mark.slow
def test_where_it_is_off_nothing_of_it_is_imported_but_its_settings() -> None:
    assert {name for name in modules_of("what_if.enabled=false") if name.startswith("extender.parts.what_if")} == {
        "extender.parts.what_if",
        "extender.parts.what_if.settings",
    }


def test_where_it_is_off_it_is_not_there_and_its_path_says_how_to_turn_it_on() -> None:
    with running(what_if__enabled=False) as kerf:
        answer = kerf.post("/what-if", b"{}")
        assert (answer.status, answer.json()) == (404, {"detail": OFF})
        assert b"what_if" not in kerf.get("/page/parts.js").content
    with running() as kerf:
        assert b"import of_what_if from './parts/what_if/panel.js';" in kerf.get("/page/parts.js").content
