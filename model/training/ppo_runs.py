"""Training runs of the nets by PPO: updates, checkpoints, curves, final model.

Equal configurations give equal models on one machine, also after interruptions: random numbers depend only on the seed
and the number of the update, and torch uses one thread.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import torch

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import Attention
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import Potential, fragments_only
from extender.ranking import files
from model.simulations import learned, looks
from model.simulations.configs import EpisodeConfig
from model.simulations.episodes import FRAGMENT, Episodes
from model.simulations.learned import Foresight
from model.training import nets, plots, ppo_learning, ppo_rollouts
from model.training.peers import ALONE, Peers
from model.training.ppo_learning import Learner, LearningConfig
from model.training.ppo_rollouts import Order, Play
from model.training.runs import (
    CHECKPOINT,
    FIRST_DRAWN,
    MODEL,
    OnStep,
    TrainingError,
    evaluate,
    linear_model,
    read_checkpoint,
    read_config_as,
    refuse_to_overwrite,
    write_checkpoint,
)
from model.training.tasks import PUBLISHED_SEEDS, REACH, REACH_OTHERS, Task, Tasks, num_parameters, potential_at
from model.workloads.sources import source_lookup

_CURVES: Final = "curves.png"
_LOOKED_AT: Final = 8
"""Number of scenarios for the normalisation of node features."""
_LEAST_SPREAD: Final = 0.01
_OF_LOOKS: Final = ("out", "hidden", "hidden_bias")
"""Arrays that make the weights of V depend on the cluster."""


class PpoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Configuration of a PPO run."""

    train: tuple[str, ...]
    """Traces, or `mix:KIND`, that scenarios are drawn from, each with some of the nodes and an order of arrival."""
    forms: tuple[EpisodeConfig, ...] = (EpisodeConfig(),)
    """Episode configurations; traces and mixes come from `train`."""
    scenarios: int = 8
    """Scenarios of each form per update."""
    lists: int = 4
    """Lists of arrivals per scenario."""
    times: int = 8
    """Rollouts of each list, 2 or more."""
    decisions: int = 32_768
    """Decisions sampled for each update."""
    temperature: float = 0.5
    """Temperature of the choice among nodes in rollouts, in quanta of V."""
    validation: tuple[str, ...] = ()
    """Traces or mixes of the evaluation in the manifest, on whole clusters; default: those of `train`."""
    validation_seeds: tuple[int, ...]
    seed: int = 0
    """Random seed."""
    start: str = "released"
    """Initial V: `fgd` (its fragment), `prices` (chosen by hand), `released`, or the folder of a linear model."""
    net: int = 16
    """Hidden neurons of V; 0: V is linear."""
    by_context: bool = False
    """Whether learned changes of V's weights depend on the expected kind of pods (`features.CONTEXT`); they are 0 for
    pods like openb's."""
    looks: bool = False
    """Whether the weights of V depend on the cluster's current state."""
    skip: bool = True
    """Whether skipping a pod is an action."""
    lifetimes: bool = True
    """Whether skip and critic observe the durations of pod classes."""
    redraw: bool = True
    """Whether each update draws new scenarios; False for ablations."""
    embedding: int = 16
    queries: int = 4
    """Attention queries over nodes and over expected pods; 0: only the cluster's sums are observed."""
    hidden: int = 32
    learning: LearningConfig = LearningConfig()
    foresight_load: float = 1.0

    def __post_init__(self) -> None:
        if not self.train or not self.validation_seeds or not self.forms:
            raise ValueError("train, forms and validation_seeds must not be empty")
        if len({form.num_nodes for form in self.forms}) > 1:
            raise ValueError("all forms must have the same num_nodes")
        if published := PUBLISHED_SEEDS & set(self.validation_seeds):
            raise ValueError(f"seeds {sorted(published)} are held out: the published experiment uses them")
        if max(self.validation_seeds) >= FIRST_DRAWN:
            raise ValueError(f"validation_seeds must be below {FIRST_DRAWN}")
        if min(self.scenarios, self.lists, self.decisions, self.embedding, self.hidden) < 1:
            raise ValueError("scenarios, lists, decisions, embedding and hidden must be 1 or more")
        if self.looks and self.by_context:
            raise ValueError("looks and by_context exclude each other")
        if min(self.queries, self.net) < 0 or self.times < 2:
            raise ValueError("queries and net must be 0 or more, times 2 or more")
        if not (self.temperature > 0 and self.foresight_load > 0):
            raise ValueError("temperature and foresight_load must be above 0")

    @property
    def episodes_per_update(self) -> int:
        """Episodes per update."""
        return len(self.forms) * self.scenarios * self.lists * self.times

    @property
    def fixed(self) -> tuple[str, ...]:
        """Arrays that are not trained."""
        weights = ("out_bias",) if self.by_context else ("by_context",)
        return (*nets.FIXED, *weights, *(() if self.looks else _OF_LOOKS))


