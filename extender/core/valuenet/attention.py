"""A rank that heeds the rest of the cluster: attention over its nodes sets the weights of the potential.

Nodes and expected pods are two sets of rows. Each is embedded row by row and pooled by a few learned queries
("inducing points": pooling by multihead attention, J. Lee et al., "Set Transformer", arXiv:1810.00825), which is
linear in the number of rows and takes any number of them. From what is pooled, an actor gives a point (F + 1,): the
weights of a potential and its quantum (`extender.core.valuenet.potentials`); its net of one hidden layer, where there
is one, is the same whatever is seen. So a node's score is Q(node after | cluster), and between two looks at the cluster
each score depends on its node alone and can be remembered.

The same net in torch, with a critic beside it, is `model.training.nets`.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Floats
from extender.core.fragmentation import ANY_MODEL, Mix, Nodes
from extender.core.valuenet.features import FEATURES, Outlook, features
from extender.core.valuenet.potentials import (
    Potential,
    PotentialError,
    check_arrays,
    check_features,
    check_shapes,
    linear,
    values,
)

POD_FEATURES: Final = (
    "cpu",  # by what a whole GPU's pods need
    "gpus",  # of 8
    "share",  # milli of one GPU where that is not all of it
    "no_gpu",
    "picky",  # 1 when not every model will do
)
"""Names of what is seen of a class of expected pods; its frequency is its weight."""
CLUSTER_FEATURES: Final = ("gpu", "gpu_idle", "cpu", "memory", "fragment")
"""Names of what is seen of the cluster as a whole: free parts of its capacity; fragments by what is free."""

_OF_VALUE: Final = "value_hidden", "value_bias", "value_out"
_EXTREME: Final = 1e6
_LARGEST_LOG_QUANTUM: Final = 3.0


class Attention(NamedTuple):
    """Arrays of the actor. H embedding, Q queries (0: no attention), Z hidden, D = F + 1, M of the potential's net."""

    node_shift: Floats
    """(F,) brings the features of nodes to about 0."""
    node_scale: Floats
    """(F,) and to about 1."""
    node_embed: Floats
    """(F, H)."""
    node_bias: Floats
    """(H,)."""
    node_queries: Floats
    """(H, Q)."""
    pod_embed: Floats
    """(len(POD_FEATURES), H)."""
    pod_bias: Floats
    """(H,)."""
    pod_queries: Floats
    """(H, Q)."""
    hidden: Floats
    """(2 Q H + len(CLUSTER_FEATURES), Z)."""
    hidden_bias: Floats
    """(Z,)."""
    out: Floats
    """(Z, D)."""
    out_bias: Floats
    """(D,)."""
    begin: Floats
    """(D,) the weights, and the logarithm of the quantum, where all of `out` is 0."""
    reach: Floats
    """(D,) how far 1 reaches from there."""
    value_hidden: Floats
    """(F, M); M = 0 without a net."""
    value_bias: Floats
    """(M,)."""
    value_out: Floats
    """(M,)."""


class Sight(NamedTuple):
    """What the actor sees."""

    nodes: Floats
    """(R, F) distinct rows of features."""
    node_count: Floats
    """(R,) nodes that each row stands for."""
    pods: Floats
    """(K, len(POD_FEATURES))."""
    pod_count: Floats
    """(K,) frequency."""
    cluster: Floats
    """(len(CLUSTER_FEATURES),)."""


def _sight(nodes: Nodes, outlook: Outlook) -> Sight:
    """What is seen of nodes in their present state, and of the pods expected."""
    return sight_of(features(nodes, outlook), nodes, outlook)


def sight_of(rows: Floats, nodes: Nodes, outlook: Outlook) -> Sight:
    """What is seen of nodes with these features (N, F). Equal nodes make one row, those without GPUs none."""
    there = nodes.num_gpus > 0
    if not there.all():  # what is ranked goes nowhere else, and nothing else was there in training
        rows, nodes = rows[there], nodes.at(there)
    distinct, count = np.unique(rows, axis=0, return_counts=True)
    pods = pod_features(outlook.mix, outlook.cpu_need_milli)
    return Sight(distinct, count.astype(np.float64), pods, outlook.mix.frequency, cluster_features(rows, nodes, 1)[0])


def cluster_features(rows: Floats, nodes: Nodes, num_clusters: int) -> Floats:
    """(K, len(CLUSTER_FEATURES)) of K clusters of as many nodes each, which follow each other; `rows` are (K N, F)."""

    def sums(column: npt.NDArray[np.generic]) -> Floats:
        found: Floats = column.reshape(num_clusters, -1).sum(axis=1).astype(np.float64)
        return found

    free, num_gpus = sums(nodes.gpu_free_milli) / WHOLE_MILLI, np.maximum(sums(nodes.num_gpus), 1.0)
    idle, fragment = (sums(rows[:, FEATURES.index(name)]) for name in ("gpus_idle", "fragment"))
    return np.column_stack(
        [
            free / num_gpus,
            idle / num_gpus,
            sums(nodes.cpu_free_milli) / np.maximum(sums(nodes.cpu_milli), 1.0),
            sums(nodes.memory_free_mib) / np.maximum(sums(nodes.memory_mib), 1.0),
            fragment / np.maximum(free, 1.0),
        ]
    )


