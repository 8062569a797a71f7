"""Scheduling as episodes: pods arrive at a cluster and leave it, and each is placed on a node or skipped.

Episodes run as a batch (`Episodes`): each advances to the next pod that fits somewhere, and takes an action. Pods that
fit nowhere or are skipped wait; with departures they are offered again after each departure, in order of arrival.
Fit, booking and features are the compiled equivalents of the service's.
"""

from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.valuenet.attention import cluster_features
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import Potential, fragments_only
from model.engine import episode_batches
from model.engine.episode_batches import TALLIES
from model.simulations.configs import EpisodeConfig
from model.simulations.scenarios import CLASS_FEATURES, Scenario

NODE_FEATURES: Final = FEATURES
FRAGMENT: Final = FEATURES.index("fragment")
POD_FEATURES: Final = (
    *CLASS_FEATURES,
    "waiting time / patience, at most 1",
    "waiting pods / pods of the episode",
    "free GPU / capacity",
)
_PLACED, _FAILED, _REFUSED, _SKIPS, _GIVEN, _HELD, _WAITED = range(len(TALLIES))


class Episodes:
    """K episodes of a scenario. Equal generators give equal episodes."""

    def __init__(
        self, drawn_from: Scenario, config: EpisodeConfig, num_episodes: int, guide: Potential | None = None
    ) -> None:
        """`guide` chooses the GPU for a share; default: as FGD does."""
        self.scenario, self.config = drawn_from, config
        rounds = 0 if config.departures else config.rounds
        self.num_pods = config.num_pods or drawn_from.num_to_fill
        self.course = episode_batches.empty_batch(
            drawn_from.nodes, drawn_from.asks, drawn_from.outlook, guide or fragments_only(), num_episodes,
            self.num_pods, rounds,
        )  # fmt: skip
        self.span_s = np.ones(num_episodes)
        """(K,) period in which the pods arrive."""
        self._worth = np.zeros(num_episodes)
        self.nodes = self.course.before.reshape(num_episodes, drawn_from.num_nodes, -1)
        """(K, N, F) current features of the nodes; a view, as are the other observations."""
        self.after = self.course.after.reshape(self.nodes.shape)
        """(K, N, F) features with the offered pod on the node."""
        self.fits = self.course.fits
        """(K, N) whether the offered pod fits."""

    def begin(self, k: int, rng: np.random.Generator) -> None:
        """Begin one of the episodes."""
        episode_batches.begin(self.course, k, self.scenario.nodes, *self._pods(k, rng))
        self._worth[k] = self._value(k)

    def step(self, actions: Longs) -> Floats:
        """Apply (K,) actions, a node's row or N to skip. Returns (K,) rewards up to the next decision."""
        episode_batches.step_all(self.course, np.ascontiguousarray(actions, dtype=np.int64))
        worth = self._value(slice(None))
        reward: Floats = worth - self._worth
        self._worth[:] = worth
        return reward

    @property
    def over(self) -> Mask:
        """(K,) whether an episode is over."""
        over: Mask = self.course.offered < 0
        return over

    @property
    def clock(self) -> Longs:
        """(K,) number of pods that have arrived."""
        return self.course.arrived

    def may_skip(self) -> Mask:
        """(K,) whether the offered pod may be skipped; always if there is no other action."""
        batch, config = self.course, self.config
        allowed = batch.tally[:, _SKIPS] < config.max_skips
        if config.departures:
            allowed &= self._waited_s() < config.patience_s
        may: Mask = allowed | ~batch.fits.any(axis=1)
        return may

    def pods(self) -> Floats:
        """(K, len(POD_FEATURES)) features of the offered pods; 0 where an episode is over."""
        batch, rows = self.course, np.arange(len(self.course.offered))
        classes = batch.classes[rows, np.maximum(batch.offered, 0)]
        free = batch.nodes.gpu_free_milli.reshape(len(rows), -1).sum(axis=1) / self.scenario.gpu_milli
        waited = np.minimum(self._waited_s() / max(self.config.patience_s, 1.0), 1.0)
        features = np.column_stack(
            [self.scenario.class_features[classes], waited, batch.num_waiting / batch.classes.shape[1], free]
        )
        features[self.over] = 0.0
        return features

    def clusters(self) -> Floats:
        """(K, len(attention.CLUSTER_FEATURES)) features of the clusters."""
        return cluster_features(self.course.before, self.course.nodes, len(self.over))

    def told(self, k: int) -> dict[str, Any]:
        """Return Gymnasium's `info`: measures of an episode so far."""
        tally = dict(zip(TALLIES, self.course.tally[k].tolist(), strict=True))
        own = slice(k * self.scenario.num_nodes, (k + 1) * self.scenario.num_nodes)
        gpus = self.scenario.gpu_milli
        seconds = max(float(self.course.now_s[k] - self.course.submitted_s[k, 0]), 1e-9)
        held = 1 - int(self.course.nodes.gpu_free_milli[own].sum()) / gpus
        return {
            "allocation": tally["held_milli_s"] / (gpus * seconds) if self.config.departures else held,
            "fragmentation": float(self.nodes[k, :, FRAGMENT].sum()) * WHOLE_MILLI / gpus,
            **{name: int(tally[name]) for name in ("placed", "failed", "refused", "skips")},
        }

    def _waited_s(self) -> Floats:
        batch = self.course
        return batch.now_s - batch.submitted_s[np.arange(len(batch.offered)), np.maximum(batch.offered, 0)]

    def _value(self, k: int | slice) -> Any:
        """(K,) return so far."""
        batch, config = self.course, self.config
        allocation, fragmentation, jct = config.weights
        gpus, tally = self.scenario.gpu_milli, batch.tally[k]
        used = tally[..., _HELD] / self.span_s[k] if config.departures else tally[..., _GIVEN]
        waited = tally[..., _WAITED] / (float(self.scenario.duration_s.mean()) * batch.classes.shape[1])
        fragments = self.nodes[k, :, FRAGMENT].sum(axis=-1) * WHOLE_MILLI
        return allocation * used / gpus - fragmentation * fragments / gpus - jct * waited

    def _pods(self, k: int, rng: np.random.Generator) -> tuple[Longs, Floats, Floats]:
        """Draw classes, submission times and durations of P pods."""
        scenario, config, num_pods = self.scenario, self.config, self.num_pods
        if not config.departures:
            classes = scenario.classes[rng.integers(len(scenario.classes), size=num_pods)]
            return classes, np.zeros(num_pods), np.full(num_pods, np.inf)
        load = float(rng.uniform(*config.loads))
        milli = scenario.asked_milli(scenario.classes)
        # Pods that run at the start: drawn in proportion to duration, with a uniform fraction of it left.
        chance = scenario.duration_s / scenario.duration_s.sum()
        before = rng.choice(len(chance), num_pods, p=chance)
        num_before = min(
            int(np.searchsorted(np.cumsum(milli[before]), min(load, 1.0) * scenario.gpu_milli)), num_pods - 1
        )
        before = before[:num_before]
        later = rng.integers(len(chance), size=num_pods - num_before)
        work = float((milli[later] * scenario.duration_s[later]).sum())
        self.span_s[k] = max(work / (load * scenario.gpu_milli), 1.0)
        arrival = np.sort(rng.random(len(later))) * self.span_s[k]
        chosen = np.concatenate([before, later])
        duration = np.concatenate([scenario.duration_s[before] * rng.random(num_before), scenario.duration_s[later]])
        return scenario.classes[chosen], np.concatenate([np.zeros(num_before), arrival]), duration
