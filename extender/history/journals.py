"""What a running Kerf writes down as it happens: lines that are appended, and what they come to.

A journal costs nothing to write and survives a crash up to its last whole line. `rolling` makes columns of it now and
then; who reads a history reads the lines that are still to be rolled as well.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from extender.history.records import NODE_COLUMNS, POD_COLUMNS, Column, Columns, Kind, columns_of

PATTERN: Final = "journal-*.jsonl"
"""Of file names, in the order in which they were begun."""
Row = tuple[Any, ...]
"""Values in the order of POD_COLUMNS or NODE_COLUMNS; None for nan."""
Gap = tuple[float, float]
_POD: Final = list(POD_COLUMNS).index("pod")
_STARTED, _ENDED = (list(POD_COLUMNS).index(name) for name in ("started_s", "ended_s"))
_NODE_TIMES: Final = 2
"""The last columns of a node: from when until when it was so."""
_LEAST_GAP_S: Final = 120.0
_MAX_GAPS: Final = 100


class _Line(msgspec.Struct, array_like=True, frozen=True):
    """Base of all."""


class Begun(_Line, frozen=True, tag="begun"):
    """A process begins to record: all that it does not tell of until `Complete` is gone."""

    at: float


class Complete(_Line, frozen=True, tag="complete"):
    """It has told of all that there is."""

    at: float


class Until(_Line, frozen=True, tag="until"):
    """All that happened until then is told."""

    at: float


class Pod(_Line, frozen=True, tag="pod"):
    """What is known of a pod now."""

    row: Row


class Ended(_Line, frozen=True, tag="ended"):
    """A pod is gone."""

    pod: str
    at: float


class Node(_Line, frozen=True, tag="node"):
    """What a node is from now on: a row without its times."""

    row: Row
    at: float


class Gone(_Line, frozen=True, tag="gone"):
    """A node is not there any more."""

    node: str
    at: float


Line = Begun | Complete | Until | Pod | Ended | Node | Gone
_decoder: Final = msgspec.json.Decoder(Line)
encode: Final = msgspec.json.Encoder().encode


def read(path: Path) -> Iterator[Line]:
    """The lines of a file; those that a crash or a full disk has cut are left out. Raises OSError."""
    for line in path.read_bytes().splitlines():
        try:
            yield _decoder.decode(line)
        except msgspec.DecodeError:
            continue


@dataclass(eq=False)
class Account:
    """What lines come to: each pod in one row, each node in one for each time that it was different."""

    running: dict[str, Row] = field(default_factory=dict)
    """Rows of the pods that have not ended, by UID."""
    ended: dict[str, Row] = field(default_factory=dict)
    """Of those that have."""
    nodes: list[Row] = field(default_factory=list)
    """Of nodes as they were."""
    there: dict[str, Row] = field(default_factory=dict)
    """Of nodes as they are, by name."""
    since_s: float | None = None
    until_s: float = 0.0
    gaps: list[Gap] = field(default_factory=list)
    """When nobody recorded."""
    _told: set[str] = field(default_factory=set)
    """Pods and nodes that the process at work has told of since it began."""

    def take(self, lines: Iterable[Line]) -> None:
        """Add lines, in their order."""
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
                for pod in self.running.keys() - self._told:
                    self._end(pod, at)
                for node in self.there.keys() - self._told:
                    self._node_gone(node, at)
                self.until_s = max(self.until_s, at)
            case Until(at):
                self.until_s = max(self.until_s, at)

    def _begin(self, at: float) -> None:
        if self.since_s is None:
            self.since_s = at
        elif at - self.until_s > _LEAST_GAP_S:
            self.gaps = [*self.gaps, (self.until_s, at)][-_MAX_GAPS:]
        self._told.clear()
        self.until_s = max(self.until_s, at)

    def _put(self, row: Row) -> None:
        pod = row[_POD]
        self._told.add(pod)
        known = self.running.pop(pod, None) or self.ended.pop(pod, None)
        if known is not None and known[_STARTED] is not None:  # what was seen first is nearer to it
            row = (*row[:_STARTED], known[_STARTED], *row[_STARTED + 1 :])
        (self.running if row[_ENDED] is None else self.ended)[pod] = row

    def _end(self, pod: str, at: float) -> None:
        row = self.running.pop(pod, None)
        if row is not None:
            self.ended[pod] = (*row[:_ENDED], at, *row[_ENDED + 1 :])

    def _node(self, row: Row, at: float) -> None:
        name = row[0]
        self._told.add(name)
        before = self.there.get(name)
        if before is None or before[:-_NODE_TIMES] != row:
            self._node_gone(name, at)
            self.there[name] = (*row, at, None)

    def _node_gone(self, node: str, at: float) -> None:
        row = self.there.pop(node, None)
        if row is not None and at > row[-_NODE_TIMES]:  # else a journal is read again
            self.nodes.append((*row[:-1], at))


def columns(kinds: dict[str, Kind] | Any, rows: Iterable[Row]) -> dict[str, Column]:
    """Rows as columns."""
    turned = list(zip(*rows, strict=True)) or [()] * len(kinds)
    return columns_of(
        kinds,
        {
            name: [math.nan if value is None else value for value in column] if kind == "number" else column
            for (name, kind), column in zip(kinds.items(), turned, strict=True)
        },
    )


def rows(kinds: dict[str, Kind] | Any, told: Columns) -> list[Row]:
    """Columns as rows."""
    turned = [
        [None if math.isnan(value) else value for value in told[name].tolist()]
        if kind == "number"
        else told[name].tolist()
        for name, kind in kinds.items()
    ]
    return list(zip(*turned, strict=True))
