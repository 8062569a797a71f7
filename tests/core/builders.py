"""Small clusters for tests, written node by node."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.decisions import Decision, decide
from extender.core.devices import choose_among
from extender.core.evaluations import Memo
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit, Reason
from extender.core.policies.policy import Policy, Score
from extender.core.policies.registry import POLICIES
from extender.core.resources.gpu_models import ModelPattern, describe_model
from extender.core.resources.nodes import Gpu, GpuUnit, NodeOffer
from extender.core.resources.requests import GpuRequest
from extender.kube.patterns import compile_pattern
from extender.ledger.arrays import ClusterArrays, HeldAmounts

T4, A100, A100_40 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960)
UNKNOWN = ("", 0)
"""A GPU of unknown model and memory."""
ONE = GpuRequest(1)


@dataclass(frozen=True)
class NodeState:
    """A node's offer and what of it is in use."""

    offer: NodeOffer
    held: frozenset[int] = frozenset()
    used: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """(milli, MiB) of GPUs that are shared."""
    untracked: int = 0
    """Units in use on GPUs of unknown index, without the withheld ones."""
    num_served: int = 0
    num_unserved: int = 0
    slices: Mapping[int, int] = field(default_factory=dict)

    @property
    def all_untracked(self) -> int:
        return self.untracked + self.offer.withheld_units

    @property
    def idle(self) -> set[int]:
        """Healthy GPUs without a known booking."""
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
        Gpu(describe_model(product, {}), memory_mib, uuid, index not in broken, numa, link)
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
    """Bookings of some GPUs as a whole."""
    return {index: (WHOLE_MILLI, offer.gpus[index].memory_mib) for index in held}


def arrays_of(nodes: Mapping[str, NodeState]) -> ClusterArrays:
    """The writer's arrays of a cluster, in the order given."""
    arrays = ClusterArrays()
    for name, state in nodes.items():
        row = arrays.set_node(name, state.offer)
        gpus = wholly(state.offer, state.held) | dict(state.used)
        arrays.set_held(
            row, HeldAmounts(gpus, state.all_untracked, (), state.num_served, state.num_unserved, state.slices)
        )
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
    """Indices of the GPUs for a request on one node; None where it does not fit."""
    checked = fit(cluster, request, np.array([row]))
    return choose_among(cluster, row, request, checked.room[0], shares=bool(checked.shares[0]), spreads=spreads)


def fit_all(cluster: Cluster, request: GpuRequest = ONE) -> Fit:
    """The fit on every row."""
    return fit(cluster, request, all_rows(cluster))


def verdict(state: NodeState, request: GpuRequest) -> tuple[Reason, int]:
    """The reason for one node, and the number behind it."""
    checked = fit_all(cluster_of({"n": state}), request)
    return Reason(checked.reason[0]), int(checked.available[0])


def scores_of(score: Score, cluster: Cluster, request: GpuRequest = ONE) -> list[float]:
    """Scores of every row."""
    values: list[float] = score(cluster, request, all_rows(cluster), fit_all(cluster, request)).tolist()
    return values


def decided(cluster: Cluster, request: GpuRequest = ONE, policy: Policy | str = "tightest") -> Decision:
    """The decision among all rows, without a cache."""
    by = POLICIES[policy] if isinstance(policy, str) else policy
    return decide(cluster, request, by, all_rows(cluster), Memo())


def best_of(cluster: Cluster, request: GpuRequest = ONE, policy: Policy | str = "tightest") -> str:
    """Name of the node that wins, "" for none."""
    best = decided(cluster, request, policy).best
    return "" if best is None else cluster.node_names[best]
