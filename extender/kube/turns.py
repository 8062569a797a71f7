"""Fair order of namespaces, and backoff after failed writes.

Missing rights, rejected credentials, and an unreachable or failing server back off the whole namespace, other errors
one object. The first retry is immediate, since most failures are single ones.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final, TypeVar

from extender.kube.background import Backoff
from extender.kube.transport import ApiError, ClusterError

T = TypeVar("T")


class LastTurns:
    """When each of at most `most` namespaces last had its turn; the oldest are forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: OrderedDict[str, float] = OrderedDict()

    def of(self, namespace: str) -> float:
        """Return the time of a namespace's last turn, -inf for never."""
        return self._last.get(namespace, float("-inf"))

    def take(self, namespace: str, now: float) -> None:
        """Record a turn at `now`."""
        self._last[namespace] = now
        self._last.move_to_end(namespace)
        if len(self._last) > self._most:
            self._last.popitem(last=False)


def in_turn(items: Iterable[T], namespace_of: Callable[[T], str]) -> list[T]:
    """Interleave items: the first of each namespace, then the second of each, and so on."""
    queues: dict[str, list[T]] = {}
    for item in items:
        queues.setdefault(namespace_of(item), []).append(item)
    if len(queues) < 2:
        return list(chain(*queues.values()))
    nothing = object()
    turns = chain.from_iterable(zip_longest(*queues.values(), fillvalue=nothing))
    return [item for item in turns if item is not nothing]  # type: ignore[misc]


_FIRST_S: Final = 0.5
_MAX_S: Final = 60.0
_MAX_UNREACHABLE_S: Final = 5.0
"""Longest pause for faults that may end at any moment."""
_FORGET_S: Final = 300.0
"""Seconds after which a failure counts as the first again."""
_MAX_KEPT: Final = 10_000

_Key = tuple[str, str]
"""Namespace and name; "" for the whole namespace."""


@dataclass(slots=True)
class _Pause:
    backoff: Backoff
    why: Exception
    until: float
    """Monotonic time."""


class Backoffs:
    """Backoff by namespace and name."""

    def __init__(self) -> None:
        self._pauses: OrderedDict[_Key, _Pause] = OrderedDict()

    def failed(self, namespace: str, name: str, error: Exception, now: float) -> float:
        """Record a failed write; returns the seconds until the next try."""
        general = isinstance(error, ClusterError) and bool(error.general_fault)
        key = namespace, "" if general else name
        known = self._pauses.pop(key, None)
        if known is None or now - known.until > _FORGET_S:
            lasting = not general or (isinstance(error, ApiError) and error.missing_right is not None)
            known = _Pause(Backoff(_FIRST_S, _MAX_S if lasting else _MAX_UNREACHABLE_S), error, now)
            self._keep(key, known)
            return 0.0
        self._keep(key, known)
        if now < known.until:  # of concurrent failures, the first counts
            return known.until - now
        pause_s = known.backoff.failed(error)
        known.why, known.until = error, now + pause_s
        return pause_s

    def succeeded(self, namespace: str, name: str) -> None:
        """Record a successful write."""
        if self._pauses:
            self._pauses.pop((namespace, ""), None)
            self._pauses.pop((namespace, name), None)

    def why(self, namespace: str, name: str, now: float) -> Exception | None:
        """Return the error that a write has to wait for, None if it may be tried now."""
        for key in ((namespace, ""), (namespace, name)) if self._pauses else ():
            pause = self._pauses.get(key)
            if pause is not None and now < pause.until:
                return pause.why
        return None

    def _keep(self, key: _Key, pause: _Pause) -> None:
        self._pauses[key] = pause
        if len(self._pauses) > _MAX_KEPT:
            self._pauses.popitem(last=False)
