"""What keeps nodes for pods that it moves, as the queue sees it: a part does."""

from typing import Protocol

from extender.kube.objects import Pod
from extender.queueing.pods.entries import Entry


class KeepsPlaces(Protocol):
    """Knows which pods of the queue have a place that is kept."""

    def others(self, waiting: list[Entry]) -> list[Entry]:
        """Of pods that wait, those whose nodes a round may choose."""

    def place_kept(self, pod: Pod) -> str:
        """As of `QueueRules`."""
