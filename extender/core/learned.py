"""Policy `kerf`: a learned value of what a decision leaves behind, and what the GPUs are really doing.

    score = value x floor((V after - V before) / quantum) + live x headroom - hair x GPU memory

V is the potential of a trained model, with the pods that are expected (`features.Outlook`); its quantum makes equals of
nodes that are nearly so. Headroom, in tenths from 0 to 1, is the live score of the GPUs that have room for the pod: 0
everywhere while nobody samples. So `live` is how many quanta an idle GPU is worth beside a busy one. What these leave
equal a hair settles, by the memory of the node's smallest GPU that will do: small pods leave large GPUs alone. A node
whose CPU or memory does not suffice comes last: kube-scheduler will not offer it.

Where no model is served, or its values are not finite, best fit ranks instead.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, NamedTuple

import numpy as np

from extender.core import scores
from extender.core.clusters import Cluster, Floats, Longs, Mask, Rows
from extender.core.devices import choose_among
from extender.core.features import FEATURES, Outlook, features
from extender.core.fits import Fit, fit
from extender.core.fragment_tables import FragmentTables, tables_of, unusable_milli
from extender.core.live import LiveScore, LiveWeights
from extender.core.nodes import MAX_GPUS_PER_NODE
from extender.core.observations import SampleState
from extender.core.occupancies import ObservedRules
from extender.core.packing import Nodes, copy_of
from extender.core.potentials import TOLERANCE, Potential, attribution, node_values, steps
from extender.core.requests import GpuRequest
from extender.core.states import after_share, after_whole, node_states

HEURISTIC: Final = "bestfit"
"""What ranks in a model's stead."""
_LAST: Final = -1e9
_TENTHS: Final = 10
_HAIR: Final = 2.0**-20
"""Of a quantum, for each GiB of a GPU's memory: all the memory a GPU can have comes to less than a headroom's tenth."""
_GIB_MIB: Final = 1024
_FEW: Final = 8
"""Rows are few where they are less than one in so many."""


@dataclass(frozen=True, slots=True)
class KerfWeights:
    """How much each term counts; 0 leaves it out."""

    value: float = 1.0
    live: float = 2.0


class Prospect(NamedTuple):
    """A model, and the pods that it expects."""

    potential: Potential
    outlook: Outlook
    """`worth` is (M + 2, 1001): M models of the cluster, one row for all that came later, one for none."""
    tables: FragmentTables

    @property
    def num_models(self) -> int:
        """M."""
        return len(self.outlook.worth) - 2


def prospect(potential: Potential, outlook: Outlook) -> Prospect:
    """A model with an outlook of the form that `Prospect` has."""
    return Prospect(potential, outlook, tables_of(outlook.mix, len(outlook.worth) - 1, MAX_GPUS_PER_NODE))


_unwarned: Final = np.errstate(over="ignore", invalid="ignore")
"""What is not finite is found out and told, once."""


class _Valued(NamedTuple):
    """All nodes of a snapshot, and V of each."""

    row_of: Mapping[str, int]
    version: int
    states: Nodes
    values: Floats


class _Before(NamedTuple):
    """Nodes as they are."""

    states: Nodes
    values: Floats | None = None
    """V of each, None where it is still to be worked out."""


