"""Policy `kerf`: a learned value of what a decision leaves behind, and what the GPUs are really doing.

    score = value x floor((V after - V before) / quantum) + live x headroom - hair x GPU memory

V is the potential of a trained model, with the pods that are expected (`features.Outlook`); its quantum makes equals of
nodes that are nearly so. Headroom, in tenths from 0 to 1, is the live score of the GPUs that have room for the pod: 0
everywhere while nobody samples. So `live` is how many quanta an idle GPU is worth beside a busy one. What these leave
equal a hair settles, by the memory of the node's smallest GPU that will do: small pods leave large GPUs alone. A node
whose CPU or memory does not suffice comes last: kube-scheduler will not offer it.

Where no model is served, or its values are not finite, policy `tightest` ranks instead.
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
from extender.core.occupancies import ObservedRules, counting_observed
from extender.core.policies.breakdowns import Breakdown, Part, on_rows, percent
from extender.core.policies.live import LiveScore
from extender.core.policies.policy import Options, Policy
from extender.core.policies.tightest import parts as tightest_parts
from extender.core.policies.tightest import tightest
from extender.core.resources.requests import GpuRequest
from extender.core.valuenet.features import FEATURES
from extender.core.valuenet.potentials import LearnedValues, Prospect

HEURISTIC: Final = "tightest"
"""What ranks in a model's stead."""
_LAST: Final = -1e9
_UNKNOWN_GIB: Final = LARGEST_MIB / GIB_MIB
"""As `smallest_mib` counts it where no GPU has room."""
_TENTHS: Final = 10
_HAIR: Final = 2.0**-20
"""Of a quantum, for each GiB of a GPU's memory: all the memory a GPU can have comes to less than a headroom's tenth."""


@dataclass(frozen=True, slots=True)
class KerfWeights:
    """How much each term counts; 0 leaves it out."""

    value: float = 1.0
    live: float = 2.0


