"""Policy `fgd`: fragmentation gradient descent against the mix of expected pods.

Uses the sums of `extender.core.fragmentation`. The default mix, DEFAULT_MIX, is that of a public production trace.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.fit.reasons import Fit
from extender.core.fragmentation import ANY_MODEL, MAX_MODELS, Mix, TypicalPod, fgd_score, fragment_milli, mix_of
from extender.core.policies.breakdowns import Breakdown, Part
from extender.core.policies.policy import Expected, Options, Policy
from extender.core.resources.gpu_models import GpuModel, canonical_name
from extender.core.resources.requests import GpuRequest

# The classes that make up 95 % of the pods in trace `default` of Alibaba's cluster-trace-gpu-v2023: CPU milli, GPUs,
# milli per GPU, pods, mean MiB of main memory.
DEFAULT_MIX: Final = tuple(
    Expected(cpu, gpus, milli, count, memory_mib=memory)
    for cpu, gpus, milli, count, memory in (
        (3152, 1, 810, 1047, 5600), (11300, 1, 1000, 874, 48917), (11400, 1, 1000, 599, 51350),
        (3152, 1, 1000, 470, 5600), (11908, 1, 470, 388, 47104), (12500, 0, 0, 366, 57389), (8000, 1, 470, 360, 30517),
        (12000, 1, 1000, 326, 21803), (32000, 0, 0, 290, 49234), (18708, 1, 1000, 255, 64512),
        (11908, 1, 650, 237, 47104), (4000, 1, 320, 232, 21737), (9810, 1, 1000, 195, 41560), (8000, 0, 0, 185, 29595),
        (8000, 1, 1000, 164, 22473), (4000, 1, 1000, 159, 25869), (15700, 1, 1000, 158, 58368),
        (11908, 1, 1000, 153, 47104), (16000, 1, 1000, 150, 40001), (4000, 1, 230, 122, 27390),
        (15400, 0, 0, 120, 51200), (6000, 1, 460, 120, 11093), (16500, 0, 0, 95, 51200), (14200, 1, 1000, 93, 58368),
        (24200, 1, 1000, 84, 93184), (3152, 1, 590, 75, 5600), (8000, 1, 320, 72, 30517), (4152, 1, 550, 72, 10600),
        (11900, 1, 1000, 55, 75292), (4000, 1, 160, 54, 15399), (4152, 1, 370, 45, 10600), (4000, 1, 220, 43, 20049),
        (8200, 1, 1000, 41, 33792), (15200, 1, 1000, 36, 80896), (4152, 1, 810, 31, 10600),
    )
)  # fmt: skip


class _FragmentScore:
    """FGD's score and its choice of the GPU for a share."""

    def __init__(self, expected: Sequence[Expected] | Mix) -> None:
        """`expected`: classes of pods, or a mix with the cluster's model indices."""
        self._expected = expected
        self._mixes: tuple[tuple[GpuModel, ...], Mix] | None = None

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) int(100 x sigmoid(F before - F after)) for the best GPUs on each row, given the pod's CPU request."""
        score, _ = self._tried(cluster, request, rows, fit.room, fit.shares)
        return score

    def parts(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Breakdown:
        """The breakdown of the score: 50 plus the effect of changed fragmentation."""
        score, gpu = self._tried(cluster, request, rows, fit.room, fit.shares)
        mix, free, model = self._state(cluster, rows)
        cpu = cluster.take_rows(cluster.cpu_free_milli, rows)
        left = _left(free, fit.room, fit.shares, request)
        if len(single := np.flatnonzero(fit.shares & (request.count == 1))):
            left[single] = free[single]
            left[single, gpu[single]] -= request.milli
        before, after = (fragment_milli(*state, model, mix) for state in ((cpu, free), (cpu - request.cpu_milli, left)))
        change = (after - before) / 1000  # GPUs
        curved = 100 / (1 + np.exp(change)) - 50
        breakdown = (
            Part("even", "the score without a change of fragments", np.full(len(rows), 50.0), np.zeros(len(rows)), str),
            Part(
                "fragments", "free GPU that expected pods can't use: the less, the better", curved, change,
                _fragments,
            ),
            Part(
                "roundedDown", "the score is a whole number", score - 50 - curved, score - 50 - curved,
                lambda _: "a score rounded down", tells=False,
            ),
        )  # fmt: skip
        return Breakdown(score, breakdown)

    def share(self, cluster: Cluster, request: GpuRequest, row: int, room: Mask) -> int:
        """The GPU of a node that a share goes on: the first of the best."""
        _, gpu = self._tried(cluster, request, np.array([row]), room[None], np.ones(1, np.bool_))
        return int(gpu[0])

    def _tried(
        self, cluster: Cluster, request: GpuRequest, rows: Rows, room: Mask, shares: Mask
    ) -> tuple[Floats, Longs]:
        """(R,) the score, and (R,) the GPU for a share of one GPU, out of (R, G) `room`."""
        mix, free, model = self._state(cluster, rows)
        cpu = cluster.take_rows(cluster.cpu_free_milli, rows)
        before = fragment_milli(cpu, free, model, mix)
        cpu_left = cpu - request.cpu_milli
        left = _left(free, room, shares, request)
        score = fgd_score(before, fragment_milli(cpu_left, left, model, mix))
        gpu = room.argmax(axis=1).astype(np.int64)
        single = shares & (request.count == 1)
        if not single.any():
            return score, gpu
        best = np.full(len(rows), -1.0)
        for g in range(free.shape[1]):
            left = free.copy()
            left[:, g] -= request.milli
            tried = fgd_score(before, fragment_milli(cpu_left, left, model, mix))
            better = single & room[:, g] & (tried > best)
            best[better], gpu[better] = tried[better], g
        return np.where(single & room.any(axis=1), best, score), gpu

    def _state(self, cluster: Cluster, rows: Rows) -> tuple[Mix, Longs, Longs]:
        """The mix, (R, G) free milli, and (R,) the model."""
        free = cluster.take_rows(cluster.gpu_free_milli, rows).astype(np.int64)
        model = cluster.take_rows(cluster.gpu_model, rows).max(axis=1, initial=-1).astype(np.int64)
        return self._mix(cluster.models), free, np.where(model < MAX_MODELS, model, -1)

    def _mix(self, models: tuple[GpuModel, ...]) -> Mix:
        """The mix with the cluster's model indices, cached until the models change."""
        if isinstance(self._expected, Mix):
            return self._expected
        mixes = self._mixes  # read once: another thread may replace it
        if mixes is None or mixes[0] is not models:
            index = {model.name: bit for bit, model in enumerate(models[:MAX_MODELS])}
            pods = [
                TypicalPod(pod.cpu_milli, pod.gpus, pod.gpu_milli if pod.gpus else 0, _bits(pod, index), pod.count)
                for pod in self._expected
            ]
            mixes = self._mixes = models, mix_of(pods, sum(pod.num_pods for pod in pods))
        return mixes[1]


def _left(free: Longs, room: Mask, shares: Mask, request: GpuRequest) -> Longs:
    """(R, G) milli left when whole GPUs or shares of several take the first GPUs with room."""
    first = room & (np.cumsum(room, axis=1) <= max(request.count, 1))
    return np.where(first, np.where(shares[:, None], free - request.milli, 0), free)


def _fragments(change: float) -> str:
    if abs(change) < 0.005:
        return "no change in free GPU that expected pods can't use"
    return f"{abs(change):.2f} GPUs {'more' if change > 0 else 'less'} that expected pods can't use"


def _bits(pod: Expected, index: dict[str, int]) -> int:
    if not pod.models:
        return ANY_MODEL
    names = {canonical_name(name) for name in pod.models}
    return sum(1 << bit for name, bit in index.items() if name in names)


def policy(options: Options) -> Policy:
    """Create the policy."""
    return expecting(options.expected or DEFAULT_MIX)


def expecting(expected: Sequence[Expected] | Mix) -> Policy:
    """Create the policy for classes of pods, or for a mix with the cluster's model indices."""
    score = _FragmentScore(expected)
    description = "least new fragmentation for the expected pods (decisions.typical_pods)"
    return Policy(
        name="fgd",
        score=score,
        description=description,
        share=score.share,
        breakdown=score.parts,
        weighs_cpu=True,
        without_gpus=True,
        apart=lambda: expecting(expected),
    )
