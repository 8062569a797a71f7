"""Decisions that are kept for those who ask later."""

from collections import deque
from itertools import islice

from extender.scheduling.assignments import Placement


class DecisionLog:
    """The newest decisions; the oldest one gives way."""

    def __init__(self, most: int) -> None:
        self.most = most
        """How many are kept."""
        self._kept: deque[Placement] = deque(maxlen=most)
        self.num_made = 0
        """Decisions so far, those included that others gave way to."""
        self._outdated: dict[tuple[str, str], None] = {}

    def add(self, placement: Placement) -> None:
        """Keep a decision."""
        self._kept.append(placement)
        self._outdated.pop((placement.pod.namespace, placement.pod.name), None)
        self.num_made += 1

    def after(self, number: int) -> list[tuple[int, Placement]]:
        """Kept decisions past the `number`th that was made, oldest first, each with its own number."""
        first = self.num_made - len(self._kept) + 1
        newer = islice(self._kept, max(number + 1 - first, 0), None)
        return list(enumerate(newer, max(number + 1, first)))

    def newest(self) -> dict[str, Placement]:
        """Of each pod the newest decision that is still kept, by UID."""
        return {kept.pod.uid: kept for kept in self._kept}

    def outdate(self, namespace: str, name: str) -> None:
        """The last decision about a pod tells nothing of it: it asks for something else by now, or is another pod."""
        if self.last(namespace, name) is not None:
            self._outdated[namespace, name] = None
            if len(self._outdated) > self.most:
                del self._outdated[next(iter(self._outdated))]

    def last(self, namespace: str, name: str) -> Placement | None:
        """The newest decision about a pod that is still kept, and tells something of it."""
        wanted = (namespace, name)
        if wanted in self._outdated:
            return None
        return next((kept for kept in reversed(self._kept) if (kept.pod.namespace, kept.pod.name) == wanted), None)
