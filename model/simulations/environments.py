"""A thin Gymnasium environment over `model.simulations.episodes`: `gymnasium.make("kerf/Placement-v0", config=...)`.

Importing this module registers it. Vectorised: `gymnasium.make_vec("kerf/Placement-v0", num_envs=8)`, or `rollouts`,
which steps episodes together and asks an agent for all their actions at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from model.simulations import episodes
from model.simulations.configs import EpisodeConfig, create_config
from model.simulations.episodes import NODE_FEATURES, POD_FEATURES, State
from model.simulations.scenarios import Scenario, scenario

ENVIRONMENT: Final = "kerf/Placement-v0"

Observation = dict[str, Any]
"""Arrays `nodes`, `pod` and `mask`, as `episodes.observe` describes them."""
Agent = Callable[[Observation], npt.NDArray[np.int64]]
"""Observations of B episodes, each array with a leading B axis, to (B,) actions."""


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """Offers pods one after the other; the action is a node's row, or the number of nodes to skip.

    Placing a pod on a node that it does not fit counts as a skip: agents should heed `mask`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - the name and form that Gymnasium asks for

    def __init__(self, config: EpisodeConfig | dict[str, Any] | None = None) -> None:
        self.config = config if isinstance(config, EpisodeConfig) else create_config(**(config or {}))
        self.scenario: Scenario = scenario(self.config)
        num_nodes = self.scenario.num_nodes

        def box(*shape: int) -> spaces.Box:
            return spaces.Box(-episodes.LARGEST_FEATURE, episodes.LARGEST_FEATURE, shape, np.float32)

        self.observation_space = spaces.Dict(
            {
                "nodes": box(num_nodes, len(NODE_FEATURES)),
                "pod": box(len(POD_FEATURES)),
                "mask": spaces.MultiBinary(num_nodes + 1),
            }
        )
        self.action_space = spaces.Discrete(num_nodes + 1)
        self._state: State | None = None

    @property
    def state(self) -> State:
        """The episode's state. Raises ValueError before the first `reset`."""
        if self._state is None:
            raise ValueError("reset the environment first")
        return self._state

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._state = episodes.initial(self.scenario, self.config, self.np_random)
        return self._observe(), told(self.scenario, self._state)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the pod, or skip it."""
        before = self.state
        self._state = episodes.transition(self.scenario, self.config, before, int(action))
        reward = episodes.reward(self.scenario, self.config, before, self._state)
        return self._observe(), reward, episodes.terminal(self._state), False, told(self.scenario, self._state)

    def _observe(self) -> Observation:
        return dict(episodes.observe(self.scenario, self.config, self.state))


def told(drawn_from: Scenario, state: State) -> dict[str, Any]:
    """What Gymnasium calls info: the episode's measures so far."""
    free = int(state.nodes.gpu_free_milli.sum())
    return {
        "allocation": 1 - free / drawn_from.gpu_milli,
        "fragmentation": state.fragment_milli / drawn_from.gpu_milli,
        "placed": state.num_placed,
        "failed": state.num_failed,
        "refused": state.num_refused,
        "skips": state.num_skips,
    }


@dataclass(frozen=True)
class Rollout:
    """A finished episode."""

    seed: int
    actions: npt.NDArray[np.int64]
    """(T,)."""
    rewards: npt.NDArray[np.float64]
    """(T,)."""
    info: dict[str, Any]


def rollouts(config: EpisodeConfig, agent: Agent, seeds: Sequence[int]) -> list[Rollout]:
    """One episode per seed, all stepped together."""
    drawn_from = scenario(config)
    states = [episodes.initial(drawn_from, config, np.random.default_rng(seed)) for seed in seeds]
    actions: list[list[int]] = [[] for _ in seeds]
    rewards: list[list[float]] = [[] for _ in seeds]
    while live := [i for i, state in enumerate(states) if not episodes.terminal(state)]:
        seen = [episodes.observe(drawn_from, config, states[i]) for i in live]
        batch = {name: np.stack([observation[name] for observation in seen]) for name in seen[0]}
        for i, action in zip(live, agent(batch).tolist(), strict=True):
            after = episodes.transition(drawn_from, config, states[i], action)
            actions[i].append(action)
            rewards[i].append(episodes.reward(drawn_from, config, states[i], after))
            states[i] = after
    return [
        Rollout(seed, np.array(actions[i], np.int64), np.array(rewards[i]), told(drawn_from, states[i]))
        for i, seed in enumerate(seeds)
    ]


def first_fit(observation: Observation) -> npt.NDArray[np.int64]:
    """An agent that takes the first node that fits, and skips only when none does."""
    chosen: npt.NDArray[np.int64] = observation["mask"].argmax(axis=1)
    return chosen


def least_fragments(observation: Observation) -> npt.NDArray[np.int64]:
    """An agent that takes the node whose fragments grow least: FGD without its rounding."""
    growth = observation["nodes"][:, :, NODE_FEATURES.index("fragment more after placing the pod here, in GPUs")]
    fits = observation["mask"][:, :-1] == 1
    best = np.where(fits, growth, np.inf).argmin(axis=1)
    chosen: npt.NDArray[np.int64] = np.where(fits.any(axis=1), best, fits.shape[1]).astype(np.int64)
    return chosen


if ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(id=ENVIRONMENT, entry_point="model.simulations.environments:PlacementEnv")
