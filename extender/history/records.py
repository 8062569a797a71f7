"""The history of a cluster in columns: pods that were asked for, and nodes that were there.

A pod has a row for each time that something about it became known; the last one counts. A node has a row for each time
that it came to be as it was. Nothing is kept but what placing, waiting and their cost go by.

Names in a history: whose pods are alike, and how names are kept from being read.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

VERSION: Final = 1
"""Changes whenever a column changes its name, meaning or unit."""

Kind = Literal["text", "whole", "number"]
"""Of a column: object arrays of str, int64, float64."""
Column = npt.NDArray[Any]
Columns = Mapping[str, Column]
"""By name, each with a value for each row."""

POD_COLUMNS: Final[Mapping[str, Kind]] = {
    "pod": "text",  # its UID
    "namespace": "text",
    "owner": "text",  # NAMESPACE/KIND/NAME of its controller, or of the pod where there is none
    "gang": "text",  # pods that start together; "" for none
    "priority": "whole",
    "gpus": "whole",
    "gpu_milli": "whole",  # of each: 1000 for whole ones, 0 without GPUs
    "gpu_memory_mib": "whole",  # that each GPU has to have
    "gpu_models": "text",  # names of those that will do, as "A|B"; "" for any
    "cpu_milli": "whole",
    "memory_mib": "whole",
    "submitted_s": "number",  # seconds since 1970, or since the first of a trace
    "started_s": "number",  # when it got its node; nan where that is not known, or not yet so
    "ended_s": "number",  # likewise
    "node": "text",  # "" where that is not known
    "gpu_indices": "text",  # as "0,1"; "" where they are not known
}
NODE_COLUMNS: Final[Mapping[str, Kind]] = {
    "node": "text",
    "gpu_model": "text",  # "" without GPUs
    "gpus": "whole",
    "gpu_memory_mib": "whole",  # 0 where it is not known
    "cpu_milli": "whole",
    "memory_mib": "whole",
    "from_s": "number",
    "until_s": "number",  # nan while it is there
}
_DTYPE: Final = {"text": np.dtype(object), "whole": np.dtype(np.int64), "number": np.dtype(np.float64)}


class HistoryError(ValueError):
    """A history that can't be used: names the file, what is wrong, and what would be right."""


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where a history is from."""

    format: Literal["kerf-history"] = "kerf-history"
    version: int = VERSION
    source: str
    """`cluster`, `prometheus`, `openb`, `philly` or `drawn`."""
    since_s: float
    until_s: float
    """Nothing is known of what came later."""
    hashed: bool = False
    """Whether namespaces, owners and gangs are hashes."""
    missing: tuple[str, ...] = ()
    """What this source can't tell, in words."""
    gaps: tuple[tuple[float, float], ...] = ()
    """From when to when nothing was recorded, the latest ones."""


@dataclass(frozen=True)
class History:
    """P pods, each in one row, by time of submission; and the nodes."""

    about: About
    pods: Columns
    nodes: Columns


def columns_of(kinds: Mapping[str, Kind], rows: Mapping[str, Any]) -> dict[str, Column]:
    """Columns in their order and kind. Raises ValueError where one is missing, unknown or of another length."""
    if rows.keys() != kinds.keys():
        raise ValueError(f"has columns {', '.join(sorted(rows))}; needed are {', '.join(sorted(kinds))}")
    made = {name: np.asarray(rows[name], _DTYPE[kind]) for name, kind in kinds.items()}
    if len({len(column) for column in made.values()}) > 1:
        raise ValueError("the columns are not of one length")
    return made


def latest(pods: Columns) -> dict[str, Column]:
    """Of the rows of each pod the last one, by time of submission."""
    _, from_behind = np.unique(pods["pod"][::-1].astype(str), return_index=True)
    rows = len(pods["pod"]) - 1 - from_behind
    rows = rows[np.lexsort((rows, pods["submitted_s"][rows]))]
    return {name: column[rows] for name, column in pods.items()}


_HASHED_COLUMNS: Final = ("pod", "namespace", "owner", "gang")
"""Columns of pods whose names say who works on what."""
_HASH_BYTES: Final = 8
"""Among a million names two are equal with a probability of 3e-8."""

_HASHED: Final = re.compile(rf"[0-9a-f]{{{2 * _HASH_BYTES}}}")
_GENERATED_SUFFIX: Final = re.compile(r"-[0-9a-z]*[0-9][0-9a-z]*$")
"""What controllers append to a name: a ReplicaSet's hash, a run's number or time."""


def owner_name(namespace: str, kind: str, name: str) -> str:
    """The controller whose pods are alike: `namespace/Kind/name`, without a generated suffix."""
    return f"{namespace}/{kind}/{_GENERATED_SUFFIX.sub('', name)}"


def hash_names(pods: Columns, salt: bytes) -> dict[str, Column]:
    """Pods with a hash in place of each name; equal names have equal hashes, and "" stays.

    The salt, of up to 64 bytes, keeps names from being found by trying: draw it at random and forget it.
    """
    return {name: _hashes(column, salt) if name in _HASHED_COLUMNS else column for name, column in pods.items()}


def hash_name(name: str, salt: bytes) -> str:
    """What stands for a name, as of `hash_names`."""
    return hashlib.blake2b(name.encode(), digest_size=_HASH_BYTES, key=salt).hexdigest() if name else ""


def look_hashed(names: Iterable[str]) -> bool:
    """Whether all of some names are hashes, and there are any; "" stays what it is."""
    found = [bool(_HASHED.fullmatch(name)) for name in names if name]
    return bool(found) and all(found)


def _hashes(names: Column, salt: bytes) -> Column:
    distinct, position = np.unique(names.astype(str), return_inverse=True)
    return np.array([hash_name(name, salt) for name in distinct.tolist()], object)[position]
