"""What may befall a recorder: other leaders, full disks, power cuts, set clocks, hostile pods."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.history import files, journals
from extender.history.journals import Account
from extender.history.records import POD_COLUMNS
from extender.history.rolling import _roll
from extender.parts.history import recorder
from extender.parts.history.part import _metrics
from extender.queueing.pods.objects import decode_pod
from tests.ledger.builders import node_object, pod_manifest, pod_object
from tests.parts.history.rigs import MIB, Rig, column

pytestmark = pytest.mark.usefixtures("rolls_here")


def roll(rig: Rig) -> None:
    """As a running Kerf does it, though it is not time."""
    rig.recorder.writer._rolled_at = 0.0  # noqa: SLF001
    asyncio.run(rig.recorder.roll())


def test_a_term_that_goes_on_without_a_new_list_tells_of_all(rig: Rig) -> None:
    """The lease could not be renewed for a while, and nobody else has led: no pods are listed again."""
    rig.runs("a", "b")
    rig.listed({"a", "b"})
    rig.write()
    rig.others = "the lease could not be renewed"
    rig.ends("a")
    rig.runs("c")
    rig.write(30)
    rig.others = ""
    rig.write(30)
    rig.ends("b")
    rig.write(30)
    ended = column(rig.history(), "ended_s")
    assert np.isnan(ended.pop("uid-c"))
    assert ended == {"uid-a": 1_000_060.0, "uid-b": 1_000_060.0}
    roll(rig)
    assert rig.recorder.writer.num_rolls == 1


def test_who_stands_by_does_not_remember_who_has_gone(rig: Rig) -> None:
    rig.others = "another leads"
    for number in range(50):
        rig.pods.upsert(pod_object(f"p{number}", 1))
        rig.pods.remove(pod_object(f"p{number}", 1))
        rig.runs(f"p{number}")
        rig.ends(f"p{number}")
    recorder = rig.recorder
    assert not recorder._bound and not recorder._pending  # noqa: SLF001


def test_what_was_lost_is_told_anew_once_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "h"
    rig = Rig(folder)
    rig.runs("a", "b")
    rig.listed({"a", "b"})
    rig.write()
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")
    rig.ends("a")
    rig.runs("c")
    rig.write(15)
    writer = rig.recorder.writer
    assert writer.num_lost > 0 and "can't be written" in writer.fault
    folder.unlink()
    (tmp_path / "away").rename(folder)
    rig.write(15)
    assert writer.fault == ""
    rig.write(15)
    ended = column(rig.history(), "ended_s")
    assert ended.pop("uid-a") == 1_000_045.0  # when it was known again
    assert set(ended) == {"uid-b", "uid-c"} and np.isnan(list(ended.values())).all()
    lines = writer.num_written
    rig.write(15)
    assert writer.num_written == lines + 1  # once


def test_a_line_that_was_cut_costs_no_other(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = rig.recorder.writer
    assert writer.write([b'["until",1.0]'])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("extender.parts.history.recorder.os.fsync", full)
        assert not writer.write([b'["pod",["uid-'])
    (path,) = tmp_path.glob(journals.PATTERN)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert writer.write([b'["until",2.0]'])
    assert list(journals.read(path)) == [journals.Until(1.0), journals.Until(2.0)]


def test_of_two_replicas_on_one_folder_the_later_leader_has_the_last_word(tmp_path: Path) -> None:
    first = Rig(tmp_path)
    second = Rig(tmp_path)
    second.others = "the first leads"
    second.runs("a")
    second.write()
    first.now = second.now = 1_000_100.0
    first.recorder.writer.begin()  # it has made columns since
    first.runs("a")
    first.listed({"a"})
    first.write()
    second.now -= 3.0  # its clock is behind
    second.others = ""
    second.listed({"a"})
    second.write()
    second.ends("a")
    second.write(15)
    for _ in range(2):
        assert column(second.history(), "ended_s") == {"uid-a": 1_000_097.0}
        second.roll()


def test_journals_stay_in_order_when_the_clock_is_set_back(rig: Rig, tmp_path: Path) -> None:
    rig.runs("a")
    rig.listed({"a"})
    rig.write()
    roll(rig)
    rig.now -= 500_000.0
    writer = rig.recorder.writer
    assert writer.due  # not in half a million seconds
    rig.ends("a")
    rig.write(15)
    roll(rig)
    rig.write(15)
    assert not np.isnan(column(rig.history(), "ended_s")["uid-a"])
    assert sum(1 for _ in tmp_path.glob(journals.PATTERN)) == 1


def test_columns_are_made_of_no_journal_that_was_begun_later(rig: Rig, tmp_path: Path) -> None:
    writer = rig.recorder.writer
    writer.write([b'["until",1.0]'])
    writer.begin()
    active = writer._journal.name  # noqa: SLF001
    writer.write([b'["until",2.0]'])
    writer.begin()
    writer.write([b'["until",3.0]'])
    _roll(tmp_path, active, MIB)
    assert min(path.name for path in tmp_path.glob(journals.PATTERN)) == active
    assert sum(1 for _ in tmp_path.glob(journals.PATTERN)) == 2


def test_while_not_all_is_told_journals_are_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_mib=1)  # pods without a node are never listed
    for _ in range(4):
        rig.recorder._lines += [b"x" * 999] * 1200  # noqa: SLF001
        rig.write(15)
        roll(rig)
    assert rig.recorder.writer.num_rolls == 0
    assert sum(path.stat().st_size for path in tmp_path.glob(journals.PATTERN)) <= MIB


def test_a_pod_that_asks_for_more_than_there_can_be_is_in_columns(rig: Rig) -> None:
    hostile = pod_manifest("a", 1, node="n")
    requests = {"cpu": "9223372036854775807", "memory": "9223372036854775807Ki", "nvidia.com/gpu": "1"}
    hostile["spec"]["containers"][0]["resources"]["requests"] = requests
    rig.pods.upsert(pod_object("waits", 1, annotations={"kerf.dev/gang": "é" * 3000}))
    rig.pods.upsert(decode_pod(hostile))
    rig.listed({"a"}, {"waits"})
    rig.write()
    for _ in range(2):
        assert column(rig.history(), "cpu_milli")["uid-a"] == 2**53
        rig.roll()


@pytest.mark.parametrize("name", ["pods-00000.parquet", files.OPEN, files.NODES, files.MANIFEST])
def test_a_file_that_a_power_cut_has_emptied_is_set_aside(rig: Rig, tmp_path: Path, name: str) -> None:
    rig.ledger.upsert_node(node_object("n", 8))
    for pod in ("a", "b"):
        rig.runs(pod)
    rig.listed({"a", "b"})
    rig.ends("a")
    rig.write()
    roll(rig)
    (tmp_path / name).write_bytes(b"")
    rig.write(15)
    roll(rig)
    rig.write(15)
    rig.write(15)
    writer = rig.recorder.writer
    assert (writer.fault, writer.num_rolls) == ("", 2)
    assert (tmp_path / name).with_suffix(".unreadable").exists()
    rig.ends("b")
    rig.write(15)
    roll(rig)
    known = rig.history()
    assert column(known, "ended_s")["uid-b"] == rig.now - 15
    assert known.nodes["node"].tolist()[-1] == "n" and np.isnan(known.nodes["until_s"][-1])


def test_a_journal_that_is_read_again_makes_no_other_nodes() -> None:
    def row(gpus: int) -> tuple[Any, ...]:
        return ("n", "T4", gpus, 15360, 64000, 0)

    lines = (
        journals.Node(row(8), 1.0), journals.Node(row(7), 2.0), journals.Gone("n", 3.0), journals.Node(row(8), 4.0),
        journals.Node(row(6), 5.0),
    )  # fmt: skip
    account = Account()
    account.take(lines)
    once = {name: values.tolist() for name, values in files.nodes_of(account).items()}
    account.take(lines)
    again = {name: values.tolist() for name, values in files.nodes_of(account).items()}
    assert once["gpus"] == [8, 7, 8, 6] and once["from_s"] == [1.0, 2.0, 4.0, 5.0]
    del once["until_s"][-1], again["until_s"][-1]  # nan
    assert again == once


def test_names_from_before_they_were_hashed_are_not_said_to_be(tmp_path: Path) -> None:
    plain = Rig(tmp_path)
    plain.runs("a")
    plain.listed()
    plain.write()
    plain.roll()
    rig = Rig(tmp_path, hash_names=True)
    rig.runs("b")
    rig.listed({"b"})
    for _ in range(2):
        rig.write(15)
        assert not rig.history().about.hashed
        rig.roll()
    assert not rig.history().about.hashed


def test_hashed_names_are_said_to_be_wherever_the_history_goes(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "h", hash_names=True)
    rig.runs("a")
    rig.listed({"a"})
    rig.write()
    for _ in range(2):
        copy = tmp_path / f"copy-{rig.now}"
        copy.mkdir()
        for name, file in files.opened(tmp_path / "h"):
            with file:
                (copy / name).write_bytes(file.read())
        assert not (copy / files.SALT).exists()
        assert files.read(copy).about.hashed
        rig.roll()
        rig.write(15)
    # Turned off later: what comes then is plain.
    plain = Rig(tmp_path / "h")
    plain.runs("b")
    plain.write()
    assert not plain.history().about.hashed


def test_a_key_that_was_cut_short_hashes_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path, hash_names=True)
    (tmp_path / files.SALT).write_bytes(b"")
    key = rig.recorder.writer.salt()
    assert key is not None and len(key) == 32
    assert rig.recorder.writer.salt() == key
    assert (tmp_path / files.SALT).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [files.SALT]


class Hanging(type(Path())):  # type: ignore[misc]
    """A folder on a volume that answers nothing."""

    def _hangs(self, *_: object, **__: object) -> None:
        raise AssertionError("the loop waits for a volume")

    iterdir = glob = stat = exists = open = mkdir = touch = _hangs


def test_a_volume_that_hangs_holds_up_nothing_in_the_loop(tmp_path: Path) -> None:
    rig = Rig(Hanging(tmp_path))
    rig.runs("a")
    rig.others = "another leads"
    rig.ends("a")
    rig.others = ""
    rig.listed()
    assert rig.recorder.num_unwritten == 0
    assert len(list(_metrics(rig.recorder))) == 5


def test_what_is_told_of_the_folders_size_was_measured_when_it_was_written(rig: Rig, tmp_path: Path) -> None:
    rig.runs("a")
    rig.write()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert rig.recorder.writer.num_bytes == size > 0


def test_lines_that_wait_and_pods_that_wait_are_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MAX_LINES", 5)
    monkeypatch.setattr(recorder, "_MAX_PENDING", 3)
    for number in range(8):
        rig.pods.upsert(pod_object(f"waits-{number}", 1))
    assert len(rig.recorder._pending) == 3  # noqa: SLF001
    for number in range(8):
        rig.runs(f"p{number}")
    assert len(rig.recorder._lines) == 5  # noqa: SLF001
    assert rig.recorder.num_unwritten == 1 + 3 + 8 - 5


def test_what_is_known_is_written_on_the_way_out(rig: Rig) -> None:

    async def live() -> None:
        rig.recorder.start()
        await asyncio.sleep(0)
        rig.runs("a")
        await rig.recorder.stop()

    asyncio.run(live())
    assert column(rig.history(), "node") == {"uid-a": "n"}


def test_a_node_that_changes_has_another_row(rig: Rig) -> None:
    rig.ledger.upsert_node(node_object("n", 8))
    rig.write()
    snapshot = rig.recorder._snapshot()  # noqa: SLF001
    rig.write(15)
    lines = rig.recorder.writer.num_written
    rig.write(15)
    assert rig.recorder.writer.num_written == lines + 1  # nothing new
    fewer = replace(snapshot, gpu_model=snapshot.gpu_model.copy())
    fewer.gpu_model[0, -1] = -1
    rig.recorder._snapshot = lambda: fewer  # noqa: SLF001
    rig.write(15)
    nodes = rig.history().nodes
    assert (nodes["gpus"].tolist(), nodes["until_s"].tolist()[0]) == ([8, 7], rig.now)


def test_a_large_journal_is_made_columns_of_before_it_is_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, max_mib=1)
    writer = rig.recorder.writer
    writer._rolled_at = rig.now  # noqa: SLF001
    writer.write([b"x" * 1000] * 100)
    assert not writer.due
    writer.write([b"x" * 1000] * 50)
    assert writer.due


def test_what_was_given_up_takes_its_nodes_and_gaps_along(rig: Rig, tmp_path: Path) -> None:
    node = ("n", "T4", 8, 15360, 64000, 0)
    rig.runs("a")
    rig.now += 1000
    rig.ends("a")
    for line in (journals.Node(node, 1_000_000.0), journals.Gone("n", 1_000_400.0), journals.Begun(1_000_900.0)):
        rig.recorder._record(line)  # noqa: SLF001
    rig.write()
    assert len(rig.history().about.gaps) == 1
    rig.roll(max_bytes=1)
    known = rig.history()
    assert (known.about.since_s, known.about.gaps, len(known.nodes["node"])) == (1_001_000.0, (), 0)
    assert not files.parts_of(tmp_path)


def test_lines_of_another_form_are_left_out(tmp_path: Path) -> None:
    account = Account()
    account.take(
        [journals.Pod(("uid-a",) * (len(POD_COLUMNS) + 1)), journals.Node(("n",), 1.0), journals.Complete(7.0)]
    )
    assert (account.running, account.ended, account.there, account.until_s) == ({}, {}, {}, 7.0)


def test_a_name_without_end_is_cut(rig: Rig) -> None:
    rig.runs("a" * 5000)
    rig.write()
    assert len(rig.history().pods["owner"][0]) == 512
