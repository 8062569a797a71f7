"""A rank that depends on the whole cluster: attention over its nodes sets the weights of the potential.

Nodes and expected pods are two sets of rows. Each is embedded row by row and pooled by a few learned queries (pooling
by multihead attention, J. Lee et al., "Set Transformer", arXiv:1810.00825), in time linear in the number of rows. From
the pooled vectors, an actor computes a point (F + 1,): the weights and the quantum of a potential
(`extender.core.valuenet.potentials`). The potential's net, if any, is fixed. So a node's score is
Q(node after | cluster), and until the actor runs again each score depends on its node alone and can be cached.

`model.training.nets` has the same net in torch, with a critic.
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
    "cpu",  # relative to the CPU need of a whole GPU
    "gpus",  # relative to 8
    "share",  # fraction of one GPU, 0 for whole GPUs
    "no_gpu",
    "picky",  # 1 if not every model is accepted
)
"""Features of a class of expected pods; its frequency is its weight."""
CLUSTER_FEATURES: Final = ("gpu", "gpu_idle", "cpu", "memory", "fragment")
"""Features of the whole cluster: free fractions of its capacity, and the fragment fraction of what is free."""

_OF_VALUE: Final = "value_hidden", "value_bias", "value_out"
_EXTREME: Final = 1e6
_LARGEST_LOG_QUANTUM: Final = 3.0


class Attention(NamedTuple):
    """Arrays of the actor. H embedding, Q queries (0: no attention), Z hidden, D = F + 1, M of the potential's net."""

    node_shift: Floats
    """(F,) mean of the node features, subtracted."""
    node_scale: Floats
    """(F,) factor that scales node features to about 1."""
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
    """(D,) the weights and the logarithm of the quantum at output 0."""
    reach: Floats
    """(D,) their change per unit of output."""
    value_hidden: Floats
    """(F, M); M = 0 without a net."""
    value_bias: Floats
    """(M,)."""
    value_out: Floats
    """(M,)."""


class Sight(NamedTuple):
    """Input of the actor."""

    nodes: Floats
    """(R, F) distinct rows of features."""
    node_count: Floats
    """(R,) number of nodes with these features."""
    pods: Floats
    """(K, len(POD_FEATURES))."""
    pod_count: Floats
    """(K,) frequency."""
    cluster: Floats
    """(len(CLUSTER_FEATURES),)."""


def _sight(nodes: Nodes, outlook: Outlook) -> Sight:
    """The actor's input for nodes in their present state and the expected pods."""
    return sight_of(features(nodes, outlook), nodes, outlook)


def sight_of(rows: Floats, nodes: Nodes, outlook: Outlook) -> Sight:
    """The actor's input for nodes with features `rows` (N, F). Equal nodes share a row; CPU-only nodes don't count."""
    has_gpus = nodes.num_gpus > 0
    if not has_gpus.all():  # training had only nodes with GPUs
        rows, nodes = rows[has_gpus], nodes.at(has_gpus)
    distinct, count = np.unique(rows, axis=0, return_counts=True)
    pods = pod_features(outlook.mix, outlook.cpu_need_milli)
    return Sight(distinct, count.astype(np.float64), pods, outlook.mix.frequency, cluster_features(rows, nodes, 1)[0])


def cluster_features(rows: Floats, nodes: Nodes, num_clusters: int) -> Floats:
    """(K, len(CLUSTER_FEATURES)) features of K clusters of N nodes each, one after the other; `rows` is (K N, F)."""

    def sums(column: npt.NDArray[np.generic]) -> Floats:
        summed: Floats = column.reshape(num_clusters, -1).sum(axis=1).astype(np.float64)
        return summed

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
    """(K, len(POD_FEATURES)) features of the classes of a mix."""
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
    """(Q H,) mean embedding per query over (R, ...) rows weighted by attention and (R,) `count`."""
    if len(rows) == 0:  # no expected pods
        return np.zeros(queries.size)
    embedded = np.tanh(rows @ embed + bias)  # (R, H)
    level = embedded @ queries / np.sqrt(len(bias)) + np.log(count)[:, None]  # (R, Q)
    weight = np.exp(level - level.max(axis=0))
    pooled_rows: Floats = (weight / weight.sum(axis=0)).T @ embedded
    return pooled_rows.reshape(-1)


def _context(seen: Sight, attention: Attention) -> Floats:
    """(2 Q H + len(CLUSTER_FEATURES),) pooled input of actor and critic."""
    nodes = (seen.nodes - attention.node_shift) * attention.node_scale
    of_nodes = _pooled(nodes, seen.node_count, attention.node_embed, attention.node_bias, attention.node_queries)
    of_pods = _pooled(seen.pods, seen.pod_count, attention.pod_embed, attention.pod_bias, attention.pod_queries)
    return np.concatenate([of_nodes, of_pods, seen.cluster])


def point(seen: Sight, attention: Attention) -> Floats:
    """(D,) the actor's output."""
    hidden = np.tanh(_context(seen, attention) @ attention.hidden + attention.hidden_bias)
    return hidden @ attention.out + attention.out_bias


def potential_at(reached: Floats, attention: Attention) -> Potential:
    """The potential at an actor's output. Raises PotentialError when it is not finite."""
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
    """The potential for nodes in their present state; valid until the cluster has changed much.

    Raises PotentialError when it is not finite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        found = point(_sight(nodes, outlook), attention)
    return potential_at(found, attention)


def attention_of(arrays: Mapping[str, Floats], version: int, names: tuple[str, ...]) -> Attention:
    """An actor from the arrays of a file and the features it was trained on.

    Raises PotentialError for other features than this program's, for missing, unknown or misshapen arrays, and for
    non-finite numbers or outputs.
    """
    check_features(version, names)
    check_arrays(arrays, tuple(name for name in Attention._fields if name not in _OF_VALUE or name in arrays))
    without = shapes(*sizes(arrays), 0)
    arrays = {**{name: np.zeros(without[name]) for name in _OF_VALUE}, **arrays}  # older models have none
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
    """H, Q and Z, from the shapes of the biases and queries."""
    queries = arrays["node_queries"]
    return arrays["node_bias"].size, queries.shape[1] if queries.ndim == 2 else 0, arrays["hidden_bias"].size


def shapes(H: int, Q: int, Z: int, M: int = 0) -> dict[str, tuple[int, ...]]:  # noqa: N803 - axis letters of Attention
    """Shapes of an actor's arrays, by name."""
    F, D, K, C = len(FEATURES), len(FEATURES) + 1, len(POD_FEATURES), len(CLUSTER_FEATURES)  # noqa: N806
    of_nodes = {"node_shift": (F,), "node_scale": (F,), "node_embed": (F, H), "node_bias": (H,)}
    of_pods = {"pod_embed": (K, H), "pod_bias": (H,), "node_queries": (H, Q), "pod_queries": (H, Q)}
    trunk = {"hidden": (2 * Q * H + C, Z), "hidden_bias": (Z,), "out": (Z, D), "out_bias": (D,)}
    of_value = dict(zip(_OF_VALUE, ((F, M), (M,), (M,)), strict=True))
    return {**of_nodes, **of_pods, **trunk, "begin": (D,), "reach": (D,), **of_value}
