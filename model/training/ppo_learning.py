"""Proximal policy optimisation (PPO) of the nets: advantages, clipped loss, updates.

J. Schulman et al., "Proximal Policy Optimization Algorithms" (arXiv:1707.06347) with generalised advantage estimation
(arXiv:1506.02438). Each list of arrivals is played several times; the mean advantage of the other times at the same
arrival is the baseline, which removes the variance of the arrivals (leave-one-out, W. Kool et al., "Buy 4 REINFORCE
Samples, Get a Baseline for Free!").
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
    """Hyperparameters of PPO."""

    learning_rate: float = 0.005
    """Initial learning rate of Adam."""
    critic_learning_rate: float = 0.003
    half_life: int = 100
    """Updates after which the learning rates halve."""
    epochs: int = 2
    minibatch: int = 2048
    clip: float = 0.2
    trace_decay: float = 0.98
    """Lambda of the generalised advantages, per arrival; rewards are not discounted."""
    largest_norm: float = 1.0
    """Largest gradient norm."""

    def __post_init__(self) -> None:
        if min(self.half_life, self.epochs, self.minibatch) < 1:
            raise ValueError("half_life, epochs and minibatch must be 1 or more")
        if not (min(self.learning_rate, self.critic_learning_rate) > 0 and self.clip > 0 and self.largest_norm > 0):
            raise ValueError("learning rates, clip and largest_norm must be above 0")


class Learner(NamedTuple):
    """Trained parameters and optimiser, updated in place."""

    tensors: Tensors
    adam: torch.optim.Adam


class Samples(NamedTuple):
    """S decisions."""

    seen: Seen
    choice: Choice
    action: torch.Tensor
    """(S,) level chosen, L to skip."""
    log_probability: torch.Tensor
    """(S,) log-probability of the action at the rollout."""
    advantage: torch.Tensor
    """(S,) advantage, normalised to mean 0 and standard deviation 1."""
    target: torch.Tensor
    """(S,) target of the critic."""

    def part(self, rows: torch.Tensor) -> "Samples":
        """Return the decisions of the rows."""
        own = {name: getattr(self.seen, name)[rows] for name in (*OF_DECISION, "scenario")}
        return Samples(
            self.seen._replace(**own), Choice(*(field[rows] for field in self.choice)),
            *(getattr(self, name)[rows] for name in ("action", "log_probability", "advantage", "target")),
        )  # fmt: skip


def learner(arrays: dict[str, Floats], config: LearningConfig, fixed: tuple[str, ...], device: str) -> Learner:
    """Return a learner from arrays, some of which are `fixed`, with a new optimiser."""
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
    """(E, T) values with gaps filled from the next arrival that has one, 0 after the last."""
    found = values.copy()
    following = np.zeros(len(values))
    for t in range(values.shape[1] - 1, -1, -1):
        found[:, t] = following = np.where(np.isnan(found[:, t]), following, found[:, t])
    return found


def _advantages(rewards: Floats, values: Floats, decay: float) -> Floats:
    """(E, T) generalised advantages: sums of decay^k x (reward + next value - value)."""
    following = np.column_stack([values[:, 1:], np.zeros(len(values))])
    td_error, advantages = rewards + following - values, np.zeros(rewards.shape)
    running = np.zeros(len(rewards))
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = td_error[:, t] + decay * running
        advantages[:, t] = running
    return advantages


def _against_others(advantage: Floats, times: int) -> Floats:
    """(E, T) advantages minus the mean of the other rollouts of the same arrivals; each list's `times` are adjacent."""
    same = advantage.reshape(-1, times, advantage.shape[1])
    others = (same.sum(axis=1, keepdims=True) - same) / max(times - 1, 1)
    relative: Floats = (same - others).reshape(advantage.shape)
    return relative


def samples(played: Sequence[Played], times: int, config: LearningConfig, device: str) -> Samples:
    """Return the decisions of rollouts in which each list of arrivals was played `times` times."""
    relative, target = [], []
    for one in played:
        values = _filled(one.values)
        advantage = _advantages(one.rewards, values, config.trace_decay)
        at = one.decisions["episode"], one.decisions["clock"]
        relative.append(_against_others(advantage, times)[at])
        target.append((advantage + values)[at])
    advantages = np.concatenate(relative)
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)

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
    tensors = {name: torch.from_numpy(array).to(device) for name, array in expected.items()}
    seen = Seen(nodes=nodes, cluster=cluster, offered=offered, **tensors)
    choice = Choice(*(joined(name) for name in Choice._fields))
    learned = (torch.from_numpy(array).to(device) for array in (advantages, np.concatenate(target)))
    return Samples(seen, choice, joined("action"), joined("log_probability"), *learned)


def update(
    learner: Learner, played: Samples, number: int, config: LearningConfig, temperature: float, seed: int, peers: Peers
) -> dict[str, float]:
    """Update the learner in place; `number` counts updates. Returns logged values.

    Each peer takes its part of each minibatch; gradients are summed over peers.
    """
    decay = 0.5 ** (number / config.half_life)
    for group, rate in zip(learner.adam.param_groups, (config.learning_rate, config.critic_learning_rate), strict=True):
        group["lr"] = rate * decay
    rng = np.random.default_rng([seed, 1, number])
    num_samples = len(played.action)
    scale = max(float(played.target.var()), 1e-6)
    losses, divergences = [], []
    for _ in range(config.epochs):
        for rows in np.array_split(rng.permutation(num_samples), -(-num_samples // config.minibatch)):
            own = played.part(torch.from_numpy(rows[peers.rank :: peers.number]))
            loss, value_loss, ratio = _clipped_loss(learner.tensors, own, len(rows), scale, config, temperature)
            learner.adam.zero_grad()
            loss.backward()
            trained = [tensor for tensor in learner.tensors.values() if tensor.requires_grad]
            for tensor in trained:
                tensor.grad = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
                peers.all_reduce(tensor.grad)
            torch.nn.utils.clip_grad_norm_(trained, config.largest_norm)
            learner.adam.step()
            losses.append(float(value_loss.detach()))
            divergences.append(float((ratio - 1 - ratio.log()).mean()) if len(ratio) else 0.0)
    return {"value_loss": float(np.mean(losses)), "divergence": float(np.mean(divergences))}


def _clipped_loss(
    tensors: Tensors, own: Samples, num: int, scale: float, config: LearningConfig, temperature: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this peer's part of the loss of a minibatch of `num` samples, its critic loss divided by `scale`, and its
    (rows,) probability ratios."""
    contexts = nets.contexts(own.seen, tensors)
    odds = torch.log_softmax(nets.logits(own.choice, own.seen, contexts, tensors, temperature), dim=1)
    ratio = torch.exp(odds.gather(1, own.action[:, None])[:, 0] - own.log_probability)
    bounded = ratio.clamp(1 - config.clip, 1 + config.clip)
    gain = torch.minimum(ratio * own.advantage, bounded * own.advantage).sum() / num
    value_loss = ((nets.values(own.seen, contexts, tensors) - own.target) ** 2).sum() / num / scale
    return value_loss / 2 - gain, value_loss, ratio.detach()
