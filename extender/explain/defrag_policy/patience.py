"""Who is left alone for a while after what was done for them came to nothing: twice as long each time in a row."""

from dataclasses import dataclass

from extender.scheduling.fair_cache import FairCache


@dataclass(frozen=True, slots=True)
class _Rest:
    name: str
    until: float
    times: int


class Patience:
    """Rests by name, bounded: who brings many names has their own forgotten."""

    def __init__(self, first_s: float, most_s: float, most_kept: int = 4_000) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._rests: FairCache[_Rest] = FairCache(most_kept)

    def __len__(self) -> int:
        return len(self._rests)

    def rests(self, name: str, now: float) -> bool:
        """Whether it is left alone yet."""
        known = self._rests.get(name)
        return known is not None and now < known.until

    def resting(self, now: float) -> frozenset[str]:
        """All that are left alone yet."""
        return frozenset(rest.name for rest in self._rests.values() if now < rest.until)

    def fail(self, namespace: str, name: str, now: float) -> None:
        """It came to nothing. What rests already does not rest longer for it."""
        known = self._rests.get(name)
        if known is not None and now < known.until:
            return
        times = known.times + 1 if known is not None else 0
        rest_s = min(self._first_s * 2.0 ** min(times, 32), self._most_s)
        self._rests.put(namespace, name, _Rest(name, now + rest_s, times), now)

    def forgive(self, name: str) -> None:
        """It came to something."""
        self._rests.pop(name)

    def forget_old(self, now: float) -> None:
        """Forget those that failed so long ago that it says nothing any more."""
        self._rests.expire(now - 2 * self._most_s)
