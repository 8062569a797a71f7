"""The planner's interface: a batch of pods, a view of the cluster, and the plan that assigns pods to nodes.

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
ALL_PODS: Final = 2**31
"""More pods than any kubelet takes."""
ANYWHERE: Final = 0
"""Kind of a pod without node restrictions."""


class PlanError(ValueError):
    """A batch that a planner does not support; the message names the reason and suitable planners."""


@dataclass(frozen=True, slots=True)
class PlanPod:
    """A pod as planners see it."""

    key: str
    """`namespace/name`, or another key that is unique in the batch."""
    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: GpuRequest | None = None
    policy: str = ""
    """Name of the policy that ranks nodes for it, "" for the deployment's default."""
    priority: int = 0
    gang: str = ""
    """Name of its gang, whose pods are placed all or none; "" for none."""
    topology: str = ""
    """Topology key: all pods of the gang must be in one domain of it; "" for no restriction."""
    beside: tuple[str, ...] = ()
    """Nodes of the gang's pods that were released before; their domain is the gang's."""
    kind: int = ANYWHERE
    """Row of `View.allowed`."""
    image: str = ""
    """Its container image; q-learning prefers nodes whose pods share it."""
    claims: tuple[str, ...] = ()
    """UIDs of its unallocated ResourceClaims."""
    demands: Demands | None = None
    """Demands beside CPU, memory and GPUs; None for none."""
    labels: Labels = field(default_factory=dict, compare=False)
    """Labels, matched by other pods' affinity and spread rules."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""
        return self.key.partition("/")[0]

    @property
    def num_gpus(self) -> int:
        """Requested GPUs; a share counts as one."""
        return max(self.gpus.count, 1) if self.gpus is not None else 0

    @property
    def alike(self) -> tuple[object, ...]:
        """A key that is equal for pods that fit the same nodes, apart from other pods' rules (`View.alike`).

        Includes the policy, which may rule nodes out.
        """
        return self.cpu_milli, self.memory_mib, self.gpus, self.kind, self.policy, self.demands


@dataclass(frozen=True, slots=True)
class View:
    """The cluster as a batch sees it: the arrays that decisions use, and what only plans need."""

    cluster: Cluster
    cpu_allocatable_milli: Longs
    """(N,)"""
    memory_allocatable_mib: Longs
    """(N,)"""
    cpu_free_milli: Longs
    """(N,) allocatable less bound pods and the reserve."""
    memory_free_mib: Longs
    """(N,)"""
    pods_free: Longs
    """(N,) free pod slots."""
    allowed: Mask
    """(K, N) nodes on which pods of each kind may run, by selector, taints and cordon; row 0: no restrictions."""
    domains: Mapping[str, Ints] = field(default_factory=dict)
    """(N,) number of the node's domain, -1 for none; by topology key."""
    policies: Mapping[str, Policy] = field(default_factory=lambda: POLICIES)
    """Policies by name; not shared with decisions, since a plan may be made in a thread."""
    empty: Longs | None = None
    """(3, N) CPU, memory and pods that an empty node has room for; None: all that is allocatable."""
    refusals: Mapping[int, WaitReason] = field(default_factory=dict)
    """By kind: why its pods may run nowhere."""
    neighbours: Neighbours | None = None
    """Other resources, host ports and pods on nodes; None if the batch has no such demands and no rule affects it."""

    def room_of_empty(self) -> Longs:
        """`empty`, or its default."""
        if self.empty is not None:
            return self.empty
        slots = np.full(self.num_nodes, ALL_PODS)
        return np.stack([self.cpu_allocatable_milli, self.memory_allocatable_mib, slots])

    @property
    def num_nodes(self) -> int:
        """N, rows without a node included."""
        return self.cluster.num_nodes

    def alike(self, pod: PlanPod) -> tuple[object, ...]:
        """A key that is equal for pods that fit the same nodes."""
        if self.neighbours is None:
            return pod.alike
        return *pod.alike, self.neighbours.alike(pod.namespace, pod.labels), pod.demands and pod.namespace

    def fits_empty(self, pod: PlanPod) -> Mask:
        """(N,) the nodes that a pod may use and, GPUs aside, would fit if they were empty."""
        could: Mask = self.allowed[pod.kind] & (self.cpu_allocatable_milli >= pod.cpu_milli)
        could &= self.memory_allocatable_mib >= pod.memory_mib
        return could if self.neighbours is None else could & self.neighbours.offers(pod.demands)

    def unchecked(self, pod: PlanPod) -> tuple[str, ...]:
        """Descriptions of a pod's demands that plans do not check."""
        if pod.demands is None:
            return ()
        if self.neighbours is None:
            return pod.demands.unchecked
        return self.neighbours.unchecked(pod.demands)

    def domains_of(self, gang: Sequence[PlanPod]) -> Ints | None:
        """(N,) the domain of each node, -1 where a gang may not go; it must use one domain. None: no restriction."""
        topology = next((pod.topology for pod in gang if pod.topology), "")
        if not topology:
            return None
        domains = self.domains.get(topology)
        if domains is None:
            return np.full(self.num_nodes, -1, np.int32)
        rows = [row for pod in gang for name in pod.beside if (row := self.cluster.row_of.get(name)) is not None]
        required = next((number for number in domains[rows] if number >= 0), None)
        return domains if required is None else np.where(domains == required, domains, np.int32(-1))


@dataclass(frozen=True, slots=True)
class Plan:
    """The node of each pod of a batch."""

    planner: str
    version: int
    """Version of the cluster that it was made on."""
    pods: tuple[PlanPod, ...]
    """P pods, in the order of the batch."""
    rows: tuple[int, ...]
    """(P,) row of each pod's node, -1 for none."""
    gpus: tuple[tuple[int, ...], ...]
    """(P,) indices of the GPUs assumed for each pod."""
    unassigned: Mapping[int, WaitReason]
    """Reason by the position of each pod that gets no node."""

    @property
    def num_placed(self) -> int:
        """Pods that get a node."""
        return len(self.pods) - len(self.unassigned)


class Planner(Protocol):
    """A planning algorithm: a module of `planners`, and a line in their registry."""

    @property
    def name(self) -> str:
        """Its name in settings and `kerf plan`."""

    @property
    def description(self) -> str:
        """One line: the method, and the batches it suits."""

    def make(self, view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
        """A plan of P pods. Raises PlanError if the planner does not support the batch."""


@dataclass(frozen=True, slots=True)
class Quality:
    """Figures by which planners are compared."""

    placed: int
    placed_priority: float
    """Sum over placed pods of 1 + priority / highest priority."""
    gpus: int
    """GPU units assigned to pods."""
    nodes: int
    """Nodes that pods of the plan use."""
    fragments: float
    """Fraction of all GPU units that are free on partly used nodes."""


def units_of(pods: Sequence[PlanPod]) -> list[list[int]]:
    """Groups of positions that are placed all or none, ordered by the first of each."""
    units: dict[str | int, list[int]] = {}
    for position, pod in enumerate(pods):
        units.setdefault(pod.gang or position, []).append(position)
    return list(units.values())


def priority_weights(pods: Sequence[PlanPod]) -> Floats:
    """(P,) weights from 1 for the batch's lowest priority to 2 for its highest."""
    priority = np.array([pod.priority for pod in pods], dtype=np.float64)
    if not len(priority):
        return priority
    lowest, span = priority.min(), np.ptp(priority)
    return 1 + (priority - lowest) / span if span else np.ones(len(pods))
