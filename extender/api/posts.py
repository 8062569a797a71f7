"""A call: a path that takes a JSON body, its permitted callers, and its handler."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

BAD_REQUEST, TOO_LARGE, UNAVAILABLE = 400, 413, 503
NOT_FOUND, REFUSED = 404, 409


class Caller(Enum):
    """The kind of caller, which determines the credentials that a call needs."""

    SCHEDULER = "kube-scheduler"
    """Needs a client certificate if a CA for them is set."""
    API_SERVER = "the API server"
    """Needs none: by default it has no certificate, and the answers reveal nothing."""
    READER = "explanation"
    """Needs what the guard requires of readers."""
    OPERATOR = "operation"
    """Needs an operator's token, which the guard checks."""

    @property
    def guarded(self) -> bool:
        """Whether calls pass the guard first."""
        return self in (Caller.READER, Caller.OPERATOR)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One path and its handler."""

    path: str
    verb: str
    """Name in metrics."""
    asks: type
    """Type of the request body."""
    answers: type | str
    """Type of the answer, or the name of its schema."""
    answer: Callable[[bytes], bytes | Awaitable[bytes]]
    """The handler, from body to body; may raise the exceptions of `calls._STATUSES`."""
    summary: str
    fault: Callable[[str], bytes] | None = None
    """Encodes an error message into an answer with status 200; None if errors have a status of their own."""
    faults: tuple[int, ...] = ()
    """The error statuses in the latter case."""
    caller: Caller = Caller.SCHEDULER
    needs_current_view: bool = False
    """Whether it is refused while Kerf's view of the cluster is stale or missing."""
    example: Any = None
    """An example body, if `openapi` has none."""
