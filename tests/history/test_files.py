"""Histories as files: what is read is what was written, by pandas' own library too, and what is wrong is named."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from extender.history import files
from extender.history.records import NODE_COLUMNS, POD_COLUMNS, Columns, HistoryError, latest
from tests.history.builders import history, nodes, pods


def same(one: Columns, other: Columns) -> None:
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        numbers = one[name].dtype == np.float64
        assert np.array_equal(one[name], other[name], equal_nan=numbers), name


MADE = history(
    pods({"owner": "a/Job/x"}, {"submitted_s": 5.0, "started_s": np.nan, "ended_s": np.nan}), nodes(8, 4), hashed=True
)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    files.write(tmp_path / "h", MADE)
    read = files.read(tmp_path / "h")
    assert read.about == MADE.about
    same(read.pods, MADE.pods)
    same(read.nodes, MADE.nodes)
    table = pq.read_table(tmp_path / "h" / "pods-00000.parquet")
    assert table.column_names == list(POD_COLUMNS)
    assert table.column("owner").to_pylist() == ["a/Job/x", ""]
    assert pq.read_table(tmp_path / "h" / "nodes-00000.parquet").column_names == list(NODE_COLUMNS)


def test_equal_histories_give_equal_bytes_and_another_one_takes_their_place(tmp_path: Path) -> None:
    for name in ("one", "other"):
        files.write(tmp_path / name, MADE)
    for path in sorted((tmp_path / "one").iterdir()):
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
    files.write_part(tmp_path / "one" / "pods-00001.parquet", "pods", pods({"pod": "more"}))
    files.write(tmp_path / "one", MADE)
    same(files.read(tmp_path / "one").pods, MADE.pods)


def test_the_last_row_of_a_pod_counts(tmp_path: Path) -> None:
    files.write(tmp_path, history(pods({"pod": "b", "submitted_s": 7.0}, {"pod": "a", "ended_s": np.nan}), nodes(8)))
    files.write_part(tmp_path / "pods-00001.parquet", "pods", pods({"pod": "a", "ended_s": 9.0}, {"pod": "c"}))
    read = files.read(tmp_path).pods
    assert read["pod"].tolist() == ["a", "c", "b"]  # by time of submission
    assert read["ended_s"][0] == 9.0


def test_rows_of_one_time_stay_in_their_order() -> None:
    rows = latest(pods({"pod": "z"}, {"pod": "y"}, {"pod": "z", "node": "n"}))
    assert rows["pod"].tolist() == ["y", "z"]
    assert rows["node"].tolist() == ["", "n"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda at: (at / "history.json").unlink(), "kerf history --out"),
        (lambda at: (at / "history.json").write_text("{"), "history.json"),
        (lambda at: (at / "history.json").write_text(json.dumps({"format": "other"})), "format"),
        (lambda at: (at / "nodes-00000.parquet").unlink(), r"no nodes-\*.parquet"),
        (lambda at: (at / "pods-00000.parquet").write_bytes(b"PAR1"), "pods-00000.parquet"),
        (lambda at: (at / "pods-00000.parquet").rename(at / "nodes-00001.parquet"), r"no pods-\*.parquet"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, damage: object, reason: str) -> None:
    files.write(tmp_path, MADE)
    assert callable(damage)
    damage(tmp_path)
    with pytest.raises(HistoryError, match=reason):
        files.read(tmp_path)


def test_other_versions_are_refused(tmp_path: Path) -> None:
    files.write(tmp_path, MADE)
    about = json.loads((tmp_path / "history.json").read_text())
    (tmp_path / "history.json").write_text(json.dumps({**about, "version": 2}))
    with pytest.raises(HistoryError, match="format version 2; this program reads version 1"):
        files.read(tmp_path)


def test_columns_have_to_be_all_there_and_of_one_length(tmp_path: Path) -> None:
    table = dict(pods({}))
    del table["gang"]
    with pytest.raises(ValueError, match="has columns"):
        files.write_part(tmp_path / "x.parquet", "pods", table)
    table = dict(pods({}, {})) | {"gang": np.array([""], object)}
    with pytest.raises(ValueError, match="of one length"):
        files.write_part(tmp_path / "x.parquet", "pods", table)
