"""Plots of training curves; equal logs give identical files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from model.workloads.sources import MIXED

_SMOOTHED: Final = 20
"""Window of the moving mean, in updates."""
_PANELS: Final = (
    ("allocation", "GPUs allocated while exploring, %"),
    ("value_loss", "critic loss / variance of its target"),
    ("skips", "skips per episode"),
    ("divergence", "KL divergence of an update"),
)


def draw_search(log: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the gain over FGD by generation (mean of the candidates on each trace), and the step size."""
    figure = Figure(figsize=(8.0, 4.8), dpi=100, layout="constrained")
    gains, steps = figure.subplots(1, 2, width_ratios=(3, 1))
    gains.set_prop_cycle(color=list(colormaps["tab20"](np.arange(20))))
    for trace in sorted({trace for line in log for trace in line["by_trace"]}):
        seen = [(line["generation"], line["by_trace"][trace]) for line in log if trace in line["by_trace"]]
        style = {"linestyle": ":"} if trace.startswith(MIXED) else {"marker": "."}  # mixes differ each time
        gains.plot(*zip(*seen, strict=True), linewidth=1, label=trace, **style)
    gains.set(xlabel="generation", ylabel="gain over FGD, percentage points", title="Mean of the candidates")
    gains.set_yscale("symlog", linthresh=1)
    gains.axhline(0, color="grey", linewidth=1)
    figure.legend(fontsize=7, ncols=5, loc="outside lower center")
    steps.plot([line["generation"] for line in log], [line["sigma"] for line in log], color="black", linewidth=1)
    steps.set(xlabel="generation", title="Step size (sigma)", ylim=(0, None))
    for axes in (gains, steps):
        axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Software": None})


def draw_ppo(log: Sequence[dict[str, Any]], episodes_per_update: int, path: Path) -> None:
    """Plot the log of a PPO run by episode."""
    figure = Figure(figsize=(11, 7), layout="constrained")
    episodes = episodes_per_update * np.array([line["update"] for line in log])
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        measured = np.array([line[name] for line in log])
        axes.plot(episodes, measured, color="0.8", linewidth=0.8)
        num = min(_SMOOTHED, len(measured))
        axes.plot(episodes[num - 1 :], np.convolve(measured, np.full(num, 1 / num), "valid"), color="C0")
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("episodes")
    figure.savefig(path, dpi=90, metadata={"Software": None})
