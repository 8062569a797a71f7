"""Small clusters for tests, written node by node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.devices import choose_among
from extender.core.fit.fits import fit
from extender.core.resources.gpu_models import ModelPattern, describe_model
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer
from extender.core.resources.requests import GpuRequest
from extender.kube.patterns import compile_pattern
from extender.ledger.arrays import ClusterArrays, Held

ALIASES: Mapping[str, Iterable[str]] = {}


@dataclass(frozen=True)
class NodeState:
    """A node's offer and what of it is in use."""

    offer: NodeOffer
    held: frozenset[int] = frozenset()
    used: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """(milli, MiB) of GPUs that are shared."""
    untracked: int = 0
    """Units of unknown index that somebody holds, the withheld ones not counted."""
    num_served: int = 0
    num_unserved: int = 0
    slices: Mapping[int, int] = field(default_factory=dict)

    @property
    def all_untracked(self) -> int:
        return self.untracked + self.offer.withheld_units

    @property
    def idle(self) -> set[int]:
        """GPUs that may be given whole, those of unknown holders included."""
        healthy = {index for index, gpu in enumerate(self.offer.gpus) if gpu.healthy}
        return healthy - self.held - self.used.keys()


def node(
    *gpus: tuple[str, int],
    held: Iterable[int] = (),
    untracked: int = 0,
    unit: GpuUnit = GpuUnit.WHOLE,
    units_per_gpu: int = 1,
    withheld: int = 0,
    used: Mapping[int, tuple[int, int]] | None = None,
    broken: Iterable[int] = (),
    links: Sequence[int] = (),
    numas: Sequence[int] = (),
    uuids: Sequence[str] = (),
    mig: Mapping[str, int] | None = None,
    picks: bool = False,
    served: int = 0,
    unserved: int = 0,
    led: bool = False,
    slices: Mapping[int, int] | None = None,
    aside: int = 0,
) -> NodeState:
    """A node of GPUs given as (product, MiB)."""
    count = len(gpus)
    columns = zip(gpus, uuids or [""] * count, numas or [-1] * count, links or [-1] * count, strict=True)
    described = tuple(
        Gpu(describe_model(product, ALIASES), memory_mib, uuid, index not in broken, numa, link)
        for index, ((product, memory_mib), uuid, numa, link) in enumerate(columns)
    )
    profiles = tuple(sorted((mig or {}).items()))
    if not gpus:
        return NodeState(NodeOffer(mig=profiles, set_aside=aside))
    units = sum(gpu.healthy for gpu in described) * units_per_gpu - withheld
    offer = NodeOffer(
        described, unit, units_per_gpu, units, profiles, plugin_picks=picks, slices_led=led, set_aside=aside
    )
    return NodeState(offer, frozenset(held), used or {}, untracked, served, unserved, slices or {})


def wholly(offer: NodeOffer, held: Iterable[int]) -> dict[int, tuple[int, int]]:
    """All of some GPUs, as it is held."""
    return {index: (WHOLE_MILLI, offer.gpus[index].memory_mib) for index in held}


def arrays_of(nodes: Mapping[str, NodeState]) -> ClusterArrays:
    """The writer's arrays of a cluster, in the order given."""
    arrays = ClusterArrays()
    for name, state in nodes.items():
        row = arrays.set_node(name, state.offer)
        gpus = wholly(state.offer, state.held) | dict(state.used)
        arrays.set_held(row, Held(gpus, state.all_untracked, (), state.num_served, state.num_unserved, state.slices))
    return arrays


def cluster_of(nodes: Mapping[str, NodeState]) -> Cluster:
    """A snapshot of a cluster."""
    return arrays_of(nodes).snapshot()


def all_rows(cluster: Cluster) -> Rows:
    """Every row, in order."""
    return np.arange(cluster.num_nodes)


def pattern(text: str) -> ModelPattern:
    """A model pattern as `read_request` makes it."""
    return ModelPattern(text, compile_pattern(f"(?i){text}"))


def choose_gpus(cluster: Cluster, row: int, request: GpuRequest, *, spreads: bool = False) -> tuple[int, ...] | None:
    """Indices of the GPUs for a request on one node, of those that fit it; None when it does not."""
    checked = fit(cluster, request, np.array([row]))
    return choose_among(cluster, row, request, checked.room[0], shares=bool(checked.shares[0]), spreads=spreads)
