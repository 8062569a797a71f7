"""How many connections there may be, for how long a request may take to come in and an answer to be taken, and how
much of bodies may be on its way (`bodies`).

Nobody is locked out by others: where there are too many connections, one that waits for the rest of a request, or for
a next one, makes room, of the address that has most. Those that have called kube-scheduler's verbs go last, and those
with a certificate never do.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from extender.server.bodies import Bodies

DEFAULT_BODY_BYTES: Final = 128 << 20


class Connection(Protocol):
    """One of a client's."""

    address: str
    certified: bool
    """Whether it came with a certificate that was verified."""
    scheduling: bool
    """Whether a verb of kube-scheduler was called on it."""
    since: float
    """Monotonic time at which it was made, or its last request came in whole."""

    @property
    def answering(self) -> bool:
        """Whether a request of it has come in whole, and is being answered."""

    def leave(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a client may take."""

    request_s: float = 10.0
    answer_s: float = 30.0
    """Within which a client takes what is written, but for what sockets buffer."""
    connections: int = 1024
    connections_each: int = 256
    """From one address."""
    body_bytes: int = DEFAULT_BODY_BYTES
    """Of bodies on their way, in each pool (`Bodies`)."""
    verbs_by_certificate: bool = False
    """Whether verbs are answered to those with a certificate alone: then to call one without gains nothing."""


@dataclass
class Doors:
    """The connections that are open."""

    limits: Limits = field(default_factory=Limits)
    _open: set[Connection] = field(default_factory=set)
    _num_of: Counter[str] = field(default_factory=Counter)
    num_turned_out: int = 0
    """Connections closed for others."""
    bodies: Bodies = field(init=False)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.limits.body_bytes)

    @property
    def num_open(self) -> int:
        """How many there are."""
        return len(self._open)

    def enter(self, connection: Connection) -> None:
        """A connection was made."""
        self._open.add(connection)
        self._num_of[connection.address] += 1
        if self._num_of[connection.address] > self.limits.connections_each:
            self._make_room(connection, [one for one in self._open if one.address == connection.address])
        elif len(self._open) > self.limits.connections:
            self._make_room(connection, self._open)

    def leave(self, connection: Connection) -> None:
        """A connection has ended."""
        if connection in self._open:
            self._open.discard(connection)
            self._num_of[connection.address] -= 1
            if not self._num_of[connection.address]:
                del self._num_of[connection.address]

    def _make_room(self, new: Connection, among: Iterable[Connection]) -> None:
        """Close the one that is missed least; the new one where all are at work."""
        waiting = [one for one in among if one is not new and not one.certified and not one.answering]
        least = min(waiting, key=lambda one: (one.scheduling, -self._num_of[one.address], one.since), default=new)
        self.leave(least)
        self.num_turned_out += 1
        least.leave()
