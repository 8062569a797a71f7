"""The recorder in a running Kerf: what is placed is in the history, which is served as an archive."""

import io
import tarfile
from pathlib import Path

from extender.history import files
from tests.api.bodies import node, pod
from tests.api.services import running

NODES = [node("a", 8), node("b", 8)]


def test_what_a_cluster_did_is_in_the_archive_that_it_serves(tmp_path: Path) -> None:
    with running([*NODES, pod("held", 3, node_name="b")], history__path=str(tmp_path / "h")) as kerf:
        made = pod("new", 2)
        kerf.create(made)
        (name,) = kerf.filter(made, ["a", "b"])["NodeNames"]
        kerf.bind(made, name)
        recorder = kerf.service.recorder
        assert recorder is not None
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


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    with running(NODES) as kerf:
        answer = kerf.get("/history", stays=True)
        assert answer.status == 404
        assert answer.json()["detail"] == "no history is kept: setting history.path"


def test_a_folder_that_can_not_be_written_to_is_told_and_nothing_else_suffers(tmp_path: Path) -> None:
    (tmp_path / "h").write_text("in the way")
    with running(NODES, history__path=str(tmp_path / "h")) as kerf:
        recorder = kerf.service.recorder
        assert recorder is not None
        kerf.run(recorder.round())
        told = kerf.get("/readyz").json()
        assert told["status"] == "ok" and "history: nothing is written to" in told["degraded"][0]
        assert kerf.metric("kerf_history_fault") == 1
        assert kerf.filter(pod("new", 2), ["a", "b"])["NodeNames"]
