"""The net of `extender.core.valuenet.attention` in torch, in batches, with a critic: what training differentiates.

Parameters are a plain mapping of tensors, so that what is saved, sent to workers and tested for parity are the same
arrays. Everything is in double precision: at these sizes it costs nothing, and the service computes in it.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import torch

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import CLUSTER_FEATURES, POD_FEATURES, Attention, Sight
from extender.core.valuenet.features import FEATURES

Tensors = dict[str, torch.Tensor]

FIXED: Final = ("node_shift", "node_scale", "begin", "reach")
"""Arrays of the actor that are not trained."""


class Batch(NamedTuple):
    """B sights, padded to the longest: rows that stand for no node have a logarithm of their count of -inf."""

    nodes: torch.Tensor
    """(B, R, F)."""
    node_log_count: torch.Tensor
    """(B, R)."""
    pods: torch.Tensor
    """(B, K, len(POD_FEATURES))."""
    pod_log_count: torch.Tensor
    """(B, K)."""
    cluster: torch.Tensor
    """(B, len(CLUSTER_FEATURES))."""

    def part(self, rows: torch.Tensor) -> "Batch":
        """Some of the sights."""
        return Batch(*(tensor[rows] for tensor in self))


def batch_of(sights: Sequence[Sight], device: str = "cpu") -> Batch:
    """Sights of clusters and mixes of any size."""
    nodes, node_log_count = _padded([seen.nodes for seen in sights], [seen.node_count for seen in sights])
    pods, pod_log_count = _padded([seen.pods for seen in sights], [seen.pod_count for seen in sights])
    cluster = np.stack([seen.cluster for seen in sights])
    arrays = (nodes, node_log_count, pods, pod_log_count, cluster)
    return Batch(*(torch.from_numpy(array).to(device) for array in arrays))


def initial(actor: Attention, rng: np.random.Generator) -> dict[str, Floats]:
    """Arrays of actor and critic before training: the actor as it is, its zero layers drawn, its last one left zero.

    So the first point is that of `begin`, whatever is seen.
    """
    H, Q, Z = attention.sizes(actor._asdict())  # noqa: N806 - axis letters of Attention
    width = 2 * Q * H + len(CLUSTER_FEATURES)
    drawn = {
        "node_embed": (len(FEATURES), H), "pod_embed": (len(POD_FEATURES), H),
        "node_queries": (H, Q), "pod_queries": (H, Q), "hidden": (width, Z), "critic_hidden": (width, Z),
    }  # fmt: skip
    critic = {"critic_bias": np.zeros(Z), "critic_out": np.zeros((Z, 1)), "critic_out_bias": np.zeros(1)}
    weights = {name: rng.normal(size=shape) / np.sqrt(max(shape[0], 1)) for name, shape in drawn.items()}
    return {**actor._asdict(), **critic, **weights}


def tensors_of(arrays: Mapping[str, Floats], device: str = "cpu") -> Tensors:
    """Tensors that are trained, but for FIXED."""
    return {
        name: torch.tensor(array, dtype=torch.float64, device=device, requires_grad=name not in FIXED)
        for name, array in arrays.items()
    }


def arrays_of(tensors: Tensors) -> dict[str, Floats]:
    """The arrays back."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def actor_of(arrays: Mapping[str, Floats]) -> Attention:
    """The actor among arrays."""
    return Attention(**{name: arrays[name] for name in Attention._fields})


def contexts(seen: Batch, tensors: Tensors) -> torch.Tensor:
    """(B, 2 Q H + len(CLUSTER_FEATURES)), as `attention.context`."""
    nodes = (seen.nodes - tensors["node_shift"]) * tensors["node_scale"]
    of_nodes = _pooled(nodes, seen.node_log_count, tensors, "node")
    of_pods = _pooled(seen.pods, seen.pod_log_count, tensors, "pod")
    return torch.cat([of_nodes, of_pods, seen.cluster], dim=1)


def points(known: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B, D) of contexts, as `attention.point`."""
    hidden = torch.tanh(known @ tensors["hidden"] + tensors["hidden_bias"])
    return hidden @ tensors["out"] + tensors["out_bias"]


def values(known: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """(B,) rewards that the critic expects from here on, by context."""
    hidden = torch.tanh(known @ tensors["critic_hidden"] + tensors["critic_bias"])
    return (hidden @ tensors["critic_out"] + tensors["critic_out_bias"])[:, 0]


def _pooled(rows: torch.Tensor, log_count: torch.Tensor, tensors: Tensors, kind: str) -> torch.Tensor:
    """(B, Q H), as `attention.pooled`."""
    bias = tensors[f"{kind}_bias"]
    embedded = torch.tanh(rows @ tensors[f"{kind}_embed"] + bias)  # (B, R, H)
    level = embedded @ tensors[f"{kind}_queries"] / len(bias) ** 0.5 + log_count[:, :, None]  # (B, R, Q)
    return (torch.softmax(level, dim=1).transpose(1, 2) @ embedded).flatten(1)


def _padded(rows: list[Floats], count: list[Floats]) -> tuple[Floats, Floats]:
    longest = max(len(part) for part in rows)
    padded = np.zeros((len(rows), longest, rows[0].shape[1]))
    log_count = np.full((len(rows), longest), -np.inf)
    for i, (part, times) in enumerate(zip(rows, count, strict=True)):
        padded[i, : len(part)], log_count[i, : len(part)] = part, np.log(times)
    return padded, log_count