class LearnedScore:
    """The score with one model and one outlook: others are another score.

    Keeps values between calls that are about snapshots of one cluster, as `decisions.Memo` does: whoever asks about
    another one, or in another thread, takes one `apart`.
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
        self._valued: _Valued | None = None

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) the score, -inf where the request does not fit."""
        if self.fault or request.mig:
            return scores.best_fit(cluster, request, rows, fit)
        score = np.full(len(rows), -np.inf)
        where = np.flatnonzero(fit.fits)
        if len(where) == 0:
            return score
        here = rows if len(where) == len(rows) else rows[where]
        fits = fit if here is rows else taken_of(fit, where)
        gain, _ = self._gains(cluster, request, here, fits, self._before(cluster, here))
        if not np.isfinite(gain).all():
            self.fault = "the model gives values that are not finite"
            return scores.best_fit(cluster, request, rows, fit)
        weights = self._weights
        found = weights.value * self._steps(gain)
        if weights.live and self._live is not None and _sampled(cluster):
            headroom = self._live(cluster, request, here, fits)
            found = found + weights.live * np.round(headroom * _TENTHS) / _TENTHS
        found = found - _HAIR * np.rint(scores.smallest_mib(cluster, here, fits) / _GIB_MIB)
        score[where] = np.where(_short(cluster, request, here), _LAST, found)
        return score

    def gains(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> tuple[Floats, Longs]:
        """(R,) V after - V before in GPUs on rows that fit, and (R,) the GPU of a share of one GPU, else -1.

        A share tries each GPU with room, of unlike ones those with the least memory, and takes the first of those that
        gain most: V knows one model a node. Without a model all are 0.
        """
        if self.served is None:
            return np.zeros(len(rows)), np.full(len(rows), -1)
        return self._gains(cluster, request, rows, fit, _Before(node_states(cluster, rows, self.served.num_models)))

    @_unwarned
    def _gains(
        self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit, before: _Before
    ) -> tuple[Floats, Longs]:
        gpu = np.full(len(rows), -1, np.int64)
        single = fit.shares & (request.count == 1)
        if not single.all():
            value, after = self._both(before, after_whole(cluster, request, rows, fit, before.states))
            before = before._replace(values=value)
            gain = after - value
            if not single.any():
                return gain, gpu
        else:
            gain = np.zeros(len(rows))
        room = fit.room & single[:, None]
        memory = cluster.taken(cluster.gpu_memory_mib, rows)
        room = room & (memory == scores.smallest_mib(cluster, rows, fit)[:, None])
        states, of, tried = after_share(cluster, request, rows, room, before.states)
        value, after = self._both(before, states)
        gains = np.full(room.T.shape, -np.inf)  # (G, R)
        gains[tried, of] = after - value[of]
        best = np.full(len(rows), -np.inf)
        hair = TOLERANCE * self._prospect.potential.quantum[0]  # more by so little is no more
        for g, gained in enumerate(gains):
            better = gained > best + hair
            best, gpu = np.where(better, gained, best), np.where(better, g, gpu)
        return np.where(single, best, gain), gpu

    def share(self, cluster: Cluster, request: GpuRequest, row: int, room: Mask) -> int:
        """The GPU of a node that a share is taken from."""
        rows = np.array([row])
        checked = replace(fit(cluster, request, rows), room=room[None], shares=np.ones(1, np.bool_))
        if not self.fault:
            _, gpu = self.gains(cluster, request, rows, checked)
            if gpu[0] >= 0:
                return int(gpu[0])
        chosen = choose_among(cluster, row, request, room, shares=True, spreads=False)
        return chosen[0] if chosen else int(room.argmax())

    def warm(self, cluster: Cluster) -> None:
        """Work V of all nodes out now, so that the first request need not; `cluster` as the policy counts it."""
        if not self.fault:
            self._before(cluster, np.arange(cluster.num_nodes))

    def apart(self) -> "LearnedScore":
        """The same score for another thread and another line of snapshots, without the live term."""
        return LearnedScore(self.served, self._weights, serial=self._serial, why_not=self.fault)

    def context(self, cluster: Cluster) -> Hashable:
        """Another value whenever any node's score may be another."""
        return self._serial, self.fault, self._live.context(cluster) if self._live is not None else None

    def told(self, cluster: Cluster, request: GpuRequest, row: int) -> dict[str, Any]:
        """What the score of a node that fits is made of. Keeps to itself: a thread may ask."""
        served = self.served
        if self.fault or served is None or request.mig:
            return {"served": HEURISTIC, "reason": self.fault or "the model knows nothing of MIG devices"}
        rows = np.array([row])
        checked = fit(cluster, request, rows)
        gain, gpu = self.gains(cluster, request, rows, checked)
        before = node_states(cluster, rows, served.num_models)
        if gpu[0] >= 0:
            states, _, tried = after_share(cluster, request, rows, checked.room, before)
            index = int(np.flatnonzero(tried == gpu[0])[0])
            after = Nodes(*(column[index : index + 1] for column in states))  # type: ignore[arg-type]
        else:
            after = after_whole(cluster, request, rows, checked, before)
        inputs = [features(state, served.outlook, self._unusable_milli(state))[0] for state in (before, after)]
        parts = attribution(inputs[0], inputs[1], served.potential)
        live = self._live if self._weights.live and _sampled(cluster) else None
        headroom = None if live is None else float(live.apart()(cluster, request, rows, checked)[0])
        moved = {name: part for name, part in zip(FEATURES, parts.tolist(), strict=True) if abs(part) > 1e-9}
        return {
            "served": "model",
            "gainGPUs": round(float(gain[0]), 6),
            "quantumGPUs": round(float(served.potential.quantum[0]), 6),
            "quanta": int(self._steps(gain)[0]),
            "headroom": None if headroom is None else round(headroom, 4),
            "weights": {"value": self._weights.value, "live": self._weights.live},
            "features": [
                {
                    "feature": name,
                    "before": round(float(inputs[0][FEATURES.index(name)]), 6),
                    "after": round(float(inputs[1][FEATURES.index(name)]), 6),
                    "movedGPUs": round(part, 6),
                }
                for name, part in sorted(moved.items(), key=lambda item: -abs(item[1]))
            ],
        }

    @property
    def _prospect(self) -> Prospect:
        if self.served is None:
            raise AssertionError("nothing is served")
        return self.served

    def _before(self, cluster: Cluster, rows: Rows) -> _Before:
        """R rows as they are. All nodes' values are kept: classes of requests have them in common."""
        num_models = self._prospect.num_models
        if len(rows) * _FEW < cluster.num_nodes:
            return _Before(node_states(cluster, rows, num_models))
        kept = self._valued
        if kept is None or kept.row_of is not cluster.row_of or kept.version > cluster.version:
            states = node_states(cluster, np.arange(cluster.num_nodes), num_models)
            states = copy_of(states)  # some of its arrays are the cluster's own
            kept = _Valued(cluster.row_of, cluster.version, states, self._values(states))
        elif kept.version < cluster.version:
            changed = np.flatnonzero(cluster.row_version > kept.version)
            states = node_states(cluster, changed, num_models)
            for name in Nodes._fields:
                getattr(kept.states, name)[changed] = getattr(states, name)
            kept.values[changed] = self._values(states)
            kept = kept._replace(version=cluster.version)
        self._valued = kept
        taken = Nodes(*(cluster.taken(column, rows) for column in kept.states))
        return _Before(taken, cluster.taken(kept.values, rows))

    def _both(self, before: _Before, after: Nodes) -> tuple[Floats, Floats]:
        """V of the states before and of those after, of few nodes at once: there each call costs, and not each row."""
        if before.values is not None:
            return before.values, self._values(after)
        pairs = zip(before.states, after, strict=True)
        values = self._values(Nodes(*(np.concatenate(pair) for pair in pairs)))  # type: ignore[arg-type]
        num_before = len(before.states.model)
        return values[:num_before], values[num_before:]

    def _steps(self, gain: Floats) -> Floats:
        return steps(gain, self._prospect.potential)

    @_unwarned
    def _values(self, nodes: Nodes) -> Floats:
        served = self._prospect
        return node_values(nodes, served.outlook, served.potential, self._unusable_milli(nodes))

    def _unusable_milli(self, nodes: Nodes) -> Floats:
        free = nodes.gpu_free_milli.astype(np.int64)
        return unusable_milli(nodes.cpu_free_milli, free, nodes.model, self._prospect.tables)


def live_term(weights: LiveWeights | None = None, xids: frozenset[int] = ObservedRules().xids) -> LiveScore:
    """The live score of the GPUs that a pod may get alone: the rest of the node has its place in V."""
    return LiveScore(replace(weights or LiveWeights(), own_gpus=1.0), xids)


def taken_of(checked: Fit, where: Rows) -> Fit:
    """The fit of a selection of its rows."""
    return Fit(*(getattr(checked, field.name).take(where, axis=0) for field in fields(Fit)))


def _sampled(cluster: Cluster) -> bool:
    """Whether anybody tells what any GPU is doing."""
    return cluster.observed is not None and bool((cluster.observed.state == SampleState.FRESH).any())


def _short(cluster: Cluster, request: GpuRequest, rows: Rows) -> Mask:
    """(R,) where the pod's CPU or memory is not there."""
    short: Mask = cluster.taken(cluster.cpu_free_milli, rows) < request.cpu_milli
    return short | (cluster.taken(cluster.memory_free_mib, rows) < request.memory_mib)
