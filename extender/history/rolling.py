"""Converts a running Kerf's journals to columns, and deletes the oldest columns beyond a size limit.

It runs as a process of its own, since it needs pyarrow, which the service does not load. A crash loses nothing: a
journal is deleted once all of it is in columns, and duplicates count once.
"""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from extender.history import files, journals
from extender.history.journals import Account
from extender.history.records import POD_COLUMNS, Columns, HistoryError

_NICE: Final = 10
_PART_BYTES: Final = 8 * 2**20
"""Ended pods are appended to the last file until it has this size."""
_LEAST_PARTS: Final = 8
"""Least number of files in the size limit, since whole files are deleted."""
_MAX_NODE_ROWS: Final = 100_000
"""Rows of past states of nodes kept; a node whose GPUs come and go has many."""
_LOCK: Final = "lock"
_UNREADABLE: Final = ".unreadable"


def _roll(directory: Path, active: str, max_bytes: int) -> list[str]:
    """Convert all journals before the `active` one, and keep up to `max_bytes` of ended pods.

    Returns faults of unreadable files, which are renamed. Does nothing while another process does this. Raises
    HistoryError, OSError.
    """
    with _locked(directory) as locked:
        if not locked:
            return []
        faults = _rename_unreadable(directory)
        account = files.read_account(directory)
        whole = [path for path in sorted(directory.glob(journals.PATTERN)) if path.name < active]
        for path in whole:
            account.take(journals.read(path))
        hashed = files.are_hashed(directory, account)
        if account.ended:
            ended = journals.columns(POD_COLUMNS, account.ended.values())
            _add(directory, ended, min(_PART_BYTES, max_bytes // _LEAST_PARTS))
        files.write_part(directory / files.OPEN, "pods", journals.columns(POD_COLUMNS, account.running.values()))
        _delete_oldest(directory, account, max_bytes)
        files.write_part(directory / files.NODES, "nodes", files.nodes_of(account))
        files.write_about(directory, files.about_of(account, hashed=hashed))
        for path in whole:
            path.unlink()
        return faults


def _rename_unreadable(directory: Path) -> list[str]:
    """Rename files that can't be read, as after a power cut, since they would fail every run; return the faults."""
    parts, faults = files.parts_of(directory), []
    used = dict.fromkeys((*parts[:1], *parts[-1:], directory / files.OPEN), "pods") | {directory / files.NODES: "nodes"}
    for path, table in used.items():
        try:
            files.read_part(path, table)
        except FileNotFoundError:
            continue
        except HistoryError as error:
            path.replace(path.with_suffix(_UNREADABLE))
            faults.append(str(error))
    manifest = directory / files.MANIFEST
    try:
        msgspec.json.decode(manifest.read_bytes())  # another version is readable
    except FileNotFoundError:
        pass
    except msgspec.DecodeError as error:
        manifest.replace(manifest.with_suffix(_UNREADABLE))
        faults.append(f"{manifest}: {error}")
    return faults


def _add(directory: Path, pods: Columns, part_bytes: int) -> None:
    """Append ended pods to the last file, or start another."""
    parts = files.parts_of(directory)
    number = int(parts[-1].stem.partition("-")[2]) if parts else 0
    if parts and parts[-1].stat().st_size < part_bytes:
        before = files.read_part(parts[-1], "pods")
        pods = {name: np.concatenate([before[name], column]) for name, column in pods.items()}
    elif parts:
        number += 1
    files.write_part(directory / f"pods-{number:05d}.parquet", "pods", pods)


def _delete_oldest(directory: Path, account: Account, max_bytes: int) -> None:
    """Delete the oldest files of pods, and older node rows: the history then starts when the last deleted pod ended."""
    parts = files.parts_of(directory)
    total = sum(path.stat().st_size for path in parts)
    while total > max_bytes and parts:
        oldest = parts.pop(0)
        total -= oldest.stat().st_size
        account.since_s = float(np.max(files.read_part(oldest, "pods")["ended_s"], initial=account.since_s or 0.0))
        oldest.unlink()
    since_s = account.since_s or 0.0
    account.nodes = [row for row in account.nodes if row[-1] > since_s][-_MAX_NODE_ROWS:]
    account.gaps = [gap for gap in account.gaps if gap[1] > since_s]


@contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    with (directory / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True


if __name__ == "__main__":
    os.nice(_NICE)
    try:
        for fault in _roll(Path(sys.argv[1]), sys.argv[3], int(sys.argv[2])):
            print(fault)
    except (HistoryError, ImportError, OSError) as error:
        sys.exit(str(error))
