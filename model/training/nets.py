"""The nets that learn by acting, in torch and in batches: the actor's value of a node, its skips, and a critic.

Parameters are a plain mapping of tensors, so that what is saved, sent to workers and tested for parity are the same
arrays. The actor's are those of `extender.core.valuenet.attention`, which the service evaluates in NumPy; critic and
skips know the same pooled nodes and pods, and the pod that is offered. Everything is in double precision: at these
sizes it costs nothing, and the service computes in it.
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
"""Levels of the score among which the actor chooses: the first node of each."""
_GAIN_FEATURES: Final = 2
_RARELY: Final = -4.0
"""Logit of a skip, beside that of the best node, before anything is learned."""
_NEVER: Final = -1e9
_LARGEST_GAIN: Final = 20.0
_LEAST_GPUS: Final = 0.05
"""That a gain is divided by."""


class Seen(NamedTuple):
    """What B decisions are made by, on N nodes each, in one of O scenarios with K classes of expected pods."""

    nodes: torch.Tensor
    """(B, N, F) features now."""
    pods: torch.Tensor
    """(O, K, len(POD_FEATURES)) of the pods expected."""
    pod_log_count: torch.Tensor
    """(O, K) logarithm of their frequency; -inf for rows that stand for no pod."""
    context: torch.Tensor
    """(O, len(CONTEXT)) what kind of pods they are: `Outlook.context`."""
    scenario: torch.Tensor
    """(B,) which of the O."""
    cluster: torch.Tensor
    """(B, len(CLUSTER_FEATURES))."""
    offered: torch.Tensor
    """(B, P) of the pod offered, `episodes.POD_FEATURES` and how far the episode is."""


class Choice(NamedTuple):
    """The L nodes that a decision is between, of B decisions."""

    before: torch.Tensor
    """(B, L, F) features now."""
    after: torch.Tensor
    """(B, L, F) with the pod on the node."""
    there: torch.Tensor
    """(B, L) whether there are so many."""
    may_skip: torch.Tensor
    """(B,)."""


def initial(actor: Attention, net: int, rng: np.random.Generator) -> dict[str, Floats]:
    """Arrays before training: the actor's point is 0 and its net of `net` neurons adds nothing, so that V is that of
    `begin`, whatever is seen; nearly nothing is skipped, and the critic expects nothing."""
    H, Q, Z = attention.sizes(actor._asdict())  # noqa: N806 - axis letters of Attention
    known = 2 * Q * H + len(CLUSTER_FEATURES)
    width = known + len(OFFERED_FEATURES) + 1
    drawn = {
        "node_embed": (len(FEATURES), H), "pod_embed": (len(POD_FEATURES), H), "node_queries": (H, Q),
        "pod_queries": (H, Q), "hidden": (known, Z), "value_hidden": (len(FEATURES), net),
        "critic_hidden": (width, Z), "skip_hidden": (width + _GAIN_FEATURES, Z),
    }  # fmt: skip
    zero = {
        "value_out": (net,), "critic_bias": (Z,), "critic_out": (Z, 1), "critic_out_bias": (1,), "skip_bias": (Z,),
        "skip_out": (Z, 1), "by_context": (len(CONTEXT), len(FEATURES) + 1),
    }  # fmt: skip
    return {
        **actor._asdict(),
        **{name: np.zeros(shape) for name, shape in zero.items()},
        **{name: rng.normal(size=shape) / np.sqrt(max(shape[0], 1)) for name, shape in drawn.items()},
        "value_bias": rng.normal(size=net) / 2,
        "skip_out_bias": np.array([_RARELY]),
    }


def tensors_of(arrays: Mapping[str, Floats], fixed: tuple[str, ...] = FIXED) -> Tensors:
    """Tensors that are trained, but for those that are fixed."""
    return {
        name: torch.tensor(array, dtype=torch.float64, requires_grad=name not in fixed)
        for name, array in arrays.items()
    }


def arrays_of(tensors: Tensors) -> dict[str, Floats]:
    """The arrays back."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def actor_of(arrays: Mapping[str, Floats]) -> Attention:
    """The actor among arrays."""
    return Attention(**{name: arrays[name] for name in Attention._fields})


def potential_of(arrays: Mapping[str, Floats]) -> Potential:
    """The potential among arrays, whatever is seen of the cluster."""
    actor = actor_of(arrays)
    found = attention.potential_at(actor.out_bias, actor)
    return found._replace(by_context=arrays["by_context"] * actor.reach) if arrays["by_context"].any() else found


