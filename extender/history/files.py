"""Histories as files: Parquet that pandas and others read, beside a manifest that says what they are.

A folder holds `history.json`, `pods-*.parquet` and `nodes-*.parquet`, in the order of their names. Needs pyarrow
(Kerf's extra `history`), which whoever only records does without.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from extender.history.records import (
    NODE_COLUMNS,
    POD_COLUMNS,
    VERSION,
    About,
    Columns,
    History,
    HistoryError,
    Kind,
    columns_of,
    latest,
)

MANIFEST: Final = "history.json"
_TABLES: Final[Mapping[str, Mapping[str, Kind]]] = {"pods": POD_COLUMNS, "nodes": NODE_COLUMNS}


def write(directory: Path, history: History) -> None:
    """Write a history into a folder; what was there of another is removed. Equal ones give equal bytes.

    The manifest comes last: without it there is no history.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).unlink(missing_ok=True)
    for table, columns in (("pods", history.pods), ("nodes", history.nodes)):
        for old in directory.glob(f"{table}-*.parquet"):
            old.unlink()
        write_part(directory / f"{table}-00000.parquet", table, columns)
    (directory / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(history.about)) + b"\n")


def write_part(path: Path, table: str, columns: Columns) -> None:
    """Write rows of `pods` or `nodes`, whole or not at all."""
    import pyarrow as pa  # noqa: PLC0415 - an extra of its own
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
    made = columns_of(_TABLES[table], columns)
    arrays = {name: pa.array(made[name], types[kind]) for name, kind in _TABLES[table].items()}
    part = path.with_suffix(".part")
    pq.write_table(pa.table(arrays), part, compression="zstd")
    part.replace(path)


def read(directory: Path) -> History:
    """The history in a folder. Raises HistoryError."""
    about = read_about(directory)
    pods, nodes = (_read_table(directory, table) for table in _TABLES)
    return History(about, latest(pods), nodes)


def read_about(directory: Path) -> About:
    """Where the history in a folder is from. Raises HistoryError."""
    path = directory / MANIFEST
    try:
        about = msgspec.json.decode(path.read_bytes(), type=About)
    except (OSError, msgspec.DecodeError) as error:  # a ValidationError is one
        raise HistoryError(f"{path}: {error}; kerf history --out {directory} writes one") from None
    if about.version != VERSION:
        raise HistoryError(f"{path}: version {about.version} of the form; this program reads version {VERSION}")
    return about


def _read_table(directory: Path, table: str) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415 - an extra of its own
    import pyarrow.parquet as pq  # noqa: PLC0415

    parts = sorted(directory.glob(f"{table}-*.parquet"))
    if not parts:
        raise HistoryError(f"{directory}: no {table}-*.parquet beside {MANIFEST}")
    read: list[dict[str, Any]] = []
    for path in parts:
        try:
            found = pq.read_table(path)
            columns = {name: _values(found.column(name)) for name in found.column_names}
            read.append(columns_of(_TABLES[table], columns))
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise HistoryError(f"{path}: {error}") from None
    return {name: np.concatenate([columns[name] for columns in read]) for name in _TABLES[table]}


def _values(column: Any) -> Any:
    if column.null_count:
        raise ValueError(f"a column has {column.null_count} values that are null")
    return column.to_numpy()
