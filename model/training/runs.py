"""Training runs: generations of a search over tasks, checkpoints, the model at the end.

Equal configurations give equal models, whether a run was interrupted or not: candidates are drawn from the seed and
the number of the generation.
"""

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import yaml

from extender.core.clusters import Floats
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import Potential
from extender.ranking import files
from model.simulations.learned import Foresight
from model.simulations.measures import LOADS
from model.training import plots, strategies
from model.training.players import Play, playing
from model.training.strategies import State
from model.training.tasks import PUBLISHED_SEEDS, Task, Tasks, num_parameters, point_of, potential_at
from model.workloads.sources import MIXED, named

CHECKPOINT: Final = "checkpoint.npz"
_LOG: Final = "log.jsonl"
_PLOT: Final = "training.png"
MODEL: Final = "model"

_CONFIGS: Final = Path(__file__).parent / "configs"
FIRST_DRAWN: Final = 1_000_000
"""Mixes to train on are drawn from seeds from here on, so that none is validated on."""

Tell = Callable[[str], None]
"""Hears of each step before it begins."""


class TrainingError(ValueError):
    """A run that can't be done: says why."""


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is trained on, and how."""

    train: tuple[str, ...]
    """Traces of the episodes, or `mix:KIND`."""
    train_seeds: tuple[int, ...] = ()
    """Orders of the traces' arrivals; each generation sees one, in turn."""
    mixes_per_generation: int = 4
    """How many mixes each generation sees of each kind, drawn anew."""
    traces_per_generation: int = 0
    """How many of the traces a generation is tried on, in turn; 0: all."""
    early_weight: float = 0.5
    """Weight of the gain at 100 % arrived load; the rest is that at 130 %."""
    validation: tuple[str, ...] = ()
    """Traces of the evaluation in the manifest; default: those of `train`."""
    validation_seeds: tuple[int, ...]
    seed: int = 0
    """Of the search."""
    sigma: float = 0.5
    """Length of the first steps."""
    population: int = 0
    """Candidates of a generation; 0: the strategy's default."""
    worse_weight: float = 0.25
    """What a percentage point less than FGD on a trace costs beyond its part in the mean."""
    foresight_load: float = 1.0
    by_context: bool = False
    """Whether weights may depend on what kind of pods are expected: five times as many numbers to find."""
    start: str = ""
    """Folder of the linear model to begin at, or `released`; default: what was chosen by hand."""
    without: tuple[str, ...] = ()
    """Features that are left out, to see what they are for."""
    prices: bool = True
    """False, to see what prices are for: a model trained without them is none to serve."""

    def __post_init__(self) -> None:
        of_traces = any(not name.startswith(MIXED) for name in self.train)
        if not self.train or (of_traces and not self.train_seeds) or not self.validation_seeds:
            raise ValueError("train, train_seeds and validation_seeds must not be empty")
        if max(self.validation_seeds) >= FIRST_DRAWN or self.mixes_per_generation < 1:
            raise ValueError(f"validation_seeds are below {FIRST_DRAWN}, mixes_per_generation above 0")
        if published := PUBLISHED_SEEDS & {*self.train_seeds, *self.validation_seeds}:
            raise ValueError(f"seeds {sorted(published)} are the published experiment's, for final tables only")
        if common := set(self.train_seeds) & set(self.validation_seeds):
            raise ValueError(f"seeds {sorted(common)} are both trained and validated on")
        if not 0 <= self.traces_per_generation <= len(self.train) or not 0 <= self.early_weight <= 1:
            raise ValueError("traces_per_generation is at most the traces of train, early_weight between 0 and 1")
        if unknown := {*self.without} - {*FEATURES}:
            raise ValueError(f"without: {', '.join(sorted(unknown))}: no feature of that name; {', '.join(FEATURES)}")
        if self.population < 0 or self.population == 1 or not self.sigma > 0 or not self.foresight_load > 0:
            raise ValueError("sigma and foresight_load must be above 0, population 0 or 2 and more")

    @property
    def num_tried(self) -> int:
        """Traces of a generation."""
        return self.traces_per_generation or len(self.train)

    def episodes_of(self, generation: int) -> list[tuple[str, int]]:
        """Traces or kinds of mixes that a generation is tried on, each with a seed."""
        first = generation * self.num_tried
        found = []
        for name in (self.train[(first + i) % len(self.train)] for i in range(self.num_tried)):
            if name.startswith(MIXED):
                drawn = FIRST_DRAWN + generation * self.mixes_per_generation
                found += [(name, drawn + i) for i in range(self.mixes_per_generation)]
            else:
                found.append((name, self.train_seeds[generation % len(self.train_seeds)]))
        return found

    @property
    def num_candidates(self) -> int:
        """Candidates of a generation."""
        return self.population or strategies.population_size(num_parameters(self.by_context))


ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)


