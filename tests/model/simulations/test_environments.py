"""Episodes against a slow account of the same events, and Gymnasium's environments."""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.valuenet.attention import _sight
from extender.core.valuenet.features import features
from model.engine import kernels
from model.engine.node_scores import book, release
from model.simulations import environments, episodes
from model.simulations.configs import ConfigError, EpisodeConfig, create_config
from model.simulations.environments import _ENVIRONMENT, Observation, _observed
from model.simulations.episodes import Episodes
from model.simulations.scenarios import Scenario, scenario
from model.workloads.traces import TraceError
from tests.model.builders import write_openb

QUICK = create_config(num_nodes=5, num_pods=40)


def begun(drawn_from: Scenario, config: EpisodeConfig, seeds: Sequence[int]) -> Episodes:
    """Episodes of a scenario, one for each seed."""
    made = Episodes(drawn_from, config, len(seeds))
    for k, seed in enumerate(seeds):
        made.begin(k, np.random.default_rng(seed))
    return made


def drawn(config: EpisodeConfig, seeds: list[int], seed: int = 0) -> Episodes:
    return begun(scenario(config, np.random.default_rng(seed)), config, seeds)


def first_fit(observation: Observation) -> npt.NDArray[np.int64]:
    """Take the first node that fits, and skip if none does."""
    chosen: npt.NDArray[np.int64] = observation["mask"].argmax(axis=1)
    return chosen


def finished(config: EpisodeConfig) -> dict[str, Any]:
    """The measures of one episode under first fit."""
    of = drawn(config, [0])
    while not of.over.all():
        of.step(first_fit(_observed(of)))
    return of.told(0)


@pytest.mark.parametrize(
    "departures", [pytest.param(False, marks=pytest.mark.nightly(of=("model/", "tests/model/"))), True]
)
def test_gymnasiums_own_checker_finds_nothing(departures: bool) -> None:
    config = {"num_nodes": 3, "num_pods": 10, "departures": departures}
    check_env(gymnasium.make(_ENVIRONMENT, config=config).unwrapped)


def test_many_at_once_begin_again_when_they_are_over() -> None:
    envs = gymnasium.make_vec(
        _ENVIRONMENT, num_envs=7, vectorization_mode="vector_entry_point", scenarios=3, threads=2,
        config={"num_nodes": 4, "num_pods": 6},
    )  # fmt: skip
    first, _ = envs.reset(seed=1)
    again, _ = envs.reset(seed=1)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert first["nodes"].shape == (7, 4, len(episodes.NODE_FEATURES))
    assert envs.observation_space.contains(first)
    seen, num_over, was_over = first, np.zeros(7), np.zeros(7, bool)
    for _ in range(30):
        seen, rewards, over, truncated, _ = envs.step(first_fit(seen))
        assert (rewards[was_over] == 0).all() and not truncated.any()
        assert not (over & was_over).any()
        assert (seen["mask"][~over, :-1].any(axis=1)).all()  # what is offered fits somewhere
        num_over += over
        was_over = over
    assert (num_over >= 2).all()
    envs.close()
    seeds: Any = [1, 2]
    with pytest.raises(ValueError, match="one seed"):
        envs.reset(seed=seeds)


def test_together_is_as_alone() -> None:
    drawn_from = scenario(QUICK, np.random.default_rng(3))
    together = begun(drawn_from, QUICK, [1, 2, 3])
    alone = [begun(drawn_from, QUICK, [seed]) for seed in (1, 2, 3)]
    for step in itertools.count():
        if step == 20:
            for k, seen in enumerate(together.clusters()):
                own = together.course.nodes.at(np.arange(k * 5, (k + 1) * 5))
                assert seen == pytest.approx(_sight(own, drawn_from.outlook).cluster, rel=1e-9)
        if together.over.all():
            break
        actions = first_fit(_observed(together))
        rewards = together.step(actions)
        for k, one in enumerate(alone):
            if not one.over[0]:
                assert one.step(actions[k : k + 1])[0] == rewards[k]
    assert all(one.over[0] for one in alone)
    assert [together.told(k) for k in range(3)] == [one.told(0) for one in alone]


