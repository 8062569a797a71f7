"""Names in a history: whose pods are alike, and how names are kept from being read."""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from extender.history.records import Column, Columns

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
