"""Node agents that have stopped: what a node's report says of its GPUs, and who has which, grows old without a word."""

from typing import Final

from extender.kube.objects import Node, Pod
from extender.kube.watches.feeds import BOUND_PODS, NODES, WatchHub
from extender.kube.watches.stores import Store
from extender.plugins.node_reports import REPORT

AGENT_LABELS: Final = ("app.kubernetes.io/name", "kerf-agent")
"""Of the agent's pods, as the chart labels them."""


class _Reporting(Store[Node]):
    """Nodes that have a report."""

    def upsert(self, item: Node) -> None:
        """A node was added or changed."""
        if REPORT in (item.metadata.annotations or {}):
            super().upsert(item)
        else:
            self._drop(item.metadata.uid)


class _Agents(Store[Pod]):
    """The agent's pods with a node."""

    def upsert(self, item: Pod) -> None:
        """A pod was added or changed."""
        key, name = AGENT_LABELS
        if (item.metadata.labels or {}).get(key) == name and not item.finished:
            super().upsert(item)
        else:
            self._drop(item.metadata.uid)


class Reporters:
    """Nodes with a report, and the agents that write them."""

    def __init__(self) -> None:
        self.nodes, self.agents = _Reporting(), _Agents()

    @classmethod
    def watched(cls, hub: WatchHub) -> "Reporters":
        """Those of a cluster, before its feeds are begun."""
        found = cls()
        hub.subscribe(NODES, found.nodes)
        hub.subscribe(BOUND_PODS, found.agents)
        return found

    def silent(self) -> list[str]:
        """Names of ready nodes with a report on which no agent is ready, in order."""
        agents = self.agents.by_uid.values()
        at_work = {pod.spec.node_name for pod in agents if pod.ready and not pod.metadata.deletion_timestamp}
        nodes = (node for node in self.nodes.by_uid.values() if node.ready)
        return sorted(node.metadata.name for node in nodes if node.metadata.name not in at_work)
