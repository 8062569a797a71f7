"""Proximal policy optimisation of the attention actor: advantages, the clipped loss, one update after the other.

J. Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv:1707.06347) with generalised advantages
(arXiv:1506.02438). Each scene is played several times; the mean advantage of the other times is taken off, step by
step, which takes off what the scene itself gave (leave-one-out, W. Kool et al., "Buy 4 REINFORCE Samples, Get a
Baseline for Free!").
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from extender.core.clusters import Floats
from model.training import nets
from model.training.nets import Batch, Tensors
from model.training.peers import Peers
from model.training.ppo_episodes import Episode


class LearningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the actor learns."""

    learning_rate: float = 0.0003
    """Of Adam, at first."""
    half_life: int = 150
    """Updates after which learning rate and weight of the entropy are half of what they were."""
    epochs: int = 4
    minibatches: int = 2
    clip: float = 0.2
    trace_decay: float = 0.95
    """Lambda of the generalised advantages; rewards are not discounted."""
    value_weight: float = 0.5
    entropy_weight: float = 0.003
    """At first."""
    sigma: float = 0.5
    """Of the points drawn about the actor's, at first; learned from there."""
    largest_norm: float = 1.0
    """Of a gradient."""

    def __post_init__(self) -> None:
        if min(self.half_life, self.epochs, self.minibatches) < 1:
            raise ValueError("half_life, epochs and minibatches must be 1 and more")
        if not (self.learning_rate > 0 and self.clip > 0 and self.sigma > 0 and self.largest_norm > 0):
            raise ValueError("learning_rate, clip, sigma and largest_norm must be above 0")


class Learner(NamedTuple):
    """What is learned, changed in place."""

    tensors: Tensors
    """Arrays of actor and critic, and `log_sigma` (D,)."""
    adam: torch.optim.Adam


class Samples(NamedTuple):
    """S steps of all episodes."""

    seen: Batch
    points: torch.Tensor
    """(S, D) tried."""
    log_probability: torch.Tensor
    """(S,) of the points when they were tried."""
    advantage: torch.Tensor
    """(S,) mean 0, deviation 1."""
    target: torch.Tensor
    """(S,) of the critic."""


def learner(arrays: dict[str, Floats], config: LearningConfig, device: str) -> Learner:
    """A learner from arrays; its optimiser remembers nothing yet."""
    tensors = nets.tensors_of(arrays, device)
    trained = [tensor for tensor in tensors.values() if tensor.requires_grad]
    return Learner(tensors, torch.optim.Adam(trained, lr=config.learning_rate))


def advantages(rewards: Sequence[Floats], values: Sequence[Floats], decay: float) -> list[Floats]:
    """Generalised advantages of episodes, each (T,): sums of decay^k x (reward + next value - value)."""
    found = []
    for reward, value in zip(rewards, values, strict=True):
        surprise = reward + np.append(value[1:], 0.0) - value
        gathered, advantage = 0.0, np.zeros(len(reward))
        for t in range(len(reward) - 1, -1, -1):
            gathered = surprise[t] + decay * gathered
            advantage[t] = gathered
        found.append(advantage)
    return found


def against_others(advantage: Sequence[Floats], times: int) -> list[Floats]:
    """Advantages less the mean of the other times that the same scene was played; `times` of each follow each other."""
    found: list[Floats] = []
    for first in range(0, len(advantage), times):
        same = np.stack(advantage[first : first + times])  # (times, T)
        others = (same.sum(axis=0) - same) / max(times - 1, 1)
        found += list(same - others)
    return found


def samples(episodes: Sequence[Episode], times: int, of: Learner, config: LearningConfig) -> Samples:
    """The steps of episodes, `times` of each scene."""
    device = str(of.tensors["begin"].device)
    seen = nets.batch_of([sight for episode in episodes for sight in episode.sights], device)
    points = torch.from_numpy(np.concatenate([episode.points for episode in episodes])).to(device)
    with torch.no_grad():
        known = nets.contexts(seen, of.tensors)
        value = nets.values(known, of.tensors).cpu().numpy()
        log_probability = _log_probability(points, nets.points(known, of.tensors), of.tensors["log_sigma"])
    ends = np.cumsum([len(episode.rewards) for episode in episodes])
    values = np.split(value, ends[:-1])
    advantage = advantages([episode.rewards for episode in episodes], values, config.trace_decay)
    target = np.concatenate(advantage) + value
    relative = np.concatenate(against_others(advantage, times))
    relative = (relative - relative.mean()) / (relative.std() + 1e-8)
    return Samples(
        seen, points, log_probability, torch.from_numpy(relative).to(device), torch.from_numpy(target).to(device)
    )


def update(
    of: Learner, played: Samples, number: int, config: LearningConfig, seed: int, peers: Peers
) -> dict[str, float]:
    """Learn from samples, in place; `number` counts updates. Returns what is logged.

    Each peer takes its part of each minibatch, and all take the step of the summed gradient.
    """
    faded = 0.5 ** (number / config.half_life)
    for group in of.adam.param_groups:
        group["lr"] = config.learning_rate * faded
    rng = np.random.default_rng([seed, 1, number])
    num_samples = len(played.points)
    losses, divergences, clipped = [], [], []
    for _ in range(config.epochs):
        for rows in np.array_split(rng.permutation(num_samples), min(config.minibatches, num_samples)):
            own = torch.from_numpy(rows[peers.rank :: peers.number])
            loss, value_loss, ratio = clipped_loss(
                of.tensors, played, own, len(rows), config, config.entropy_weight * faded, peers
            )
            of.adam.zero_grad()
            loss.backward()
            trained = [tensor for tensor in of.tensors.values() if tensor.requires_grad]
            for tensor in trained:
                peers.add_up(tensor.grad)
            torch.nn.utils.clip_grad_norm_(trained, config.largest_norm)
            of.adam.step()
            losses.append(float(value_loss.detach()))
            divergences.append(float((ratio - 1 - ratio.log()).mean()) if len(own) else 0.0)
            clipped.append(float(((ratio - 1).abs() > config.clip).double().mean()) if len(own) else 0.0)
    return {
        "value_loss": float(np.mean(losses)), "divergence": float(np.mean(divergences)),
        "clipped": float(np.mean(clipped)), "sigma": float(of.tensors["log_sigma"].detach().exp().mean()),
    }  # fmt: skip


def clipped_loss(
    tensors: Tensors,
    played: Samples,
    rows: torch.Tensor,
    num: int,
    config: LearningConfig,
    entropy_weight: float,
    peers: Peers,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """This peer's part of the loss of a minibatch of `num` samples, the critic's, and (rows,) ratios of probability."""
    known = nets.contexts(played.seen.part(rows), tensors)
    log_probability = _log_probability(played.points[rows], nets.points(known, tensors), tensors["log_sigma"])
    ratio = torch.exp(log_probability - played.log_probability[rows])
    advantage = played.advantage[rows]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage).sum() / num
    value_loss = ((nets.values(known, tensors) - played.target[rows]) ** 2).sum() / num
    entropy = tensors["log_sigma"].sum() / peers.number
    return -gain + config.value_weight * value_loss - entropy_weight * entropy, value_loss, ratio.detach()


def _log_probability(points: torch.Tensor, means: torch.Tensor, log_sigma: torch.Tensor) -> torch.Tensor:
    """(B,) of points (B, D) under normal distributions."""
    distance = (points - means) * torch.exp(-log_sigma)
    return -(0.5 * distance**2 + log_sigma + 0.5 * math.log(2 * math.pi)).sum(dim=1)
