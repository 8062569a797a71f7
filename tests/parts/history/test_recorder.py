"""The recorder writes down what happened: through restarts, other leaders, full disks, and columns made meanwhile."""

import asyncio
import json
import random
import shutil
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from extender.history import files, journals, rolling
from extender.kube import objects
from tests.ledger.builders import node_object, pod_object
from tests.parts.history.rigs import MIB, Rig, column


def test_a_pods_life_is_one_row(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "h")
    rig.ledger.upsert_node(node_object("n", 8, product="NVIDIA-A100-SXM4-40GB", memory_mib=40960))
    annotations = {"kerf.dev/gpu-model": "a100", "kerf.dev/gang": "team", "kerf.dev/gang-size": "2"}
    waiting = pod_object("a", 2, annotations=annotations)
    rig.pods.upsert(waiting)
    rig.now += 50
    placed = pod_object("a", 2, node="n", assigned="0,3", annotations=annotations)
    for pod in (waiting, placed):
        pod.metadata.creation_timestamp = "1970-01-12T13:46:30Z"
    rig.pods.upsert(placed)
    rig.pods.upsert(placed)
    rig.listed({"a"})
    rig.write()
    known = rig.history()
    assert len(known.pods["pod"]) == 1
    assert {name: values[0] for name, values in known.pods.items() if name != "ended_s"} == {
        "pod": "uid-a", "namespace": "default", "owner": "default/Pod/a", "gang": "default/team", "priority": 0,
        "gpus": 2, "gpu_milli": 1000, "gpu_memory_mib": 0, "gpu_models": "a100-sxm4-40gb", "cpu_milli": 0,
        "memory_mib": 0, "submitted_s": 999_990.0, "started_s": 1_000_050.0, "node": "n", "gpu_indices": "0,3",
    }  # fmt: skip
    assert np.isnan(known.pods["ended_s"][0])
    assert {name: values.tolist() for name, values in known.nodes.items() if name != "until_s"} == {
        "node": ["n"], "gpu_model": ["a100-sxm4-40gb"], "gpus": [8], "gpu_memory_mib": [40960], "cpu_milli": [64000],
        "memory_mib": [0], "from_s": [1_000_050.0],
    }  # fmt: skip
    rig.now += 1000
    rig.pods.remove(pod_object("a", 2, node="n", phase="Succeeded"))
    rig.write(5)
    done = rig.history()
    assert done.pods["ended_s"].tolist() == [1_001_050.0]
    assert (done.about.source, done.about.since_s, done.about.until_s) == ("cluster", 1_000_000.0, 1_001_055.0)


def test_what_is_not_recorded(rig: Rig) -> None:
    daemon = pod_object("daemon", 1, node="n")
    daemon.metadata.owner_references = [type("Owner", (), {"controller": True, "kind": "DaemonSet", "name": "d"})()]
    rig.pods.upsert(daemon)
    rig.pods.upsert(pod_object("slice", 1, node="n", resource="nvidia.com/gpu.shared"))
    rig.pods.upsert(pod_object("mig", 1, node="n", resource="nvidia.com/mig-1g.5gb"))
    rig.pods.upsert(pod_object("bad", 1, node="n", annotations={"kerf.dev/gpu-memory-each": "much"}))
    rig.pods.upsert(pod_object("cpu", node="n"))
    rig.write()
    rig.ledger.upsert_node(node_object("n", 8))
    rig.pods.upsert(pod_object("other", 1, annotations={"kerf.dev/gpu-model": "h100"}))  # which no node has
    rig.write()
    assert column(rig.history(), "gpu_models") == {"uid-cpu": "", "uid-other": "h100"}


def test_a_pod_whose_words_nobody_understands_by_the_time_that_it_has_a_node_ends_all_the_same(rig: Rig) -> None:
    rig.pods.upsert(pod_object("a", 1))
    rig.now += 10
    bound = pod_object("a", 1, node="n", annotations={"kerf.dev/gpu-memory-each": "much"})
    rig.pods.upsert(bound)
    rig.now += 10
    rig.pods.remove(bound)
    rig.write(100)
    assert rig.history().pods["ended_s"].tolist() == [1_000_020.0]