def contexts(seen: Seen, tensors: Tensors) -> torch.Tensor:
    """(B, 2 Q H + len(CLUSTER_FEATURES)), as `attention.context`."""
    nodes = (seen.nodes - tensors["node_shift"]) * tensors["node_scale"]
    of_nodes = _pooled(nodes, torch.zeros(()), tensors, "node")
    of_pods = _pooled(seen.pods, seen.pod_log_count[:, :, None], tensors, "pod")
    return torch.cat([of_nodes, of_pods[seen.scenario], seen.cluster], dim=1)


def points(seen: Seen, known: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B, D): as `attention.point`, and steps by what kind of pods are expected, as `potentials.in_context`."""
    hidden = torch.tanh(known @ tensors["hidden"] + tensors["hidden_bias"])
    steps = seen.context @ tensors["by_context"]
    return hidden @ tensors["out"] + tensors["out_bias"] + steps[seen.scenario]


def gains(before: torch.Tensor, after: torch.Tensor, point: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B, L) what V of nodes gains, (B, L, F) features before and after, at (B, D) points: as `potentials.values`."""
    weights = (tensors["begin"] + tensors["reach"] * point)[:, None, :-1]
    gained = ((after - before) * weights).sum(dim=-1)
    if len(tensors["value_out"]):
        scaled = ((x - tensors["node_shift"]) * tensors["node_scale"] for x in (before, after))
        now, then = (torch.tanh(x @ tensors["value_hidden"] + tensors["value_bias"]) for x in scaled)
        gained = gained + (then - now) @ tensors["value_out"]
    return gained


def _quantum(tensors: Tensors) -> torch.Tensor:
    """The quantum, which is not learned."""
    return tensors["begin"][-1].exp()


def levels(gain: torch.Tensor, fits: torch.Tensor, tensors: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The first node of each of the best levels of (B, N) gains, as (B, L) rows, and (B, L) whether there are so many.

    A level is a score: whole quanta. Equals go to the first of them, in training too: that is worth points.
    """
    nowhere = torch.full_like(gain, -torch.inf)
    level = torch.where(fits, torch.floor(gain / _quantum(tensors) + TOLERANCE), nowhere)
    again = torch.tril(level[:, :, None] == level[:, None, :], -1).any(dim=2)
    best, rows = torch.where(again, nowhere, level).topk(min(_LEVELS, level.shape[1]), dim=1)
    return rows, best > -torch.inf


def logits(choice: Choice, seen: Seen, known: torch.Tensor, tensors: Tensors, temperature: float) -> torch.Tensor:
    """(B, L + 1) of the nodes of a choice, and of the skip; `temperature` in quanta."""
    gain = gains(choice.before, choice.after, points(seen, known, tensors), tensors)
    gain = torch.where(choice.there, gain, torch.full_like(gain, _NEVER))
    best = gain.max(dim=1, keepdim=True).values
    asked = (8 * seen.offered[:, [GPUS]] * seen.offered[:, [MILLI]]).clamp(min=_LEAST_GPUS)
    told = torch.cat([best, best / asked], dim=1).clamp(-_LARGEST_GAIN, _LARGEST_GAIN).detach()
    skip = torch.tanh(torch.cat([known, seen.offered, told], dim=1) @ tensors["skip_hidden"] + tensors["skip_bias"])
    skip = skip @ tensors["skip_out"] + tensors["skip_out_bias"]
    skip = torch.where(choice.may_skip[:, None], skip, torch.full_like(skip, _NEVER))
    return torch.cat([(gain - best) / (temperature * _quantum(tensors)), skip], dim=1)


def values(seen: Seen, known: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B,) rewards that the critic expects from here on."""
    known = torch.cat([known, seen.offered], dim=1)
    hidden = torch.tanh(known @ tensors["critic_hidden"] + tensors["critic_bias"])
    return (hidden @ tensors["critic_out"] + tensors["critic_out_bias"])[:, 0]


def _pooled(rows: torch.Tensor, log_count: torch.Tensor, tensors: Tensors, kind: str) -> torch.Tensor:
    """(B, Q H), as `attention.pooled`."""
    bias = tensors[f"{kind}_bias"]
    embedded = torch.tanh(rows @ tensors[f"{kind}_embed"] + bias)  # (B, R, H)
    level = embedded @ tensors[f"{kind}_queries"] / len(bias) ** 0.5 + log_count  # (B, R, Q)
    return (torch.softmax(level, dim=1).transpose(1, 2) @ embedded).flatten(1)
