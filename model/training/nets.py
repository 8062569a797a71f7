"""Batched nets in torch: the actor's value of a node, its skip, and the critic.

Parameters are a plain mapping of tensors, so that checkpoints, workers and parity tests use the same arrays. The
actor's are those of `extender.core.valuenet.attention`, which the service evaluates in NumPy. Critic and skip observe
the same pooled nodes and pods, and the offered pod. Everything is in double precision, as in the service.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import torch

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import CLUSTER_FEATURES, POD_FEATURES, Attention
from extender.core.valuenet.features import CONTEXT, FEATURES
from extender.core.valuenet.potentials import TOLERANCE, Potential
from model.simulations.episodes import POD_FEATURES as OFFERED_FEATURES
from model.simulations.scenarios import GPUS, MILLI

Tensors = dict[str, torch.Tensor]

FIXED: Final = ("node_shift", "node_scale", "begin", "reach")
"""Arrays of the actor that are not trained."""
_LEVELS: Final = 6
"""Number of best score levels that the actor chooses among; the first node represents each."""
_GAIN_FEATURES: Final = 2
_RARELY: Final = -4.0
"""Initial logit of the skip, relative to the best node's."""
_NEVER: Final = -1e9
_LARGEST_GAIN: Final = 20.0
_LEAST_GPUS: Final = 0.05
"""Lower bound of the GPUs that a gain is divided by."""


class Seen(NamedTuple):
    """Observations of B decisions on N nodes each, in O scenarios with K classes of expected pods."""

    nodes: torch.Tensor
    """(B, N, F) current features of the nodes."""
    pods: torch.Tensor
    """(O, K, len(POD_FEATURES)) features of the expected pods."""
    pod_log_count: torch.Tensor
    """(O, K) log frequency; -inf for padding."""
    context: torch.Tensor
    """(O, len(CONTEXT)) kind of the expected pods: `Outlook.context`."""
    scenario: torch.Tensor
    """(B,) index of the scenario."""
    cluster: torch.Tensor
    """(B, len(CLUSTER_FEATURES)) features of the cluster."""
    offered: torch.Tensor
    """(B, P) features of the offered pod (`episodes.POD_FEATURES`), and the progress of the episode."""


class Choice(NamedTuple):
    """The L candidate nodes of B decisions."""

    before: torch.Tensor
    """(B, L, F) current features."""
    after: torch.Tensor
    """(B, L, F) features with the pod on the node."""
    there: torch.Tensor
    """(B, L) whether the candidate exists."""
    may_skip: torch.Tensor
    """(B,) whether the skip is allowed."""


