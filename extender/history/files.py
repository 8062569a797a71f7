"""Histories as files: Parquet, and a manifest that describes it.

A folder holds `history.json`, `pods-*.parquet` and `nodes-*.parquet`, in the order of their names. A running Kerf's
folder also has `pods-open.parquet` with a row for each pod that has not ended, and journals not yet converted to
columns. Needs pyarrow (Kerf's extra `history`), except for recording.

`archive` streams a folder as a tar archive.
"""

import contextlib
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
import numpy as np

from extender.history import journals
from extender.history.journals import PATTERN, Account, columns, rows
from extender.history.journals import read as read_journal
from extender.history.records import (
    NODE_COLUMNS,
    POD_COLUMNS,
    VERSION,
    About,
    Column,
    Columns,
    History,
    HistoryError,
    Kind,
    columns_of,
    latest,
    look_hashed,
)

MANIFEST: Final = "history.json"
OPEN: Final = "pods-open.parquet"
NODES: Final = "nodes-00000.parquet"
SALT: Final = "salt"
"""File with the salt of hashed names; never exported."""
_MISSING: Final = ("pods that ask for time slices or MIG devices", "pods that DaemonSets keep on every node")
_TRIES: Final = 5
_NAMESPACE: Final = list(POD_COLUMNS).index("namespace")
_TABLES: Final[Mapping[str, Mapping[str, Kind]]] = {"pods": POD_COLUMNS, "nodes": NODE_COLUMNS}


def write(directory: Path, history: History) -> None:
    """Write a history into a folder, replacing any other; equal histories give equal bytes.

    The manifest is written last: without it there is no history.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MANIFEST).unlink(missing_ok=True)
    for pattern in (*(f"{table}-*.parquet" for table in _TABLES), PATTERN):
        for old in directory.glob(pattern):
            old.unlink()
    write_part(directory / "pods-00000.parquet", "pods", history.pods)
    write_part(directory / NODES, "nodes", history.nodes)
    write_about(directory, history.about)


def write_about(directory: Path, about: About) -> None:
    """Write a history's manifest atomically."""
    part = directory / f"{MANIFEST}.part"
    with part.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(about)) + b"\n")
        _sync(file)
    part.replace(directory / MANIFEST)


def _sync(file: BinaryIO) -> None:
    """Flush a file to disk, so that it survives a power cut once it replaces the old one."""
    file.flush()
    os.fsync(file.fileno())


def write_part(path: Path, table: str, columns: Columns) -> None:
    """Write rows of `pods` or `nodes` atomically."""
    import pyarrow as pa  # noqa: PLC0415 - an optional extra
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
    typed = columns_of(_TABLES[table], columns)
    arrays = {name: pa.array(typed[name], types[kind]) for name, kind in _TABLES[table].items()}
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        pq.write_table(pa.table(arrays), file, compression="zstd")
        _sync(file)
    part.replace(path)


def read(directory: Path) -> History:
    """Read the history in a folder. Raises HistoryError."""
    for _ in range(_TRIES):
        try:
            return _read(directory)
        except FileNotFoundError:  # a running Kerf has just converted journals
            continue
    raise HistoryError(f"{directory}: its files keep changing; read a copy")


def _read(directory: Path) -> History:
    journals = sorted(directory.glob(PATTERN))
    if not journals:
        about = _read_about(directory)
        pods, nodes = (_read_table(directory, table) for table in _TABLES)
        return History(about, latest(pods), nodes)
    account = read_account(directory)
    for path in journals:
        account.take(read_journal(path))
    parts = [read_part(path, "pods") for path in parts_of(directory)]
    parts += [columns(POD_COLUMNS, pods.values()) for pods in (account.ended, account.running)]
    pods = latest(_joined(parts, "pods"))
    return History(about_of(account, hashed=look_hashed(pods["namespace"].tolist())), pods, nodes_of(account))


def read_account(directory: Path) -> Account:
    """Read a running Kerf's folder without its journals and ended pods. Raises HistoryError."""
    account = Account()
    if not (directory / MANIFEST).exists():
        return account
    about = _read_about(directory)
    account.since_s, account.until_s, account.gaps = about.since_s, about.until_s, list(about.gaps)
    if (directory / OPEN).exists():
        account.running = {row[0]: row for row in rows(POD_COLUMNS, read_part(directory / OPEN, "pods"))}
    if (directory / NODES).exists():
        nodes = rows(NODE_COLUMNS, read_part(directory / NODES, "nodes"))
        account.nodes = [row for row in nodes if row[-1] is not None]
        account.there = {row[0]: row for row in nodes if row[-1] is None}
    return account