def test_the_environment_is_an_episode() -> None:
    env = environments.PlacementEnv(QUICK)
    with pytest.raises(ValueError, match="reset the environment first"):
        env.step(np.int64(0))
    observation, _ = env.reset(seed=5)
    rng = np.random.default_rng(5)
    episode = Episodes(scenario(QUICK, rng), QUICK, 1)
    episode.begin(0, rng)
    terminated = False
    info: dict[str, Any] = {}
    while not terminated:
        action = first_fit(_observed(episode))
        assert action[0] == first_fit({name: array[None] for name, array in observation.items()})[0]
        observation, reward, terminated, truncated, info = env.step(action[0])
        assert reward == episode.step(action)[0] and not truncated
    assert episode.over[0] and info == episode.told(0)


class Account:
    """The same events, one after the other in plain Python: who is offered next, what is free, what was earned."""

    def __init__(self, of: Episodes) -> None:
        course = of.course
        self.of, self.nodes = of, of.scenario.nodes.copy()
        self.classes, self.comes, self.lasts = course.classes[0], course.submitted_s[0], course.duration_s[0]
        self.now, self.arrived, self.round = float(self.comes[0]), 0, 0
        self.queue: list[int] = []
        self.turn = 0
        self.running: list[tuple[float, int, int, int]] = []
        self.tally = dict.fromkeys(("placed", "failed", "refused", "skips"), 0)
        self.held_s = self.waited_s = 0.0
        self.stays = not of.config.departures

    def fits(self, pod: int) -> bool:
        return bool(kernels.fitting(self.nodes, self.of.scenario.asks, int(self.classes[pod])).any())

    def offered(self) -> int:
        """The next pod that fits somewhere, -1 at the end."""
        while True:
            while self.turn < len(self.queue):
                if self.fits(self.queue[self.turn]):
                    return self.queue[self.turn]
                if self.stays:
                    self.tally["failed"] += 1
                    self.queue.pop(self.turn)
                else:
                    self.turn += 1
            if self.arrived == len(self.classes):
                if not self.stays or not self.queue:
                    for pod in self.queue:
                        self.tally["refused" if self.fits(pod) else "failed"] += 1
                    return -1
                self.round, self.turn = self.round + 1, 0
                continue
            leaves = min(self.running, default=(np.inf, 0, 0, 0))
            then = min(float(self.comes[self.arrived]), leaves[0])
            held = self.of.scenario.gpu_milli - int(self.nodes.gpu_free_milli.sum())
            self.held_s += held * (then - self.now)
            self.waited_s += len(self.queue) * (then - self.now)
            self.now = then
            if self.comes[self.arrived] <= leaves[0]:
                self.turn = len(self.queue)
                self.queue.append(self.arrived)
                self.arrived += 1
            else:
                self.running.remove(leaves)
                release(self.nodes, self.of.scenario.asks, int(self.classes[leaves[1]]), *leaves[2:])
                self.turn = 0

    def act(self, pod: int, action: int, gpu: int) -> None:
        c = int(self.classes[pod])
        n = self.of.scenario.num_nodes
        if 0 <= action < n and kernels.fitting(self.nodes, self.of.scenario.asks, c)[action]:
            gpus = book(self.nodes, self.of.scenario.asks, c, action, gpu)
            self.tally["placed"] += 1
            if np.isfinite(self.lasts[pod]):
                self.running.append((self.now + float(self.lasts[pod]), pod, action, gpus))
            self.queue.pop(self.turn)
            return
        self.tally["skips"] += 1
        if self.stays and self.round + 1 >= self.of.config.rounds:
            self.tally["refused"] += 1
            self.queue.pop(self.turn)
        else:
            self.turn += 1


