"""Carrying out a plan over HTTP: its callers, its ID, and the mover's refusals."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.api.bodies import pod
from tests.api.services import Kerf
from tests.api.services import running as kerf_on
from tests.parts.defrag.clusters import Cluster
from tests.parts.defrag.test_answers import SCATTERED, ask

pytestmark = pytest.mark.usefixtures("answered_here")

OPERATOR, READER = "an-operator-of-many-letters", "a-reader-of-many-letters"


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings with a token of each kind."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / "readers").write_text(READER)
    (folder / "operators").write_text(OPERATOR)
    return {"access__token_file": folder / "readers", "access__apply_token_file": folder / "operators"}


@pytest.fixture(scope="module")
def kerf(files: dict[str, Any]) -> Iterator[Kerf]:
    with kerf_on(Cluster(SCATTERED), **files) as kerf:
        yield kerf


def post(kerf: Kerf, path: str, body: bytes, **headers: str) -> tuple[int, Any]:
    answer = kerf.post(path, body, headers)
    return answer.status, answer.json()


def test_only_operators_may(kerf: Kerf) -> None:
    body, basic = b'{"id": "x"}', "Basic " + "eDphbi1vcGVyYXRvci1vZi1tYW55LWxldHRlcnM="
    for path in ("/defrag/apply", "/defrag/stop"):
        for headers in ({}, bearer(READER), {"authorization": basic}):  # loopback alone is not enough
            assert post(kerf, path, body, **headers)[0] == 401
        assert kerf.post(path + "/", body, bearer(READER)).status == 307
    for token in (OPERATOR, READER):
        assert kerf.get("/nodes", bearer(token)).status == 200


def test_without_tokens_of_operators_nobody_may() -> None:
    with kerf_on(Cluster(SCATTERED), access__open_to="all") as kerf:
        status, told = post(kerf, "/defrag/apply", b'{"id": "x"}', **bearer(OPERATOR))
    assert status == 403
    assert "access.apply_token_file" in told["detail"]


def test_without_a_queue_it_is_refused(kerf: Kerf) -> None:
    status, told = post(kerf, "/defrag/apply", b'{"id": "x"}', **bearer(OPERATOR))
    assert (status, "queue.enabled" in told["Error"]) == (409, True)
    state = kerf.get("/defrag", bearer(READER)).json()
    assert (state["phase"], "queue.enabled" in state["fault"]) == ("none", True)


def test_bad_input(kerf: Kerf) -> None:
    for body in (b"", b'{"id": 3}', b'{"id": "x", "plan": {}}', b"\xff", b"[" * 5000):
        assert post(kerf, "/defrag/apply", body, **bearer(OPERATOR))[0] == 400


QUEUE: dict[str, Any] = {"queue__enabled": True, "defrag__record": "kerf-system/kerf-moves"}


def queued() -> list[dict[str, Any]]:
    """The scattered cluster with all pods in the queue."""
    manifests = deepcopy(SCATTERED)
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            manifest["metadata"]["labels"]["kerf.dev/queue"] = "enabled"
    return manifests


def test_a_plan_is_carried_out_by_its_id_unless_the_mover_refuses(files: dict[str, Any]) -> None:
    with kerf_on(Cluster(queued()), **files, **QUEUE) as kerf:
        status, told = post(kerf, "/defrag/apply", b'{"id": "deadbeef"}', **bearer(OPERATOR))
        assert (status, "no plan 'deadbeef' is kept" in told["Error"]) == (404, True)
        answer = kerf.post("/defrag", b'{"for": "default/big"}', bearer(READER)).json()
        assert answer["fits"], answer["impossible"]
        status, told = post(kerf, "/defrag/apply", json.dumps({"id": answer["id"]}).encode(), **bearer(OPERATOR))
    assert status == 409
    assert "not synced yet" in told["Error"], "there are no namespaces in this cluster"


def test_pods_that_the_mover_would_refuse_stay_in_plans() -> None:
    manifests = queued()
    owners = manifests[3]["metadata"]["ownerReferences"]
    for number in range(65):
        waiting = pod(f"s{number}", 4, labels={"kerf.dev/queue": "enabled"})
        waiting["metadata"]["ownerReferences"] = owners
        waiting["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
        manifests.append(waiting)
    with kerf_on(Cluster(manifests), **QUEUE) as kerf:
        [move] = ask(kerf, **{"for": "default/big"})["moves"]
    assert move["pod"] == "default/b"
    with kerf_on(Cluster(SCATTERED), **QUEUE) as kerf:
        told = ask(kerf, **{"for": "default/big"})
    assert not told["fits"]
    assert any("would not wait in the queue" in sentence for sentence in told["impossible"])
