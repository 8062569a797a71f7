"""Proximal policy optimisation of the nets: advantages, the clipped loss, one update after the other.

J. Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv:1707.06347) with generalised advantages
(arXiv:1506.02438). Each list of arrivals is played several times; the mean advantage of the other times, arrival by
arrival, is taken off, which takes off what the arrivals themselves gave (leave-one-out, W. Kool et al., "Buy 4
REINFORCE Samples, Get a Baseline for Free!").
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from extender.core.clusters import Floats
from model.training import nets
from model.training.nets import Choice, Seen, Tensors
from model.training.peers import Peers
from model.training.ppo_rollouts import OF_DECISION, Played

_CRITIC: tuple[str, ...] = ("critic_hidden", "critic_bias", "critic_out", "critic_out_bias")


class LearningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the nets learn."""

    learning_rate: float = 0.005
    """Of Adam, at first."""
    critic_learning_rate: float = 0.003
    half_life: int = 100
    """Updates after which the learning rates are half of what they were."""
    epochs: int = 2
    minibatch: int = 2048
    clip: float = 0.2
    trace_decay: float = 0.98
    """Lambda of the generalised advantages, by arrival; rewards are not discounted."""
    largest_norm: float = 1.0
    """Of a gradient."""

    def __post_init__(self) -> None:
        if min(self.half_life, self.epochs, self.minibatch) < 1:
            raise ValueError("half_life, epochs and minibatch must be 1 and more")
        if not (min(self.learning_rate, self.critic_learning_rate) > 0 and self.clip > 0 and self.largest_norm > 0):
            raise ValueError("learning rates, clip and largest_norm must be above 0")


class Learner(NamedTuple):
    """What is learned, changed in place."""

    tensors: Tensors
    adam: torch.optim.Adam


class Samples(NamedTuple):
    """S decisions."""

    seen: Seen
    choice: Choice
    action: torch.Tensor
    """(S,) level taken, L to skip."""
    log_probability: torch.Tensor
    """(S,) of the action when it was tried."""
    advantage: torch.Tensor
    """(S,) mean 0, deviation 1."""
    target: torch.Tensor
    """(S,) of the critic."""

    def part(self, rows: torch.Tensor) -> "Samples":
        """Some of the decisions."""
        own = {name: getattr(self.seen, name)[rows] for name in (*OF_DECISION, "scenario")}
        return Samples(
            self.seen._replace(**own), Choice(*(field[rows] for field in self.choice)),
            *(getattr(self, name)[rows] for name in ("action", "log_probability", "advantage", "target")),
        )  # fmt: skip


def learner(arrays: dict[str, Floats], config: LearningConfig, fixed: tuple[str, ...], device: str) -> Learner:
    """A learner from arrays, of which some are `fixed`; its optimiser remembers nothing yet."""
    tensors = {
        name: tensor.detach().to(device).requires_grad_(name not in fixed)
        for name, tensor in nets.tensors_of(arrays, fixed).items()
    }
    trained = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    groups = [
        {"params": [tensor for name, tensor in trained.items() if name not in _CRITIC], "lr": config.learning_rate},
        {"params": [tensor for name, tensor in trained.items() if name in _CRITIC], "lr": config.critic_learning_rate},
    ]
    return Learner(tensors, torch.optim.Adam(groups))


def _filled(values: Floats) -> Floats:
    """(E, T) values where there are some, else those of the next arrival with one, 0 after the last."""
    found = values.copy()
    following = np.zeros(len(values))
    for t in range(values.shape[1] - 1, -1, -1):
        found[:, t] = following = np.where(np.isnan(found[:, t]), following, found[:, t])
    return found


def _advantages(rewards: Floats, values: Floats, decay: float) -> Floats:
    """(E, T) generalised advantages: sums of decay^k x (reward + next value - value)."""
    following = np.column_stack([values[:, 1:], np.zeros(len(values))])
    surprise, found = rewards + following - values, np.zeros(rewards.shape)
    gathered = np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        gathered = surprise[:, t] + decay * gathered
        found[:, t] = gathered
    return found


def _against_others(advantage: Floats, times: int) -> Floats:
    """(E, T) advantages less the mean of the other times of the same arrivals; `times` of each follow each other."""
    same = advantage.reshape(-1, times, advantage.shape[1])
    others = (same.sum(axis=1, keepdims=True) - same) / max(times - 1, 1)
    relative: Floats = (same - others).reshape(advantage.shape)
    return relative


