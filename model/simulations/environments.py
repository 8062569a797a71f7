"""Gymnasium environments over `model.simulations.episodes`: `gymnasium.make("kerf/Placement-v0", config=...)`.

Importing this module registers them. For a batch stepped in compiled code on all cores:
`gymnasium.make_vec("kerf/Placement-v0", num_envs=256, vectorization_mode="vector_entry_point", config=...)`.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from extender.core.clusters import Floats, Longs, Mask
from model.simulations.configs import EpisodeConfig, create_config
from model.simulations.episodes import NODE_FEATURES, POD_FEATURES, Episodes
from model.simulations.scenarios import scenario

_ENVIRONMENT: Final = "kerf/Placement-v0"
_LARGEST_FEATURE: Final = 1e6
"""Bound for Gymnasium's spaces; observations are clipped to it, but stay far below."""

Observation = dict[str, Any]
"""Arrays `nodes` (N, F): current features of the nodes; `after` (N, F): with the pod on them; `pod`
(len(POD_FEATURES),); `mask` (N + 1,): 1 for nodes where the pod fits and, last, if the skip is allowed."""


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """Offers pods one after the other; the action is a node's row, or N to skip.

    Each episode draws a scenario: a cluster, a mix of pods and a load. Placing a pod on a node where it does not fit
    counts as a skip: agents should apply `mask`.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 - required by Gymnasium

    def __init__(self, config: EpisodeConfig | dict[str, Any] | None = None) -> None:
        self.config = _config(config)
        self.observation_space = _observation_space(self.config.num_nodes)
        self.action_space = spaces.Discrete(self.config.num_nodes + 1)
        self._episodes: Episodes | None = None

    @property
    def episodes(self) -> Episodes:
        """The current episode. Raises ValueError before the first `reset`."""
        if self._episodes is None:
            raise ValueError("reset the environment first")
        return self._episodes

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        self._episodes = Episodes(scenario(self.config, self.np_random), self.config, 1)
        self._episodes.begin(0, self.np_random)
        return self._observe(), self._episodes.told(0)

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Place the pod, or skip it."""
        reward = float(self.episodes.step(np.array([action]))[0])
        return self._observe(), reward, bool(self.episodes.over[0]), False, self.episodes.told(0)

    def _observe(self) -> Observation:
        return {name: array[0] for name, array in _observed(self.episodes).items()}


class PlacementVectorEnv(VectorEnv[Observation, Longs, npt.NDArray[Any]]):
    """A batch of episodes on `scenarios` clusters, which are drawn at each `reset`.

    A finished episode restarts at the next step, on the same cluster, and ignores the action. `threads` step the batch;
    default: one for each core.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012 - required by Gymnasium

    def __init__(
        self,
        num_envs: int = 1,
        config: EpisodeConfig | dict[str, Any] | None = None,
        scenarios: int = 8,
        threads: int | None = None,
    ) -> None:
        self.config, self.num_envs = _config(config), num_envs
        self.single_observation_space = _observation_space(self.config.num_nodes)
        self.single_action_space = spaces.Discrete(self.config.num_nodes + 1)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._parts = [part for part in np.array_split(np.arange(num_envs), scenarios) if len(part)]
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1)
        self._episodes: list[Episodes] = []

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Draw clusters and begin all episodes. All environments share one seed."""
        if isinstance(seed, list):
            raise ValueError("give one seed for all environments: they share clusters")
        super().reset(seed=seed, options=options)
        self._episodes = [
            Episodes(scenario(self.config, self.np_random), self.config, len(part)) for part in self._parts
        ]
        for episodes in self._episodes:
            for k in range(len(episodes.over)):
                episodes.begin(k, self.np_random)
        return self._observe(), {}

    def step(self, actions: Longs) -> tuple[Observation, Floats, Mask, Mask, dict[str, Any]]:
        """Apply (B,) actions; finished episodes restart and ignore theirs."""
        actions_of_part = [np.asarray(actions)[part] for part in self._parts]
        ended = [(episodes, k) for episodes in self._episodes for k in np.flatnonzero(episodes.over).tolist()]
        rewards = np.concatenate(list(self._pool.map(Episodes.step, self._episodes, actions_of_part)))
        for episodes, k in ended:
            episodes.begin(k, self.np_random)
        over = np.concatenate([episodes.over for episodes in self._episodes])
        return self._observe(), rewards, over, np.zeros(self.num_envs, bool), {}

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the threads."""
        self._pool.shutdown()

    def _observe(self) -> Observation:
        observed = [_observed(episodes) for episodes in self._episodes]
        return {name: np.concatenate([part[name] for part in observed]) for name in observed[0]}


def _config(config: EpisodeConfig | dict[str, Any] | None) -> EpisodeConfig:
    return config if isinstance(config, EpisodeConfig) else create_config(**(config or {}))


def _observation_space(num_nodes: int) -> spaces.Dict:
    """Return the observation space of one environment."""

    def box(*shape: int) -> spaces.Box:
        return spaces.Box(-_LARGEST_FEATURE, _LARGEST_FEATURE, shape, np.float64)

    nodes = box(num_nodes, len(NODE_FEATURES))
    mask = spaces.MultiBinary(num_nodes + 1)
    return spaces.Dict({"nodes": nodes, "after": nodes, "pod": box(len(POD_FEATURES)), "mask": mask})


def _observed(episodes: Episodes) -> Observation:
    """Return the observations of K episodes; each array has a leading K axis."""
    mask = np.column_stack([episodes.fits, episodes.may_skip()]).astype(np.int8)
    features = {"nodes": episodes.nodes, "after": episodes.after, "pod": episodes.pods()}
    bounded = {name: np.clip(array, -_LARGEST_FEATURE, _LARGEST_FEATURE) for name, array in features.items()}
    return {**bounded, "mask": mask}


if _ENVIRONMENT not in gymnasium.registry:
    gymnasium.register(
        id=_ENVIRONMENT,
        entry_point="model.simulations.environments:PlacementEnv",
        vector_entry_point="model.simulations.environments:PlacementVectorEnv",
    )
