"""The input of a what-if plan: the cluster as it is, and with a question's added nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from extender.core.clusters import Cluster
from extender.core.policies.policy import Policy
from extender.explain.stranded import Stranding
from extender.kube.objects import Node
from extender.ledger.bound_pods import BoundPodIndex
from extender.ledger.rows import NodeRows
from extender.parts.what_if.claims import DeviceFacts, with_devices
from extender.parts.what_if.waiting import PendingState
from extender.planning.plans import PlanPod, View
from extender.queueing.node_view import view_of
from extender.queueing.pods.restrictions import RestrictionKinds

Added = Sequence[tuple[Node, str]]
"""New nodes, each with the name of the cluster's node that it copies, "" for none."""


@dataclass(frozen=True, slots=True)
class WhatIfInputs:
    """The state of the cluster that the answering process gets."""

    nodes: bytes
    """NodeList as JSON, from the API server."""
    pods_on: dict[str, bytes]
    """By drained node: PodList as JSON, from the API server."""
    cluster: Cluster
    ledger: NodeRows | None
    """Rows to extend, if the question adds nodes."""
    num_pods: dict[str, int]
    """By node."""
    default_policy: str
    policies: dict[str, Policy]
    """The configured policies by name."""
    devices: DeviceFacts | None
    """Needed for pods with ResourceClaims; None if Kerf allocates no devices."""
    pending: bytes | None = None
    """PodList of pods without a node as JSON, if the question places the pending pods."""
    waiting: PendingState = field(default_factory=PendingState)
    """The queue's state of the pending pods."""
    max_s: float = 60.0
    """Time for an answer, in seconds."""
    crowd: tuple[bytes, ...] = ()
    """Running pods by node, as `BoundPodIndex.packed` returns them."""
    ignored: frozenset[str] = frozenset()
    """Resources that kube-scheduler does not count."""
    stranding: Stranding | None = None
    """Computes stranded GPUs; None if the service does not count them."""


@dataclass(frozen=True, slots=True)
class QuestionCluster:
    """The cluster of a question; builds planner views with any nodes added."""

    facts: WhatIfInputs
    nodes: Sequence[Node]
    added: Added
    """Nodes that the question adds."""
    kinds: RestrictionKinds
    batch: Sequence[PlanPod]
    drained: Sequence[str]
    """Names of nodes that take no pods."""
    crowd: BoundPodIndex = field(default_factory=BoundPodIndex)
    """Running pods, without those of drained nodes."""

    def view(self, more: Added = ()) -> View:
        """The planner's view of the cluster with the question's nodes and `more`."""
        facts, added = self.facts, [*self.added, *more]
        cluster = facts.ledger.extended([node for node, _ in added]) if added and facts.ledger else facts.cluster
        if facts.devices is not None:
            cluster = with_devices(cluster, facts.devices, {node.metadata.name: like for node, like in added})
        described = [*self.nodes, *(node for node, _ in added)]
        view = view_of(cluster, described, self.kinds, self.batch, num_pods=facts.num_pods, crowd=self.crowd)
        view.allowed[:, [cluster.row_of[name] for name in self.drained if name in cluster.row_of]] = False
        return replace(view, policies=facts.policies)
