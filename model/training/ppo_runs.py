"""Training runs of the attention actor by PPO: updates, checkpoints, curves, the model at the end.

Equal configurations give equal models on one machine, whether a run was interrupted or not: what is random is drawn
from the seed and the number of the update, and torch computes in one thread.
"""

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import torch
import yaml

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import Attention
from extender.core.valuenet.features import FEATURES
from extender.ranking import files
from model.simulations import learned
from model.simulations.learned import Foresight
from model.training import nets, plots, ppo_episodes, ppo_learning, ppo_rollouts
from model.training.peers import ALONE, Peers
from model.training.ppo_episodes import Source
from model.training.ppo_learning import Learner, LearningConfig
from model.training.ppo_rollouts import Order, Play
from model.training.runs import (
    CHECKPOINT,
    MODEL,
    Tell,
    TrainingError,
    evaluate,
    read_checkpoint,
    refuse_to_overwrite,
    write_checkpoint,
)
from model.training.tasks import BEGIN, LOG_QUANTUM_REACH, PUBLISHED_SEEDS, QUANTUM, REACH, REACH_OTHERS, Task, Tasks
from model.workloads.sources import named

CURVES: Final = "curves.png"

Start = Literal["fgd", "prices"]
_BEGIN: Final = {"fgd": ({"fragment": -1.0}, 0.04), "prices": (BEGIN, QUANTUM)}
"""Weights of a potential made by hand, and its quantum; FGD's: `potentials.fragments_only`."""
_REACH: Final = REACH | {"node_idle": 0.5}
"""How far 1 of the actor's point leads."""


class PpoConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is trained on, and how."""

    train: tuple[str, ...]
    """Traces that scenes are drawn from: some of the nodes, the pods in an order of its own."""
    validation: tuple[str, ...] = ()
    """Traces of the evaluation in the manifest, whole; default: those of `train`."""
    validation_seeds: tuple[int, ...]
    seed: int = 0
    """Seed of everything random."""
    num_nodes: int = 100
    """Of a scene; all of the trace's where it has fewer."""
    steps: int = 4
    """Looks at the cluster in an episode."""
    scenes: int = 2
    """Drawn from each trace for an update."""
    times: int = 8
    """That each scene is played, an even number."""
    start: Start = "prices"
    """The potential that the actor begins with: FGD's fragment, or with shadow prices and shortage of CPU beside it."""
    embedding: int = 16
    queries: int = 4
    """Of the attention over nodes and over expected pods; 0: the actor knows the cluster by its sums alone."""
    hidden: int = 32
    learning: LearningConfig = LearningConfig()
    foresight_load: float = 1.0

    def __post_init__(self) -> None:
        if not self.train or not self.validation_seeds:
            raise ValueError("train and validation_seeds must not be empty")
        if published := PUBLISHED_SEEDS & set(self.validation_seeds):
            raise ValueError(f"seeds {sorted(published)} are the published experiment's, for final tables only")
        if min(self.num_nodes, self.scenes, self.embedding, self.hidden) < 1 or self.queries < 0:
            raise ValueError("num_nodes, scenes, embedding and hidden must be 1 and more, queries 0 and more")
        if self.times < 2 or self.times % 2 or self.steps < 2 or not self.foresight_load > 0:
            raise ValueError("times must be even and above 0, steps 2 and more, foresight_load above 0")

    @property
    def episodes_per_update(self) -> int:
        """Episodes that an update learns from."""
        return len(self.train) * self.scenes * self.times