def samples(played: Sequence[Played], times: int, config: LearningConfig, device: str) -> Samples:
    """The decisions of orders, in which each list of arrivals was played so many `times`."""
    relative, target = [], []
    for one in played:
        values = _filled(one.values)
        advantage = _advantages(one.rewards, values, config.trace_decay)
        at = one.decisions["episode"], one.decisions["clock"]
        relative.append(_against_others(advantage, times)[at])
        target.append((advantage + values)[at])
    gained = np.concatenate(relative)
    gained = (gained - gained.mean()) / (gained.std() + 1e-8)

    def joined(name: str) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([one.decisions[name] for one in played])).to(device)

    most = max(len(one.pods) for one in played)
    pods = np.stack([np.pad(one.pods, ((0, most - len(one.pods)), (0, 0))) for one in played])
    log_count = np.full((len(played), most), -np.inf)
    for i, one in enumerate(played):
        log_count[i, : len(one.pods)] = np.log(one.frequency)
    scenario = np.repeat(np.arange(len(played)), [len(one.decisions["action"]) for one in played])
    nodes, cluster, offered = (joined(name) for name in OF_DECISION)
    context = np.stack([one.context for one in played])
    expected = {"pods": pods, "pod_log_count": log_count, "context": context, "scenario": scenario}
    given = {name: torch.from_numpy(array).to(device) for name, array in expected.items()}
    seen = Seen(nodes=nodes, cluster=cluster, offered=offered, **given)
    choice = Choice(*(joined(name) for name in Choice._fields))
    learned = (torch.from_numpy(array).to(device) for array in (gained, np.concatenate(target)))
    return Samples(seen, choice, joined("action"), joined("log_probability"), *learned)


def update(
    of: Learner, played: Samples, number: int, config: LearningConfig, temperature: float, seed: int, peers: Peers
) -> dict[str, float]:
    """Learn from samples, in place; `number` counts updates. Returns what is logged.

    Each peer takes its part of each minibatch, and all take the step of the summed gradient.
    """
    faded = 0.5 ** (number / config.half_life)
    for group, rate in zip(of.adam.param_groups, (config.learning_rate, config.critic_learning_rate), strict=True):
        group["lr"] = rate * faded
    rng = np.random.default_rng([seed, 1, number])
    num_samples = len(played.action)
    scale = max(float(played.target.var()), 1e-6)
    losses, divergences = [], []
    for _ in range(config.epochs):
        for rows in np.array_split(rng.permutation(num_samples), -(-num_samples // config.minibatch)):
            own = played.part(torch.from_numpy(rows[peers.rank :: peers.number]))
            loss, value_loss, ratio = _clipped_loss(of.tensors, own, len(rows), scale, config, temperature)
            of.adam.zero_grad()
            loss.backward()
            trained = [tensor for tensor in of.tensors.values() if tensor.requires_grad]
            for tensor in trained:
                tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                peers.add_up(tensor.grad)
            torch.nn.utils.clip_grad_norm_(trained, config.largest_norm)
            of.adam.step()
            losses.append(float(value_loss.detach()))
            divergences.append(float((ratio - 1 - ratio.log()).mean()) if len(ratio) else 0.0)
    return {"value_loss": float(np.mean(losses)), "divergence": float(np.mean(divergences))}


def _clipped_loss(
    tensors: Tensors, own: Samples, num: int, scale: float, config: LearningConfig, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This peer's part of the loss of a minibatch of `num` samples, the critic's by `scale`, and its (rows,) ratios of
    probability."""
    known = nets.contexts(own.seen, tensors)
    odds = torch.log_softmax(nets.logits(own.choice, own.seen, known, tensors, temperature), dim=1)
    ratio = torch.exp(odds.gather(1, own.action[:, None])[:, 0] - own.log_probability)
    bounded = ratio.clamp(1 - config.clip, 1 + config.clip)
    gain = torch.minimum(ratio * own.advantage, bounded * own.advantage).sum() / num
    value_loss = ((nets.values(own.seen, known, tensors) - own.target) ** 2).sum() / num / scale
    return value_loss / 2 - gain, value_loss, ratio.detach()
