"""Values of nodes by a model, now and after a decision; what is worked out is kept for the next decision."""

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Cluster, Floats, Longs, Rows
from extender.core.fit.fits import smallest_mib
from extender.core.fit.results import Fit
from extender.core.fit.row_states import RowState, keep, state_of
from extender.core.fragmentation.arrays import Nodes
from extender.core.fragmentation.fragment_tables import FragmentTables, tables_of, unusable_milli
from extender.core.resources.nodes import MAX_GPUS_PER_NODE
from extender.core.resources.requests import GpuRequest
from extender.core.valuenet.features import Outlook, features
from extender.core.valuenet.potentials import TOLERANCE, Potential, attribution, in_context, node_values, steps
from extender.core.valuenet.states import after_share, after_whole, node_states

_FEW: Final = 8
"""Rows are few where they are less than one in so many."""
_unwarned: Final = np.errstate(over="ignore", invalid="ignore")
"""What is not finite is found out and told, once."""


class Prospect(NamedTuple):
    """A model, and the pods that it expects."""

    potential: Potential
    outlook: Outlook
    """Its `worth` has M + 2 rows: M models of the cluster, one row for all that came later, one for none."""
    tables: FragmentTables

    @property
    def num_models(self) -> int:
        """M."""
        return len(self.outlook.worth.left) - 2


def prospect(potential: Potential, outlook: Outlook) -> Prospect:
    """A model with an outlook of the form that `Prospect` has."""
    tables = tables_of(outlook.mix, len(outlook.worth.left) - 1, MAX_GPUS_PER_NODE)
    return Prospect(in_context(potential, outlook.context), outlook, tables)


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


class LearnedValues:
    """What decisions add to the value of nodes, by one model and one outlook.

    Keeps values between calls that are about snapshots of one cluster, as `decisions.Memo` does: whoever asks about
    another one, or in another thread, takes another.
    """

    def __init__(self, served: Prospect) -> None:
        self.served = served
        self._valued: _Valued | None = None
        self._known: dict[tuple[GpuRequest, RowState, bytes, int, bool], tuple[Floats, Longs]] = {}
        """Of one row by its state: samples may change its score, but not what the node is worth."""

    def warm(self, cluster: Cluster) -> None:
        """Work V of all nodes out now, so that the first request need not; `cluster` as the policy counts it."""
        self._before(cluster, np.arange(cluster.num_nodes))

    def steps(self, gain: Floats) -> Floats:
        """(R,) whole quanta of (R,) gains."""
        return steps(gain, self.served.potential)

    def gains(
        self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit, *, apart: bool = False
    ) -> tuple[Floats, Longs]:
        """(R,) V after - V before in GPUs on rows that fit, and (R,) the GPU of a share of one GPU, else -1.

        A share tries each GPU with room, of unlike ones those with the least memory, and takes the first of those that
        gain most: V knows one model a node. `apart` from the line of snapshots nothing is kept: any thread may ask.
        """
        if apart:
            return self._gains(cluster, request, rows, fit, _Before(node_states(cluster, rows, self.served.num_models)))
        if len(rows) != 1 or request.by_identity:  # what names thousands of UUIDs is not kept
            return self._gains(cluster, request, rows, fit, self._before(cluster, rows))
        units, shares = fit.taken_units.item(0), fit.shares.item(0)
        key = request, state_of(cluster, rows.item(0)), fit.room.tobytes(), units, shares
        known = self._known.get(key)
        if known is None:
            known = self._gains(cluster, request, rows, fit, self._before(cluster, rows))
            for array in known:
                array.flags.writeable = False
            keep(self._known, key, known)
        return known

    def changes(
        self, cluster: Cluster, request: GpuRequest, row: int, fit: Fit, gpu: int
    ) -> tuple[Floats, Floats, Floats]:
        """(F,) features of a node before and after, and what each one's change adds to V; `gpu` is that of a share."""
        served, rows = self.served, np.array([row])
        before = node_states(cluster, rows, served.num_models)
        if gpu >= 0:
            states, _, tried = after_share(cluster, request, rows, fit.room, before)
            after = states.at(np.flatnonzero(tried == gpu)[:1])
        else:
            after = after_whole(cluster, request, rows, fit, before)
        then, now = (features(state, served.outlook, self._unusable_milli(state))[0] for state in (before, after))
        return then, now, attribution(then, now, served.potential)

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
        room = room & (memory == smallest_mib(cluster, rows, fit)[:, None])
        states, of, tried = after_share(cluster, request, rows, room, before.states)
        value, after = self._both(before, states)
        gains = np.full(room.T.shape, -np.inf)  # (G, R)
        gains[tried, of] = after - value[of]
        best = np.full(len(rows), -np.inf)
        hair = TOLERANCE * self.served.potential.quantum[0]  # more by so little is no more
        for g, gained in enumerate(gains):
            better = gained > best + hair
            best, gpu = np.where(better, gained, best), np.where(better, g, gpu)
        return np.where(single, best, gain), gpu

    def _before(self, cluster: Cluster, rows: Rows) -> _Before:
        """R rows as they are. All nodes' values are kept: classes of requests have them in common."""
        num_models = self.served.num_models
        if len(rows) * _FEW < cluster.num_nodes:
            return _Before(node_states(cluster, rows, num_models))
        kept = self._valued
        if kept is None or kept.row_of is not cluster.row_of or kept.version > cluster.version:
            states = node_states(cluster, np.arange(cluster.num_nodes), num_models)
            states = states.copy()  # some of its arrays are the cluster's own
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

    @_unwarned
    def _values(self, nodes: Nodes) -> Floats:
        served = self.served
        return node_values(nodes, served.outlook, served.potential, self._unusable_milli(nodes))

    def _unusable_milli(self, nodes: Nodes) -> Floats:
        free = nodes.gpu_free_milli.astype(np.int64)
        return unusable_milli(nodes.cpu_free_milli, free, nodes.model, self.served.tables)
