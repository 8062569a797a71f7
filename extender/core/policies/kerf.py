"""Policy `kerf`: the learned value of the state that a decision leaves, and the measured headroom of GPUs.

    score = value x floor((V after - V before) / quantum) + live x headroom - epsilon x GPU memory

V is the potential of a trained model, given the expected pods (`features.Outlook`). Its quantum makes nearly equal
nodes tie. Headroom, in tenths from 0 to 1, is the live score of the GPUs with room for the pod, 0 without telemetry:
`live` is the number of quanta by which an idle GPU beats a busy one. Ties break by the memory of the node's smallest
suitable GPU, so that small pods leave large GPUs free. Nodes short of CPU or memory come last: kube-scheduler will
filter them.

Without a model, or if its values are not finite, policy `tightest` ranks instead.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from extender.core.clusters import GIB_MIB, Cluster, Floats, Longs, Mask, Rows
from extender.core.devices import choose_among
from extender.core.fit.fits import LARGEST_MIB, enough_compute, fit, smallest_mib
from extender.core.fit.reasons import Fit
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules, with_observed_usage
from extender.core.policies.breakdowns import Breakdown, Part, on_rows, percent
from extender.core.policies.live import LiveScore
from extender.core.policies.policy import Options, Policy
from extender.core.policies.tightest import parts as tightest_parts
from extender.core.policies.tightest import tightest
from extender.core.resources.requests import GpuRequest
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import LearnedValues, Prospect

HEURISTIC: Final = "tightest"
"""The policy that ranks without a model."""
_LAST: Final = -1e9
_UNKNOWN_GIB: Final = LARGEST_MIB / GIB_MIB
"""Value of `smallest_mib` where no GPU has room."""
_TENTHS: Final = 10
_EPSILON: Final = 2.0**-20
"""Weight of a GiB of GPU memory, in quanta: even the largest GPU counts less than a tenth of headroom."""


@dataclass(frozen=True, slots=True)
class KerfWeights:
    """Weights of the terms; 0 disables a term."""

    value: float = 1.0
    live: float = 2.0


class LearnedScore:
    """The score for one model and one outlook.

    It caches values (`LearnedValues`), so use a copy from `apart` for another thread or cluster.
    """

    def __init__(
        self,
        served: Prospect | None = None,
        weights: KerfWeights | None = None,
        live: LiveScore | None = None,
        *,
        serial: int = 0,
        why_not: str = "no model is loaded",
    ) -> None:
        """`serial` must be unique among scores; `why_not` is the reason for `served` being None."""
        self.served = served
        self.fault = "" if served else why_not
        self._weights = weights or KerfWeights()
        self._live = live
        self._serial = serial
        self._values = LearnedValues(served) if served else None

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) scores, -inf where the request does not fit."""
        values = self._values
        if values is None or self.fault or request.mig:
            return tightest(cluster, request, rows, fit)
        score = np.full(len(rows), -np.inf)
        where = np.flatnonzero(fit.fits)
        if len(where) == 0:
            return score
        fitting_rows = rows if len(where) == len(rows) else rows[where]
        fits = fit if fitting_rows is rows else fit.take(where)
        gain, _ = values.gains(cluster, request, fitting_rows, fits)
        if not np.isfinite(gain).all():
            self.fault = "the model gives values that are not finite"
            return tightest(cluster, request, rows, fit)
        weights = self._weights
        total = weights.value * values.steps(gain)
        if weights.live and self._live is not None and _sampled(cluster):
            headroom = self._live(cluster, request, fitting_rows, fits)
            total = total + weights.live * np.round(headroom * _TENTHS) / _TENTHS
        total = total - _EPSILON * np.rint(smallest_mib(cluster, fitting_rows, fits) / GIB_MIB)
        enough = enough_compute(cluster, request.cpu_milli, request.memory_mib, fitting_rows)
        score[where] = np.where(enough, total, _LAST)
        return score

    def gains(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> tuple[Floats, Longs]:
        """`LearnedValues.gains`, thread-safe; all 0 without a model."""
        if self._values is None:
            return np.zeros(len(rows)), np.full(len(rows), -1)
        return self._values.gains(cluster, request, rows, fit, apart=True)

    def parts(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        """The breakdown of the score, thread-safe. `told` breaks the model's value down by feature."""
        values = self._values
        if values is None or self.fault or request.mig:
            return tightest_parts(cluster, request, rows, fit)
        weights, where = self._weights, np.flatnonzero(fit.fits)
        fits, at = fit.take(where), rows[where]
        gain, _ = values.gains(cluster, request, at, fits, apart=True)
        if not np.isfinite(gain).all():
            return tightest_parts(cluster, request, rows, fit)
        live = self._live if weights.live and _sampled(cluster) else None
        headroom = np.zeros(len(where)) if live is None else live.apart()(cluster, request, at, fits)
        tenths = np.round(headroom * _TENTHS) / _TENTHS
        memory = np.rint(smallest_mib(cluster, at, fits) / GIB_MIB)
        enough = enough_compute(cluster, request.cpu_milli, request.memory_mib, at)
        value, by_memory = weights.value * values.steps(gain), _EPSILON * memory
        total = value if live is None else value + weights.live * tenths
        score = np.where(enough, total - by_memory, _LAST)
        last = np.where(enough, 0.0, _LAST)
        parts = (
            Part(
                "value",
                "learned score of what it leaves to later pods, in whole steps; it has no unit",
                value * enough,
                gain,
                _learned,
                unitless=True,
            ),
            Part("live", "headroom of the GPUs by observed load", weights.live * tenths * enough, tenths, _headroom),
            Part(
                "memory", "memory of its smallest suitable GPU: the less, the better", -by_memory * enough, memory, _gib
            ),
            Part("compute", "nodes short of CPU or memory come last", last, last, _compute),
        )
        return Breakdown(_expanded(score, where, len(rows)), tuple(on_rows(Breakdown(score, parts), where, len(rows))))

    def share(self, cluster: Cluster, request: GpuRequest, row: int, room: Mask) -> int:
        """The GPU of a node that a share goes on."""
        rows = np.array([row])
        if self._values is not None and not self.fault:
            checked = replace(fit(cluster, request, rows), room=room[None], shares=np.ones(1, np.bool_))
            _, gpu = self._values.gains(cluster, request, rows, checked, apart=True)
            if gpu[0] >= 0:
                return int(gpu[0])
        chosen = choose_among(cluster, row, request, room, shares=True, spreads=False)
        return chosen[0] if chosen else int(room.argmax())

    def warm(self, cluster: Cluster) -> None:
        """Compute V of all nodes ahead of the first request; `cluster` with the policy's observed usage."""
        if self._values is not None and not self.fault:
            self._values.warm(cluster)

    def apart(self) -> "LearnedScore":
        """An independent copy without the live term, for another thread or other snapshots."""
        return LearnedScore(self.served, self._weights, serial=self._serial, why_not=self.fault)

    def context(self, cluster: Cluster) -> Hashable:
        """A value that changes whenever any node's score may change."""
        return self._serial, self.fault, self._live.context(cluster) if self._live is not None else None

    def to_json(self, cluster: Cluster, request: GpuRequest, row: int) -> dict[str, Any]:
        """The inputs of the score of a node that fits, as JSON keys; thread-safe.

        Despite their names, `gainGPUs`, `quantumGPUs` and `movedGPUs` belong to the learned score and have no unit.
        """
        values = self._values
        if values is None or self.fault or request.mig:
            return {"served": HEURISTIC, "reason": self.fault or "the model does not cover MIG devices"}
        rows = np.array([row])
        checked = fit(cluster, request, rows)
        gain, gpu = values.gains(cluster, request, rows, checked, apart=True)
        before, after, parts = values.changes(cluster, request, row, checked, int(gpu[0]))
        live = self._live if self._weights.live and _sampled(cluster) else None
        headroom = None if live is None else float(live.apart()(cluster, request, rows, checked)[0])
        moved = sorted(zip(FEATURES, before, after, parts, strict=True), key=lambda feature: -abs(feature[3]))
        return {
            "served": "model",
            "gainGPUs": round(float(gain[0]), 6),
            "quantumGPUs": round(float(values.served.potential.quantum[0]), 6),
            "quanta": int(values.steps(gain)[0]),
            "headroom": None if headroom is None else round(headroom, 4),
            "weights": {"value": self._weights.value, "live": self._weights.live},
            "features": [
                {
                    "feature": name,
                    "before": round(float(old), 6),
                    "after": round(float(new), 6),
                    "movedGPUs": round(float(part), 6),
                }
                for name, old, new, part in moved
                if abs(part) > 1e-9
            ],
        }


def _expanded(score: Floats, where: Rows, num_rows: int) -> Floats:
    """(R,) scores of some rows, -inf on the others."""
    result = np.full(num_rows, -np.inf)
    result[where] = score
    return result


def _learned(gain: float) -> str:
    return f"a learned score of {gain:+.2f}"


def _headroom(amount: float) -> str:
    return f"{percent(amount)} headroom by load"


def _gib(amount: float) -> str:
    return f"a suitable GPU of {amount:.0f} GiB" if 0 < amount < _UNKNOWN_GIB else "GPUs of unknown memory"


def _compute(amount: float) -> str:
    return "too little CPU or memory" if amount else "enough CPU and memory"


def live_term() -> LiveScore:
    """The live score of only the GPUs with room for the pod: V covers the rest of the node."""
    return LiveScore({"own_gpus": 1.0})


def _sampled(cluster: Cluster) -> bool:
    """Whether any node has fresh samples."""
    return cluster.observed is not None and bool((cluster.observed.state == SampleState.FRESH).any())


def policy(options: Options) -> Policy:
    """Create the policy without a model; `extender.ranking` replaces it by `serving`."""
    return serving(LearnedScore())


def serving(score: LearnedScore, rules: ObservedRules | None = None) -> Policy:
    """Create the policy with a score."""
    return Policy(
        "kerf",
        score,
        "most learned value left behind, and most headroom by observed load; `tightest` without a model",
        rules=rules,
        context=score.context,
        share=score.share,
        weighs_cpu=True,
        weighs_memory=True,
        without_gpus=True,
        by_state=True,
        terms=lambda cluster, request, row: score.to_json(with_observed_usage(cluster, rules), request, row),
        breakdown=score.parts,
        apart=lambda: serving(score.apart(), rules),
    )
