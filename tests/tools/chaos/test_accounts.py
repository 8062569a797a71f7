"""The account that grows: whole whatever is killed when, and true about what is still wanted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tools.chaos import accounts
from tests.tools.chaos.accounts import Account, Entry, read_entry
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.faults import Kind
from tests.tools.chaos.modes import Mode

COMMIT = accounts.commit().removesuffix("+")
RUN = Entry(7, "1.36.1", False, COMMIT, {"pause": 2}, (), 230, 220, 0.9, 6.5)
BROKEN = replace(RUN, seed=8, violations=(Violation("one exclusive holder", "n GPU 0", "held by a, b"),))


def test_it_is_read_as_it_was_written_a_line_for_each_run(tmp_path: Path) -> None:
    account = Account.at(tmp_path / "account.jsonl")
    failed = replace(RUN, seed=9, faults={}, error="no plane")
    for entry in (RUN, BROKEN, failed):
        account.enter(entry)
    lines = (tmp_path / "account.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [7, 8, 9]
    assert Account.at(tmp_path / "account.jsonl").entries == [RUN, BROKEN, failed]
    assert [path.name for path in tmp_path.iterdir()] == ["account.jsonl"]


def test_what_was_cut_off_while_writing_changes_nothing(tmp_path: Path) -> None:
    account = Account.at(tmp_path / "account.jsonl")
    account.enter(RUN)
    (tmp_path / "account.jsonl.partial").write_text(RUN.line() + '{"seed": 8, "kub')
    again = Account.at(tmp_path / "account.jsonl")
    assert again.entries == [RUN]
    again.enter(BROKEN)
    assert Account.at(tmp_path / "account.jsonl").entries == [RUN, BROKEN]


def test_runs_count_by_version_queue_and_commit() -> None:
    queued = replace(RUN, queue=True, kubernetes="1.37.2")
    dirty, unharmed = replace(RUN, commit=COMMIT + "+"), replace(RUN, faults={})
    account = Account([RUN, queued, dirty, unharmed])
    assert list(account.like("1.36", Mode())) == [RUN, dirty, unharmed]
    assert list(account.like("1.37.2", Mode(queue=True))) == [queued]
    counted = list(account.since(accounts.last_mend()))
    assert counted == [RUN, queued]
    assert list(account.since("0" * 10)) == []  # of a commit that is not there
    assert accounts.progress(counted) == [
        ("all", 2, 1000),
        ("1.34", 0, 100),
        ("1.36", 1, 100),
        ("1.37", 1, 100),
        ("--queue", 1, 100),
        ("--no-extender", 0, 200),
        ("--dra", 0, 200),
        ("--defrag", 0, 100),
    ]


def test_runs_without_an_extender_and_with_devices_are_counted_apart() -> None:
    alone = replace(RUN, queue=True, extender=False)
    devices = replace(alone, dra=True)
    moves = replace(RUN, queue=True, defrag=True)
    account = Account([RUN, replace(RUN, queue=True), alone, devices, moves])
    assert list(account.like("1.36", Mode(queue=True, extender=False))) == [alone]
    assert list(account.like("1.36", Mode(queue=True, extender=False, dra=True))) == [devices]
    assert list(account.like("1.36", Mode(queue=True, defrag=True))) == [moves]
    aims = [("--queue", 1, 100), ("--no-extender", 1, 200), ("--dra", 1, 200), ("--defrag", 1, 100)]
    assert accounts.progress(account.entries)[-4:] == aims
    assert [read_entry(entry.line()) for entry in (alone, devices, moves)] == [alone, devices, moves]
    assert "extender" not in RUN.line()
    assert "dra" not in RUN.line()
    assert "defrag" not in RUN.line()


def test_runs_without_some_kinds_of_faults_are_no_step_towards_the_aim() -> None:
    queued = replace(RUN, queue=True)
    bisected = replace(queued, without=("pause", "refused-behind"))
    mode = Mode(queue=True, without=(Kind.PAUSE, Kind.REFUSED_BEHIND))
    account = Account([queued, bisected])
    assert list(account.like("1.36", Mode(queue=True))) == [queued]
    assert list(account.like("1.36", mode)) == [bisected]
    assert ("--queue", 1, 100) in accounts.progress(account.entries)
    assert read_entry(bisected.line()) == bisected
    assert "without" not in queued.line()
    assert Mode.read(mode.options) == mode


@pytest.mark.parametrize(("entry", "counts"), [(RUN, True), (BROKEN, True), (replace(RUN, faults={}), False)])
def test_a_run_counts_in_which_something_happened(entry: Entry, counts: bool) -> None:
    assert entry.counts == counts


def test_the_report_tells_what_was_found_and_what_failed() -> None:
    failed = replace(RUN, seed=9, faults={}, error="no plane")
    report = Account([RUN, BROKEN, failed]).report()
    assert (report["runs"], report["violations"], report["seeds"]) == (2, 1, [7, 8])
    assert report["errors"] == [{"seed": 9, "error": "no plane"}]
    assert report["violations_found"] == [
        {"seed": 8, "promise": "one exclusive holder", "subject": "n GPU 0", "detail": "held by a, b"}
    ]


def test_two_do_not_write_one_account(tmp_path: Path) -> None:
    first, second = (Account.at(tmp_path / "account.jsonl") for _ in range(2))
    first.claim()
    with pytest.raises(BlockingIOError):
        second.claim()
