"""Episodes and the Gymnasium environment over them."""

from pathlib import Path

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.clusters import WHOLE_MILLI
from model.simulations import environments, episodes
from model.simulations.configs import ConfigError, EpisodeConfig, create_config, to_yaml
from model.simulations.environments import Observation, first_fit, least_fragments, rollouts
from model.simulations.scenarios import scenario
from tests.model.builders import write_openb

QUICK = create_config(num_nodes=5, num_pods=40)


def test_gymnasiums_own_checker_finds_nothing() -> None:
    for departures in (False, True):
        config = {"num_nodes": 3, "num_pods": 10, "departures": departures}
        check_env(gymnasium.make(environments.ENVIRONMENT, config=config).unwrapped)


def test_a_vector_of_environments() -> None:
    envs = gymnasium.make_vec(environments.ENVIRONMENT, num_envs=3, config={"num_nodes": 4, "num_pods": 8})
    observation, _ = envs.reset(seed=1)
    assert observation["nodes"].shape == (3, 4, len(episodes.NODE_FEATURES))
    _, rewards, _, _, _ = envs.step(first_fit(observation))
    assert rewards.shape == (3,)
    envs.close()


def test_equal_seeds_give_equal_episodes() -> None:
    first, second = (rollouts(QUICK, least_fragments, [7, 8]) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.actions.tobytes() == other.actions.tobytes()
        assert one.rewards.tobytes() == other.rewards.tobytes()
    assert first[0].actions.tobytes() != first[1].actions.tobytes()


def test_together_is_as_alone() -> None:
    together = rollouts(QUICK, first_fit, [1, 2, 3])
    alone = [rollouts(QUICK, first_fit, [seed])[0] for seed in (1, 2, 3)]
    assert [run.actions.tolist() for run in together] == [run.actions.tolist() for run in alone]


def test_environment_and_functions_agree() -> None:
    env = environments.PlacementEnv(QUICK)
    observation, info = env.reset(seed=5)
    terminated = False
    run = rollouts(QUICK, first_fit, [5])[0]
    for expected, reward_expected in zip(run.actions, run.rewards, strict=True):
        action = first_fit({name: array[None] for name, array in observation.items()})[0]
        assert action == expected
        observation, reward, terminated, truncated, info = env.step(action)
        assert reward == reward_expected
        assert not truncated
    assert terminated
    assert info == run.info


@pytest.mark.parametrize("departures", [False, True])
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 3))
@settings(max_examples=15)
def test_any_actions_keep_the_books(departures: bool, seed: int, rounds: int) -> None:
    config = create_config(num_nodes=4, num_pods=30, rounds=rounds, departures=departures)
    drawn_from = scenario(config)
    rng = np.random.default_rng(seed)
    state = episodes.initial(drawn_from, config, rng)
    given_milli, total = 0.0, 0.0
    while not episodes.terminal(state):
        before = state
        frozen = before.nodes.gpu_free_milli.tobytes()
        action = int(rng.integers(-1, drawn_from.num_nodes + 2))  # nodes that don't fit, and none at all
        state = episodes.transition(drawn_from, config, before, action)
        assert before.nodes.gpu_free_milli.tobytes() == frozen
        assert state.now_s >= before.now_s
        free = state.nodes.gpu_free_milli
        assert ((free >= 0) & (free <= WHOLE_MILLI)).all()
        assert (state.nodes.cpu_free_milli >= 0).all()
        total += episodes.reward(drawn_from, config, before, state)
        given_milli = state.allocated_milli
        held = drawn_from.gpu_milli - int(free.sum())
        if departures:
            asked = drawn_from.asked_milli(state.classes)
            assert held == sum(int(asked[pod]) for _, pod, _, _ in state.running)
        else:
            assert held == given_milli
        anew = drawn_from.fragments(state.nodes).sum()
        assert state.fragment_milli == pytest.approx(anew, abs=1e-6)
    assert state.num_placed + state.num_failed + state.num_refused == 30
    assert total == pytest.approx(given_milli / drawn_from.gpu_milli)


def always_skip(observation: Observation) -> npt.NDArray[np.int64]:
    skipped: np.ndarray[tuple[int], np.dtype[np.int64]] = np.full(
        len(observation["mask"]), observation["mask"].shape[1] - 1
    )
    return skipped


def test_a_skipped_pod_is_offered_again_in_each_round() -> None:
    config = create_config(num_nodes=2, num_pods=10, rounds=4)
    (run,) = rollouts(config, always_skip, [0])
    assert len(run.actions) == 4 * 10
    assert (run.info["placed"], run.info["refused"], run.info["skips"]) == (0, 10, 40)


def test_skips_are_bounded_where_that_is_asked() -> None:
    config = create_config(num_nodes=2, num_pods=3, max_skips=1)
    drawn_from = scenario(config)
    state = episodes.initial(drawn_from, config, np.random.default_rng(0))
    assert episodes.observe(drawn_from, config, state)["mask"][-1] == 1
    state = episodes.transition(drawn_from, config, state, drawn_from.num_nodes)
    assert episodes.observe(drawn_from, config, state)["mask"][-1] == 0


def test_a_pod_that_waits_returns_when_another_has_left() -> None:
    config = create_config(num_nodes=1, num_pods=60, departures=True, load=3.0, rounds=50, reward="jct")
    (run,) = rollouts(config, first_fit, [2])
    assert run.info["placed"] == 60
    assert run.rewards.sum() < 0  # they waited


def test_rewards_are_weighted() -> None:
    names = {"allocation": (1.0, 0.0), "fragmentation": (0.0, 1.0)}
    plain = {name: rollouts(create_config(num_nodes=4, num_pods=30, reward=name), first_fit, [3])[0] for name in names}
    both = create_config(num_nodes=4, num_pods=30, reward="weighted", allocation_weight=2.0, fragmentation_weight=0.5)
    expected = 2 * plain["allocation"].rewards + 0.5 * plain["fragmentation"].rewards
    assert rollouts(both, first_fit, [3])[0].rewards == pytest.approx(expected, abs=1e-12)


def test_episodes_of_a_trace(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=10, num_pods=80)
    config = create_config(traces=str(tmp_path), trace="small", num_pods=50)
    (run,) = rollouts(config, least_fragments, [0])
    assert len(run.actions) == 50
    assert 0 < run.info["allocation"] <= 1


def test_configurations(tmp_path: Path) -> None:
    path = tmp_path / "episode.yaml"
    path.write_text("num_pods: 7\nreward: weighted\nfragmentation_weight: 0.5\n")
    config = create_config(path, num_nodes=3)
    assert (config.num_pods, config.num_nodes, config.fragmentation_weight) == (7, 3, 0.5)
    path.write_text(to_yaml(config))
    assert create_config(path) == config
    assert create_config() == EpisodeConfig()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("num_pods: many", "`$.num_pods`"),
        ("num_pods: 0", "num_pods must be 1 or more"),
        ("pods: 3", "unknown field `pods`"),
        ("reward: fame", "$.reward"),
        ("reward: jct", "needs departures"),
        ("load: .nan", "load must be between"),
        ("- a", "not a mapping"),
        ("a: [", "flow"),
    ],
    ids=["type", "range", "name", "choice", "jct", "nan", "list", "yaml"],
)
def test_bad_configurations(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "episode.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        create_config(path)
    assert str(path) in str(raised.value)
    assert fault in str(raised.value)
