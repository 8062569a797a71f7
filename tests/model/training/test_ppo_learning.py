"""Advantages against loops, and updates that make likelier what earned more."""

import numpy as np
import pytest

from extender.core.clusters import Floats
from model.simulations.configs import EpisodeConfig

torch = pytest.importorskip("torch", reason="no torch: make setup-train")

from model.training import nets, ppo_learning, ppo_rollouts, ppo_runs  # noqa: E402
from model.training.peers import ALONE  # noqa: E402
from model.training.ppo_learning import (  # noqa: E402
    LearningConfig,
    _advantages,
    _against_others,
    _clipped_loss,
    _filled,
)
from model.training.ppo_rollouts import Played  # noqa: E402
from model.training.ppo_runs import _beginning, _orders  # noqa: E402

CONFIG = LearningConfig(minibatch=64, learning_rate=0.02)
RUN = ppo_runs.PpoConfig(
    train=("mix:usual",), forms=(EpisodeConfig(num_nodes=6, num_pods=40),), scenarios=1, lists=2, times=4,
    decisions=400, validation_seeds=(3,), embedding=3, queries=2, hidden=4, net=3,
)  # fmt: skip


def test_advantages_are_the_sums_of_the_paper() -> None:
    """Each is a sum of decay^k x (reward[t + k] + value[t + k + 1] - value[t + k])."""
    rng = np.random.default_rng(0)
    rewards, values = rng.normal(size=(2, 5)), rng.normal(size=(2, 5))
    error = rewards + np.column_stack([values[:, 1:], np.zeros(2)]) - values
    for decay in (0.0, 0.7, 1.0):
        right = [[sum(decay**k * row[t + k] for k in range(5 - t)) for t in range(5)] for row in error]
        assert _advantages(rewards, values, decay) == pytest.approx(np.array(right), rel=1e-12)
    # Two lists, each played twice: 3 and 5 differ by +-2 from each other, and 103 and 105 do so too.
    played = np.array([[3.0], [5.0], [103.0], [105.0]])
    assert _against_others(played, 2)[:, 0].tolist() == [-2.0, 2.0, -2.0, 2.0]
    nan = np.nan  # where nothing was decided the next value counts
    assert _filled(np.array([[nan, 3.0, nan, 5.0, nan]])).tolist() == [[3.0, 3.0, 5.0, 5.0, 0.0]]


def beginning() -> tuple[dict[str, Floats], list[Played]]:
    begun = _beginning(RUN, None)
    arrays = nets.initial(begun, RUN.net, np.random.default_rng(0))
    return arrays, ppo_rollouts.here(None)(_orders(RUN, 0), arrays)


def first_taken_is_good(played: Played) -> Played:
    """As if only the best level earned a point each time."""
    best = played.decisions["action"] == 0
    rewards = np.zeros_like(played.rewards)
    np.add.at(rewards, (played.decisions["episode"][best], played.decisions["clock"][best]), 1.0)
    return played._replace(rewards=rewards)


def test_what_earns_more_becomes_likelier_and_nothing_fixed_is_moved() -> None:
    arrays, played = beginning()
    of = ppo_learning.learner(beginning()[0], CONFIG, RUN.fixed, "cpu")  # updates its arrays in place
    told = []
    for number in range(6):
        rewarded = ppo_rollouts.here(None)(_orders(RUN, number), nets.arrays_of(of.tensors))
        drawn = ppo_learning.samples([first_taken_is_good(one) for one in rewarded], RUN.times, CONFIG, "cpu")
        told.append(ppo_learning.update(of, drawn, number, CONFIG, RUN.temperature, 0, ALONE))
    learned = nets.arrays_of(of.tensors)
    drawn = ppo_learning.samples(played, RUN.times, CONFIG, "cpu")
    odds = []
    for each in (arrays, learned):
        tensors = nets.tensors_of(each, tuple(each))
        logit = nets.logits(drawn.choice, drawn.seen, nets.contexts(drawn.seen, tensors), tensors, RUN.temperature)
        odds.append(float(torch.softmax(logit, dim=1)[:, 0].mean()))
    assert odds[1] > odds[0] + 0.01
    assert all(np.array_equal(arrays[name], learned[name]) for name in RUN.fixed)
    assert not np.array_equal(arrays["out_bias"], learned["out_bias"])
    assert all(line["divergence"] >= 0 and line["value_loss"] > 0 for line in told)


def test_a_step_far_from_what_was_tried_is_clipped() -> None:
    arrays, played = beginning()
    of = ppo_learning.learner(arrays, CONFIG, RUN.fixed, "cpu")
    drawn = ppo_learning.samples(played, RUN.times, CONFIG, "cpu")
    num = len(drawn.action)
    # Actions that have become e^5 times as likely: their gain is cut at 1.2, and moves nothing any more.
    likely = drawn._replace(log_probability=drawn.log_probability - 5, advantage=torch.ones_like(drawn.advantage))
    loss, value_loss, _ = _clipped_loss(of.tensors, likely, num, 1.0, CONFIG, RUN.temperature)
    assert float((loss - value_loss / 2).detach()) == pytest.approx(-1.2)
    (gradient,) = torch.autograd.grad(loss, of.tensors["out_bias"])
    assert float(gradient.abs().max()) == 0.0


def test_what_was_recorded_is_as_likely_as_it_was_then() -> None:
    """With nets that use all inputs, in scenarios with different numbers of kinds of pods."""
    arrays, _ = beginning()
    rng = np.random.default_rng(3)
    arrays |= {
        name: array + rng.normal(size=array.shape) * 0.1 for name, array in arrays.items() if name not in nets.FIXED
    }
    orders = [order for number in range(3) for order in _orders(RUN, number)]
    played = ppo_rollouts.here(None)(orders, arrays)
    assert len({len(one.pods) for one in played}) > 1
    of = ppo_learning.learner(arrays, CONFIG, RUN.fixed, "cpu")
    drawn = ppo_learning.samples(played, RUN.times, CONFIG, "cpu")
    _, _, ratio = _clipped_loss(of.tensors, drawn, len(drawn.action), 1.0, CONFIG, RUN.temperature)
    assert ratio.numpy() == pytest.approx(np.ones(len(drawn.action)), abs=1e-9)
    known = nets.contexts(drawn.seen, of.tensors)
    expected = np.concatenate([one.decisions["value"] for one in played])
    assert nets.values(drawn.seen, known, of.tensors).detach().numpy() == pytest.approx(expected, abs=1e-9)
    assert len(set(drawn.action.tolist())) > 2
