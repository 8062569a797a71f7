"""Rows of the nodes that a request names, found all at once.

A dictionary reads four distant places in memory for each name, which with other processes in the caches was an eighth
of Kerf's CPU time for a pod. Here one polynomial hash per name is made of all text together, and looked up in a sorted
array. The base is random, so that nobody can choose names with equal hashes.
"""

import re
import secrets
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Cluster, Rows

_Hashes = npt.NDArray[np.uint64]

_MAX_BYTES: Final = 1 << 18
"""Longer lists are decoded: the powers take 16 bytes for each."""
_PORTION: Final = 500
"""Names that are hashed together."""
_COMMA: Final = ord(",")
_SYNTAX: Final = re.compile('[,"]')
"""No name of a Kubernetes node has these."""
_SYNTAX_BYTES: Final = 3
"""Quotes and comma of each name; the list has one byte more."""


class NameTable:
    """The rows of the current node names, by the hash of the name."""

    def __init__(self) -> None:
        self._base = secrets.randbits(64) | 1  # odd, so that it has an inverse modulo 2**64
        self._powers = self._inverses = np.ones(1, np.uint64)
        self._node_names: tuple[str, ...] = ()
        self._hashes: _Hashes = np.empty(0, np.uint64)
        self._rows: Rows = np.empty(0, np.intp)
        self._lengths: Rows = np.empty(0, np.intp)

    def rows(self, cluster: Cluster, names: bytes) -> Rows | None:
        """Return (R,) the rows of a JSON list of names, None if it has to be decoded: it is long or not compact, or has
        an unknown name."""
        if cluster.node_names is not self._node_names:
            self._fill(cluster.node_names)
        if not len(self._hashes) or len(names) > _MAX_BYTES:
            return None
        found = self._hashes_of(names)
        at = self._hashes.searchsorted(found)
        if not (self._hashes.take(at, mode="clip") == found).all():
            return None
        num_bytes = self._lengths.take(at).sum() + _SYNTAX_BYTES * len(at) + 1
        are_strings = names.count(b'"') == 2 * len(at)
        return self._rows.take(at) if are_strings and num_bytes == len(names) else None

    def _fill(self, node_names: tuple[str, ...]) -> None:
        before, self._node_names = self._node_names, node_names
        if node_names == before:
            return  # a node offers something else than before
        known = [(row, name.encode()) for row, name in enumerate(node_names) if name and not _SYNTAX.search(name)]
        portions = (known[first : first + _PORTION] for first in range(0, len(known), _PORTION))
        texts = (b'["%b"]' % b'","'.join([name for _, name in portion]) for portion in portions)
        self._hashes = np.concatenate([np.empty(0, np.uint64), *map(self._hashes_of, texts)])
        order = np.argsort(self._hashes)
        self._hashes = self._hashes[order]
        self._rows = np.array([row for row, _ in known], np.intp)[order]
        self._lengths = np.array([len(name) for _, name in known], np.intp)[order]

    def _hashes_of(self, names: bytes) -> _Hashes:
        """(R,) the hash of each name of a compact list; anything else gives hashes of no name."""
        self._grow(len(names))
        codes = np.frombuffer(names, np.uint8)
        commas = (codes == _COMMA).nonzero()[0]
        sums = np.zeros(len(codes) + 1, np.uint64)
        (codes * self._powers[: len(codes)]).cumsum(out=sums[1:])
        begins = np.concatenate(([2], commas + 2))  # after the quote
        ends = np.concatenate((commas - 1, [len(codes) - 2]))
        parts: _Hashes = sums.take(ends, mode="clip") - sums.take(begins, mode="clip")
        return parts * self._inverses.take(begins, mode="clip")

    def _grow(self, length: int) -> None:
        """Have the powers of the base and of its inverse from 0 to at least `length`."""
        while len(self._powers) <= length:
            num = len(self._powers)
            step, back = (pow(base, num, 1 << 64) for base in (self._base, pow(self._base, -1, 1 << 64)))
            self._powers = np.concatenate((self._powers, self._powers * np.uint64(step)))
            self._inverses = np.concatenate((self._inverses, self._inverses * np.uint64(back)))
