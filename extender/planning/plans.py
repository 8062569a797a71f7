"""A batch of pods, the cluster it is to be placed on, and the plan that says where each pod goes.

Axis letters beside those of the core: P pods of a batch, K kinds of node restriction, D domains of a topology.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np

from extender.core.clusters import Cluster, Floats, Ints, Longs, Mask
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import GpuRequest
from extender.planning.demands import Demands, Labels
from extender.planning.neighbours import Neighbours
from extender.planning.wait_reasons import WaitReason

GREEDY: Final = "greedy"
_ALL_PODS: Final = 2**31
"""More than any kubelet takes."""
ANYWHERE: Final = 0
"""Kind of a pod that says nothing about nodes."""


class PlanError(ValueError):
    """A batch that a planner does not take; says why, and what would."""


@dataclass(frozen=True, slots=True)
class PlanPod:
    """What a planner has to know of a pod."""

    key: str
    """`namespace/name`, or whatever else tells the pods of a batch apart."""
    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: GpuRequest | None = None
    policy: str = ""
    """Name of the policy that ranks nodes for it, "" for the deployment's."""
    priority: int = 0
    gang: str = ""
    """Pods of one gang are placed all or none; "" for a pod on its own."""
    topology: str = ""
    """Label key: all pods of the gang must be on nodes with one value of it; "" for anywhere."""
    beside: tuple[str, ...] = ()
    """Nodes of the gang's pods that were let go before: its topology's value is theirs."""
    kind: int = ANYWHERE
    """Row of `View.allowed`."""
    image: str = ""
    """Image that its node has to have or to fetch."""
    claims: tuple[str, ...] = ()
    """UIDs of its ResourceClaims that have no devices yet."""
    demands: Demands | None = None
    """What it wants beside CPU, memory and GPUs; None for nothing."""
    labels: Labels = field(default_factory=dict, compare=False)
    """By which rules of pods choose it."""

    @property
    def namespace(self) -> str:
        """Of the pod."""
        return self.key.partition("/")[0]

    @property
    def num_gpus(self) -> int:
        """GPUs that it asks for, a share of one counted as one."""
        return max(self.gpus.count, 1) if self.gpus is not None else 0

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal for pods that fit the same nodes, as far as no rule of other pods tells them apart (`View.alike`): a
        policy may rule some out."""
        return self.cpu_milli, self.memory_mib, self.gpus, self.kind, self.policy, self.demands


@dataclass(frozen=True, slots=True)
class View:
    """The cluster that a batch is planned on: the arrays that decisions use, and what a plan needs besides."""

    cluster: Cluster
    cpu_allocatable_milli: Longs
    """(N,)"""
    memory_allocatable_mib: Longs
    """(N,)"""
    cpu_free_milli: Longs
    """(N,) what bound pods and the reserve leave."""
    memory_free_mib: Longs
    """(N,)"""
    pods_free: Longs
    """(N,) how many more pods the kubelet takes."""
    allowed: Mask
    """(K, N) nodes on which pods of each kind may run, by selector, taints and cordon; row 0 for any pod."""
    domains: Mapping[str, Ints] = field(default_factory=dict)
    """By label key: (N,) number of the node's domain, -1 where it has none."""
    policies: Mapping[str, Policy] = field(default_factory=lambda: POLICIES)
    """By name; a plan may be made in a thread, so they are its own."""
    empty: Longs | None = None
    """(3, N) CPU, memory and pods that a node has room for while nobody uses it; None: all that is allocatable."""
    refusals: Mapping[int, WaitReason] = field(default_factory=dict)
    """Why pods of a kind may run nowhere, by the kind."""
    neighbours: Neighbours | None = None
    """What nodes have left beside CPU, memory and GPUs, and who is on them; None where none of the batch wants more,
    nor is kept away by others."""

    def room_of_empty(self) -> Longs:
        """The same in any case."""
        if self.empty is not None:
            return self.empty
        slots = np.full(self.num_nodes, _ALL_PODS)
        return np.stack([self.cpu_allocatable_milli, self.memory_allocatable_mib, slots])

    @property
    def num_nodes(self) -> int:
        """N, rows without a node included."""
        return self.cluster.num_nodes

    def alike(self, pod: PlanPod) -> tuple[object, ...]:
        """Equal for pods that fit the same nodes."""
        if self.neighbours is None:
            return pod.alike
        return *pod.alike, self.neighbours.alike(pod.namespace, pod.labels), pod.demands and pod.namespace

    def could_run(self, pod: PlanPod) -> Mask:
        """(N,) the nodes that a pod may use and would have room on if nobody were there, GPUs apart."""
        could: Mask = self.allowed[pod.kind] & (self.cpu_allocatable_milli >= pod.cpu_milli)
        could &= self.memory_allocatable_mib >= pod.memory_mib
        return could if self.neighbours is None else could & self.neighbours.offers(pod.demands)

    def unchecked(self, pod: PlanPod) -> tuple[str, ...]:
        """In words, what of a pod's demands a plan does not look at."""
        if pod.demands is None:
            return ()
        if self.neighbours is None:
            return pod.demands.unchecked
        return self.neighbours.unchecked(pod.demands)

    def domains_of(self, gang: Sequence[PlanPod]) -> Ints | None:
        """(N,) number of the domain of each node, of which a gang must keep to one, -1 where it may not go.

        None where it may go anywhere.
        """
        topology = next((pod.topology for pod in gang if pod.topology), "")
        if not topology:
            return None
        found = self.domains.get(topology)
        if found is None:
            return np.full(self.num_nodes, -1, np.int32)
        rows = [row for pod in gang for name in pod.beside if (row := self.cluster.row_of.get(name)) is not None]
        theirs = next((number for number in found[rows] if number >= 0), None)
        return found if theirs is None else np.where(found == theirs, found, np.int32(-1))


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each pod of a batch goes."""

    planner: str
    version: int
    """Version of the cluster it was made on."""
    pods: tuple[PlanPod, ...]
    """P pods, in the order of the batch."""
    rows: tuple[int, ...]
    """(P,) the node of each, -1 for none."""
    gpus: tuple[tuple[int, ...], ...]
    """(P,) indices of the GPUs that were counted on."""
    unassigned: Mapping[int, WaitReason]
    """Why, by the position of each pod that gets no node."""

    @property
    def num_placed(self) -> int:
        """Pods that get a node."""
        return len(self.pods) - len(self.unassigned)


class Planner(Protocol):
    """A way to plan a batch: a file of `planners`, and a line in their registry."""

    @property
    def name(self) -> str:
        """What settings and `kerf plan` call it."""

    @property
    def description(self) -> str:
        """In one line: how, and for what batches."""

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """A plan of P pods. Raises PlanError when the batch is not for this planner."""


@dataclass(frozen=True, slots=True)
class Quality:
    """How good a plan is, in figures that planners are compared by."""

    placed: int
    placed_priority: float
    """Sum over placed pods of 1 + priority / highest priority."""
    gpus: int
    """GPU units given to pods."""
    nodes: int
    """Nodes that pods of the plan use."""
    fragments: float
    """Part of all GPU units that are free on nodes where others are in use: 0 when no node is cut."""


def units_of(pods: Sequence[PlanPod]) -> list[list[int]]:
    """Positions of pods that are placed all or none, in the order of the first of each."""
    units: dict[str | int, list[int]] = {}
    for position, pod in enumerate(pods):
        units.setdefault(pod.gang or position, []).append(position)
    return list(units.values())


def priority_weights(pods: Sequence[PlanPod]) -> Floats:
    """(P,) 1 for the lowest priority of the batch, up to 2 for the highest."""
    priority = np.array([pod.priority for pod in pods], dtype=np.float64)
    if not len(priority):
        return priority
    lowest, span = priority.min(), np.ptp(priority)
    return 1 + (priority - lowest) / span if span else np.ones(len(pods))
