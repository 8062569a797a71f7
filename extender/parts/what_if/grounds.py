"""What a plan is made on: the cluster as it is, and with the nodes of a question."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from extender.core.clusters import Cluster
from extender.core.policies.policy import Policy
from extender.explain.stranded import Stranding
from extender.kube.objects import Node
from extender.ledger.rows import NodeRows
from extender.ledger.tenants import Crowd
from extender.parts.what_if.claims import DeviceFacts, with_devices
from extender.parts.what_if.waiting import Waiting
from extender.planning.plans import PlanPod, View
from extender.queueing.node_view import view_of
from extender.queueing.pods.restrictions import Kinds

Added = Sequence[tuple[Node, str]]
"""Nodes under names of their own, each with the name of the node of the cluster that it is like, "" for none."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster as it is: what a plan is made on."""

    nodes: bytes
    """The API server's list."""
    pods_on: dict[str, bytes]
    """The same of the pods on each node that is drained."""
    cluster: Cluster
    ledger: NodeRows | None
    """Where nodes are added."""
    num_pods: dict[str, int]
    """By node."""
    default_policy: str
    policies: dict[str, Policy]
    """By name, as they are configured."""
    devices: DeviceFacts | None
    """For pods with ResourceClaims; None where Kerf allocates none."""
    pending: bytes | None = None
    """The API server's list of pods without a node, where those that wait are asked about."""
    waiting: Waiting = field(default_factory=Waiting)
    """What the queue knows of them."""
    max_s: float = 60.0
    """The time for an answer."""
    crowd: tuple[bytes, ...] = ()
    """Who runs on which node, as `Crowd.packed` gives it."""
    ignored: frozenset[str] = frozenset()
    """Resources that kube-scheduler does not count."""
    stranding: Stranding | None = None
    """What tells how much is stranded; None where the service does not count."""


@dataclass(frozen=True, slots=True)
class Ground:
    """A question's cluster, with a view for whatever nodes are added."""

    facts: Facts
    nodes: Sequence[Node]
    added: Added
    """Those that are asked for."""
    kinds: Kinds
    batch: Sequence[PlanPod]
    drained: Sequence[str]
    """Names of nodes that take no pods."""
    crowd: Crowd = field(default_factory=Crowd)
    """Who runs, without those who leave these nodes."""

    def view(self, more: Added = ()) -> View:
        """The view with the nodes that are added, and more."""
        facts, added = self.facts, [*self.added, *more]
        cluster = facts.ledger.extended([node for node, _ in added]) if added and facts.ledger else facts.cluster
        if facts.devices is not None:
            cluster = with_devices(cluster, facts.devices, {node.metadata.name: like for node, like in added})
        described = [*self.nodes, *(node for node, _ in added)]
        view = view_of(cluster, described, self.kinds, self.batch, num_pods=facts.num_pods, crowd=self.crowd)
        view.allowed[:, [cluster.row_of[name] for name in self.drained if name in cluster.row_of]] = False
        return replace(view, policies=facts.policies)
