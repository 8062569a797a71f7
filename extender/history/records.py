"""The columns of a cluster's history, and the hashing of names in it.

A pod has a row for each update, of which the last one counts. A node has a row for each of its states. Only what
placement, waiting times and costs depend on is kept.
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
"""Incremented when a column changes its name, meaning or unit."""

Kind = Literal["text", "whole", "number"]
"""Kind of a column: object array of str, int64, float64."""
Column = npt.NDArray[Any]
Columns = Mapping[str, Column]
"""Columns of equal length by name."""

POD_COLUMNS: Final[Mapping[str, Kind]] = {
    "pod": "text",  # its UID
    "namespace": "text",
    "owner": "text",  # NAMESPACE/KIND/NAME of its controller, or of the pod if it has none
    "gang": "text",  # "" for none
    "priority": "whole",
    "gpus": "whole",
    "gpu_milli": "whole",  # of each GPU: 1000 for whole GPUs, 0 without GPUs
    "gpu_memory_mib": "whole",  # required of each GPU
    "gpu_models": "text",  # acceptable models, as "A|B"; "" for any
    "cpu_milli": "whole",
    "memory_mib": "whole",
    "submitted_s": "number",  # Unix time, or seconds since the first pod of a trace
    "started_s": "number",  # when it got its node; NaN if unknown or not yet
    "ended_s": "number",  # NaN if unknown or not yet
    "node": "text",  # "" if unknown
    "gpu_indices": "text",  # as "0,1"; "" if unknown
}
NODE_COLUMNS: Final[Mapping[str, Kind]] = {
    "node": "text",
    "gpu_model": "text",  # "" without GPUs
    "gpus": "whole",
    "gpu_memory_mib": "whole",  # 0 if unknown
    "cpu_milli": "whole",
    "memory_mib": "whole",
    "from_s": "number",
    "until_s": "number",  # NaN while it exists
}
_DTYPE: Final = {"text": np.dtype(object), "whole": np.dtype(np.int64), "number": np.dtype(np.float64)}


class HistoryError(ValueError):
    """A history that can't be used; the message names the file, the fault and the remedy."""


class About(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of a history: its source, period and format."""

    format: Literal["kerf-history"] = "kerf-history"
    version: int = VERSION
    source: str
    """`cluster`, `prometheus`, `openb`, `philly` or `drawn`."""
    since_s: float
    until_s: float
    """End of the recorded period."""
    hashed: bool = False
    """Whether namespaces, owners and gangs are hashes."""
    missing: tuple[str, ...] = ()
    """What this source can't provide, in words."""
    gaps: tuple[tuple[float, float], ...] = ()
    """The latest periods without recording."""


@dataclass(frozen=True)
class History:
    """P pods, one row each in the order of submission, and the nodes."""

    about: About
    pods: Columns
    nodes: Columns


def columns_of(kinds: Mapping[str, Kind], rows: Mapping[str, Any]) -> dict[str, Column]:
    """Return columns in order, with their types. Raises ValueError if one is missing, unknown or of another length."""
    if rows.keys() != kinds.keys():
        raise ValueError(f"has columns {', '.join(sorted(rows))}; needed are {', '.join(sorted(kinds))}")
    typed = {name: np.asarray(rows[name], _DTYPE[kind]) for name, kind in kinds.items()}
    if len({len(column) for column in typed.values()}) > 1:
        raise ValueError("the columns differ in length")
    return typed


def latest(pods: Columns) -> dict[str, Column]:
    """Return the last row of each pod, in the order of submission."""
    _, from_end = np.unique(pods["pod"][::-1].astype(str), return_index=True)
    rows = len(pods["pod"]) - 1 - from_end
    rows = rows[np.lexsort((rows, pods["submitted_s"][rows]))]
    return {name: column[rows] for name, column in pods.items()}


_HASHED_COLUMNS: Final = ("pod", "namespace", "owner", "gang")
"""Pod columns whose names reveal who works on what."""
_HASH_BYTES: Final = 8
"""A million names collide with a probability of 3e-8."""

_HASHED: Final = re.compile(rf"[0-9a-f]{{{2 * _HASH_BYTES}}}")
_GENERATED_SUFFIX: Final = re.compile(r"-[0-9a-z]*[0-9][0-9a-z]*$")
"""Suffix that controllers append to a name: a ReplicaSet's hash, or a run's number or time."""


def owner_name(namespace: str, kind: str, name: str) -> str:
    """Return the controller under which similar pods are grouped: `namespace/Kind/name` without a generated suffix."""
    return f"{namespace}/{kind}/{_GENERATED_SUFFIX.sub('', name)}"


def hash_names(pods: Columns, salt: bytes) -> dict[str, Column]:
    """Return pods with each name replaced by its hash; equal names have equal hashes, and "" stays.

    The salt, of up to 64 bytes, prevents guessing of names: draw it at random and discard it.
    """
    return {name: _hashes(column, salt) if name in _HASHED_COLUMNS else column for name, column in pods.items()}


def hash_name(name: str, salt: bytes) -> str:
    """Return the hash of a name, as in `hash_names`."""
    return hashlib.blake2b(name.encode(), digest_size=_HASH_BYTES, key=salt).hexdigest() if name else ""


def look_hashed(names: Iterable[str]) -> bool:
    """Whether there are names and all look like hashes, ignoring ""."""
    hashed = [bool(_HASHED.fullmatch(name)) for name in names if name]
    return bool(hashed) and all(hashed)


def _hashes(names: Column, salt: bytes) -> Column:
    distinct, position = np.unique(names.astype(str), return_inverse=True)
    return np.array([hash_name(name, salt) for name in distinct.tolist()], object)[position]
