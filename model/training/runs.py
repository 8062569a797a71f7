"""Training runs by evolution strategy: generations, checkpoints, final model.

Equal configurations give equal models, also after interruptions: candidates depend only on the seed and the number of
the generation.
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
from model.workloads.sources import MIXED, source_lookup

CHECKPOINT: Final = "checkpoint.npz"
_LOG: Final = "log.jsonl"
_PLOT: Final = "training.png"
MODEL: Final = "model"

_CONFIGS: Final = Path(__file__).parent / "configs"
FIRST_DRAWN: Final = 1_000_000
"""First seed of training mixes; validation seeds are smaller."""

OnStep = Callable[[str], None]
"""Called with a description of each step before it starts."""


class TrainingError(ValueError):
    """A run that can't be done; the message says why."""


class TrainConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of a run."""

    train: tuple[str, ...]
    """Traces, or `mix:KIND`, of the episodes."""
    train_seeds: tuple[int, ...] = ()
    """Seeds of the traces' order of arrival; generations cycle through them."""
    mixes_per_generation: int = 4
    """Mixes of each kind that are drawn per generation."""
    traces_per_generation: int = 0
    """Traces per generation, in turn; 0: all."""
    early_weight: float = 0.5
    """Weight of the gain at 100 % arrived load; the rest is for 130 %."""
    validation: tuple[str, ...] = ()
    """Traces of the evaluation in the manifest; default: those of `train`."""
    validation_seeds: tuple[int, ...]
    seed: int = 0
    """Seed of the search."""
    sigma: float = 0.5
    """Initial step size."""
    population: int = 0
    """Candidates per generation; 0: the strategy's default."""
    worse_weight: float = 0.25
    """Additional penalty for each percentage point below FGD on a trace."""
    foresight_load: float = 1.0
    by_context: bool = False
    """Whether weights depend on the expected kind of pods, with five times as many parameters."""
    start: str = ""
    """Folder of the initial linear model, or `released`; default: chosen by hand."""
    without: tuple[str, ...] = ()
    """Features to leave out, for ablations."""
    prices: bool = True
    """Whether to use shadow prices; False for ablations: such a model must not be served."""

    def __post_init__(self) -> None:
        of_traces = any(not name.startswith(MIXED) for name in self.train)
        if not self.train or (of_traces and not self.train_seeds) or not self.validation_seeds:
            raise ValueError("train, train_seeds and validation_seeds must not be empty")
        if max(self.validation_seeds) >= FIRST_DRAWN or self.mixes_per_generation < 1:
            raise ValueError(f"validation_seeds must be below {FIRST_DRAWN}, mixes_per_generation above 0")
        if published := PUBLISHED_SEEDS & {*self.train_seeds, *self.validation_seeds}:
            raise ValueError(f"seeds {sorted(published)} are held out: the published experiment uses them")
        if common := set(self.train_seeds) & set(self.validation_seeds):
            raise ValueError(f"seeds {sorted(common)} are in both train_seeds and validation_seeds")
        if not 0 <= self.traces_per_generation <= len(self.train) or not 0 <= self.early_weight <= 1:
            raise ValueError("traces_per_generation must be at most the number of traces, early_weight from 0 to 1")
        if unknown := {*self.without} - {*FEATURES}:
            raise ValueError(f"without: unknown feature {', '.join(sorted(unknown))}; there are {', '.join(FEATURES)}")
        if self.population < 0 or self.population == 1 or not self.sigma > 0 or not self.foresight_load > 0:
            raise ValueError("sigma and foresight_load must be above 0, population 0 or at least 2")

    @property
    def num_tried(self) -> int:
        """Traces per generation."""
        return self.traces_per_generation or len(self.train)

    def episodes_of(self, generation: int) -> list[tuple[str, int]]:
        """Return the traces or kinds of mixes of a generation, each with a seed."""
        first = generation * self.num_tried
        episodes = []
        for name in (self.train[(first + i) % len(self.train)] for i in range(self.num_tried)):
            if name.startswith(MIXED):
                first_seed = FIRST_DRAWN + generation * self.mixes_per_generation
                episodes += [(name, first_seed + i) for i in range(self.mixes_per_generation)]
            else:
                episodes.append((name, self.train_seeds[generation % len(self.train_seeds)]))
        return episodes

    @property
    def num_candidates(self) -> int:
        """Candidates per generation."""
        return self.population or strategies.population_size(num_parameters(self.by_context))


ConfigT = TypeVar("ConfigT", bound=msgspec.Struct)


def read_config(path: Path) -> TrainConfig:
    """Read the configuration from a YAML file, or the name of one shipped with Kerf.

    Raises TrainingError that names the file and the fault.
    """
    return read_config_as(TrainConfig, path)


def read_config_as(kind: type[ConfigT], path: Path) -> ConfigT:
    """As `read_config`, for another kind of training."""
    own = _CONFIGS / f"{path}.yaml"
    path = own if own.exists() and not path.exists() else path
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), kind)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise TrainingError(f"{path}: {error}") from None


