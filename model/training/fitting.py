"""Fitting of the learned rank to a cluster's history, with evaluation on held-out days."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from extender.ranking.files import MANIFEST, WEIGHTS, Evaluation
from model.evaluation.reports import Interval, interval
from model.training import runs
from model.training.runs import OnStep, TrainConfig, TrainingError
from model.workloads.histories import Part
from model.workloads.sources import OF_HISTORY

RUN: Final = "run"
"""Subfolder of the search."""
_TRAIN_SEEDS: Final = tuple(range(1001, 1009))
_JUDGE_SEEDS: Final = tuple(range(2001, 2013))
_SIGMA: Final = 0.3
_LOADS: Final = ("100", "130")


@dataclass(frozen=True)
class Fitted:
    """Result of a fit."""

    evaluation: Evaluation
    """Evaluation on the held-out days at 100 and 130 % arrived load, in several orders of arrival."""

    def more(self, load: str, beside: str) -> Interval:
        """Return the gain over the released rank (`start`) or `fgd` in percentage points, paired by order."""
        other = self.evaluation.start if beside == "start" else self.evaluation.fgd
        return interval(np.subtract(self.evaluation.kerf[load], other[load]).tolist())

    @property
    def better(self) -> bool:
        """Whether it allocates significantly more than the released rank at 100 %, and not less at 130 %."""
        early, late = (self.more(load, "start") for load in _LOADS)
        return early.mean > (early.half_width or 0.0) and late.mean >= -(late.half_width or 0.0)

    def describe(self) -> dict[str, Any]:
        """Return the result as JSON data."""

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
    """Return the configuration: training days, held-out days, search."""
    learn, judge = (f"{OF_HISTORY}{part}:{history}" for part in (Part.LEARN, Part.JUDGE))
    return TrainConfig(
        train=(learn,), train_seeds=_TRAIN_SEEDS, validation=(judge,), validation_seeds=_JUDGE_SEEDS, start="released",
        sigma=_SIGMA, early_weight=0.75,
    )  # fmt: skip


def fit(
    history: Path, out: Path, episodes: int, save_interval: int, on_step: OnStep, *, resume: bool, jobs: int
) -> Fitted:
    """Search, starting from the released rank; the model is written to `out` only if it is better on the held-out days.

    Raises HistoryError, and TrainingError also if `out` already has a model.
    """
    if (out / MANIFEST).exists():
        raise TrainingError(f"{out}: already has a model; choose another folder")
    config = config_of(history.resolve())
    generations, save_every = (runs.num_generations(config, num) for num in (episodes, save_interval))
    manifest = runs.train(None, config, generations, save_every, out / RUN, on_step, resume=resume, jobs=jobs)
    fitted = Fitted(manifest.evaluation[0])
    if fitted.better:
        for name in (WEIGHTS, MANIFEST):  # the manifest last: it marks the model as complete
            shutil.copy(out / RUN / runs.MODEL / name, out / name)
    return fitted
