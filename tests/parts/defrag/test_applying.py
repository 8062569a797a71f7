"""Who may have a plan carried out, and which: over HTTP, with the real mover where there is one."""

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


@pytest.mark.parametrize("path", ["/defrag/apply", "/defrag/stop"])
def test_nobody_but_an_operator_may(kerf: Kerf, path: str) -> None:
    assert post(kerf, path, b'{"id": "x"}')[0] == 401, "loopback alone is not enough"
    assert post(kerf, path, b'{"id": "x"}', **bearer(READER))[0] == 401
    assert (
        post(kerf, path, b'{"id": "x"}', authorization="Basic " + "eDphbi1vcGVyYXRvci1vZi1tYW55LWxldHRlcnM=")[0] == 401
    )
    assert kerf.get("/nodes", bearer(OPERATOR)).status == 200, "an operator is a reader, too"
    assert kerf.get("/nodes", bearer(READER)).status == 200
    assert kerf.post(path + "/", b'{"id": "x"}', bearer(READER)).status == 307, "led to where the same is asked"


def test_nobody_may_at_all_unless_the_settings_say_who() -> None:
    with kerf_on(Cluster(SCATTERED), access__open_to="all") as kerf:
        status, told = post(kerf, "/defrag/apply", b'{"id": "x"}', **bearer(OPERATOR))
    assert status == 403
    assert "access.apply_token_file" in told["detail"]


def test_without_a_queue_it_says_that(kerf: Kerf) -> None:
    status, told = post(kerf, "/defrag/apply", b'{"id": "x"}', **bearer(OPERATOR))
    assert (status, "queue.enabled" in told["Error"]) == (409, True)
    state = kerf.get("/defrag", bearer(READER)).json()
    assert (state["phase"], "queue.enabled" in state["fault"]) == ("none", True)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"id": 3}', b'{"id": "x", "plan": {}}', b"\xff", b"[" * 5000])
def test_bad_input(kerf: Kerf, body: bytes) -> None:
    assert post(kerf, "/defrag/apply", body, **bearer(OPERATOR))[0] == 400


def test_a_plan_is_known_by_its_id_alone_and_the_mover_has_the_last_word(files: dict[str, Any]) -> None:
    queue: dict[str, Any] = {"queue__enabled": True, "defrag__record": "kerf-system/kerf-moves"}
    cluster = Cluster(SCATTERED)
    for manifest in deepcopy(SCATTERED):  # what is made in their place waits in the queue
        if manifest["kind"] == "Pod":
            manifest["metadata"]["labels"]["kerf.dev/queue"] = "enabled"
            cluster.apply(manifest)
    with kerf_on(cluster, **files, **queue) as kerf:
        status, told = post(kerf, "/defrag/apply", b'{"id": "deadbeef"}', **bearer(OPERATOR))
        assert (status, "no plan 'deadbeef' is kept" in told["Error"]) == (404, True)
        answer = kerf.post("/defrag", b'{"for": "default/big"}', bearer(READER)).json()
        assert answer["fits"], answer["impossible"]
        status, told = post(kerf, "/defrag/apply", json.dumps({"id": answer["id"]}).encode(), **bearer(OPERATOR))
    assert status == 409
    assert "not synced yet" in told["Error"], "there are no namespaces in this cluster"


def test_nobody_is_to_move_of_whose_controller_too_many_wait_where_there_is_a_mover(files: dict[str, Any]) -> None:
    queue: dict[str, Any] = {"queue__enabled": True, "defrag__record": "kerf-system/kerf-moves"}
    manifests = deepcopy(SCATTERED)
    for manifest in manifests:
        if manifest["kind"] == "Pod":
            manifest["metadata"]["labels"]["kerf.dev/queue"] = "enabled"
    owners = manifests[3]["metadata"]["ownerReferences"]
    for number in range(65):
        waiting = pod(f"s{number}", 4, labels={"kerf.dev/queue": "enabled"})
        waiting["metadata"]["ownerReferences"] = owners
        waiting["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
        manifests.append(waiting)
    with kerf_on(Cluster(manifests), **files, **queue) as kerf:
        [move] = ask(kerf, **{"for": "default/big"})["moves"]
    assert move["pod"] == "default/b"


def test_pods_that_the_queue_would_not_see_again_stay_where_there_is_a_mover(files: dict[str, Any]) -> None:
    queue: dict[str, Any] = {"queue__enabled": True, "defrag__record": "kerf-system/kerf-moves"}
    with kerf_on(Cluster([*SCATTERED]), **queue) as kerf:
        told = ask(kerf, **{"for": "default/big"})
    assert not told["fits"]
    assert any("would not wait in the queue" in sentence for sentence in told["impossible"])