def test_a_pod_that_was_deleted_before_it_had_a_node_has_no_start(rig: Rig) -> None:
    rig.pods.upsert(pod_object("a", 1))
    rig.now += 10
    rig.pods.remove(pod_object("a", 1))
    rig.write(100)
    row = rig.history().pods
    assert np.isnan(row["started_s"][0])
    assert row["ended_s"].tolist() == [1_000_010.0]


def test_what_ended_while_nobody_recorded_ended_when_that_became_known(rig: Rig) -> None:
    rig.ledger.upsert_node(node_object("n", 8))
    rig.ledger.upsert_node(node_object("m", 8))
    for name in ("a", "b"):
        rig.runs(name)
    rig.pods.upsert(pod_object("c", 1))
    rig.listed({"a", "b"}, {"c"})
    rig.write()
    rig.ledger.remove_node("m")
    rig.now += 600  # killed
    rig.begin()
    rig.runs("a")
    rig.write(5)
    assert np.isnan(rig.history().pods["ended_s"]).all()  # not all is listed yet
    rig.listed({"a"})
    rig.write(5)
    known = rig.history()
    ended = column(known, "ended_s")
    assert np.isnan(ended.pop("uid-a"))
    assert ended == {"uid-b": 1_000_610.0, "uid-c": 1_000_610.0}
    assert column(known, "started_s")["uid-a"] == 1_000_000.0  # as it was first known
    assert dict(zip(known.nodes["node"], known.nodes["until_s"], strict=True))["m"] == 1_000_610.0
    assert known.about.gaps == ((1_000_000.0, 1_000_600.0),)


def test_who_stands_by_writes_nothing_and_tells_all_when_it_leads(rig: Rig, tmp_path: Path) -> None:
    rig.others = "another leads"
    rig.runs("a")
    rig.pods.upsert(pod_object("b", 1))
    rig.write()
    assert not list(tmp_path.glob("*"))
    rig.others = ""
    rig.now += 100
    rig.runs("a")  # the take-over lists pods again
    rig.listed({"a"}, {"b"})
    rig.write()
    submitted = column(rig.history(), "submitted_s")
    assert submitted == {"uid-a": 1_000_000.0, "uid-b": 1_000_000.0}


def test_columns_are_made_of_journals_and_say_the_same(tmp_path: Path) -> None:
    """Random lives, restarts and rolls; a roll that was cut off before its journals were deleted changes nothing."""
    chance = random.Random(7)
    rig = Rig(tmp_path / "h")
    rig.ledger.upsert_node(node_object("n", 8))
    truth: dict[str, list[float | None]] = {}  # started, ended

    def pod(name: str) -> objects.Pod:
        made = pod_object(name, 1, node="n")
        made.status.start_time = datetime.fromtimestamp(truth[f"uid-{name}"][0] or 0, UTC).isoformat()
        return made

    running: set[str] = set()
    for step in range(200):
        rig.now += chance.random() * 20
        event = chance.random()
        if event < 0.45:
            name = f"p{step}"
            truth[f"uid-{name}"] = [float(int(rig.now)), None]
            rig.pods.upsert(pod(name))
            running.add(name)
        elif event < 0.8 and running:
            name = chance.choice(sorted(running))
            running.discard(name)
            rig.ends(name)
            truth[f"uid-{name}"][1] = rig.now
        elif event < 0.9:
            rig.listed(running)
            rig.write()
        elif event < 0.95:
            rig.listed(running)
            rig.write()
            copy = tmp_path / f"copy-{step}"
            shutil.copytree(rig.directory, copy)
            rig.roll()
            if chance.random() < 0.5:
                for path in copy.glob(journals.PATTERN):
                    shutil.copy(path, rig.directory)
        else:
            rig.write()
            rig.begin()
            for name in sorted(running):
                rig.pods.upsert(pod(name))
            rig.listed(running)
    rig.write()
    for _ in range(2):
        known = rig.history()
        assert len(known.pods["pod"]) == len(truth)
        started, ended = column(known, "started_s"), column(known, "ended_s")
        for uid, (began, over) in truth.items():
            assert started[uid] == began, uid
            assert ended[uid] == over if over is not None else np.isnan(ended[uid]), uid
        rig.roll()
        assert not list(rig.directory.glob(journals.PATTERN))


