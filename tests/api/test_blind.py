"""While the view of the cluster is stale, every answer about it says so; before the first sync there is none."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import Response

from extender.api.app import create_app
from extender.api.readiness import _STALE_HEADER, Blindness
from extender.kube.memory import MemoryCluster
from extender.server.access import METRICS, PROBES
from extender.settings.tree import Settings
from tests.api.bodies import CLUSTER, pod
from tests.api.cut_off import CutOff
from tests.api.services import Kerf, Shared, running
from tests.parts.pages import paths_of_parts

STALE_S = 130.0
OF_OTHERS = {"/telemetry", "/model"}
"""Not only about the cluster, and answered before the first sync."""
NOT_OF_CLUSTER = PROBES | {METRICS, "/version", "/", "/docs", "/live"}
READS = sorted(
    path
    for path, kind in create_app(Settings(), MemoryCluster([])).state.reads.items()
    if kind is not Response and path not in PROBES | {"/version"}
)


def asked(path: str) -> str:
    return path.format(namespace="default", name="train-1", node="t4-0")


def cut_off(*, synced: bool) -> Iterator[Kerf]:
    """A Kerf whose API server is unreachable, from the start or some time after the first sync."""
    cluster = CutOff([*CLUSTER, pod("train-1", 8)])
    cluster.reachable = synced
    with running(cluster) as kerf:
        if synced:
            kerf.filter(pod("train-1", 8), ["t4-0"])
            cluster.cut()
            kerf.settle()
            kerf.clock.now += STALE_S
        yield kerf


@pytest.fixture(scope="module")
def stale() -> Iterator[Kerf]:
    yield from cut_off(synced=True)


@pytest.fixture(scope="module")
def unsynced() -> Iterator[Kerf]:
    yield from cut_off(synced=False)


@pytest.mark.parametrize("path", READS)
def test_a_stale_answer_carries_how_old_it_is(stale: Kerf, path: str) -> None:
    answer = stale.get(asked(path))
    told = answer.json()
    assert answer.status == 200, told
    assert told["staleSeconds"] == float(answer.headers[_STALE_HEADER]) == STALE_S
    assert "were last current 130 s ago" in told["notReady"]
    assert answer.headers["content-length"] == str(len(answer.content))
    assert told.keys() > {"staleSeconds", "notReady"}


@pytest.mark.parametrize("path", READS)
def test_a_current_answer_carries_nothing_of_that(shared: Shared, path: str) -> None:
    kerf = shared([*CLUSTER, pod("train-1", 8)])
    kerf.filter(pod("train-1", 8), ["t4-0"])
    answer = kerf.get(asked(path))
    assert answer.status == 200
    assert not {"staleSeconds", "notReady"} & answer.json().keys()
    assert _STALE_HEADER not in answer.headers


@pytest.mark.parametrize("path", READS)
def test_before_the_first_sync_there_is_no_answer(unsynced: Kerf, path: str) -> None:
    answer = unsynced.get(asked(path))
    told = answer.json()
    assert (told["staleSeconds"], answer.headers.get(_STALE_HEADER)) == (None, None)
    assert "not synced yet" in told["notReady"]
    if path in OF_OTHERS:
        assert answer.status == 200
        return
    assert answer.status == 503
    assert told["detail"].startswith("Kerf has heard nothing from the API server yet and decides nothing: ")


def refuses_while_stale(kerf: Kerf, path: str, question: dict[str, Any], *, stale: bool) -> None:
    """Assert that a question is refused with the reason and the age of the view."""
    answer = kerf.post(path, json.dumps(question).encode())
    told = answer.json()
    assert answer.status == 503
    since = "for 130 s" if stale else "yet"
    assert told["Error"].startswith(f"Kerf has heard nothing from the API server {since} and decides nothing: ")
    assert told["staleSeconds"] == (STALE_S if stale else None)


def test_answers_to_kube_scheduler_keep_their_form(stale: Kerf) -> None:
    told = stale.filter(pod("other", 1), ["t4-0"])
    assert "were last current" in told["Error"]
    assert "notReady" not in told


def test_answers_are_current_again_once_the_api_server_is_back() -> None:
    cluster = CutOff(CLUSTER)
    with running(cluster) as kerf:
        cluster.cut()
        kerf.settle()
        kerf.clock.now += STALE_S
        assert "notReady" in kerf.get("/nodes").json()
        cluster.reachable = True

        def current() -> bool:
            return "notReady" not in kerf.get("/nodes").json()

        for _ in range(200):
            if current():
                break
            kerf.run(pause())
        assert current()


async def pause() -> None:
    """Let a broken watch restart."""
    await asyncio.sleep(0.05)


def test_the_page_shows_that_the_view_is_stale(stale: Kerf, unsynced: Kerf) -> None:
    assert stale.service.status()["staleSeconds"] == 130
    assert unsynced.service.status()["staleSeconds"] is None
    assert "not synced yet" in unsynced.service.status()["notReady"]


def test_no_call_is_forgotten() -> None:
    """A new GET has to be added here, as about the cluster or not."""
    paths = create_app(Settings(), MemoryCluster([])).openapi()["paths"]
    assert {path for path, calls in paths.items() if "get" in calls} - NOT_OF_CLUSTER == {*READS}
    asks = {path for path, calls in paths.items() if "explanation" in calls.get("post", {}).get("tags", ())}
    assert asks <= paths_of_parts(), "they are tried there"


@pytest.mark.parametrize(
    ("body", "marked"),
    [(b"{}", {"staleSeconds": 1.5, "notReady": "w"}), (b'{"a":[1]}', {"staleSeconds": 1.5, "notReady": "w", "a": [1]})],
)
def test_the_keys_come_before_those_of_an_answer(body: bytes, marked: dict[str, Any]) -> None:
    assert json.loads(Blindness("w", 1.5).marked(body)) == marked
    assert Blindness("", 1.5).marked(body) == body


def test_json_other_than_objects_is_unchanged() -> None:
    assert Blindness("w", 1.5).marked(b"[1]") == b"[1]"
