"""Making room in a service: its routes, metrics, advice and settings, and how it is turned off."""

from typing import Any

import pytest
import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

from extender.settings.load import SettingsError, load_settings
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running
from tests.api.test_blind import cut_off, refuses_while_stale
from tests.api.test_openapi import INVALID, VALID, Check, answers_as_described, description_of_kerf
from tests.demo.test_cluster import NODES, OBJECTS, PENDING
from tests.explain.sentences.test_pending_pods import EIGHT, explained, held
from tests.explain.test_waiting_pods import made, told_once
from tests.parts.pages import assert_its_metrics_are_on_its_page
from tests.parts.test_parts import modules_of

pytestmark = pytest.mark.usefixtures("answered_here")

OFF = "making room is off (setting defrag.enabled)"


@pytest.fixture(name="description", scope="module")
def description_fixture() -> schemathesis.BaseSchema:
    return description_of_kerf()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "mode", "excluded"),
    [
        # A valid form may ask two questions at once, or about what does not exist.
        pytest.param("POST /defrag", VALID, (positive_data_acceptance,), id="valid"),
        pytest.param("POST /defrag", INVALID, (), id="invalid"),
        pytest.param("GET /defrag", VALID, (), id="state"),
    ],
)
def test_answers_are_as_described(
    description: schemathesis.BaseSchema, label: str, mode: schemathesis.GenerationMode, excluded: tuple[Check, ...]
) -> None:
    answers_as_described(description, label, mode, excluded)


def test_each_call_is_described_with_its_statuses_and_callers(description: schemathesis.BaseSchema) -> None:
    paths = description.raw_schema["paths"]
    calls = {path: paths[path]["post"] for path in ("/defrag", "/defrag/apply", "/defrag/stop")}
    assert {path: call["responses"].keys() - {"401", "403", "429"} for path, call in calls.items()} == {
        "/defrag": {"200", "400", "413", "503"},
        "/defrag/apply": {"200", "400", "404", "409", "413"},
        "/defrag/stop": {"200", "400", "409", "413"},
    }
    by_operators = [path for path, call in calls.items() if call["security"] == [{"operatorToken": []}]]
    assert by_operators == ["/defrag/apply", "/defrag/stop"]
    with running() as kerf:
        known = description.raw_schema["components"]["schemas"]["RoomState"]["properties"]
        assert kerf.get("/defrag").json().keys() <= known.keys()


@pytest.mark.parametrize("synced", [True, False], ids=["stale", "unsynced"])
def test_moves_are_not_planned_on_a_stale_mirror(synced: bool) -> None:
    for kerf in cut_off(synced=synced):
        refuses_while_stale(kerf, "/defrag", {"freeNodes": 1}, stale=synced)


def test_metrics_are_on_the_page() -> None:
    wanted: dict[str, Any] = {"queue__enabled": True, "defrag__record": "a/b", "defrag__mode": "advise"}
    with running(queue__enabled=True, defrag__enabled=False) as without, running(**wanted) as kerf:
        assert_its_metrics_are_on_its_page("defrag", without, kerf)


def pending_remedies(kerf: Kerf) -> tuple[list[str | None], bool]:
    """Commands that help a pod for which moves would make room, and whether the page offers moves."""
    for one in (held("all", "far", EIGHT), held("job-a", "near", "0")):
        kerf.create(one)
    kerf.filter(kerf.create(made("asks", 8, 60)), ["far", "near", "small"])
    (row,) = kerf.get("/pending").json()["pods"]
    return [remedy["command"] for remedy in explained(kerf, "asks")["remedies"]], row["movesHelp"]


def test_moves_are_advised_only_if_they_can_be_planned() -> None:
    cluster = [node("far", 8), node("near", 8), node("small", 4)]
    for enabled in (True, False):
        with running(cluster, defrag__enabled=enabled) as kerf:
            commands, on_page = pending_remedies(kerf)
            assert ("kerf defrag --for default/asks" in commands, on_page) == (enabled, enabled)


@pytest.mark.slow
def test_turned_off_only_its_settings_are_imported() -> None:
    assert {name for name in modules_of("defrag.enabled=false") if name.startswith("extender.parts.defrag")} == {
        "extender.parts.defrag",
        "extender.parts.defrag.settings",
    }


def test_turned_off_its_routes_say_how_to_turn_it_on() -> None:
    with running(defrag__enabled=False) as kerf:
        for answer in (kerf.get("/defrag"), kerf.post("/defrag", b"{}")):
            assert (answer.status, answer.json()) == (404, {"detail": OFF})
        assert "defrag" not in kerf.service.contributions


def test_wrong_settings_are_refused() -> None:
    night = ["Mon-Fri 22:00-06:00 Europe/Berlin", "at night"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "act"}, "defrag: Value error, mode: act needs record, "),
        ({"mode": "act", "record": "kerf/moves"}, "defrag: mode: act needs queue.enabled: "),
        ({"windows": night}, "defrag.windows: Value error, 'at night' is not a time window: "),
    ]
    for settings, fault in cases:
        with pytest.raises(SettingsError) as error:
            load_settings(flags={f"defrag.{name}": value for name, value in settings.items()})
        assert fault in str(error.value)
    load_settings(flags={"defrag.mode": "act", "defrag.record": "kerf/moves", "queue.enabled": True})


def test_in_the_demo_a_move_would_make_room() -> None:
    with running(OBJECTS) as kerf:
        assert not kerf.filter(PENDING["train-2"], NODES)["NodeNames"]
        told = kerf.post("/defrag", b'{"for": "default/train-2"}').json()
    [move], [pod] = told["moves"], told["target"]
    assert (told["fits"], pod["node"]) == (True, move["from"])
    assert move["from"].startswith("h100")
    assert move["controller"]


@pytest.mark.parametrize(("gpus", "helps"), [(99, False), (4, True)])
def test_the_page_offers_moves_only_if_they_can_help(gpus: int, helps: bool) -> None:
    with running([node("a", 4), node("b", 4)]) as kerf:
        for name, on in (("one", "a"), ("two", "b")):
            kerf.create(pod(name, 1, node_name=on, annotations={"kerf.dev/assigned-gpus": "0"}))
        kerf.filter(kerf.create(made("asks", gpus, 60)), ["a", "b"])
        told_once(kerf, 1)
        (row,) = kerf.get("/pending").json()["pods"]
    assert row["movesHelp"] is helps


def test_moves_are_advised_for_shares() -> None:
    for share, memory in (("500", "1Gi"), ("100", "60Gi")):
        with running([node("n", 1)]) as kerf:
            for name, of_gpu, size in (("holder", "800", "40Gi"), ("asks", share, memory)):
                one = pod(name, None, annotations={"kerf.dev/gpu-share": of_gpu, "kerf.dev/gpu-memory-each": size})
                kerf.filter(kerf.create(one), ["n"])
            assert kerf.bind(pod("holder", None), "n") == ""
            told = explained(kerf, "asks")
        assert [remedy["kind"] for remedy in told["remedies"]][:2] == ["wait", "move"]