@pytest.mark.parametrize("departures", [False, True])
@given(seed=st.integers(0, 2**32), rounds=st.integers(1, 3))
@settings(max_examples=settings().max_examples // 4)
def test_any_actions_give_what_a_slow_account_gives(departures: bool, seed: int, rounds: int) -> None:
    """Offers, books, features and rewards, for nodes that don't fit and rows that are none as well."""
    config = create_config(
        num_nodes=4, num_pods=25, rounds=rounds, departures=departures, load=2.0, reward="weighted",
        allocation_weight=1.5, jct_weight=0.5, fragmentation_weight=0.25,
    )  # fmt: skip
    of = drawn(config, [seed], seed % 3)
    account, rng = Account(of), np.random.default_rng(seed)
    drawn_from, total, begun_with = of.scenario, 0.0, float(of.nodes[0, :, 0].sum())
    while (pod := account.offered()) >= 0:
        assert of.course.offered[0] == pod and not of.over[0]
        nodes = of.course.nodes
        for column in ("cpu_free_milli", "memory_free_mib", "gpu_free_milli"):
            assert np.array_equal(getattr(nodes, column), getattr(account.nodes, column))
        seen = _observed(of)
        c = int(account.classes[pod])
        fits = kernels.fitting(account.nodes, drawn_from.asks, c)
        assert seen["mask"][0, :-1].tolist() == fits.tolist()
        assert seen["nodes"][0] == pytest.approx(features(account.nodes, drawn_from.outlook), rel=1e-9, abs=1e-9)
        action = int(rng.integers(-1, 6))
        gpu = int(of.course.gpu[action]) if 0 <= action < 4 else -1
        if 0 <= action < 4 and fits[action]:
            then = account.nodes.copy()
            book(then, drawn_from.asks, c, action, gpu)
            expected = features(then, drawn_from.outlook)[action]
            assert seen["after"][0, action] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        account.act(pod, action, gpu)
        total += float(of.step(np.array([action]))[0])
    assert of.over[0]
    told = of.told(0)
    assert {name: told[name] for name in account.tally} == account.tally
    assert sum(told[name] for name in ("placed", "failed", "refused")) == 25
    held = drawn_from.gpu_milli - int(account.nodes.gpu_free_milli.sum())
    used = account.held_s / of.span_s[0] if departures else held
    fragments = (float(of.nodes[0, :, 0].sum()) - begun_with) * 1000
    waited = account.waited_s / float(drawn_from.duration_s.mean()) / 25
    assert total == pytest.approx((1.5 * used - 0.25 * fragments) / drawn_from.gpu_milli - 0.5 * waited)


def test_skips_are_bounded_where_that_is_asked() -> None:
    of = drawn(create_config(num_nodes=2, num_pods=3, max_skips=1, departures=False), [0])
    assert _observed(of)["mask"][0, -1] == 1
    of.step(np.array([2]))
    assert _observed(of)["mask"][0, -1] == 0
    impatient = drawn(create_config(num_nodes=2, num_pods=9, patience_s=0.0), [0])
    assert _observed(impatient)["mask"][0, -1] == 0


def test_episodes_of_a_trace_and_to_fill_a_cluster(tmp_path: Path) -> None:
    write_openb(tmp_path, num_nodes=10, num_pods=80)
    trace = {"traces": str(tmp_path), "trace": "small"}
    assert 0 < finished(create_config(**trace, num_nodes=10, num_pods=50))["allocation"] <= 1
    with pytest.raises(TraceError, match="num_nodes is 11, but the cluster has 10"):
        finished(create_config(**trace, num_nodes=11))
    full = finished(create_config(num_pods=0, departures=False))
    assert full["placed"] > 16 and full["failed"] > 0 and full["allocation"] > 0.5


def test_configurations(tmp_path: Path) -> None:
    path = tmp_path / "episode.yaml"
    path.write_text("num_pods: 7\nload: [0.5, 2]\nreward: weighted\nfragmentation_weight: 0.5\n")
    config = create_config(path, num_nodes=3)
    assert (config.num_pods, config.num_nodes, config.weights, config.loads) == (7, 3, (1.0, 0.5, 0.0), (0.5, 2.0))
    path.write_text(yaml.safe_dump(msgspec.to_builtins(config)))
    assert create_config(path) == config
    assert create_config(reward="jct").weights == (0.0, 0.0, 1.0)
    for text, fault in (
        ("num_nodes: 0", "num_nodes must be 1 or more"),
        ("{reward: jct, departures: false}", "needs departures"),
        ("load: .nan", "load must be between"),
        ("mixes: []", "mixes must not be empty"),
        ("- a", "not a mapping"),
        ("a: [", "flow"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"(?s){re.escape(str(path))}: .*{re.escape(fault)}"):
            create_config(path)
