"""Scheduling as episodes: pods come to a cluster and leave it, and each is placed on a node or skipped.

Many run side by side (`Episodes`): each runs on to the next pod that fits somewhere, and takes an action. A pod that
fits nowhere waits, and so does one that is skipped; with departures both are offered again when another pod has left,
first come first. Fit, booking and features are the compiled twins of what the service decides by.
"""

from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Mask
from extender.core.valuenet.attention import cluster_features
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import Potential, fragments_only
from model.engine import courses
from model.engine.courses import TALLIES
from model.simulations.configs import EpisodeConfig
from model.simulations.scenarios import CLASS_FEATURES, Scenario

NODE_FEATURES: Final = FEATURES
FRAGMENT: Final = FEATURES.index("fragment")
POD_FEATURES: Final = (
    *CLASS_FEATURES,
    "waited, by the patience, at most 1",
    "pods that wait, by those of the episode",
    "GPU free, of all",
)
_PLACED, _FAILED, _REFUSED, _SKIPS, _GIVEN, _HELD, _WAITED = range(len(TALLIES))


class Episodes:
    """K episodes of a scenario. Equal generators give equal episodes."""

    def __init__(
        self, drawn_from: Scenario, config: EpisodeConfig, num_episodes: int, guide: Potential | None = None
    ) -> None:
        """`guide` decides which GPU of a node a share takes; default: where FGD would put it."""
        self.scenario, self.config = drawn_from, config
        rounds = 0 if config.departures else config.rounds
        self.num_pods = config.num_pods or drawn_from.num_to_fill
        self.course = courses.course(
            drawn_from.nodes, drawn_from.asks, drawn_from.outlook, guide or fragments_only(), num_episodes,
            self.num_pods, rounds,
        )  # fmt: skip
        self.span_s = np.ones(num_episodes)
        """(K,) time in which the pods come."""
        self._worth = np.zeros(num_episodes)
        self.nodes = self.course.before.reshape(num_episodes, drawn_from.num_nodes, -1)
        """(K, N, F) features of the nodes now; views, as all that is seen."""
        self.after = self.course.after.reshape(self.nodes.shape)
        """(K, N, F) with the pod that is offered on them."""
        self.fits = self.course.fits
        """(K, N)."""

    def begin(self, k: int, rng: np.random.Generator) -> None:
        """Begin one of the episodes."""
        courses.begin(self.course, k, self.scenario.nodes, *self._pods(k, rng))
        self._worth[k] = self._value(k)

    def step(self, actions: Longs) -> Floats:
        """Carry out (K,) actions, a node's row or N to skip. Returns (K,) rewards, until the next action included."""
        courses.step_all(self.course, np.ascontiguousarray(actions, dtype=np.int64))
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
        """(K,) pods that have come."""
        return self.course.arrived

    def may_skip(self) -> Mask:
        """(K,) whether the pod offered may be skipped; always where it is the only action."""
        of, config = self.course, self.config
        allowed = of.tally[:, _SKIPS] < config.max_skips
        if config.departures:
            allowed &= self._waited_s() < config.patience_s
        may: Mask = allowed | ~of.fits.any(axis=1)
        return may

    def pods(self) -> Floats:
        """(K, len(POD_FEATURES)) of the pods offered; 0 where an episode is over."""
        of, rows = self.course, np.arange(len(self.course.offered))
        classes = of.classes[rows, np.maximum(of.offered, 0)]
        free = of.nodes.gpu_free_milli.reshape(len(rows), -1).sum(axis=1) / self.scenario.gpu_milli
        waited = np.minimum(self._waited_s() / max(self.config.patience_s, 1.0), 1.0)
        seen = np.column_stack(
            [self.scenario.class_features[classes], waited, of.num_waiting / of.classes.shape[1], free]
        )
        seen[self.over] = 0.0
        return seen

    def clusters(self) -> Floats:
        """(K, len(attention.CLUSTER_FEATURES)) of the clusters as they are now."""
        return cluster_features(self.course.before, self.course.nodes, len(self.over))

    def told(self, k: int) -> dict[str, Any]:
        """What Gymnasium calls info: measures of an episode so far."""
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
        of = self.course
        return of.now_s - of.submitted_s[np.arange(len(of.offered)), np.maximum(of.offered, 0)]

    def _value(self, k: int | slice) -> Any:
        """(K,) all that was earned."""
        of, config = self.course, self.config
        allocation, fragmentation, jct = config.weights
        gpus, tally = self.scenario.gpu_milli, of.tally[k]
        used = tally[..., _HELD] / self.span_s[k] if config.departures else tally[..., _GIVEN]
        waited = tally[..., _WAITED] / (float(self.scenario.duration_s.mean()) * of.classes.shape[1])
        fragments = self.nodes[k, :, FRAGMENT].sum(axis=-1) * WHOLE_MILLI
        return allocation * used / gpus - fragmentation * fragments / gpus - jct * waited

    def _pods(self, k: int, rng: np.random.Generator) -> tuple[Longs, Floats, Floats]:
        """Classes, times of submission and durations of P pods."""
        of, config, num_pods = self.scenario, self.config, self.num_pods
        if not config.departures:
            classes = of.classes[rng.integers(len(of.classes), size=num_pods)]
            return classes, np.zeros(num_pods), np.full(num_pods, np.inf)
        load = float(rng.uniform(*config.loads))
        asked = of.asked_milli(of.classes)
        # Those that are there when it begins: the longer a pod runs the likelier, somewhere between its begin and end.
        often = of.duration_s / of.duration_s.sum()
        before = rng.choice(len(often), num_pods, p=often)
        num_before = min(int(np.searchsorted(np.cumsum(asked[before]), min(load, 1.0) * of.gpu_milli)), num_pods - 1)
        before = before[:num_before]
        later = rng.integers(len(often), size=num_pods - num_before)
        work = float((asked[later] * of.duration_s[later]).sum())
        self.span_s[k] = max(work / (load * of.gpu_milli), 1.0)
        comes = np.sort(rng.random(len(later))) * self.span_s[k]
        chosen = np.concatenate([before, later])
        duration = np.concatenate([of.duration_s[before] * rng.random(num_before), of.duration_s[later]])
        return of.classes[chosen], np.concatenate([np.zeros(num_before), comes]), duration
