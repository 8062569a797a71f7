"""What takes a JSON body: a path, who may call it, and what answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

BAD_REQUEST, TOO_LARGE, UNAVAILABLE = 400, 413, 503
NOT_FOUND, REFUSED = 404, 409


class Caller(Enum):
    """Who calls, which settles what a call has to bring."""

    SCHEDULER = "kube-scheduler"
    """A certificate, where there is a CA for them."""
    API_SERVER = "the API server"
    """Nothing: it has no certificate by default, and there is nothing to be had."""
    READER = "explanation"
    """Nothing more than the guard has asked."""
    OPERATOR = "operation"
    """An operator's token, which the guard has seen."""

    @property
    def guarded(self) -> bool:
        """Whether the guard comes before it."""
        return self in (Caller.READER, Caller.OPERATOR)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One path."""

    path: str
    verb: str
    """In metrics."""
    asks: type
    answers: type | str
    """A type, or the name of its schema."""
    answer: Callable[[bytes], bytes | Awaitable[bytes]]
    """Body to body; raises what has a status of its own (endpoints._STATUSES)."""
    summary: str
    fault: Callable[[str], bytes] | None = None
    """How a fault is told with status 200; None where the status tells it."""
    faults: tuple[int, ...] = ()
    """The statuses otherwise."""
    caller: Caller = Caller.SCHEDULER
    sees: bool = False
    """Whether it is about the cluster, and can't be answered while that is not seen."""
    example: Any = None
    """A body that asks it, where OpenAPI's description has none."""
