"""The published experiment, replayed and compared: the policies' allocation on every trace and seed of its table."""

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
"""Percentage points: the table has two decimals."""
_POLICIES: Final = {"FGD": "fgd", "BestFit": "bestfit"}
"""Those of the table that Kerf replays, and their names here."""
_COLUMNS: Final = ("trace", "policy", "seed", *(f"alloc_at_{load}" for load in LOADS))


@dataclass(frozen=True)
class Run:
    """A line of the table and what the replay gives."""

    trace: str
    policy: str
    seed: int
    published: tuple[float, ...]
    """Percent of the GPUs allocated at each of LOADS."""
    ours: tuple[float | None, ...]

    @property
    def difference(self) -> float:
        """The largest difference, in percentage points; infinite where a load was never reached."""
        pairs = zip(self.published, self.ours, strict=True)
        return max(float("inf") if ours is None else abs(ours - theirs) for theirs, ours in pairs)

    @property
    def equal(self) -> bool:
        """Whether the results agree; binary numbers leave a difference of 0.01 a little beside it."""
        return self.difference <= TOLERANCE + 1e-9


Line = tuple[str, str, int, tuple[float, ...]]
"""Trace, policy, seed, published percents."""


def table(directory: Path) -> list[Line]:
    """The lines of `published_allocation.csv` that Kerf replays."""
    return [
        (row["trace"].text, row["policy"].text, row["seed"].whole(), tuple(row[name].number() for name in _COLUMNS[3:]))
        for row in read_table(directory / "published_allocation.csv", _COLUMNS)
        if row["policy"].text in _POLICIES
    ]


def verify(directory: Path, lines: Iterable[Line], tell: Callable[[str], None]) -> list[Run]:
    """Replay lines of the table; `tell` hears of each before it begins."""
    node_list = read_nodes(directory)
    trace, pod_list = "", None
    runs = []
    for line in lines:
        tell(f"{line[0]}, {line[1]}, seed {line[2]}")
        if pod_list is None or trace != line[0]:
            trace, pod_list = line[0], read_pods(directory, line[0])
        offered = workload(directory, trace, line[2], node_list, pod_list)
        curve = allocation_curve(offered, replay(offered, BASELINES[_POLICIES[line[1]]], line[2]).placed)
        runs.append(Run(*line, tuple(curve.at(load) for load in LOADS)))
    return runs
