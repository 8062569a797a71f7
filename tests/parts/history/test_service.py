"""The recorder in a running Kerf: what is placed is in the history, which is served as an archive."""

import io
import tarfile
from pathlib import Path

import pytest

from extender.history import files
from extender.parts.history.recorder import Recorder
from tests.api.bodies import node, pod
from tests.api.cut_off import CutOff
from tests.api.services import Kerf, running
from tests.parts.pages import assert_its_metrics_are_on_its_page, page_of

NODES = [node("a", 8), node("b", 8)]


def recorder_of(kerf: Kerf) -> Recorder:
    """The one that works there."""
    (recorder,) = kerf.service.contributions["history"].work
    assert isinstance(recorder, Recorder)
    return recorder


def test_its_page_has_its_route_and_metrics(tmp_path: Path) -> None:
    with running(NODES) as without, running(NODES, history__path=str(tmp_path / "h")) as kerf:
        assert_its_metrics_are_on_its_page("history", without, kerf)
        paths = kerf.get("/openapi.json").json()["paths"]
        assert "/history" not in without.get("/openapi.json").json()["paths"]
    assert paths["/history"]["get"]["responses"].keys() >= {"200", "404"}
    assert "`GET /history`" in page_of("history")


def test_a_blind_kerf_serves_it_still(tmp_path: Path) -> None:
    cluster = CutOff(NODES)
    with running(cluster, history__path=str(tmp_path / "h")) as kerf:
        cluster.cut()
        kerf.settle()
        kerf.clock.now += 3600.0
        assert kerf.get("/readyz").status == 503
        assert kerf.get("/history", stays=True).status == 200


@pytest.mark.usefixtures("rolls_here")
def test_what_a_cluster_did_is_in_the_archive_that_it_serves(tmp_path: Path) -> None:
    with running([*NODES, pod("held", 3, node_name="b")], history__path=str(tmp_path / "h")) as kerf:
        made = pod("new", 2)
        kerf.create(made)
        (name,) = kerf.filter(made, ["a", "b"])["NodeNames"]
        kerf.bind(made, name)
        recorder = recorder_of(kerf)
        kerf.settle()
        kerf.run(recorder.round())
        kerf.run(recorder.roll())
        kerf.run(recorder.round())
        answer = kerf.get("/history", stays=True)
        assert answer.headers["content-type"] == "application/x-tar"
        with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
            archive.extractall(tmp_path / "copy", filter="data")
        known = files.read(tmp_path / "copy")
        assert sorted(zip(known.pods["node"], known.pods["gpus"], strict=True)) == sorted([("b", 3), (name, 2)])
        assert sorted(zip(known.nodes["node"], known.nodes["gpus"], strict=True)) == [("a", 8), ("b", 8)]
        assert kerf.metric("kerf_history_lines_total") > 4
        assert kerf.metric("kerf_history_rolls_total") == 1
        assert kerf.metric("kerf_history_bytes") > 1000
        assert kerf.get("/readyz").json() == {"status": "ok"}


def test_without_a_folder_nothing_is_kept() -> None:
    with running(NODES) as kerf:
        answer = kerf.get("/history", stays=True)
        assert (answer.status, "history.path" in answer.json()["detail"]) == (404, True)


def test_a_folder_that_can_not_be_written_to_is_told_and_nothing_else_suffers(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("in the way")
    with running(NODES, history__path=str(tmp_path / "h")) as kerf:
        recorder = recorder_of(kerf)
        kerf.run(recorder.round())
        told = kerf.get("/readyz").json()
        assert told["status"] == "ok" and f"history: {tmp_path / 'h'} can't be written" in told["degraded"][0]
        assert kerf.metric("kerf_history_fault") == 1
        assert kerf.filter(pod("new", 2), ["a", "b"])["NodeNames"]
