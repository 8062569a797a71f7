"""What a pod's claims get on a node."""

from dataclasses import dataclass

from extender.core.dra.devices import Taking


@dataclass(frozen=True, slots=True)
class Given:
    """A device that a request gets."""

    request: str
    """Name of the request, or `request/subrequest`."""
    taking: Taking
    admin: bool = False
    """Whether it is given to look only, and stays free."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """What a pod's claims get on a node."""

    claims: tuple[tuple[Given, ...], ...]
    """Of each claim asked for, in that order."""
    loss: float = 0.0
    """What the node loses in worth besides what is given, in GPUs: smaller is better."""
    rank: tuple[int, ...] = ()
    """The alternatives taken, of each request that has some."""

    @property
    def takings(self) -> tuple[Taking, ...]:
        """What is taken of the node's devices."""
        return tuple(given.taking for claim in self.claims for given in claim if not given.admin)
