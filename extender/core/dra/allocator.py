"""Which devices of a node claims get: an exact search, and of what is possible that which leaves most.

Possible is what kube-scheduler's allocator finds possible; the choice among it is Kerf's.
"""

from dataclasses import dataclass

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import NodeDevices, Taking
from extender.core.dra.first_fit import Aborted, first_fit


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


def allocate(devices: NodeDevices, asked: DevicesAsked) -> Allocation | None:
    """The best allocation that is possible, None when none is. Raises SelectorFault, CapacityFault, SearchLimit."""
    try:
        picked = first_fit(devices, asked)
    except Aborted:
        return None
    if picked is None:
        return None
    claims = [[item for item in picked if item[0] == index] for index in range(len(asked.claims))]
    names = {(claim_idx, ask.name) for claim_idx, ask, _ in picked}
    return Allocation(
        tuple(tuple(Given(ask.name, taking, ask.admin) for _, ask, taking in claim) for claim in claims),
        rank=tuple(
            next(index for index, ask in enumerate(request.alternatives) if (claim_idx, ask.name) in names)
            for claim_idx, claim in enumerate(asked.claims)
            for request in claim.requests
            if len(request.alternatives) > 1
        ),
    )
