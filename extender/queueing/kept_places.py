"""The queue's interface to the part that keeps nodes for pods that it moves."""

from typing import Protocol

from extender.kube.objects import Pod
from extender.queueing.pods.entries import Entry


class PlaceKeeper(Protocol):
    """Keeps nodes for pods of the queue."""

    def others(self, waiting: list[Entry]) -> list[Entry]:
        """Return the waiting pods whose nodes a round may choose."""

    def place_kept(self, pod: Pod) -> str:
        """As in `QueueRules`."""
