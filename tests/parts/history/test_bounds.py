"""What bounds a recorder, and what it does on its way out."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from extender.history import files, journals
from extender.history.journals import Account
from extender.history.records import POD_COLUMNS
from extender.parts.history import recorder
from tests.ledger.builders import node_object, pod_object
from tests.parts.history.rigs import Rig, column


def test_lines_that_wait_and_pods_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "_MAX_LINES", 5)
    monkeypatch.setattr(recorder, "_MAX_PENDING", 3)
    rig = Rig(tmp_path)
    for number in range(8):
        rig.pods.upsert(pod_object(f"waits-{number}", 1))
    assert len(rig.recorder._pending) == 3  # noqa: SLF001
    for number in range(8):
        rig.pods.upsert(pod_object(f"p{number}", 1, node="n"))
    assert len(rig.recorder._lines) == 5  # noqa: SLF001
    assert rig.recorder.num_unwritten == 1 + 3 + 8 - 5


def test_what_is_known_is_written_on_the_way_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path)

    async def live() -> None:
        rig.recorder.start()
        await asyncio.sleep(0)
        rig.pods.upsert(pod_object("a", 1, node="n"))
        await rig.recorder.stop()

    asyncio.run(live())
    assert column(rig.history(), "node") == {"uid-a": "n"}


def test_a_node_that_changes_has_another_row(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
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


def test_what_was_given_up_takes_its_nodes_and_gaps_along(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    node = ("n", "T4", 8, 15360, 64000, 0)
    rig.pods.upsert(pod_object("a", 1, node="n"))
    rig.now += 1000
    rig.pods.remove(pod_object("a", 1, node="n"))
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


def test_a_name_without_end_is_cut(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.pods.upsert(pod_object("a" * 5000, 1, node="n"))
    rig.write()
    assert len(rig.history().pods["owner"][0]) == 512
