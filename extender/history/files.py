"""Histories as files: Parquet that pandas and others read, beside a manifest that says what they are.

A folder holds `history.json`, `pods-*.parquet` and `nodes-*.parquet`, in the order of their names. That of a running
Kerf has a row in `pods-open.parquet` for each pod that has not ended, after those that have, and journals of what is
still to be made columns of. Needs pyarrow (Kerf's extra `history`), which whoever only records does without.

A history's folder as a tar archive, made while it is sent.
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
"""Where names are hashed: never leaves the folder."""
_MISSING: Final = ("pods that ask for time slices or MIG devices", "pods that DaemonSets keep on every node")
_TRIES: Final = 5
_NAMESPACE: Final = list(POD_COLUMNS).index("namespace")
_TABLES: Final[Mapping[str, Mapping[str, Kind]]] = {"pods": POD_COLUMNS, "nodes": NODE_COLUMNS}


def write(directory: Path, history: History) -> None:
    """Write a history into a folder; what was there of another is removed. Equal ones give equal bytes.

    The manifest comes last: without it there is no history.
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
    """Write where a history is from, whole or not at all."""
    part = directory / f"{MANIFEST}.part"
    with part.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(about)) + b"\n")
        _keep(file)
    part.replace(directory / MANIFEST)


def _keep(file: BinaryIO) -> None:
    """Have what is written outlive a power cut, before it takes the place of what was there."""
    file.flush()
    os.fsync(file.fileno())


def write_part(path: Path, table: str, columns: Columns) -> None:
    """Write rows of `pods` or `nodes`, whole or not at all."""
    import pyarrow as pa  # noqa: PLC0415 - an extra of its own
    import pyarrow.parquet as pq  # noqa: PLC0415

    types = {"text": pa.string(), "whole": pa.int64(), "number": pa.float64()}
    made = columns_of(_TABLES[table], columns)
    arrays = {name: pa.array(made[name], types[kind]) for name, kind in _TABLES[table].items()}
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        pq.write_table(pa.table(arrays), file, compression="zstd")
        _keep(file)
    part.replace(path)


def read(directory: Path) -> History:
    """The history in a folder. Raises HistoryError."""
    for _ in range(_TRIES):
        try:
            return _read(directory)
        except FileNotFoundError:  # made columns of meanwhile
            continue
    raise HistoryError(f"{directory}: its files change all the time; read a copy")


def _read(directory: Path) -> History:
    journals = sorted(directory.glob(PATTERN))
    if not journals:
        about = _read_about(directory)
        pods, nodes = (_read_table(directory, table) for table in _TABLES)
        return History(about, latest(pods), nodes)
    account = read_account(directory)
    for path in journals:
        account.take(read_journal(path))
    told = [read_part(path, "pods") for path in parts_of(directory)]
    told += [columns(POD_COLUMNS, found.values()) for found in (account.ended, account.running)]
    pods = latest(_joined(told, "pods"))
    return History(about_of(account, hashed=look_hashed(pods["namespace"].tolist())), pods, nodes_of(account))


def read_account(directory: Path) -> Account:
    """What was made columns of in a running Kerf's folder, but the pods that have ended. Raises HistoryError."""
    account = Account()
    if not (directory / MANIFEST).exists():
        return account
    about = _read_about(directory)
    account.since_s, account.until_s, account.gaps = about.since_s, about.until_s, list(about.gaps)
    if (directory / OPEN).exists():
        account.running = {row[0]: row for row in rows(POD_COLUMNS, read_part(directory / OPEN, "pods"))}
    if (directory / NODES).exists():
        told = rows(NODE_COLUMNS, read_part(directory / NODES, "nodes"))
        account.nodes = [row for row in told if row[-1] is not None]
        account.there = {row[0]: row for row in told if row[-1] is None}
    return account


def parts_of(directory: Path) -> list[Path]:
    """The files of a running Kerf's pods that have ended, oldest first."""
    return [path for path in sorted(directory.glob("pods-*.parquet")) if path.name != OPEN]


def are_hashed(directory: Path, account: Account) -> bool:
    """Whether all names of a running Kerf's history are hashes: whoever turns that on later has others before."""
    told = {row[_NAMESPACE] for rows in (account.running, account.ended) for row in rows.values()}
    if parts_of(directory) and not ((directory / MANIFEST).exists() and _read_about(directory).hashed):
        return False
    return look_hashed(told) if told else (directory / SALT).exists()


def about_of(account: Account, *, hashed: bool) -> About:
    """Where a running Kerf's history is from."""
    since_s = account.until_s if account.since_s is None else account.since_s
    return About(
        source="cluster", since_s=since_s, until_s=account.until_s, hashed=hashed, missing=_MISSING,
        gaps=tuple(account.gaps),
    )  # fmt: skip


def nodes_of(account: Account) -> dict[str, Column]:
    """The nodes as they were and are; what was made columns of twice is there once."""
    return columns(NODE_COLUMNS, (*dict.fromkeys(account.nodes), *account.there.values()))


def _read_about(directory: Path) -> About:
    """Where the history in a folder is from. Raises HistoryError."""
    path = directory / MANIFEST
    try:
        about = msgspec.json.decode(path.read_bytes(), type=About)
    except (OSError, msgspec.DecodeError) as error:  # a ValidationError is one
        raise HistoryError(f"{path}: {error}; kerf history --out {directory} writes one") from None
    if about.version != VERSION:
        raise HistoryError(f"{path}: version {about.version} of the form; this program reads version {VERSION}")
    return about


def _read_table(directory: Path, table: str) -> dict[str, Column]:
    parts = sorted(directory.glob(f"{table}-*.parquet"))
    if not parts:
        raise HistoryError(f"{directory}: no {table}-*.parquet beside {MANIFEST}")
    return _joined([read_part(path, table) for path in parts], table)


def _joined(parts: Sequence[Columns], table: str) -> dict[str, Column]:
    return {name: np.concatenate([columns[name] for columns in parts]) for name in _TABLES[table]}


def read_part(path: Path, table: str) -> dict[str, Column]:
    """Rows of `pods` or `nodes`. Raises HistoryError, FileNotFoundError."""
    import pyarrow as pa  # noqa: PLC0415 - an extra of its own
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        found = pq.read_table(path)
        return columns_of(_TABLES[table], {name: _values(found.column(name)) for name in found.column_names})
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, pa.ArrowException) as error:
        raise HistoryError(f"{path}: {error}") from None


def _values(column: Any) -> Any:
    if column.null_count:
        raise ValueError(f"a column has {column.null_count} values that are null")
    return column.to_numpy()


_CHUNK_BYTES: Final = 2**18


def opened(directory: Path) -> list[tuple[str, BinaryIO]]:
    """The files of a history by name, opened: what is made columns of meanwhile is in one form or the other."""
    names = [path.name for path in sorted(directory.glob(journals.PATTERN))]  # first: they go once they are in columns
    names += [OPEN, NODES, MANIFEST, *(path.name for path in parts_of(directory))]
    found: list[tuple[str, BinaryIO]] = []
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            found.append((name, (directory / name).open("rb")))
    return found


def archive(members: list[tuple[str, BinaryIO]]) -> Iterator[bytes]:
    """Chunks of the archive; closes the files. Of one that grows meanwhile what was there at first."""
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
                if not chunk:  # cut short: whoever reads it hears of that by the archive's end
                    return
                left -= len(chunk)
                yield chunk
            yield bytes(-size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)