def initial(actor: Attention, net: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Return the initial arrays: the actor's point is 0 and its net of `net` neurons adds nothing, so that V is that of
    `begin`; skips are rare, and the critic's value is 0."""
    H, Q, Z = attention.sizes(actor._asdict())  # noqa: N806 - axis letters of Attention
    context_size = 2 * Q * H + len(CLUSTER_FEATURES)
    width = context_size + len(OFFERED_FEATURES) + 1
    random_arrays = {
        "node_embed": (len(FEATURES), H), "pod_embed": (len(POD_FEATURES), H), "node_queries": (H, Q),
        "pod_queries": (H, Q), "hidden": (context_size, Z), "value_hidden": (len(FEATURES), net),
        "critic_hidden": (width, Z), "skip_hidden": (width + _GAIN_FEATURES, Z),
    }  # fmt: skip
    zero_arrays = {
        "value_out": (net,), "critic_bias": (Z,), "critic_out": (Z, 1), "critic_out_bias": (1,), "skip_bias": (Z,),
        "skip_out": (Z, 1), "by_context": (len(CONTEXT), len(FEATURES) + 1),
    }  # fmt: skip
    return {
        **actor._asdict(),
        **{name: np.zeros(shape) for name, shape in zero_arrays.items()},
        **{name: rng.normal(size=shape) / np.sqrt(max(shape[0], 1)) for name, shape in random_arrays.items()},
        "value_bias": rng.normal(size=net) / 2,
        "skip_out_bias": np.array([_RARELY]),
    }


def tensors_of(arrays: Mapping[str, Floats], fixed: tuple[str, ...] = FIXED) -> Tensors:
    """Return trainable tensors, except the fixed ones."""
    return {
        name: torch.tensor(array, dtype=torch.float64, requires_grad=name not in fixed)
        for name, array in arrays.items()
    }


def arrays_of(tensors: Tensors) -> dict[str, Floats]:
    """Return the tensors' arrays."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def actor_of(arrays: Mapping[str, Floats]) -> Attention:
    """Return the actor in the arrays."""
    return Attention(**{name: arrays[name] for name in Attention._fields})


def potential_of(arrays: Mapping[str, Floats]) -> Potential:
    """Return the potential in the arrays, without dependence on the cluster."""
    actor = actor_of(arrays)
    found = attention.potential_at(actor.out_bias, actor)
    return found._replace(by_context=arrays["by_context"] * actor.reach) if arrays["by_context"].any() else found


def contexts(seen: Seen, tensors: Tensors) -> torch.Tensor:
    """(B, 2 Q H + len(CLUSTER_FEATURES)) contexts, as `attention.context`."""
    nodes = (seen.nodes - tensors["node_shift"]) * tensors["node_scale"]
    of_nodes = _pooled(nodes, torch.zeros(()), tensors, "node")
    of_pods = _pooled(seen.pods, seen.pod_log_count[:, :, None], tensors, "pod")
    return torch.cat([of_nodes, of_pods[seen.scenario], seen.cluster], dim=1)


def points(seen: Seen, context: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B, D) points, as `attention.point`, plus steps by the expected kind of pods, as `potentials.in_context`."""
    hidden = torch.tanh(context @ tensors["hidden"] + tensors["hidden_bias"])
    steps = seen.context @ tensors["by_context"]
    return hidden @ tensors["out"] + tensors["out_bias"] + steps[seen.scenario]


def gains(before: torch.Tensor, after: torch.Tensor, point: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B, L) gains in V from (B, L, F) features before and after, at (B, D) points, as `potentials.values`."""
    weights = (tensors["begin"] + tensors["reach"] * point)[:, None, :-1]
    gained = ((after - before) * weights).sum(dim=-1)
    if len(tensors["value_out"]):
        scaled = ((x - tensors["node_shift"]) * tensors["node_scale"] for x in (before, after))
        now, then = (torch.tanh(x @ tensors["value_hidden"] + tensors["value_bias"]) for x in scaled)
        gained = gained + (then - now) @ tensors["value_out"]
    return gained


def _quantum(tensors: Tensors) -> torch.Tensor:
    """Return the quantum, which is not trained."""
    return tensors["begin"][-1].exp()


def levels(gain: torch.Tensor, fits: torch.Tensor, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the (B, L) rows of the first node at each of the best levels of (B, N) gains, and whether each exists.

    A level is a score in whole quanta. Ties break by row in training as well, which improves the result.
    """
    nowhere = torch.full_like(gain, -torch.inf)
    level = torch.where(fits, torch.floor(gain / _quantum(tensors) + TOLERANCE), nowhere)
    is_repeated = torch.tril(level[:, :, None] == level[:, None, :], -1).any(dim=2)
    best, rows = torch.where(is_repeated, nowhere, level).topk(min(_LEVELS, level.shape[1]), dim=1)
    return rows, best > -torch.inf


def logits(choice: Choice, seen: Seen, context: torch.Tensor, tensors: Tensors, temperature: float) -> torch.Tensor:
    """(B, L + 1) logits of the candidate nodes and the skip; `temperature` in quanta."""
    gain = gains(choice.before, choice.after, points(seen, context, tensors), tensors)
    gain = torch.where(choice.there, gain, torch.full_like(gain, _NEVER))
    best = gain.max(dim=1, keepdim=True).values
    num_gpus = (8 * seen.offered[:, [GPUS]] * seen.offered[:, [MILLI]]).clamp(min=_LEAST_GPUS)
    inputs = torch.cat([best, best / num_gpus], dim=1).clamp(-_LARGEST_GAIN, _LARGEST_GAIN).detach()
    skip = torch.tanh(torch.cat([context, seen.offered, inputs], dim=1) @ tensors["skip_hidden"] + tensors["skip_bias"])
    skip = skip @ tensors["skip_out"] + tensors["skip_out_bias"]
    skip = torch.where(choice.may_skip[:, None], skip, torch.full_like(skip, _NEVER))
    return torch.cat([(gain - best) / (temperature * _quantum(tensors)), skip], dim=1)


def values(seen: Seen, context: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B,) the critic's values."""
    context = torch.cat([context, seen.offered], dim=1)
    hidden = torch.tanh(context @ tensors["critic_hidden"] + tensors["critic_bias"])
    return (hidden @ tensors["critic_out"] + tensors["critic_out_bias"])[:, 0]


def _pooled(rows: torch.Tensor, log_count: torch.Tensor, tensors: Tensors, kind: str) -> torch.Tensor:
    """(B, Q H) pooled rows, as `attention.pooled`."""
    bias = tensors[f"{kind}_bias"]
    embedded = torch.tanh(rows @ tensors[f"{kind}_embed"] + bias)  # (B, R, H)
    level = embedded @ tensors[f"{kind}_queries"] / len(bias) ** 0.5 + log_count  # (B, R, Q)
    return (torch.softmax(level, dim=1).transpose(1, 2) @ embedded).flatten(1)
