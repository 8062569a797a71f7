"""How long a search may go on: whoever writes claims and slices can make any search explode."""

from typing import Final

from extender.core.dra.asks import Fault

MAX_STEPS: Final = 100_000
"""Of one search for one pod on one node: about a tenth of a second."""


class SearchLimit(Fault):
    """The search has taken too many steps."""


class Steps:
    """Counts down. Raises SearchLimit when there are none left."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.limit = limit
        self.left = limit

    def take(self, steps: int = 1) -> None:
        """Take some steps."""
        self.left -= steps
        if self.left < 0:
            raise SearchLimit(f"the search has taken {self.limit} steps")
