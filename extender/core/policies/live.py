"""Kerf's live score: the measured headroom of the GPUs that a pod would get, and of their node.

A GPU's headroom is the weighted mean of terms from 0 (none) to 1 (all), each continuous in its sample:

- load: 1 - the larger of the observed load and the load expected of recently placed pods;
- memory: the fraction neither booked nor in use;
- terms from samples alone, one module each in `terms`.

A faulty GPU has no headroom. A term without a fresh sample counts as the mean of all GPUs with one. A node's score is
half the mean over the GPUs with room for the pod and half the mean over all its GPUs. The latter falls with each pod
placed, which prevents a herd of pods between two samples.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Floats, Mask, Rows
from extender.core.fit.reasons import Fit
from extender.core.gauges import Gauge
from extender.core.occupancies import HARDWARE_XIDS, ObservedRules, faulty
from extender.core.policies.breakdowns import Breakdown, Part, percent
from extender.core.policies.policy import Options, Policy
from extender.core.policies.terms.registry import TERMS
from extender.core.policies.terms.term import Plane, Samples
from extender.core.refreshes import PerRefresh
from extender.core.resources.requests import GpuRequest

_HEADROOM_OF: Final = {"load": "compute"}
_UNKNOWN: Final = 0.5
"""Headroom of a term without any samples."""
_WEIGHTS: Final[Mapping[str, tuple[float, str]]] = {
    "load": (4.0, "Unused compute."),
    "memory": (2.0, "Memory neither booked nor in use."),
    **{term.name: (term.weight, term.meaning) for term in TERMS},
    "own_gpus": (0.5, "Fraction of the score from GPUs with room for the pod; the rest is from all GPUs of the node."),
}
"""Default and description of each weight; `own_gpus` is a fraction, the others are weights of terms."""


@dataclass(frozen=True, slots=True)
class _Sampled:
    """What depends only on samples and inventory; the planes are 0 for no GPU and faulty GPUs."""

    unloaded: Plane
    """(N, G) headroom of a GPU without load and without free memory."""
    per_load: Plane
    """(N, G) headroom lost at a load of 1."""
    per_mib: Plane
    """(N, G) headroom per free MiB."""
    busy: Plane
    """(N, G) compute in use, 0..1."""
    num_gpus: Floats
    """(N,) number of GPUs, at least 1."""


class LiveScore:
    """The score. Caches what depends only on samples until they are refreshed."""

    def __init__(self, weights: Mapping[str, float] | None = None, xids: frozenset[int] = HARDWARE_XIDS) -> None:
        """`weights` override defaults by name. Raises ValueError for an unknown name."""
        self._weights = {name: default for name, (default, _) in _WEIGHTS.items()} | dict(weights or {})
        if unknown := self._weights.keys() - _WEIGHTS.keys():
            raise ValueError(f"no weights of the live score: {', '.join(sorted(unknown))}")
        self._rules = ObservedRules(xids=xids)
        self._sampled = PerRefresh(self._of_samples)

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) headroom from 0 to 1."""
        sampled = self._sampled(cluster)
        own_gpus = self._weights["own_gpus"]
        busy = cluster.take_rows(sampled.busy, rows)
        if cluster.observed is not None:
            busy = np.maximum(busy, cluster.take_rows(cluster.observed.expected_load, rows))
        headroom = cluster.take_rows(sampled.unloaded, rows) - cluster.take_rows(sampled.per_load, rows) * busy
        headroom += cluster.take_rows(sampled.per_mib, rows) * cluster.take_rows(cluster.gpu_free_mib, rows)
        own = (headroom * fit.room).sum(axis=1) / np.maximum(fit.room.sum(axis=1), 1)
        whole_node = headroom.sum(axis=1) / cluster.take_rows(sampled.num_gpus, rows)
        # Rounded, so that summation order breaks no ties.
        score: Floats = (own_gpus * own + (1 - own_gpus) * whole_node).round(9)
        return score

    def parts(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        """The breakdown of the score: the weighted headroom of each term."""
        weights, own_gpus = self._weights, self._weights["own_gpus"]
        total = max(sum(weight for name, weight in weights.items() if name != "own_gpus"), 1e-9)
        installed = cluster.gpu_model >= 0
        sound = cluster.take_rows(installed & ~faulty(cluster, np.arange(cluster.num_nodes), self._rules), rows)
        num_gpus = np.maximum(cluster.take_rows(installed, rows).sum(axis=1), 1)
        breakdown: list[Part] = []
        for name, plane in self._headrooms(cluster, rows).items():
            headroom = plane * sound
            own = (headroom * fit.room).sum(axis=1) / np.maximum(fit.room.sum(axis=1), 1)
            amount = own_gpus * own + (1 - own_gpus) * headroom.sum(axis=1) / num_gpus
            scope = "half from the GPUs with room for the pod, half from all GPUs of the node"
            meaning = f"{_WEIGHTS[name][1].removesuffix('.')}: {scope}"
            breakdown.append(Part(name, meaning, weights[name] / total * amount, amount, _words(name)))
        return Breakdown(self.apart()(cluster, request, rows, fit), tuple(breakdown))

    def _headrooms(self, cluster: Cluster, rows: Rows) -> dict[str, Plane]:
        """(R, G) headroom of each term."""
        samples, installed = Samples(cluster), cluster.gpu_model >= 0
        busy = cluster.take_rows(1 - _or_mean(1 - samples.gauge(Gauge.LOAD), installed), rows)
        if cluster.observed is not None:
            busy = np.maximum(busy, cluster.take_rows(cluster.observed.expected_load, rows))
        memory = np.maximum(cluster.take_rows(cluster.gpu_memory_mib, rows), 1)
        return {
            "load": 1 - busy,
            "memory": cluster.take_rows(cluster.gpu_free_mib, rows) / memory,
            **{term.name: cluster.take_rows(_or_mean(term.headroom(samples), installed), rows) for term in TERMS},
        }

    def apart(self) -> "LiveScore":
        """An independent copy for another thread."""
        return LiveScore(self._weights, self._rules.xids)

    def context(self, cluster: Cluster) -> Hashable:
        """A value that changes whenever any node's score may change."""
        return self._sampled.version(cluster)

    def _of_samples(self, cluster: Cluster) -> "_Sampled":
        samples, weights = Samples(cluster), self._weights
        installed = cluster.gpu_model >= 0
        rest = np.zeros(installed.shape)
        for term in TERMS:
            rest += weights[term.name] * _or_mean(term.headroom(samples), installed)
        total = sum(weight for name, weight in weights.items() if name != "own_gpus")
        sound = installed & ~faulty(cluster, np.arange(cluster.num_nodes), self._rules)
        part = sound / max(total, 1e-9)  # (N, G)
        return _Sampled(
            unloaded=part * (weights["load"] + rest),
            per_load=part * weights["load"],
            per_mib=part * weights["memory"] / np.maximum(cluster.gpu_memory_mib, 1),
            busy=1 - _or_mean(1 - samples.gauge(Gauge.LOAD), installed),
            num_gpus=np.maximum(installed.sum(axis=1), 1.0),
        )


def _or_mean(headroom: Plane, installed: Mask) -> Plane:
    """(N, G) headroom, with the mean of the known values where a sample is missing."""
    known = installed & ~np.isnan(headroom)
    mean = headroom[known].mean() if known.any() else _UNKNOWN
    return np.where(known, headroom, mean)


def _words(name: str) -> Callable[[float], str]:
    return lambda amount: f"{percent(round(amount, 9))} {_HEADROOM_OF.get(name, name)} headroom"


def policy(options: Options) -> Policy:
    """Create the policy."""
    score = LiveScore(xids=options.rules.xids)
    description = "most headroom, by observed load"
    return Policy(
        name="live",
        score=score,
        description=description,
        rules=options.rules,
        context=score.context,
        apart=lambda: policy(options),
        breakdown=score.parts,
    )