def read_config(path: Path) -> PpoConfig:
    """The configuration of a YAML file. Raises TrainingError that names the file and what is wrong."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), PpoConfig)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise TrainingError(f"{path}: {error}") from None


def num_updates(config: PpoConfig, num_episodes: int) -> int:
    """Updates for at least so many episodes."""
    return -(-num_episodes // config.episodes_per_update)


class Run:
    """One run, in a folder."""

    def __init__(
        self,
        directory: Path,
        config: PpoConfig,
        out: Path,
        *,
        peers: Peers = ALONE,
        playing: Callable[[Sequence[Source]], Play] = ppo_rollouts.here,
    ) -> None:
        self.config, self.out, self.peers = config, out, peers
        self.log: list[dict[str, Any]] = []
        self._directory, self._playing = directory, playing

    def train(self, updates: int, save_every: int, tell: Tell, *, resume: bool) -> files.Manifest | None:
        """Learn up to a number of updates, with a checkpoint after every `save_every`; write the model.

        Raises TrainingError when there is something in the way, or nothing to resume. Only the first of several peers
        writes, and returns a manifest.
        """
        torch.set_num_threads(1)
        self.out.mkdir(parents=True, exist_ok=True)
        tell("shadow prices")
        sources = [
            ppo_episodes.source(self._directory, trace, Foresight(self.config.foresight_load))
            for trace in self.config.train
        ]
        play = self._playing(sources)
        of = self._resumed() if resume else self._fresh(sources)
        for number in range(len(self.log), updates):
            last = f", {self.log[-1]['gain']:+.2f} points" if self.log else ""
            tell(f"update {number + 1}{last}")
            self._step(of, number, play)
            if self.peers.rank == 0 and ((number + 1) % save_every == 0 or number + 1 == updates):
                self._save(of)
        return self._write(of, tell) if self.peers.rank == 0 else None

    def _step(self, of: Learner, number: int, play: Play) -> None:
        config = self.config
        arrays = nets.arrays_of(of.tensors)
        orders = [
            Order(source, (config.seed, 2, number, source, k), config.num_nodes, config.steps, config.times)
            for source in range(len(config.train))
            for k in range(config.scenes)
        ]
        own = play(self.peers.own(orders), nets.actor_of(arrays), np.exp(arrays["log_sigma"]))
        played = self.peers.gathered(own)
        episodes = [episode for scene in played for episode in scene]
        learned_from = ppo_learning.samples(episodes, config.times, of, config.learning)
        told = ppo_learning.update(of, learned_from, number, config.learning, config.seed, self.peers)
        gains = np.array([episode.rewards.sum() for episode in episodes]).reshape(len(config.train), -1).mean(axis=1)
        by_trace = dict(zip(config.train, gains.round(4).tolist(), strict=True))
        told = {name: round(value, 6) for name, value in told.items()}
        self.log.append({"update": number + 1, "gain": round(float(gains.mean()), 4), **told, "by_trace": by_trace})

    def _fresh(self, sources: Sequence[Source]) -> Learner:
        refuse_to_overwrite(self.out)
        config = self.config
        rng = np.random.default_rng([config.seed, 0])
        arrays = nets.initial(beginning(config, sources, rng), rng)
        arrays["log_sigma"] = np.full(len(FEATURES) + 1, np.log(config.learning.sigma))
        return ppo_learning.learner(arrays, config.learning, _device())

    def _save(self, of: Learner) -> None:
        arrays: dict[str, Any] = {f"net/{name}": array for name, array in nets.arrays_of(of.tensors).items()}
        for key, state in of.adam.state_dict()["state"].items():
            arrays |= {f"adam/{key}/{name}": tensor.cpu().numpy() for name, tensor in state.items()}
        write_checkpoint(self.out, self.config, arrays, self.log)
        plots.draw_ppo(self.log, self.config.episodes_per_update, self.out / CURVES)

    def _resumed(self) -> Learner:
        path = self.out / CHECKPOINT
        try:
            arrays, self.log = read_checkpoint(path, self.config)
        except (OSError, KeyError, EOFError, ValueError, zipfile.BadZipFile) as error:
            raise TrainingError(f"{path}: nothing to resume: {error}") from None
        net = {name.removeprefix("net/"): array for name, array in arrays.items() if name.startswith("net/")}
        of = ppo_learning.learner(net, self.config.learning, _device())
        remembered = of.adam.state_dict()
        for name, array in arrays.items():
            if name.startswith("adam/"):
                _, key, part = name.split("/")
                remembered["state"].setdefault(int(key), {})[part] = torch.from_numpy(array)
        of.adam.load_state_dict(remembered)
        return of

    def _write(self, of: Learner, tell: Tell) -> files.Manifest:
        actor = nets.actor_of(nets.arrays_of(of.tensors))
        known = Tasks(named(self._directory), Foresight(self.config.foresight_load))
        traces, seeds = self.config.validation or self.config.train, self.config.validation_seeds
        evaluation = evaluate(known, traces, seeds, lambda task: allocations(task, actor), tell)
        training = {
            "mode": "ppo", "updates": len(self.log), "episodes": len(self.log) * self.config.episodes_per_update,
            "config": msgspec.to_builtins(self.config),
        }  # fmt: skip
        return files.write(self.out / MODEL, actor, self.config.foresight_load, training, evaluation)


def allocations(task: Task, actor: Attention) -> tuple[float, ...]:
    """Percent allocated at each of LOADS under an actor."""
    return learned.allocations(task.offered, ppo_episodes.replay(task.offered, task.outlook, actor).placed)


def beginning(config: PpoConfig, sources: Sequence[Source], rng: np.random.Generator) -> Attention:
    """An actor that gives the potential of `start` whatever it sees; it scales what it sees by a first look."""
    arrays: dict[str, Floats] = {
        name: np.zeros(shape)
        for name, shape in attention.shapes(config.embedding, config.queries, config.hidden).items()
    }
    arrays["node_scale"] += 1.0
    weights, quantum = _BEGIN[config.start]
    arrays["begin"] = np.array([*(weights.get(name, 0.0) for name in FEATURES), np.log(quantum)])
    arrays["reach"] = np.array([*(_REACH.get(name, REACH_OTHERS) for name in FEATURES), LOG_QUANTUM_REACH])
    actor = Attention(**arrays)
    scenes = [ppo_episodes.scene(drawn_from, config.num_nodes, config.steps, rng) for drawn_from in sources]
    played = [ppo_episodes.episode(drawn, actor, np.zeros((len(drawn.ends), 1))) for drawn in scenes]
    rows = np.concatenate([sight.nodes for episode in played for sight in episode.sights])
    return actor._replace(node_shift=rows.mean(axis=0), node_scale=1 / np.maximum(rows.std(axis=0), 1e-3))


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"