def read_config(path: Path) -> PpoConfig:
    """Read a configuration, as `runs.read_config`."""
    return read_config_as(PpoConfig, path)


def num_updates(config: PpoConfig, num_episodes: int) -> int:
    """Return the number of updates for at least `num_episodes`."""
    return -(-num_episodes // config.episodes_per_update)


class Run:
    """A training run in a folder."""

    def __init__(
        self,
        directory: Path | None,
        config: PpoConfig,
        out: Path,
        *,
        peers: Peers = ALONE,
        play: Play | None = None,
    ) -> None:
        self.config, self.out, self.peers = config, out, peers
        self.log: list[dict[str, Any]] = []
        self._directory, self._play = directory, play or ppo_rollouts.here(directory)

    def train(self, updates: int, save_every: int, on_step: OnStep, *, resume: bool) -> files.Manifest | None:
        """Train up to a number of updates, with a checkpoint after every `save_every`; write the model.

        Only the first of several peers writes files and returns a manifest. Raises TrainingError if `out` already has a
        checkpoint, or there is nothing to resume.
        """
        torch.set_num_threads(1)
        self.out.mkdir(parents=True, exist_ok=True)
        begun = _beginning(self.config, self._directory)
        learner = self._resumed() if resume else self._fresh(begun)
        for number in range(len(self.log), updates):
            last = f", {self.log[-1]['allocation']:.1f} %" if self.log else ""
            on_step(f"update {number + 1}{last}")
            self._step(learner, number)
            if self.peers.rank == 0 and ((number + 1) % save_every == 0 or number + 1 == updates):
                self._save(learner)
        return self._write(learner, begun, on_step) if self.peers.rank == 0 else None

    def _step(self, learner: Learner, number: int) -> None:
        config = self.config
        played = self.peers.gather(
            self._play(self.peers.shard(_orders(config, number)), nets.arrays_of(learner.tensors))
        )
        batch = ppo_learning.samples(played, config.times, config.learning, _device())
        logged = ppo_learning.update(
            learner, batch, number, config.learning, config.temperature, config.seed, self.peers
        )
        for name in ("allocation", "skips", "failed"):
            logged[name] = float(np.mean([one.told[name] for one in played])) * (100 if name == "allocation" else 1)
        self.log.append({"update": number + 1, **{name: round(value, 6) for name, value in logged.items()}})

    def _fresh(self, begun: Attention) -> Learner:
        refuse_to_overwrite(self.out)
        arrays = nets.initial(begun, self.config.net, np.random.default_rng([self.config.seed, 0]))
        return ppo_learning.learner(arrays, self.config.learning, self.config.fixed, _device())

    def _save(self, learner: Learner) -> None:
        arrays: dict[str, Any] = {f"net/{name}": array for name, array in nets.arrays_of(learner.tensors).items()}
        for key, state in learner.adam.state_dict()["state"].items():
            arrays |= {f"adam/{key}/{name}": tensor.cpu().numpy() for name, tensor in state.items()}
        write_checkpoint(self.out, self.config, arrays, self.log)
        plots.draw_ppo(self.log, self.config.episodes_per_update, self.out / _CURVES)

    def _resumed(self) -> Learner:
        path = self.out / CHECKPOINT
        try:
            arrays, self.log = read_checkpoint(path, self.config)
        except (OSError, KeyError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise TrainingError(f"{path}: nothing to resume: {error}") from None
        net = {name.removeprefix("net/"): array for name, array in arrays.items() if name.startswith("net/")}
        learner = ppo_learning.learner(net, self.config.learning, self.config.fixed, _device())
        optimiser_state = learner.adam.state_dict()
        for name, array in arrays.items():
            if name.startswith("adam/"):
                _, key, part = name.split("/")
                optimiser_state["state"].setdefault(int(key), {})[part] = torch.from_numpy(array)
        learner.adam.load_state_dict(optimiser_state)
        return learner

    def _write(self, learner: Learner, begun: Attention, on_step: OnStep) -> files.Manifest:
        config = self.config
        weights = _weights_of(nets.arrays_of(learner.tensors), config)
        tasks = Tasks(source_lookup(self._directory), Foresight(config.foresight_load))
        names, seeds = config.validation or config.train, config.validation_seeds
        start = attention.potential_at(begun.out_bias, begun)
        evaluation = evaluate(tasks, names, seeds, lambda task: _allocations(task, weights), on_step, start)
        training = {
            "mode": "ppo", "updates": len(self.log), "episodes": len(self.log) * config.episodes_per_update,
            "config": msgspec.to_builtins(config),
        }  # fmt: skip
        return files.write(self.out / MODEL, weights, config.foresight_load, training, evaluation)


def _orders(config: PpoConfig, number: int) -> list[Order]:
    """Return the rollouts of an update."""
    num = len(config.forms) * config.scenarios
    keep = -(-config.decisions // num)
    found = []
    for i in range(num):
        seeds = (config.seed, 3, number if config.redraw else 0, i)
        rng = np.random.default_rng(seeds)
        found.append(
            Order(
                config.train[int(rng.integers(len(config.train)))], config.forms[i % len(config.forms)], seeds,
                (config.seed, 2, number, i), config.lists, config.times, config.temperature, config.skip,
                config.lifetimes, keep,
            )
        )  # fmt: skip
    return found


def _weights_of(arrays: Mapping[str, Floats], config: PpoConfig) -> Potential | Attention:
    """Return the served weights: a potential, or the actor if the potential depends on the cluster's state."""
    return nets.actor_of(arrays) if config.looks else nets.potential_of(arrays)


def _allocations(task: Task, weights: Potential | Attention) -> tuple[float, ...]:
    """Percent allocated at each of LOADS."""
    if isinstance(weights, Potential):
        return task.allocations(weights)
    return learned.allocations(task.offered, looks.replay(task.offered, task.outlook, weights).placed)


def _beginning(config: PpoConfig, directory: Path | None) -> Attention:
    """Return an actor with the constant potential of `start`, with features normalised on the first scenarios.

    Raises TrainingError.
    """
    shapes = attention.shapes(config.embedding, config.queries, config.hidden, 0)
    arrays: dict[str, Floats] = {name: np.zeros(shape) for name, shape in shapes.items()}
    begun = _start(config.start)
    arrays["begin"] = np.append(begun.weights, np.log(begun.quantum[0]))
    arrays["reach"] = np.array([*(REACH.get(name, REACH_OTHERS) for name in FEATURES), 0.0])
    rows = np.concatenate([_seen(directory, order) for order in _orders(config, 0)[:_LOOKED_AT]])
    arrays["node_shift"], arrays["node_scale"] = rows.mean(axis=0), 1 / np.maximum(rows.std(axis=0), _LEAST_SPREAD)
    return Attention(**arrays)


def _start(name: str) -> Potential:
    if name == "fgd":
        return fragments_only()
    return potential_at(np.zeros(num_parameters(by_context=False))) if name == "prices" else linear_model(name)


def _seen(directory: Path | None, order: Order) -> Floats:
    """(R, F) features of nodes while a cluster fills with least growth of fragments."""
    episodes = Episodes(ppo_rollouts.drawn(directory, order), order.form, 1)
    episodes.begin(0, np.random.default_rng(order.seed))
    rows = []
    while not episodes.over[0]:
        rows.append(episodes.nodes[0].copy())
        grown = episodes.after[:, :, FRAGMENT] - episodes.nodes[:, :, FRAGMENT]
        episodes.step(np.where(episodes.fits, grown, np.inf).argmin(axis=1))
    return np.concatenate(rows)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
