"""How much of bodies may be on its way in: what is half read takes memory for as long as its caller likes.

Verbs of addresses that have called some before share one pool of bytes, all else another: neither takes the other's.
Where a pool is full, or an address has more than its part of it, the bodies that have been idle longest are cut off:
who sends a list in earnest goes on sending, who only holds what he can does not, and a few bytes now and then do not
count as sending. Bodies that have come in whole, until they are answered, and those of callers with a certificate
count, but are never cut off.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

_SMALL_BYTES: Final = 1 << 16
"""Nothing is to be had from cutting those off: as many may wait in a connection's buffers. Fewer are still idleness."""
_EACH_FRAC: Final = 0.75
"""Of a pool, for one address."""
_ROOM_FRAC: Final = 0.9
"""How full a pool is left by making room: not every piece that comes is to look at all bodies."""
_MAX_KNOWN: Final = 1024


class Sender(Protocol):
    """A connection, as far as it matters here."""

    address: str
    certified: bool

    @property
    def answering(self) -> bool:
        """Whether its body has come in whole."""

    def leave(self) -> None:
        """Cut it off."""


@dataclass(slots=True)
class _Body:
    known: bool
    num_bytes: int = 0
    at: float = 0.0
    """When it had last grown by `_SMALL_BYTES`: idle since then."""
    had: int = 0
    """Its bytes by then."""

    def take(self, num_bytes: int, now: float) -> None:
        """A piece has come."""
        self.num_bytes += num_bytes
        if self.num_bytes - self.had >= _SMALL_BYTES or not self.had:
            self.at, self.had = now, self.num_bytes


class Bodies:
    """The bodies of one server's requests."""

    def __init__(self, pool_bytes: int) -> None:
        """`pool_bytes` is the most of each of the two pools."""
        self._pool_bytes = pool_bytes
        self._bodies: dict[Sender, _Body] = {}
        self._in_pool = {True: 0, False: 0}
        self._of_address: Counter[tuple[str, bool]] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()  # addresses, the one that called last at the end
        self.num_cut_off = 0

    @property
    def num_bytes(self) -> int:
        """What is on its way, or being answered."""
        return sum(self._in_pool.values())

    def knows(self, address: str) -> None:
        """An address has called a verb of kube-scheduler."""
        self._known[address] = None
        self._known.move_to_end(address)
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)

    def came(self, sender: Sender, num_bytes: int, now: float, *, of_verb: bool) -> None:
        """A piece of a body has come in; cuts off others, or its sender, where that is too much."""
        body = self._bodies.get(sender)
        if body is None:
            known = of_verb and (sender.certified or sender.address in self._known)
            body = self._bodies[sender] = _Body(known)
        body.take(num_bytes, now)
        self._in_pool[body.known] += num_bytes
        self._of_address[sender.address, body.known] += num_bytes
        if self._of_address[sender.address, body.known] > _EACH_FRAC * self._pool_bytes:
            of_address = [one for one in self._bodies if one.address == sender.address]
            self._make_room(of_address, known=body.known, most_bytes=_EACH_FRAC * self._pool_bytes)
        if self._in_pool[body.known] > self._pool_bytes:
            self._make_room(self._bodies, known=body.known, most_bytes=self._pool_bytes)

    def ended(self, sender: Sender) -> None:
        """A body has been answered, or its connection has ended."""
        body = self._bodies.pop(sender, None)
        if body is None:
            return
        self._in_pool[body.known] -= body.num_bytes
        self._of_address[sender.address, body.known] -= body.num_bytes
        if not self._of_address[sender.address, body.known]:
            del self._of_address[sender.address, body.known]

    def _make_room(self, among: Iterable[Sender], *, known: bool, most_bytes: float) -> None:
        """Cut off the bodies of a pool that have been idle longest, until it is no more than `_ROOM_FRAC` full."""
        bodies = {one: self._bodies[one] for one in among if self._bodies[one].known is known}
        left = sum(body.num_bytes for body in bodies.values())
        half_read = [
            one
            for one, body in bodies.items()
            if not one.certified and not one.answering and body.num_bytes > _SMALL_BYTES
        ]
        for one in sorted(half_read, key=lambda one: bodies[one].at):
            if left <= _ROOM_FRAC * most_bytes:
                return
            left -= bodies[one].num_bytes
            self.ended(one)
            self.num_cut_off += 1
            one.leave()
