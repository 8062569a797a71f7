"""Curves of a training run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


def draw(log: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Gain over FGD by generation, mean of the candidates on each of its traces, and the length of the steps."""
    figure = Figure(figsize=(8.0, 4.2), dpi=100, layout="constrained")
    gains, steps = figure.subplots(1, 2, width_ratios=(3, 1))
    for trace in sorted({trace for line in log for trace in line["by_trace"]}):
        seen = [(line["generation"], line["by_trace"][trace]) for line in log if trace in line["by_trace"]]
        gains.plot(*zip(*seen, strict=True), marker=".", linewidth=1, label=trace)
    gains.set(xlabel="generation", ylabel="percentage points more than FGD", title="Mean of the candidates")
    gains.set_yscale("symlog", linthresh=1)
    gains.axhline(0, color="grey", linewidth=1)
    gains.legend(fontsize=7, ncols=2)
    steps.plot([line["generation"] for line in log], [line["sigma"] for line in log], color="black", linewidth=1)
    steps.set(xlabel="generation", title="Length of the steps", ylim=(0, None))
    for axes in (gains, steps):
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Software": None})
