"""What may befall a recorder: other leaders, full disks, power cuts, set clocks, hostile pods."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from extender.history import files, journals
from extender.history.journals import Account
from extender.history.rolling import _roll
from extender.parts.history.part import _metrics
from tests.ledger.builders import node_object, pod_object
from tests.parts.history.rigs import MIB, Rig, column

pytestmark = pytest.mark.usefixtures("rolls_here")


def on_node(name: str) -> Any:
    return pod_object(name, 1, node="n")


def roll(rig: Rig) -> None:
    """As a running Kerf does it, though it is not time."""
    rig.recorder.writer._rolled_at = 0.0  # noqa: SLF001
    asyncio.run(rig.recorder.roll())


def test_a_term_that_goes_on_without_a_new_list_tells_of_all(tmp_path: Path) -> None:
    """The lease could not be renewed for a while, and nobody else has led: no pods are listed again."""
    rig = Rig(tmp_path)
    rig.pods.upsert(on_node("a"))
    rig.pods.upsert(on_node("b"))
    rig.listed({"a", "b"})
    rig.write()
    rig.others = "the lease could not be renewed"
    rig.pods.remove(on_node("a"))
    rig.pods.upsert(on_node("c"))
    rig.write(30)
    rig.others = ""
    rig.write(30)
    rig.pods.remove(on_node("b"))
    rig.write(30)
    ended = column(rig.history(), "ended_s")
    assert np.isnan(ended.pop("uid-c"))
    assert ended == {"uid-a": 1_000_060.0, "uid-b": 1_000_060.0}
    roll(rig)
    assert rig.recorder.writer.num_rolls == 1


def test_who_stands_by_does_not_remember_who_has_gone(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.others = "another leads"
    for number in range(50):
        rig.pods.upsert(pod_object(f"p{number}", 1))
        rig.pods.remove(pod_object(f"p{number}", 1))
        rig.pods.upsert(on_node(f"p{number}"))
        rig.pods.remove(on_node(f"p{number}"))
    recorder = rig.recorder
    assert not recorder._bound and not recorder._pending  # noqa: SLF001


def test_what_was_lost_is_told_anew_once_there_is_room(tmp_path: Path) -> None:
    folder = tmp_path / "h"
    rig = Rig(folder)
    rig.pods.upsert(on_node("a"))
    rig.pods.upsert(on_node("b"))
    rig.listed({"a", "b"})
    rig.write()
    folder.rename(tmp_path / "away")
    folder.write_text("in the way")
    rig.pods.remove(on_node("a"))
    rig.pods.upsert(on_node("c"))
    rig.write(15)
    writer = rig.recorder.writer
    assert writer.num_lost > 0 and "nothing is written" in writer.fault
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


def test_a_line_that_was_cut_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
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
    second.pods.upsert(on_node("a"))
    second.write()
    first.now = second.now = 1_000_100.0
    first.recorder.writer.begin()  # it has made columns since
    first.pods.upsert(on_node("a"))
    first.listed({"a"})
    first.write()
    second.now -= 3.0  # its clock is behind
    second.others = ""
    second.listed({"a"})
    second.write()
    second.pods.remove(on_node("a"))
    second.write(15)
    for _ in range(2):
        assert column(second.history(), "ended_s") == {"uid-a": 1_000_097.0}
        second.roll()


def test_journals_stay_in_order_when_the_clock_is_set_back(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.pods.upsert(on_node("a"))
    rig.listed({"a"})
    rig.write()
    roll(rig)
    rig.now -= 500_000.0
    writer = rig.recorder.writer
    assert writer.due  # not in half a million seconds
    rig.pods.remove(on_node("a"))
    rig.write(15)
    roll(rig)
    rig.write(15)
    assert not np.isnan(column(rig.history(), "ended_s")["uid-a"])
    assert sum(1 for _ in tmp_path.glob(journals.PATTERN)) == 1


def test_columns_are_made_of_no_journal_that_was_begun_later(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
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


def test_a_pod_that_asks_for_more_than_there_can_be_is_in_columns(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    hostile = on_node("a")
    requests = {"cpu": "9223372036854775807", "memory": "9223372036854775807Ki", "nvidia.com/gpu": "1"}
    hostile.spec.containers[0].resources.requests = requests
    rig.pods.upsert(pod_object("waits", 1, annotations={"kerf.dev/gang": "é" * 3000}))
    rig.pods.upsert(hostile)
    rig.listed({"a"}, {"waits"})
    rig.write()
    for _ in range(2):
        assert column(rig.history(), "cpu_milli")["uid-a"] == 2**53
        rig.roll()


@pytest.mark.parametrize("name", ["pods-00000.parquet", files.OPEN, files.NODES, files.MANIFEST])
def test_a_file_that_a_power_cut_has_emptied_is_set_aside(tmp_path: Path, name: str) -> None:
    rig = Rig(tmp_path)
    rig.ledger.upsert_node(node_object("n", 8))
    for pod in ("a", "b"):
        rig.pods.upsert(on_node(pod))
    rig.listed({"a", "b"})
    rig.pods.remove(on_node("a"))
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
    rig.pods.remove(on_node("b"))
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
    plain.pods.upsert(on_node("a"))
    plain.listed()
    plain.write()
    plain.roll()
    rig = Rig(tmp_path, hash_names=True)
    rig.pods.upsert(on_node("b"))
    rig.listed({"b"})
    for _ in range(2):
        rig.write(15)
        assert not rig.history().about.hashed
        rig.roll()
    assert not rig.history().about.hashed


def test_hashed_names_are_said_to_be_wherever_the_history_goes(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "h", hash_names=True)
    rig.pods.upsert(on_node("a"))
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
    plain.pods.upsert(on_node("b"))
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
    rig.pods.upsert(on_node("a"))
    rig.others = "another leads"
    rig.pods.remove(on_node("a"))
    rig.others = ""
    rig.listed()
    assert rig.recorder.num_unwritten == 0
    assert len(list(_metrics(rig.recorder))) == 5


def test_what_is_told_of_the_folders_size_was_measured_when_it_was_written(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.pods.upsert(on_node("a"))
    rig.write()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert rig.recorder.writer.num_bytes == size > 0