def num_generations(config: TrainConfig, num_episodes: int) -> int:
    """Return the generations for at least `num_episodes`; an episode is one candidate on one trace or mix."""
    return -(-num_episodes // (config.num_candidates * len(config.episodes_of(0))))


def train(
    directory: Path | None,
    config: TrainConfig,
    generations: int,
    save_every: int,
    out: Path,
    on_step: OnStep,
    *,
    resume: bool,
    jobs: int = 1,
) -> files.Manifest:
    """Train up to a number of generations, with a checkpoint after every `save_every`; write the model.

    The model does not depend on `jobs`, the number of processes. Raises TrainingError if `out` already has a
    checkpoint, or there is nothing to resume.
    """
    out.mkdir(parents=True, exist_ok=True)
    state, log = _resumed(out, config) if resume else _fresh(out, config)
    foresight = Foresight(config.foresight_load, by_lp=config.prices)
    with playing(directory, foresight, jobs) as play:
        for generation in range(state.generation, generations):
            on_step(f"generation {generation + 1}" + (f", {log[-1]['mean']:+.2f} points" if log else ""))
            state, line = _after(state, config, play)
            log.append(line)
            if state.generation % save_every == 0 or state.generation == generations:
                write_checkpoint(out, config, state._asdict(), log)
    plots.draw_search(log, out / _PLOT)
    potential, start_potential = (potential_at(point, config.without) for point in (state.mean, _start(config)))
    validated, seeds = config.validation or config.train, config.validation_seeds
    tasks = Tasks(source_lookup(directory), foresight)
    evaluation = evaluate(tasks, validated, seeds, lambda task: task.allocations(potential), on_step, start_potential)
    training = {
        "mode": "es", "generations": state.generation,
        "episodes": state.generation * config.num_candidates * len(config.episodes_of(0)),
        "config": msgspec.to_builtins(config),
    }  # fmt: skip
    return files.write(out / MODEL, potential, config.foresight_load, training, evaluation)


def _after(state: State, config: TrainConfig, play: Play) -> tuple[State, dict[str, Any]]:
    """Run one generation; returns the new state and the log line."""
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
    """(B,) fitness of (B, episodes, loads) gains: the mean, with a penalty for episodes below FGD."""
    by_trace = gains @ np.array([config.early_weight, 1 - config.early_weight])
    found: Floats = by_trace.mean(axis=1) + config.worse_weight * np.minimum(by_trace, 0).sum(axis=1)
    return found


def evaluate(
    tasks: Tasks,
    traces: Sequence[str],
    seeds: tuple[int, ...],
    allocations: Callable[[Task], tuple[float, ...]],
    on_step: OnStep,
    began: Potential | None = None,
) -> tuple[files.Evaluation, ...]:
    """Evaluate a model, FGD and the initial potential (`began`) on each trace; `allocations` returns the model's
    percent at each of LOADS."""
    found = []
    for trace in traces:
        on_step(f"validation on {trace}")
        listed = [tasks.task(trace, seed) for seed in seeds]
        start = [task.allocations(began) for task in listed] if began is not None else []
        kerf, fgd, before = (
            {str(load): tuple(run[i] for run in runs) for i, load in enumerate(LOADS) if runs}
            for runs in ([allocations(task) for task in listed], [task.fgd for task in listed], start)
        )
        found.append(files.Evaluation(trace, seeds, kerf, fgd, before))
    return tuple(found)


def refuse_to_overwrite(out: Path) -> None:
    """Raise TrainingError if there is a checkpoint."""
    if (out / CHECKPOINT).exists():
        raise TrainingError(f"{out}: already has a checkpoint; continue with --resume, or choose another folder")


def write_checkpoint(
    out: Path, config: msgspec.Struct, arrays: Mapping[str, Any], log: Sequence[Mapping[str, Any]]
) -> None:
    """Write the checkpoint atomically, and the log."""
    lines = [json.dumps(line) for line in log]
    with (out / "new.npz").open("wb") as file:
        np.savez(file, **arrays, config=np.array(_text(config)), log=np.array(lines))
    (out / "new.npz").replace(out / CHECKPOINT)
    (out / _LOG).write_text("\n".join(lines) + "\n")


def read_checkpoint(path: Path, config: msgspec.Struct) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Read arrays and log. Raises TrainingError for another configuration, and NumPy's errors for an invalid file."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive}
    if str(arrays["config"]) != _text(config):
        raise TrainingError(f"{path}: belongs to another configuration: {arrays['config']}")
    return arrays, [json.loads(line) for line in arrays["log"].tolist()]


def _fresh(out: Path, config: TrainConfig) -> tuple[State, list[dict[str, Any]]]:
    refuse_to_overwrite(out)
    return strategies.begin(_start(config), config.sigma), []


def _start(config: TrainConfig) -> Floats:
    """Return the initial point of the search. Raises TrainingError."""
    if not config.start:
        return np.zeros(num_parameters(config.by_context))
    potential = linear_model(config.start)
    if len(potential.by_context) and not config.by_context:
        raise TrainingError(f"start: the weights of {config.start} depend on a context, so by_context must be true")
    return point_of(potential, config.by_context)


def linear_model(name: str) -> Potential:
    """Read the linear potential of a folder, or of `released`. Raises TrainingError if it has a net or is invalid."""
    try:
        model = files.read(files.RELEASED if name == "released" else Path(name))
    except files.ModelError as error:
        raise TrainingError(f"start: {error}") from None
    if len(model.potential.out):
        raise TrainingError(f"start: {name} has a net, but must be linear")
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
