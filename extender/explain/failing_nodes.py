"""The interface of the part that detects nodes on which pods fail."""

from typing import Protocol


class NamesFailingNodes(Protocol):
    """Knows on which nodes pods fail."""

    @property
    def num_failing(self) -> int:
        """Number of nodes on which pods fail and that are not quarantined."""

    def words(self, node: str) -> str:
        """What is wrong with a node, in words; "" for nothing."""
