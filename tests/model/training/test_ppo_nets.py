"""The net in torch computes what the service computes in NumPy."""

from pathlib import Path

import numpy as np
import pytest

from extender.core.clusters import Floats
from extender.core.valuenet import attention
from extender.ranking import files
from tests.core.valuenet.builders import random_attention, random_sight

torch = pytest.importorskip("torch", reason="no torch: make setup-train")

from model.training import nets  # noqa: E402 - needs torch


def with_critic(rng: np.random.Generator) -> dict[str, Floats]:
    """Arrays of a random actor, and of a critic beside it."""
    arrays = nets.initial(random_attention(rng), rng)
    return {name: array if name in nets.FIXED else rng.normal(size=array.shape) for name, array in arrays.items()}


def test_torch_and_numpy_agree_on_clusters_of_any_size() -> None:
    rng = np.random.default_rng(0)
    arrays = with_critic(rng)
    sights = [random_sight(rng, rows, pods) for rows, pods in ((1, 1), (7, 3), (300, 40), (12, 90))]
    tensors = nets.tensors_of(arrays)
    known = nets.contexts(nets.batch_of(sights), tensors)
    points = nets.points(known, tensors).detach().numpy()
    for seen, known_of, found in zip(sights, known.detach().numpy(), points, strict=True):
        actor = nets.actor_of(arrays)
        assert np.abs(known_of - attention.context(seen, actor)).max() < 1e-12
        assert np.abs(found - attention.point(seen, actor)).max() < 1e-12


def test_saved_weights_agree_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrays = with_critic(rng)
    files.write(tmp_path / "m", nets.actor_of(arrays), 1.0, {}, ())
    actor = files.read_actor(tmp_path / "m").attention
    seen = random_sight(rng, 50, 20)
    tensors = nets.tensors_of(arrays)
    found = nets.points(nets.contexts(nets.batch_of([seen]), tensors), tensors)[0].detach().numpy()
    assert np.abs(found - attention.point(seen, actor)).max() < 1e-12


def test_a_net_before_training_begins_where_it_is_told() -> None:
    rng = np.random.default_rng(2)
    empty = random_attention(rng)
    empty = empty._replace(out=empty.out * 0, out_bias=empty.out_bias * 0)
    actor = nets.actor_of(nets.initial(empty, rng))
    for rows in (2, 30):
        assert attention.point(random_sight(rng, rows, 5), actor).tolist() == [0.0] * len(empty.begin)


def test_every_array_that_is_trained_has_a_gradient() -> None:
    rng = np.random.default_rng(3)
    tensors = nets.tensors_of(with_critic(rng))
    known = nets.contexts(nets.batch_of([random_sight(rng, 9, 4), random_sight(rng, 5, 6)]), tensors)
    (nets.points(known, tensors).sum() + nets.values(known, tensors).sum()).backward()
    for name, tensor in tensors.items():
        if name in nets.FIXED:
            assert tensor.grad is None, name
        else:
            assert tensor.grad is not None and bool((tensor.grad != 0).any()), name
