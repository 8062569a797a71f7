"""How much one client may ask: so many calls a second, and so many at once. Memory is bounded whoever calls.

By hand: `limits` keeps every client until its window ends, and knows of no calls under way.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

_MAX_CLIENTS: Final = 1024


class Rates:
    """A token bucket for each client; of those that have not called for longest nothing is kept."""

    def __init__(self, *, per_s: float, burst: int, at_once: int, clock: Callable[[], float]) -> None:
        """`per_s` 0: no limit but that of calls at once."""
        self._per_s = per_s
        self._burst = burst
        self._at_once = at_once
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # calls left, when that was
        self._under_way: Counter[str] = Counter()

    def wait_s(self, client: str) -> float:
        """Take one call out of a client's bucket: 0 when there was one, else the seconds until there is."""
        if not self._per_s:
            return 0.0
        now = self._clock()
        left, at = self._buckets.get(client, (float(self._burst), now))
        left = min(left + (now - at) * self._per_s, self._burst)
        taken = left >= 1
        self._buckets[client] = (left - 1 if taken else left), now
        self._buckets.move_to_end(client)
        if len(self._buckets) > _MAX_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._per_s

    def begin(self, client: str) -> bool:
        """Count a call that begins, unless the client has too many under way."""
        if self._under_way[client] >= self._at_once:
            return False
        self._under_way[client] += 1
        return True

    def end(self, client: str) -> None:
        """Count a call that has ended."""
        self._under_way[client] -= 1
        if not self._under_way[client]:
            del self._under_way[client]

    @property
    def num_clients(self) -> int:
        """How many clients something is kept of."""
        return len(self._buckets.keys() | self._under_way.keys())