def pod_features(mix: Mix, cpu_need_milli: float) -> Floats:
    """(K, len(POD_FEATURES)) of the classes of a mix."""
    milli = mix.sizes[mix.size]
    columns = [
        np.minimum(mix.cpu_milli / cpu_need_milli, 8.0),
        mix.num_gpus * milli / (8 * WHOLE_MILLI),
        np.where((milli > 0) & (milli < WHOLE_MILLI), milli / WHOLE_MILLI, 0.0),
        mix.num_gpus == 0,
        (mix.num_gpus > 0) & (mix.models != ANY_MODEL),
    ]
    return np.column_stack([column.astype(np.float64) for column in columns])


def _pooled(rows: Floats, count: Floats, embed: Floats, bias: Floats, queries: Floats) -> Floats:
    """(Q H,) of (R, ...) rows, each as often as its `count` says: a mean of embeddings for each query."""
    if len(rows) == 0:  # no pods are expected
        return np.zeros(queries.size)
    embedded = np.tanh(rows @ embed + bias)  # (R, H)
    level = embedded @ queries / np.sqrt(len(bias)) + np.log(count)[:, None]  # (R, Q)
    weight = np.exp(level - level.max(axis=0))
    pooled_rows: Floats = (weight / weight.sum(axis=0)).T @ embedded
    return pooled_rows.reshape(-1)


def _context(seen: Sight, attention: Attention) -> Floats:
    """(2 Q H + len(CLUSTER_FEATURES),) what actor and critic know."""
    nodes = (seen.nodes - attention.node_shift) * attention.node_scale
    of_nodes = _pooled(nodes, seen.node_count, attention.node_embed, attention.node_bias, attention.node_queries)
    of_pods = _pooled(seen.pods, seen.pod_count, attention.pod_embed, attention.pod_bias, attention.pod_queries)
    return np.concatenate([of_nodes, of_pods, seen.cluster])


def point(seen: Sight, attention: Attention) -> Floats:
    """(D,) the actor's point."""
    hidden = np.tanh(_context(seen, attention) @ attention.hidden + attention.hidden_bias)
    return hidden @ attention.out + attention.out_bias


def potential_at(reached: Floats, attention: Attention) -> Potential:
    """The potential of a point. Raises PotentialError when it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        at = attention.begin + attention.reach * reached
    if not np.isfinite(at).all():
        raise PotentialError("the net gives weights that are not finite")
    found = linear(at[:-1], float(np.exp(np.clip(at[-1], -_LARGEST_LOG_QUANTUM * 2, _LARGEST_LOG_QUANTUM))))
    shift = (attention.node_shift * attention.node_scale) @ attention.value_hidden
    return found._replace(
        scale=attention.node_scale, hidden=attention.value_hidden, bias=attention.value_bias - shift,
        out=attention.value_out,
    )  # fmt: skip


def potential(nodes: Nodes, outlook: Outlook, attention: Attention) -> Potential:
    """The potential for nodes in their present state; good until the cluster has changed much.

    Raises PotentialError when it is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = point(_sight(nodes, outlook), attention)
    return potential_at(found, attention)


def attention_of(arrays: Mapping[str, Floats], version: int, names: tuple[str, ...]) -> Attention:
    """An actor from the arrays of a file and the features that it was trained on.

    Raises PotentialError when the features are others than this program has, when an array is missing, is unknown or
    has another shape, or when a number or a point that comes out is not finite.
    """
    check_features(version, names)
    check_arrays(arrays, tuple(name for name in Attention._fields if name not in _OF_VALUE or name in arrays))
    without = shapes(*sizes(arrays), 0)
    arrays = {**{name: np.zeros(without[name]) for name in _OF_VALUE}, **arrays}  # models of before have none
    check_shapes(arrays, shapes(*sizes(arrays), arrays["value_out"].size))
    attention = Attention(*(np.ascontiguousarray(arrays[name]) for name in Attention._fields))
    F = len(FEATURES)
    with np.errstate(over="ignore", invalid="ignore"):
        for extreme in (_EXTREME, -_EXTREME):
            rows = np.full((1, F), extreme), np.ones(1), np.full((1, len(POD_FEATURES)), extreme), np.ones(1)
            found = point(Sight(*rows, np.full(len(CLUSTER_FEATURES), extreme)), attention)
            if not np.isfinite(attention.begin + attention.reach * found).all():
                raise PotentialError(f"the point of features of {extreme:g} is not finite")
            if not np.isfinite(values(rows[0], potential_at(np.zeros(F + 1), attention))).all():
                raise PotentialError(f"the value of features of {extreme:g} is not finite")
    return attention


def sizes(arrays: Mapping[str, Floats]) -> tuple[int, int, int]:
    """H, Q and Z, as the biases and the queries say."""
    queries = arrays["node_queries"]
    return arrays["node_bias"].size, queries.shape[1] if queries.ndim == 2 else 0, arrays["hidden_bias"].size


def shapes(H: int, Q: int, Z: int, M: int = 0) -> dict[str, tuple[int, ...]]:  # noqa: N803 - axis letters of Attention
    """Shapes of the arrays by name."""
    F, D, K, C = len(FEATURES), len(FEATURES) + 1, len(POD_FEATURES), len(CLUSTER_FEATURES)  # noqa: N806
    of_nodes = {"node_shift": (F,), "node_scale": (F,), "node_embed": (F, H), "node_bias": (H,)}
    of_pods = {"pod_embed": (K, H), "pod_bias": (H,), "node_queries": (H, Q), "pod_queries": (H, Q)}
    trunk = {"hidden": (2 * Q * H + C, Z), "hidden_bias": (Z,), "out": (Z, D), "out_bias": (D,)}
    of_value = dict(zip(_OF_VALUE, ((F, M), (M,), (M,)), strict=True))
    return {**of_nodes, **of_pods, **trunk, "begin": (D,), "reach": (D,), **of_value}
