"""How a process learns whether it leads: by a lease, or because there is nobody else."""

import asyncio
from typing import NamedTuple, Protocol


class Led(NamedTuple):
    """For how long nobody else has led for certain, by the monotonic clock; two processes never claim the same time."""

    tenure: str
    """In which: as of `Election`."""
    since: float
    """Its predecessor, if there was one, does not claim what comes after."""
    until: float
    """Up to which it has been proven; -inf for never."""


class Election(Protocol):
    """How this process learns whether it leads."""

    contested: bool
    """Whether another process may lead."""
    term: str
    """Names the time of leading that has not been seen to end, each in another way; "" while others lead, or nobody."""
    tenure: str
    """The same for terms between which the lease was nobody else's, though they ran out."""
    num_asked: int
    """Requests to the lease that were sent so far."""

    async def run(self) -> None:
        """Take part until cancelled."""

    async def resign(self) -> None:
        """Let others lead at once, if that is this process's to give."""

    async def change(self) -> None:
        """Wait until `term` has changed since the last call."""

    def deadline(self) -> float:
        """Monotonic time up to which the term is certain, if the clock does not stop."""

    def hurry(self) -> None:
        """Send a request to the lease soon: somebody is about to wait for one."""

    async def confirm(self, since: int) -> bool:
        """Wait for a request sent after the first `since`; whether one has shown that nobody else led until then."""

    def led(self) -> Led:
        """The time of the last tenure."""

    def standing(self) -> str:
        """Who leads, in words."""


class Unelected:
    """No election: the only process leads for as long as it runs."""

    contested = False
    term = tenure = "only"
    num_asked = 0

    async def run(self) -> None:
        """Nothing to take part in."""

    async def resign(self) -> None:
        """Nobody to make room for."""

    async def change(self) -> None:
        """Never."""
        await asyncio.get_running_loop().create_future()

    def deadline(self) -> float:
        return float("inf")

    def hurry(self) -> None:
        """Nobody to ask."""

    async def confirm(self, since: int) -> bool:
        return True

    def led(self) -> Led:
        return Led(self.tenure, float("-inf"), float("inf"))

    def standing(self) -> str:
        return "no leader election"


class Spectator(Unelected):
    """A process that never leads, and writes nothing: it watches, and answers questions."""

    contested = True
    term = tenure = ""

    def led(self) -> Led:
        return Led("", float("-inf"), float("-inf"))

    def standing(self) -> str:
        return "this process never decides"
