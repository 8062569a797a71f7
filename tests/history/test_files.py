"""Histories as files, which pandas' library reads, too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    rows = latest(pods({"pod": "z"}, {"pod": "y"}, {"pod": "z", "node": "n"}))
    assert (rows["pod"].tolist(), rows["node"].tolist()) == (["y", "z"], ["", "n"]), "rows of one time keep their order"


def test_invalid_files_are_named(tmp_path: Path) -> None:
    def other(**changes: Any) -> None:
        about.write_text(json.dumps({**json.loads(about.read_text()), **changes}))

    about, pod_file = tmp_path / "history.json", tmp_path / "pods-00000.parquet"
    rows: list[tuple[Callable[[], object], str]] = [
        (about.unlink, "kerf history --out"),
        (lambda: about.write_text("{"), "history.json"),
        (lambda: other(format="other"), "format"),
        (lambda: other(version=2), "format version 2; this program reads version 1"),
        ((tmp_path / "nodes-00000.parquet").unlink, r"no nodes-\*.parquet"),
        (lambda: pod_file.write_bytes(b"PAR1"), "pods-00000.parquet"),
        (lambda: pod_file.rename(tmp_path / "nodes-00001.parquet"), r"no pods-\*.parquet"),
    ]
    for damage, reason in rows:
        files.write(tmp_path, MADE)
        damage()
        with pytest.raises(HistoryError, match=reason):
            files.read(tmp_path)


def test_columns_are_complete_and_of_one_length(tmp_path: Path) -> None:
    table = dict(pods({}, {})) | {"gang": np.array([""], object)}
    with pytest.raises(ValueError, match="length"):
        files.write_part(tmp_path / "x.parquet", "pods", table)
    del table["gang"]
    with pytest.raises(ValueError, match="has columns"):
        files.write_part(tmp_path / "x.parquet", "pods", table)