def test_the_oldest_pods_are_given_up(rig: Rig, tmp_path: Path) -> None:
    for batch in range(12):
        for number in range(50):
            name = f"{batch}-{number}"
            rig.runs(name)
            rig.now += 1
            rig.ends(name)
        rig.listed()
        rig.write()
        rig.roll(max_bytes=40_000)
    known = rig.history()
    total = sum(path.stat().st_size for path in files.parts_of(tmp_path))
    assert 10_000 < total <= 40_000
    batches = {int(uid.split("-")[1]) for uid in known.pods["pod"].tolist()}
    assert 11 in batches and 0 not in batches
    assert known.about.since_s == 1_000_000.0 + 50 * min(batches)


def test_lines_that_a_crash_has_cut_are_left_out(rig: Rig, tmp_path: Path) -> None:
    rig.runs("a")
    rig.write()
    (path,) = tmp_path.glob(journals.PATTERN)
    with path.open("ab") as journal:
        journal.write(b'["pod",["uid-b","defau')
    assert rig.history().pods["pod"].tolist() == ["uid-a"]


def test_columns_are_made_in_a_process_of_their_own(rig: Rig, tmp_path: Path) -> None:

    async def live() -> None:
        rig.runs("a")
        rig.listed({"a"})
        await rig.recorder.round()
        await rig.recorder.roll()
        await rig.recorder.roll()  # not due again

    asyncio.run(live())
    assert (rig.recorder.writer.num_rolls, rig.recorder.writer.fault) == (1, "")
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [files.MANIFEST, files.NODES, files.OPEN]
    rig.write(3)
    assert rig.history().pods["pod"].tolist() == ["uid-a"]


@pytest.mark.slow
def test_the_process_says_why_there_are_no_columns_and_what_it_has_set_aside(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for manifest, fault in (('{"format": "kerf-history", "version": 2}', "journals can't be converted"), ("", "")):
        (tmp_path / files.MANIFEST).write_text(manifest)
        rig.listed()
        rig.write(4000)
        asyncio.run(rig.recorder.roll())
        assert fault in rig.recorder.writer.fault and files.MANIFEST in rig.recorder.writer.fault + caplog.text
    assert (rig.recorder.writer.fault, rig.recorder.writer.num_rolls) == ("", 1)
    assert "moved aside, as it can't be read: " in caplog.text


@pytest.mark.usefixtures("rolls_here")
def test_where_no_columns_can_be_made_journals_are_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_mib=1)
    about = {"format": "kerf-history", "version": 2, "source": "cluster", "since_s": 0, "until_s": 0}
    (tmp_path / files.MANIFEST).write_text(json.dumps(about))
    rig.listed()
    for _ in range(3):
        rig.recorder._lines += [b"x" * 999] * 600  # noqa: SLF001
        rig.write(4000)
        asyncio.run(rig.recorder.roll())
    writer = rig.recorder.writer
    assert "journals can't be converted" in writer.fault and "history.json" in writer.fault
    assert sum(path.stat().st_size for path in tmp_path.glob(journals.PATTERN)) <= MIB
    assert writer.num_lost >= 600


def test_names_are_hashed_with_a_key_that_stays(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hash_names=True)
    rig.runs("a", "b")
    rig.write()
    rig.begin()
    rig.runs("c")
    rig.write()
    known = rig.history()
    assert known.about.hashed
    (namespace,) = set(known.pods["namespace"].tolist())
    assert len(namespace) == 16 and namespace != "default"
    assert len(set(known.pods["owner"].tolist())) == 3
    assert (tmp_path / files.SALT).stat().st_mode & 0o777 == 0o600


def test_one_process_at_a_time_makes_columns(rig: Rig, tmp_path: Path) -> None:
    rig.runs("a")
    rig.write()
    with rolling._locked(tmp_path) as locked:  # noqa: SLF001
        assert locked
        rig.roll()
        assert not (tmp_path / files.MANIFEST).exists()
    rig.roll()
    assert (tmp_path / files.MANIFEST).exists()
