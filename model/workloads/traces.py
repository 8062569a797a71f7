"""Traces: files in the layout of Alibaba's `cluster-trace-gpu-v2023` ("openb"), with all values validated.

`openb_node_list_gpu_node.csv` and `openb_pod_list_<trace>.csv` as published; the optional `arrivals_<trace>.npz`
holds an experiment's order of arrival (`model.workloads.workloads`).
"""

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Longs

NODE_LIST: Final = "openb_node_list_gpu_node.csv"
_NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_POD_COLUMNS: Final = (
    *("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec"),
    *("creation_time", "deletion_time", "scheduled_time"),
)
MAX_GPUS: Final = 62
"""A node's GPUs are bits of a 64-bit integer."""
_LARGEST: Final = 2**40
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class TraceError(ValueError):
    """An invalid file; the message names file, line, column and the expected value."""


@dataclass(frozen=True)
class NodeList:
    """N nodes, sorted by name."""

    names: tuple[str, ...]
    cpu_milli: Longs
    memory_mib: Longs
    num_gpus: Longs
    models: tuple[str, ...]
    """(N,) GPU model, "" without GPUs."""

    @property
    def gpu_milli(self) -> int:
        """GPU capacity of all nodes."""
        return int(self.num_gpus.sum()) * WHOLE_MILLI


@dataclass(frozen=True)
class PodList:
    """P pods, sorted by name."""

    names: tuple[str, ...]
    cpu_milli: Longs
    memory_mib: Longs
    num_gpus: Longs
    gpu_milli: Longs
    """(P,) milli of each GPU: 1..999 for a share of one GPU, 1000 for whole GPUs, 0 without GPUs."""
    gpu_spec: tuple[str, ...]
    """(P,) allowed models, as "A|B"; "" for any."""
    submitted_s: npt.NDArray[np.float64] | None
    """(P,) creation time; None if the file has no times."""
    duration_s: npt.NDArray[np.float64] | None
    """(P,) time from scheduling (from creation if never scheduled) to deletion."""

    @property
    def asked_milli(self) -> Longs:
        """(P,) GPU milli that each pod requests in total."""
        return self.num_gpus * self.gpu_milli

    def at(self, rows: Longs) -> "PodList":
        """Return the pods of the rows, in that order."""
        return PodList(
            names=tuple(self.names[row] for row in rows.tolist()),
            cpu_milli=self.cpu_milli[rows],
            memory_mib=self.memory_mib[rows],
            num_gpus=self.num_gpus[rows],
            gpu_milli=self.gpu_milli[rows],
            gpu_spec=tuple(self.gpu_spec[row] for row in rows.tolist()),
            submitted_s=None if self.submitted_s is None else self.submitted_s[rows],
            duration_s=None if self.duration_s is None else self.duration_s[rows],
        )

    @staticmethod
    def joined(lists: "Sequence[PodList]") -> "PodList":
        """Concatenate lists of pods. Raises ValueError if one has no times."""

        def column(name: str) -> Any:
            return np.concatenate([getattr(pods, name) for pods in lists])

        def texts(name: str) -> tuple[str, ...]:
            return tuple(text for pods in lists for text in getattr(pods, name))

        return PodList(
            names=texts("names"),
            cpu_milli=column("cpu_milli"),
            memory_mib=column("memory_mib"),
            num_gpus=column("num_gpus"),
            gpu_milli=column("gpu_milli"),
            gpu_spec=texts("gpu_spec"),
            submitted_s=column("submitted_s"),
            duration_s=column("duration_s"),
        )


@dataclass(frozen=True)
class Cell:
    """One value of a file, with its position."""

    path: Path
    line: int
    column: str
    text: str

    def fault(self, right: str) -> TraceError:
        """Return the error that this value is not as expected."""
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return TraceError(f'{self.path}: line {self.line}, column {self.column}: "{shown}" is not {right}')

    def whole(self, smallest: int = 0, largest: int = _LARGEST) -> int:
        """Parse a whole number in a range."""
        digits = self.text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 15):
            raise self.fault("a whole number")
        value = int(self.text)
        if not smallest <= value <= largest:
            raise self.fault(f"between {smallest} and {largest}")
        return value

    def number(self) -> float:
        """Parse a finite number of 0 or more."""
        try:
            value = float(self.text)
        except ValueError:
            raise self.fault("a number") from None
        if not 0 <= value <= _LARGEST:
            raise self.fault(f"between 0 and {_LARGEST}")
        return value


Row = Mapping[str, Cell]


def read_table(path: Path, required: tuple[str, ...], open_text: Callable[[Path], Any] | None = None) -> Iterator[Row]:
    """Yield the rows of a CSV file with a heading. Raises TraceError if it can't be read or lacks a column."""
    try:
        with open_text(path) if open_text else path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            heading = next(reader, None)
            if heading is None:
                raise TraceError(f"{path}: line 1: empty; the first line must name the columns {', '.join(required)}")
            missing = [name for name in required if name not in heading]
            if missing:
                raise TraceError(f"{path}: line 1: no column {', '.join(missing)}; there are {', '.join(heading)}")
            if len(set(heading)) < len(heading):
                raise TraceError(f"{path}: line 1: a column is named twice")
            for values in reader:
                if not values:
                    continue
                if len(values) != len(heading):
                    raise TraceError(
                        f"{path}: line {reader.line_num}: {len(values)} values, but {len(heading)} columns"
                    )
                yield {
                    name: Cell(path, reader.line_num, name, text.strip())
                    for name, text in zip(heading, values, strict=True)
                }
    except (OSError, UnicodeDecodeError, csv.Error, EOFError) as error:
        raise TraceError(f"{path}: {error}") from None


