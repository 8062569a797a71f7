"""Advantages against loops, and an update that moves the actor where the advantage is."""

import numpy as np
import pytest

from extender.core.clusters import Floats
from tests.core.valuenet.builders import D, random_attention, random_sight

torch = pytest.importorskip("torch", reason="no torch: make setup-train")

from model.training import nets, ppo_learning  # noqa: E402
from model.training.peers import ALONE  # noqa: E402
from model.training.ppo_episodes import Episode  # noqa: E402
from model.training.ppo_learning import LearningConfig  # noqa: E402

CONFIG = LearningConfig(learning_rate=0.01, entropy_weight=0.0)


def advantages_slowly(reward: Floats, value: Floats, decay: float) -> list[float]:
    """Each by its sum: decay^k x (reward[t + k] + value[t + k + 1] - value[t + k])."""
    T = len(reward)
    after = [*value[1:].tolist(), 0.0]
    return [
        sum(decay**k * (reward[t + k] + after[t + k] - value[t + k]) for k in range(T - t)) for t in range(T)
    ]  # fmt: skip


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_advantages_are_the_sums_of_the_paper(decay: float) -> None:
    rng = np.random.default_rng(0)
    rewards, values = [rng.normal(size=T) for T in (1, 5)], [rng.normal(size=T) for T in (1, 5)]
    for found, reward, value in zip(ppo_learning.advantages(rewards, values, decay), rewards, values, strict=True):
        assert found == pytest.approx(advantages_slowly(reward, value, decay), rel=1e-12)


def test_what_a_scene_gives_at_any_time_is_no_advantage() -> None:
    # Two scenes, each played twice: 3 and 5 differ by +-2 from each other, and 103 and 105 do so too.
    played = [np.array([3.0]), np.array([5.0]), np.array([103.0]), np.array([105.0])]
    assert [float(part[0]) for part in ppo_learning.against_others(played, 2)] == [-2.0, 2.0, -2.0, 2.0]


def played(rng: np.random.Generator, arrays: dict[str, Floats], num: int) -> list[Episode]:
    """Episodes in which a point further along the first axis earns more."""
    found = []
    for _ in range(num):
        sights = tuple(random_sight(rng, 6, 3) for _ in range(3))
        points = rng.normal(size=(3, D)) * 0.5
        found.append(Episode(sights, points, points[:, 0].copy()))
    return found


def arrays_at_zero(rng: np.random.Generator) -> dict[str, Floats]:
    empty = random_attention(rng)
    arrays = nets.initial(empty._replace(out=empty.out * 0, out_bias=empty.out_bias * 0), rng)
    return {**arrays, "log_sigma": np.full(D, np.log(0.5))}


def updated() -> tuple[dict[str, Floats], dict[str, float]]:
    rng = np.random.default_rng(1)
    arrays = arrays_at_zero(rng)
    of = ppo_learning.learner(arrays, CONFIG, "cpu")
    told: dict[str, float] = {}
    for number in range(8):
        drawn = ppo_learning.samples(played(rng, arrays, 16), 2, of, CONFIG)
        told = ppo_learning.update(of, drawn, number, CONFIG, 0, ALONE)
    return nets.arrays_of(of.tensors), told


@pytest.mark.slow
def test_an_update_moves_the_actor_towards_what_earned_more() -> None:
    arrays, told = updated()
    actor = nets.actor_of(arrays)
    moved = arrays["out_bias"]
    assert moved[0] > 0.1
    assert moved[0] > 2 * np.abs(moved[1:]).max()
    assert np.isfinite(actor.out).all()
    assert told["value_loss"] > 0
    assert 0 < told["divergence"] < 1


def test_equal_seeds_learn_alike_and_nothing_fixed_is_moved() -> None:
    one, other = updated()[0], updated()[0]
    assert all(np.array_equal(one[name], other[name]) for name in one)
    rng = np.random.default_rng(1)
    begun = arrays_at_zero(rng)
    assert all(np.array_equal(one[name], begun[name]) for name in nets.FIXED)


def test_a_step_far_from_what_was_tried_is_clipped() -> None:
    rng = np.random.default_rng(2)
    of = ppo_learning.learner(arrays_at_zero(rng), CONFIG, "cpu")
    samples = ppo_learning.samples(played(rng, {}, 4), 2, of, CONFIG)
    # Points that have become e^5 times as likely: their gain is cut at 1.2, and moves nothing any more.
    likely = samples._replace(log_probability=samples.log_probability - 5, advantage=torch.ones_like(samples.advantage))
    rows = torch.arange(len(samples.points))
    loss, value_loss, _ = ppo_learning.clipped_loss(of.tensors, likely, rows, len(rows), CONFIG, 0.0, ALONE)
    assert float((loss - CONFIG.value_weight * value_loss).detach()) == pytest.approx(-1.2)
    (gradient,) = torch.autograd.grad(loss, of.tensors["out_bias"])
    assert float(gradient.abs().max()) == 0.0
