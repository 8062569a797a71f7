"""Finds node agents that have stopped, whose nodes' GPU reports silently become outdated."""

from typing import Final

from extender.kube.cache import Cache, Index
from extender.kube.objects import Node, Pod
from extender.plugins.kerf import REPORT

AGENT_LABELS: Final = ("app.kubernetes.io/name", "kerf-agent")
"""Label of the agent's pods, set by the chart."""
_REPORTING: Final[Index[Node]] = Index(
    "report", lambda node: ["reporting"] if REPORT in (node.metadata.annotations or {}) else []
)
_OF_AGENTS: Final[Index[Pod]] = Index(
    "agents",
    lambda pod: ["agent"] if pod.spec.node_name and AGENT_LABELS in (pod.metadata.labels or {}).items() else [],
)


class Reporters:
    """The nodes with a report, and the agents that write the reports."""

    def __init__(self, nodes: Cache[Node, Node], pods: Cache[Pod, Pod]) -> None:
        """Both caches must still be empty."""
        self._nodes, self._agents = nodes.group(_REPORTING, "reporting"), pods.group(_OF_AGENTS, "agent")

    @property
    def any(self) -> bool:
        """Whether any node has a report."""
        return bool(self._nodes)

    def silent(self) -> list[str]:
        """Return the sorted names of ready nodes with a report but no ready agent."""
        agents = self._agents.values()
        reporting = {pod.spec.node_name for pod in agents if pod.ready and not pod.metadata.deletion_timestamp}
        nodes = (node for node in self._nodes.values() if node.ready)
        return sorted(node.metadata.name for node in nodes if node.metadata.name not in reporting)
