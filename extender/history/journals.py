"""Journals of a running Kerf: JSON lines, and the rows that they add up to.

A journal is cheap to write and survives a crash up to its last whole line. `rolling` converts journals to columns now
and then; readers of a history read the remaining journals as well.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from extender.history.records import NODE_COLUMNS, POD_COLUMNS, Column, Columns, Kind, columns_of

PATTERN: Final = "journal-*.jsonl"
"""Glob of the file names, which sort by their start."""
Row = tuple[Any, ...]
"""Values in the order of POD_COLUMNS or NODE_COLUMNS, None for NaN."""
Gap = tuple[float, float]
_POD: Final = list(POD_COLUMNS).index("pod")
_STARTED, _ENDED = (list(POD_COLUMNS).index(name) for name in ("started_s", "ended_s"))
_NODE_TIMES: Final = 2
"""The last columns of a node: `from_s` and `until_s`."""
_LEAST_GAP_S: Final = 120.0
_MAX_GAPS: Final = 100


class _Line(msgspec.Struct, array_like=True, frozen=True):
    """Base of all lines."""


class Begun(_Line, frozen=True, tag="begun"):
    """A process begins to record. Pods and nodes that it does not record before `Complete` are gone."""

    at: float


class Complete(_Line, frozen=True, tag="complete"):
    """All existing pods and nodes are recorded."""

    at: float


class Until(_Line, frozen=True, tag="until"):
    """All changes until this time are recorded."""

    at: float


class Pod(_Line, frozen=True, tag="pod"):
    """The current row of a pod."""

    row: Row


class Ended(_Line, frozen=True, tag="ended"):
    """A pod is gone."""

    pod: str
    at: float


class Node(_Line, frozen=True, tag="node"):
    """The row of a node from this time on, without its times."""

    row: Row
    at: float


class Gone(_Line, frozen=True, tag="gone"):
    """A node is gone."""

    node: str
    at: float


Line = Begun | Complete | Until | Pod | Ended | Node | Gone
_decoder: Final = msgspec.json.Decoder(Line)
encode: Final = msgspec.json.Encoder().encode


def read(path: Path) -> Iterator[Line]:
    """Read the lines of a file, skipping those that a crash or a full disk has truncated. Raises OSError."""
    for line in path.read_bytes().splitlines():
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError:
            continue


@dataclass(eq=False)
class Account:
    """The rows that journal lines add up to: one for each pod, and one for each state of a node."""

    running: dict[str, Row] = field(default_factory=dict)
    """Rows of the pods that have not ended, by UID."""
    ended: dict[str, Row] = field(default_factory=dict)
    """Rows of the pods that have ended, by UID."""
    nodes: list[Row] = field(default_factory=list)
    """Rows of past states of nodes."""
    there: dict[str, Row] = field(default_factory=dict)
    """Rows of the current nodes, by name."""
    since_s: float | None = None
    until_s: float = 0.0
    gaps: list[Gap] = field(default_factory=list)
    """Periods without recording."""
    _recorded: set[str] = field(default_factory=set)
    """Pods and nodes that the recording process has recorded since it began."""

    def take(self, lines: Iterable[Line]) -> None:
        """Add lines in their order."""
        for line in lines:
            self._take(line)

    def _take(self, line: Line) -> None:
        match line:
            case Pod(row):
                if len(row) == len(POD_COLUMNS):
                    self._put(row)
            case Ended(pod, at):
                self._end(pod, at)
            case Node(row, at):
                if len(row) == len(NODE_COLUMNS) - _NODE_TIMES:
                    self._node(row, at)
            case Gone(node, at):
                self._node_gone(node, at)
            case Begun(at):
                self._begin(at)
            case Complete(at):
                for pod in self.running.keys() - self._recorded:
                    self._end(pod, at)
                for node in self.there.keys() - self._recorded:
                    self._node_gone(node, at)
                self.until_s = max(self.until_s, at)
            case Until(at):
                self.until_s = max(self.until_s, at)

    def _begin(self, at: float) -> None:
        if self.since_s is None:
            self.since_s = at
        elif at - self.until_s > _LEAST_GAP_S:
            self.gaps = [*self.gaps, (self.until_s, at)][-_MAX_GAPS:]
        self._recorded.clear()
        self.until_s = max(self.until_s, at)

    def _put(self, row: Row) -> None:
        pod = row[_POD]
        self._recorded.add(pod)
        known = self.running.pop(pod, None) or self.ended.pop(pod, None)
        if known is not None and known[_STARTED] is not None:  # the first observation is the most accurate
            row = (*row[:_STARTED], known[_STARTED], *row[_STARTED + 1 :])
        (self.running if row[_ENDED] is None else self.ended)[pod] = row

    def _end(self, pod: str, at: float) -> None:
        row = self.running.pop(pod, None)
        if row is not None:
            self.ended[pod] = (*row[:_ENDED], at, *row[_ENDED + 1 :])

    def _node(self, row: Row, at: float) -> None:
        name = row[0]
        self._recorded.add(name)
        before = self.there.get(name)
        if before is None or before[:-_NODE_TIMES] != row:
            self._node_gone(name, at)
            self.there[name] = (*row, at, None)

    def _node_gone(self, node: str, at: float) -> None:
        row = self.there.pop(node, None)
        if row is not None and at > row[-_NODE_TIMES]:  # else the journal was already converted
            self.nodes.append((*row[:-1], at))


def columns(kinds: dict[str, Kind] | Any, rows: Iterable[Row]) -> dict[str, Column]:
    """Convert rows to columns."""
    transposed = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return columns_of(
        kinds,
        {
            name: [math.nan if value is None else value for value in column] if kind == "number" else column
            for (name, kind), column in zip(kinds.items(), transposed, strict=True)
        },
    )


def rows(kinds: dict[str, Kind] | Any, table: Columns) -> list[Row]:
    """Convert columns to rows."""
    transposed = [
        [None if math.isnan(value) else value for value in table[name].tolist()]
        if kind == "number"
        else table[name].tolist()
        for name, kind in kinds.items()
    ]
    return list(zip(*transposed, strict=True))