def read_nodes(directory: Path) -> NodeList:
    """Read the nodes of a folder of traces."""
    path = directory / NODE_LIST
    rows: dict[str, tuple[int, int, int, str]] = {}
    for row in read_table(path, _NODE_COLUMNS):
        name = row["sn"].text
        if not name or name in rows:
            raise row["sn"].fault("a unique name")
        num_gpus = row["gpu"].whole(largest=MAX_GPUS)
        if num_gpus and not row["model"].text:
            raise row["model"].fault("a GPU model, but this node has GPUs")
        model = row["model"].text if num_gpus else ""
        rows[name] = (row["cpu_milli"].whole(1), row["memory_mib"].whole(1), num_gpus, model)
    if not rows:
        raise TraceError(f"{path}: no nodes")
    names = tuple(sorted(rows))
    columns = [np.array([rows[name][i] for name in names], dtype=np.int64) for i in range(3)]
    return NodeList(names, columns[0], columns[1], columns[2], tuple(rows[name][3] for name in names))


def read_pods(directory: Path, trace: str) -> PodList:
    """Read the pods of a trace."""
    path = pods_path(directory, _checked_trace(directory, trace))
    rows: dict[str, tuple[int, int, int, int, str, float | None, float | None]] = {}
    for row in read_table(path, ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        name = row["name"].text
        if not name or name in rows:
            raise row["name"].fault("a unique name")
        num_gpus = row["num_gpu"].whole(largest=MAX_GPUS)
        milli = _gpu_milli(row, num_gpus)
        submitted, duration = _times(row)
        spec = row["gpu_spec"].text if "gpu_spec" in row and num_gpus else ""
        if spec and not all(spec.split("|")):
            raise row["gpu_spec"].fault('model names such as "A|B"')
        rows[name] = (row["cpu_milli"].whole(), row["memory_mib"].whole(), num_gpus, milli, spec, submitted, duration)
    if not rows:
        raise TraceError(f"{path}: no pods")
    names = tuple(sorted(rows))
    columns = [np.array([rows[name][i] for name in names], dtype=np.int64) for i in range(4)]
    times = [
        None if any(rows[name][i] is None for name in names) else np.array([rows[name][i] for name in names], float)
        for i in (5, 6)
    ]
    specs = tuple(rows[name][4] for name in names)
    return PodList(names, columns[0], columns[1], columns[2], columns[3], specs, times[0], times[1])


def write_trace(directory: Path, trace: str, nodes: NodeList, pods: PodList) -> None:
    """Write nodes and pods with times in the format of a trace; existing files are overwritten."""
    directory.mkdir(parents=True, exist_ok=True)
    submitted, duration = pods.submitted_s, pods.duration_s
    if submitted is None or duration is None:
        raise ValueError("the pods have no times")
    node_rows = zip(nodes.names, nodes.cpu_milli, nodes.memory_mib, nodes.num_gpus, nodes.models, strict=True)
    with (directory / NODE_LIST).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([_NODE_COLUMNS, *node_rows])
    begins, ends = submitted.tolist(), (submitted + duration).tolist()
    with pods_path(directory, trace).open("w", encoding="utf-8", newline="") as file:
        pod_rows = zip(
            pods.names,
            pods.cpu_milli,
            pods.memory_mib,
            pods.num_gpus,
            pods.gpu_milli,
            pods.gpu_spec,
            begins,
            ends,
            begins,
            strict=True,
        )
        csv.writer(file).writerows([_POD_COLUMNS, *pod_rows])


def pods_path(directory: Path, trace: str) -> Path:
    """Return the path of a trace's pods."""
    return directory / f"openb_pod_list_{trace}.csv"


def _checked_trace(directory: Path, trace: str) -> str:
    """Return `trace` if it exists. Raises TraceError with the names of existing traces."""
    names = _trace_names(directory)
    if not _NAME.fullmatch(trace) or trace not in names:
        raise TraceError(
            f"{directory}: no trace {trace!r} (openb_pod_list_{trace}.csv); there are {', '.join(names) or 'none'}"
        )
    return trace


def _trace_names(directory: Path) -> list[str]:
    """Return the sorted names of a folder's traces."""
    found = directory.glob("openb_pod_list_*.csv") if directory.is_dir() else ()
    return sorted(path.stem.removeprefix("openb_pod_list_") for path in found)


def _gpu_milli(row: Row, num_gpus: int) -> int:
    if num_gpus == 0:
        return 0
    milli = row["gpu_milli"].whole(1, WHOLE_MILLI)
    if num_gpus > 1 and milli != WHOLE_MILLI:
        raise row["gpu_milli"].fault(f"{WHOLE_MILLI}; only a pod with one GPU can request a share")
    return milli


def _times(row: Row) -> tuple[float | None, float | None]:
    """Return a pod's submission time and duration; None if the file has no times."""
    if "creation_time" not in row or "deletion_time" not in row:
        return None, None
    submitted, deleted = row["creation_time"].number(), row["deletion_time"].number()
    scheduled = row.get("scheduled_time")
    started = scheduled.number() if scheduled and scheduled.text else submitted
    if deleted < started:
        raise row["deletion_time"].fault("at or after the pod's start")
    return submitted, deleted - started