def read_config(path: Path) -> TrainConfig:
    """The configuration of a YAML file, or of the name of one that comes with Kerf.

    Raises TrainingError that names the file and what is wrong.
    """
    return read_config_as(TrainConfig, path)


def read_config_as(kind: type[ConfigT], path: Path) -> ConfigT:
    """The same of another kind of training."""
    own = _CONFIGS / f"{path}.yaml"
    path = own if own.exists() and not path.exists() else path
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), kind)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise TrainingError(f"{path}: {error}") from None


def num_generations(config: TrainConfig, num_episodes: int) -> int:
    """Generations for at least so many episodes: one is a candidate on a trace, or on a mix."""
    return -(-num_episodes // (config.num_candidates * len(config.episodes_of(0))))


def train(
    directory: Path | None,
    config: TrainConfig,
    generations: int,
    save_every: int,
    out: Path,
    tell: Tell,
    *,
    resume: bool,
    jobs: int = 1,
) -> files.Manifest:
    """Search up to a number of generations, with a checkpoint after every `save_every`; write the model.

    Whatever the number of processes, `jobs`, equal configurations give equal models.

    Raises TrainingError when there is something in the way in `out`, or nothing to resume.
    """
    out.mkdir(parents=True, exist_ok=True)
    state, log = _resumed(out, config) if resume else _fresh(out, config)
    foresight = Foresight(config.foresight_load, by_lp=config.prices)
    with playing(directory, foresight, jobs) as play:
        for generation in range(state.generation, generations):
            tell(f"generation {generation + 1}" + (f", {log[-1]['mean']:+.2f} points" if log else ""))
            state, line = _after(state, config, play)
            log.append(line)
            if state.generation % save_every == 0 or state.generation == generations:
                write_checkpoint(out, config, state._asdict(), log)
    plots.draw_search(log, out / _PLOT)
    potential, began = (potential_at(point, config.without) for point in (state.mean, _start(config)))
    validated, seeds = config.validation or config.train, config.validation_seeds
    tasks = Tasks(named(directory), foresight)
    evaluation = evaluate(tasks, validated, seeds, lambda task: task.allocations(potential), tell, began)
    training = {
        "mode": "es", "generations": state.generation,
        "episodes": state.generation * config.num_candidates * len(config.episodes_of(0)),
        "config": msgspec.to_builtins(config),
    }  # fmt: skip
    return files.write(out / MODEL, potential, config.foresight_load, training, evaluation)


def _after(state: State, config: TrainConfig, play: Play) -> tuple[State, dict[str, Any]]:
    """The search after one more generation, and what the log says of it."""
    episodes = config.episodes_of(state.generation)
    tried = strategies.candidates(state, config.num_candidates, config.seed)
    gains = play(episodes, [potential_at(point, config.without) for point in tried])
    success = _successes(gains, config)
    state = strategies.updated(state, tried, success)
    by_trace: dict[str, list[float]] = {}
    for (trace, _), gain in zip(episodes, gains.mean(axis=(0, 2)).tolist(), strict=True):
        by_trace.setdefault(trace, []).append(gain)
    return state, {
        "generation": state.generation, "best": round(float(success.max()), 4),
        "mean": round(float(gains.mean()), 4), "sigma": round(state.sigma, 4),
        "by_trace": {trace: round(fmean(gained), 4) for trace, gained in by_trace.items()},
    }  # fmt: skip


def _successes(gains: Floats, config: TrainConfig) -> Floats:
    """(B,) of (B, episodes, loads) gains: their mean, and less where one is worse than under FGD."""
    by_trace = gains @ np.array([config.early_weight, 1 - config.early_weight])
    found: Floats = by_trace.mean(axis=1) + config.worse_weight * np.minimum(by_trace, 0).sum(axis=1)
    return found


def evaluate(
    tasks: Tasks,
    traces: Sequence[str],
    seeds: tuple[int, ...],
    allocations: Callable[[Task], tuple[float, ...]],
    tell: Tell,
    began: Potential | None = None,
) -> tuple[files.Evaluation, ...]:
    """A model beside FGD, and where its training `began`, on each trace; `allocations` tells what it allocates at each
    of LOADS."""
    found = []
    for trace in traces:
        tell(f"validation on {trace}")
        listed = [tasks.task(trace, seed) for seed in seeds]
        start = [task.allocations(began) for task in listed] if began is not None else []
        kerf, fgd, before = (
            {str(load): tuple(run[i] for run in runs) for i, load in enumerate(LOADS) if runs}
            for runs in ([allocations(task) for task in listed], [task.fgd for task in listed], start)
        )
        found.append(files.Evaluation(trace, seeds, kerf, fgd, before))
    return tuple(found)


def refuse_to_overwrite(out: Path) -> None:
    """Raise TrainingError where a run has left a checkpoint."""
    if (out / CHECKPOINT).exists():
        raise TrainingError(f"{out}: there is a checkpoint; continue with --resume, or choose another folder")


def write_checkpoint(
    out: Path, config: msgspec.Struct, arrays: Mapping[str, Any], log: Sequence[Mapping[str, Any]]
) -> None:
    """Write the checkpoint, whole or not at all, and the log beside it."""
    lines = [json.dumps(line) for line in log]
    with (out / "new.npz").open("wb") as file:
        np.savez(file, **arrays, config=np.array(_text(config)), log=np.array(lines))
    (out / "new.npz").replace(out / CHECKPOINT)
    (out / _LOG).write_text("\n".join(lines) + "\n")


def read_checkpoint(path: Path, config: msgspec.Struct) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Arrays and log. Raises TrainingError for those of another configuration, and whatever NumPy does for a bad file.

    Which of these mean that there is nothing to resume is for who reads.
    """
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive}
    if str(arrays["config"]) != _text(config):
        raise TrainingError(f"{path}: of another configuration: {arrays['config']}")
    return arrays, [json.loads(line) for line in arrays["log"].tolist()]


def _fresh(out: Path, config: TrainConfig) -> tuple[State, list[dict[str, Any]]]:
    refuse_to_overwrite(out)
    return strategies.begin(_start(config), config.sigma), []


def _start(config: TrainConfig) -> Floats:
    """The point that the search begins at. Raises TrainingError."""
    if not config.start:
        return np.zeros(num_parameters(config.by_context))
    potential = linear_model(config.start)
    if len(potential.by_context) and not config.by_context:
        raise TrainingError(f"start: the weights of {config.start} depend on a context, so by_context has to be true")
    return point_of(potential, config.by_context)


def linear_model(name: str) -> Potential:
    """That of a folder, or of `released`. Raises TrainingError where it has a net, or can't be read."""
    try:
        model = files.read(files.RELEASED if name == "released" else Path(name))
    except files.ModelError as error:
        raise TrainingError(f"start: {error}") from None
    if len(model.potential.out):
        raise TrainingError(f"start: {name} has a net, and is to be linear")
    return model.potential


def _resumed(out: Path, config: TrainConfig) -> tuple[State, list[dict[str, Any]]]:
    path = out / CHECKPOINT
    try:
        arrays, log = read_checkpoint(path, config)
        state = State(
            int(arrays["generation"]), arrays["mean"], float(arrays["sigma"]), arrays["covariance"],
            arrays["path_sigma"], arrays["path_covariance"],
        )  # fmt: skip
        return state, log
    except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise TrainingError(f"{path}: nothing to resume: {error}") from None


def _text(config: msgspec.Struct) -> str:
    return msgspec.json.encode(config).decode()
