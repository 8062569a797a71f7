"""Reproduction of the published experiment: allocation by trace, policy and seed."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from model.simulations.baselines import BASELINES
from model.simulations.measures import LOADS, allocation_curve
from model.simulations.replays import replay
from model.workloads.traces import read_nodes, read_pods, read_table
from model.workloads.workloads import workload

TOLERANCE: Final = 0.01
"""Tolerance in percentage points: the table has two decimals."""
_POLICIES: Final = {"FGD": "fgd", "BestFit": "bestfit"}
"""Replayed policies of the table, and their names in Kerf."""
_COLUMNS: Final = ("trace", "policy", "seed", *(f"alloc_at_{load}" for load in LOADS))


@dataclass(frozen=True)
class Run:
    """A line of the table and the result of its replay."""

    trace: str
    policy: str
    seed: int
    published: tuple[float, ...]
    """Percent of the GPUs allocated at each of LOADS."""
    ours: tuple[float | None, ...]

    @property
    def difference(self) -> float:
        """Largest difference in percentage points; inf if a load was never reached."""
        pairs = zip(self.published, self.ours, strict=True)
        return max(float("inf") if ours is None else abs(ours - theirs) for theirs, ours in pairs)

    @property
    def equal(self) -> bool:
        """Whether the results agree, up to TOLERANCE and floating-point error."""
        return self.difference <= TOLERANCE + 1e-9


Line = tuple[str, str, int, tuple[float, ...]]
"""Trace, policy, seed, published percents."""


def table(directory: Path) -> list[Line]:
    """Return the lines of `published_allocation.csv` with policies of Kerf."""
    return [
        (row["trace"].text, row["policy"].text, row["seed"].whole(), tuple(row[name].number() for name in _COLUMNS[3:]))
        for row in read_table(directory / "published_allocation.csv", _COLUMNS)
        if row["policy"].text in _POLICIES
    ]


def verify(directory: Path, lines: Iterable[Line], on_step: Callable[[str], None]) -> list[Run]:
    """Replay lines of the table; `on_step` is called before each."""
    node_list = read_nodes(directory)
    trace, pod_list = "", None
    runs = []
    for line in lines:
        on_step(f"{line[0]}, {line[1]}, seed {line[2]}")
        if pod_list is None or trace != line[0]:
            trace, pod_list = line[0], read_pods(directory, line[0])
        offered = workload(directory, trace, line[2], node_list, pod_list)
        curve = allocation_curve(offered, replay(offered, BASELINES[_POLICIES[line[1]]], line[2]).placed)
        runs.append(Run(*line, tuple(curve.at(load) for load in LOADS)))
    return runs