def parts_of(directory: Path) -> list[Path]:
    """Return the files with a running Kerf's ended pods, oldest first."""
    return [path for path in sorted(directory.glob("pods-*.parquet")) if path.name != OPEN]


def are_hashed(directory: Path, account: Account) -> bool:
    """Whether all names of a running Kerf's history are hashes; hashing may have been enabled later."""
    namespaces = {row[_NAMESPACE] for rows in (account.running, account.ended) for row in rows.values()}
    if parts_of(directory) and not ((directory / MANIFEST).exists() and _read_about(directory).hashed):
        return False
    return look_hashed(namespaces) if namespaces else (directory / SALT).exists()


def about_of(account: Account, *, hashed: bool) -> About:
    """Return the manifest of a running Kerf's history."""
    since_s = account.until_s if account.since_s is None else account.since_s
    return About(
        source="cluster", since_s=since_s, until_s=account.until_s, hashed=hashed, missing=_MISSING,
        gaps=tuple(account.gaps),
    )  # fmt: skip


def nodes_of(account: Account) -> dict[str, Column]:
    """Return the past and present rows of nodes; rows that were converted twice appear once."""
    return columns(NODE_COLUMNS, (*dict.fromkeys(account.nodes), *account.there.values()))


def _read_about(directory: Path) -> About:
    """Read the manifest of a folder. Raises HistoryError."""
    path = directory / MANIFEST
    try:
        about = msgspec.json.decode(path.read_bytes(), type=About)
    except (OSError, msgspec.DecodeError) as error:  # a ValidationError is one
        raise HistoryError(f"{path}: {error}; kerf history --out {directory} writes one") from None
    if about.version != VERSION:
        raise HistoryError(f"{path}: format version {about.version}; this program reads version {VERSION}")
    return about


def _read_table(directory: Path, table: str) -> dict[str, Column]:
    parts = sorted(directory.glob(f"{table}-*.parquet"))
    if not parts:
        raise HistoryError(f"{directory}: no {table}-*.parquet beside {MANIFEST}")
    return _joined([read_part(path, table) for path in parts], table)


def _joined(parts: Sequence[Columns], table: str) -> dict[str, Column]:
    return {name: np.concatenate([columns[name] for columns in parts]) for name in _TABLES[table]}


def read_part(path: Path, table: str) -> dict[str, Column]:
    """Read rows of `pods` or `nodes`. Raises HistoryError, FileNotFoundError."""
    import pyarrow as pa  # noqa: PLC0415 - an optional extra
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        data = pq.read_table(path)
        return columns_of(_TABLES[table], {name: _values(data.column(name)) for name in data.column_names})
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        raise HistoryError(f"{path}: {error}") from None


def _values(column: Any) -> Any:
    if column.null_count:
        raise ValueError(f"a column has {column.null_count} null values")
    return column.to_numpy()


_CHUNK_BYTES: Final = 2**18


def opened(directory: Path) -> list[tuple[str, BinaryIO]]:
    """Open the files of a history, by name. Rows converted meanwhile are in a journal, in columns, or in both."""
    names = [path.name for path in sorted(directory.glob(journals.PATTERN))]  # first, since they are deleted after that
    names += [OPEN, NODES, MANIFEST, *(path.name for path in parts_of(directory))]
    files: list[tuple[str, BinaryIO]] = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            files.append((name, (directory / name).open("rb")))
    return files


def archive(members: list[tuple[str, BinaryIO]]) -> Iterator[bytes]:
    """Yield chunks of a tar archive of open files, and close them. A growing file is cut at its size when reached."""
    with contextlib.ExitStack() as stack:
        for _, file in members:
            stack.enter_context(file)
        for name, file in members:
            size = file.seek(0, 2)
            file.seek(0)
            header = tarfile.TarInfo(name)
            header.size = size
            yield header.tobuf()
            left = size
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:  # truncated meanwhile: the archive ends early, which its reader detects
                    return
                left -= len(chunk)
                yield chunk
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)
