"""Curves of a PPO run as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

_SMOOTHED: Final = 20
"""Updates of the moving mean."""
_PANELS: Final = (
    ("gain", "gain over FGD while exploring, points"),
    ("value_loss", "loss of the critic"),
    ("sigma", "mean sigma of the points tried"),
    ("divergence", "divergence of an update (KL)"),
)


def write(log: Sequence[dict[str, Any]], episodes_per_update: int, path: Path) -> None:
    """Write a PNG of what a run logged; equal logs give equal pictures."""
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
