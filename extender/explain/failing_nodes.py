"""What names nodes on which pods fail, as those see it who tell of nodes: a part does."""

from typing import Protocol


class NamesFailingNodes(Protocol):
    """Knows how pods do on their nodes."""

    @property
    def num_failing(self) -> int:
        """Nodes on which pods fail and that are not set aside."""

    def words(self, node: str) -> str:
        """What is the matter with a node, in words, "" for nothing."""
