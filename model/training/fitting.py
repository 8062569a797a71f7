"""A rank of a cluster's own: what its history asks for is trained on, and days that were not seen decide."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.ranking.files import MANIFEST, WEIGHTS, Evaluation
from model.evaluation.reports import Interval, interval
from model.training import runs
from model.training.runs import TrainConfig, TrainingError
from model.workloads.histories import Part
from model.workloads.sources import OF_HISTORY

RUN: Final = "run"
"""Folder of the search, beside the model."""
_TRAIN_SEEDS: Final = tuple(range(1001, 1009))
_JUDGE_SEEDS: Final = tuple(range(2001, 2013))
_SIGMA: Final = 0.3
_LOADS: Final = ("100", "130")


@dataclass(frozen=True)
class Fitted:
    """What came of it."""

    evaluation: Evaluation
    """On the days held out, at 100 and 130 % arrived load, in orders of their pods."""

    def more(self, load: str, beside: str) -> Interval:
        """Percentage points more than the released rank (`start`) or `fgd`, paired by order."""
        other = self.evaluation.start if beside == "start" else self.evaluation.fgd
        return interval(np.subtract(self.evaluation.kerf[load], other[load]).tolist())

    @property
    def better(self) -> bool:
        """Whether it allocates more than the released rank at 100 %, beyond chance, and no less at 130 %."""
        early, late = (self.more(load, "start") for load in _LOADS)
        return early.mean > (early.half_width or 0.0) and late.mean >= -(late.half_width or 0.0)

    def describe(self) -> dict[str, Any]:
        """As JSON."""

        def gain(load: str, beside: str) -> dict[str, float]:
            found = self.more(load, beside)
            return {"mean": round(found.mean, 4), "half_width": round(found.half_width or 0.0, 4)}

        return {
            "better": self.better,
            "over_released": {load: gain(load, "start") for load in _LOADS},
            "over_fgd": {load: gain(load, "fgd") for load in _LOADS},
            "seeds": list(self.evaluation.seeds),
        }


def config_of(history: Path) -> TrainConfig:
    """What is trained on, and what judges."""
    learn, judge = (f"{OF_HISTORY}{part}:{history}" for part in (Part.LEARN, Part.JUDGE))
    return TrainConfig(
        train=(learn,), train_seeds=_TRAIN_SEEDS, validation=(judge,), validation_seeds=_JUDGE_SEEDS, start="released",
        sigma=_SIGMA, early_weight=0.75,
    )  # fmt: skip


def fit(
    history: Path, out: Path, episodes: int, save_interval: int, tell: Callable[[str], None], *, resume: bool, jobs: int
) -> Fitted:
    """Search from the released rank on; the model is written to `out` only if it is better on the days held out.

    Raises HistoryError, TrainingError; the latter where a model is there already.
    """
    if (out / MANIFEST).exists():
        raise TrainingError(f"{out}: there is a model already; choose another folder")
    config = config_of(history.resolve())
    generations, save_every = (runs.num_generations(config, num) for num in (episodes, save_interval))
    manifest = runs.train(None, config, generations, save_every, out / RUN, tell, resume=resume, jobs=jobs)
    fitted = Fitted(manifest.evaluation[0])
    if fitted.better:
        for name in (WEIGHTS, MANIFEST):  # the manifest last: without it there is no model
            shutil.copy(out / RUN / runs.MODEL / name, out / name)
    return fitted
