"""Node agents that have stopped: what a node's report says of its GPUs, and who has which, grows old without a word."""

from typing import Final

from extender.kube.objects import Node, Pod
from extender.kube.watches.feeds import BOUND_PODS, NODES, WatchHub
from extender.plugins.node_reports import REPORT

AGENT_LABELS: Final = ("app.kubernetes.io/name", "kerf-agent")
"""Of the agent's pods, as the chart labels them."""


class Reporters:
    """Nodes with a report, and the agents that write them."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        """By UID, those that have a report."""
        self._agents: dict[str, Pod] = {}
        """By UID, the agent's pods with a node."""

    @classmethod
    def watched(cls, hub: WatchHub) -> "Reporters":
        """Those of a cluster, before its feeds are begun."""
        found = cls()
        hub.cache(NODES).subscribe(found.node_changed)
        hub.part(BOUND_PODS).subscribe(found.pod_changed)
        return found

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """A node was added, has changed or is gone."""
        if new is not None and REPORT in (new.metadata.annotations or {}):
            self._nodes[new.metadata.uid] = new
        elif (gone := new or old) is not None:
            self._nodes.pop(gone.metadata.uid, None)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """A pod with a node was added, has changed or is gone."""
        key, name = AGENT_LABELS
        if new is not None and (new.metadata.labels or {}).get(key) == name:
            self._agents[new.metadata.uid] = new
        elif (gone := new or old) is not None:
            self._agents.pop(gone.metadata.uid, None)

    @property
    def any(self) -> bool:
        """Whether any node has a report."""
        return bool(self._nodes)

    def silent(self) -> list[str]:
        """Names of ready nodes with a report on which no agent is ready, in order."""
        agents = self._agents.values()
        at_work = {pod.spec.node_name for pod in agents if pod.ready and not pod.metadata.deletion_timestamp}
        nodes = (node for node in self._nodes.values() if node.ready)
        return sorted(node.metadata.name for node in nodes if node.metadata.name not in at_work)
