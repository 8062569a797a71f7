"""The attention actor in NumPy: its inputs, its pooling, the resulting potential, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.core.valuenet.attention import _pooled, _sight
from extender.core.valuenet.features import FEATURES, FEATURES_VERSION
from extender.core.valuenet.potentials import PotentialError, values
from tests.core.valuenet.builders import D, F, random_attention, random_outlook, random_sight
from tests.model.builders import random_nodes


def pooled_slowly(rows: Floats, count: Floats, embed: Floats, bias: Floats, queries: Floats) -> list[float]:
    """Each query by loops: sum of count x exp(level) x embedding, by the sum of count x exp(level)."""
    found = []
    embedded = [
        [math.tanh(sum(row[f] * embed[f, h] for f in range(len(row))) + bias[h]) for h in range(len(bias))]
        for row in rows
    ]
    for q in range(queries.shape[1]):
        weights = [
            times * math.exp(sum(part[h] * queries[h, q] for h in range(len(bias))) / math.sqrt(len(bias)))
            for part, times in zip(embedded, count, strict=True)
        ]
        for h in range(len(bias)):
            found.append(sum(w * part[h] for w, part in zip(weights, embedded, strict=True)) / sum(weights))
    return found


def test_pooling_is_a_weighted_mean_for_each_query() -> None:
    rng = np.random.default_rng(0)
    rows, count = rng.normal(size=(6, 4)), rng.integers(1, 5, 6).astype(np.float64)
    embed, bias, queries = rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=(3, 2))
    assert _pooled(rows, count, embed, bias, queries) == pytest.approx(
        pooled_slowly(rows, count, embed, bias, queries), rel=1e-12
    )


def test_nodes_without_gpus_are_no_input() -> None:
    rng = np.random.default_rng(7)
    nodes = random_nodes(rng, 20)
    with_gpus = nodes.at(nodes.num_gpus > 0)
    assert 0 < len(with_gpus.model) < 20
    outlook = random_outlook(rng)
    for ours, theirs in zip(_sight(nodes, outlook), _sight(with_gpus, outlook), strict=True):
        assert np.array_equal(ours, theirs)


def test_rows_count_as_often_as_they_stand_for_nodes_in_any_order() -> None:
    rng = np.random.default_rng(1)
    actor, seen = random_attention(rng), random_sight(rng, 4, 3)
    often = np.repeat(np.arange(4), [3, 1, 2, 1])
    one_by_one = seen._replace(nodes=seen.nodes[often], node_count=np.ones(7))
    grouped = seen._replace(node_count=np.array([3.0, 1.0, 2.0, 1.0]))
    assert attention.point(grouped, actor) == pytest.approx(attention.point(one_by_one, actor), rel=1e-12)
    nodes, pods = rng.permutation(4), rng.permutation(3)
    shuffled = seen._replace(
        nodes=seen.nodes[nodes], node_count=seen.node_count[nodes], pods=seen.pods[pods], pod_count=seen.pod_count[pods]
    )
    assert attention.point(shuffled, actor) == pytest.approx(attention.point(seen, actor), rel=1e-12)
    assert np.isfinite(attention.point(random_sight(rng, 3, 0), actor)).all()  # no expected pods


def test_inputs_change_the_potential_and_only_with_queries() -> None:
    rng = np.random.default_rng(3)
    actor = random_attention(rng)
    one, other = random_sight(rng, 6, 3), random_sight(rng, 9, 2)
    other = other._replace(cluster=one.cluster)
    assert not np.allclose(attention.point(one, actor), attention.point(other, actor))
    blind = random_attention(rng, queries=0)
    assert attention.point(one, blind).tolist() == attention.point(other, blind).tolist()


def test_point_zero_is_the_initial_potential() -> None:
    actor = random_attention(np.random.default_rng(4))
    begun = attention.potential_at(np.zeros(D), actor)
    assert begun.weights.tolist() == actor.begin[:-1].tolist()
    assert begun.quantum[0] == pytest.approx(math.exp(actor.begin[-1]))
    further = attention.potential_at(np.eye(D)[2], actor)
    assert further.weights[2] == actor.begin[2] + actor.reach[2]


def arrays(net: int = 2) -> dict[str, Floats]:
    return dict(random_attention(np.random.default_rng(6), net=net)._asdict())


def test_arrays_of_a_file_are_an_actor_and_older_files_have_no_net() -> None:
    given = arrays()
    actor = attention.attention_of(given, FEATURES_VERSION, FEATURES)
    assert all(np.array_equal(given[name], array) for name, array in actor._asdict().items())
    older = {name: array for name, array in arrays(0).items() if not name.startswith("value_")}
    actor = attention.attention_of(older, FEATURES_VERSION, FEATURES)
    assert len(attention.potential_at(np.zeros(D), actor).out) == 0


def test_the_net_of_its_value_sees_what_the_embedding_does() -> None:
    rng = np.random.default_rng(7)
    actor = random_attention(rng, net=3)
    rows, potential = rng.normal(size=(4, F)), attention.potential_at(np.zeros(D), actor)
    scaled = (rows - actor.node_shift) * actor.node_scale
    expected = rows @ actor.begin[:-1] + np.tanh(scaled @ actor.value_hidden + actor.value_bias) @ actor.value_out
    assert values(rows, potential) == pytest.approx(expected, rel=1e-9)


def test_arrays_that_do_not_match_are_refused() -> None:
    cases: list[tuple[str, Any, str]] = [
        ("out", None, "has arrays"),
        ("more", np.zeros(1), "has arrays"),
        ("out", np.zeros((3, D)), "array out: shape"),
        ("node_queries", np.zeros(5), "array node_queries: shape"),
        ("begin", np.full(D, np.nan), "array begin: not all numbers are finite"),
        ("reach", np.ones(D, np.float32), "array reach: float32 numbers"),
        ("out", np.full((4, D), 1e308), "not finite"),
        ("value_out", np.zeros(3), "array value_hidden: shape"),
        ("value_hidden", None, "array value_hidden: shape"),
        ("value_hidden", np.full((F, 2), 1e308), "not finite"),
    ]
    for name, array, reason in cases:
        given = {other: value for other, value in arrays().items() if other != name}
        given |= {} if array is None else {name: array}
        with pytest.raises(PotentialError, match=reason):
            attention.attention_of(given, FEATURES_VERSION, FEATURES)
    for version, features, reason in (
        (FEATURES_VERSION + 1, FEATURES, "version"),
        (FEATURES_VERSION, FEATURES[1:], "other features"),
    ):
        with pytest.raises(PotentialError, match=reason):
            attention.attention_of(arrays(), version, features)