class LearnedScore:
    """The score with one model and one outlook: others are another score.

    It keeps values (`LearnedValues`): whoever asks about another cluster, or in another thread, takes one `apart`.
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
        """`serial` differs from that of every other score; `why_not` says why nothing is served, where nothing is."""
        self.served = served
        self.fault = "" if served else why_not
        self._weights = weights or KerfWeights()
        self._live = live
        self._serial = serial
        self._values = LearnedValues(served) if served else None

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) the score, -inf where the request does not fit."""
        values = self._values
        if values is None or self.fault or request.mig:
            return tightest(cluster, request, rows, fit)
        score = np.full(len(rows), -np.inf)
        where = np.flatnonzero(fit.fits)
        if len(where) == 0:
            return score
        here = rows if len(where) == len(rows) else rows[where]
        fits = fit if here is rows else fit.take(where)
        gain, _ = values.gains(cluster, request, here, fits)
        if not np.isfinite(gain).all():
            self.fault = "the model gives values that are not finite"
            return tightest(cluster, request, rows, fit)
        weights = self._weights
        found = weights.value * values.steps(gain)
        if weights.live and self._live is not None and _sampled(cluster):
            headroom = self._live(cluster, request, here, fits)
            found = found + weights.live * np.round(headroom * _TENTHS) / _TENTHS
        found = found - _HAIR * np.rint(smallest_mib(cluster, here, fits) / GIB_MIB)
        score[where] = np.where(enough_compute(cluster, request.cpu_milli, request.memory_mib, here), found, _LAST)
        return score

    def gains(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> tuple[Floats, Longs]:
        """As `LearnedValues.gains`, for any thread; without a model all are 0."""
        if self._values is None:
            return np.zeros(len(rows)), np.full(len(rows), -1)
        return self._values.gains(cluster, request, rows, fit, apart=True)

    def parts(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        """What the score is made of. Keeps to itself: a thread may ask. What the model's value is made of is told by
        `told`, feature by feature."""
        values = self._values
        if values is None or self.fault or request.mig:
            return tightest_parts(cluster, request, rows, fit)
        weights, here = self._weights, np.flatnonzero(fit.fits)
        fits, at = fit.take(here), rows[here]
        gain, _ = values.gains(cluster, request, at, fits, apart=True)
        if not np.isfinite(gain).all():
            return tightest_parts(cluster, request, rows, fit)
        live = self._live if weights.live and _sampled(cluster) else None
        headroom = np.zeros(len(here)) if live is None else live.apart()(cluster, request, at, fits)
        tenths = np.round(headroom * _TENTHS) / _TENTHS
        memory = np.rint(smallest_mib(cluster, at, fits) / GIB_MIB)
        enough = enough_compute(cluster, request.cpu_milli, request.memory_mib, at)
        value, hair = weights.value * values.steps(gain), _HAIR * memory
        found = value if live is None else value + weights.live * tenths
        score = np.where(enough, found - hair, _LAST)
        last = np.where(enough, 0.0, _LAST)
        told = (
            Part(
                "value",
                "learned score of what it leaves to later pods, in whole steps; it has no unit",
                value * enough,
                gain,
                _learned,
                unitless=True,
            ),
            Part(
                "live", "headroom of the GPUs by what they are doing", weights.live * tenths * enough, tenths, _headroom
            ),
            Part(
                "memory", "memory of its smallest GPU that will do: the less, the better", -hair * enough, memory, _gib
            ),
            Part("compute", "nodes short of CPU or memory come last", last, last, _compute),
        )
        return Breakdown(_among(score, here, len(rows)), tuple(on_rows(Breakdown(score, told), here, len(rows))))

    def share(self, cluster: Cluster, request: GpuRequest, row: int, room: Mask) -> int:
        """The GPU of a node that a share is taken from."""
        rows = np.array([row])
        if self._values is not None and not self.fault:
            checked = replace(fit(cluster, request, rows), room=room[None], shares=np.ones(1, np.bool_))
            _, gpu = self._values.gains(cluster, request, rows, checked, apart=True)
            if gpu[0] >= 0:
                return int(gpu[0])
        chosen = choose_among(cluster, row, request, room, shares=True, spreads=False)
        return chosen[0] if chosen else int(room.argmax())

    def warm(self, cluster: Cluster) -> None:
        """Work V of all nodes out now, so that the first request need not; `cluster` as the policy counts it."""
        if self._values is not None and not self.fault:
            self._values.warm(cluster)

    def apart(self) -> "LearnedScore":
        """The same score for another thread and another line of snapshots, without the live term."""
        return LearnedScore(self.served, self._weights, serial=self._serial, why_not=self.fault)

    def context(self, cluster: Cluster) -> Hashable:
        """Another value whenever any node's score may be another."""
        return self._serial, self.fault, self._live.context(cluster) if self._live is not None else None

    def told(self, cluster: Cluster, request: GpuRequest, row: int) -> dict[str, Any]:
        """What the score of a node that fits is made of. Keeps to itself: a thread may ask.

        `gainGPUs`, `quantumGPUs` and `movedGPUs` are of the learned score, which has no unit, whatever their names say.
        """
        values = self._values
        if values is None or self.fault or request.mig:
            return {"served": HEURISTIC, "reason": self.fault or "the model knows nothing of MIG devices"}
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
                    "before": round(float(then), 6),
                    "after": round(float(now), 6),
                    "movedGPUs": round(float(part), 6),
                }
                for name, then, now, part in moved
                if abs(part) > 1e-9
            ],
        }


def _among(score: Floats, where: Rows, num_rows: int) -> Floats:
    """(R,) scores of some rows, -inf on the others."""
    found = np.full(num_rows, -np.inf)
    found[where] = score
    return found


def _learned(gain: float) -> str:
    return f"a learned score of {gain:+.2f}"


def _headroom(amount: float) -> str:
    return f"{percent(amount)} headroom by load"


def _gib(amount: float) -> str:
    return f"a GPU of {amount:.0f} GiB that will do" if 0 < amount < _UNKNOWN_GIB else "GPUs of unknown memory"


def _compute(amount: float) -> str:
    return "too little CPU or memory" if amount else "enough CPU and memory"


def live_term() -> LiveScore:
    """The live score of the GPUs that a pod may get alone: the rest of the node has its place in V."""
    return LiveScore({"own_gpus": 1.0})


def _sampled(cluster: Cluster) -> bool:
    """Whether anybody tells what any GPU is doing."""
    return cluster.observed is not None and bool((cluster.observed.state == SampleState.FRESH).any())


def policy(options: Options) -> Policy:
    """The policy before any model is loaded; `ranking` puts `serving` in its place."""
    return serving(LearnedScore())


def serving(score: LearnedScore, rules: ObservedRules | None = None) -> Policy:
    """The learned rank with a model and an outlook, or without."""
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
        terms=lambda cluster, request, row: score.told(counting_observed(cluster, rules), request, row),
        breakdown=score.parts,
        apart=lambda: serving(score.apart(), rules),
    )
