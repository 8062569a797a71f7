"""What pods ask by ResourceClaims, as `resource.k8s.io/v1` means it, with the selectors of device classes put in."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from extender.core.dra.devices import Amount, Device


class Fault(Exception):  # noqa: N818
    """Why it can't be told what is possible: the pod's claims are refused on such a node."""


class SelectorFault(Fault):
    """A selector has failed on a device, as in CEL an attribute that is not there does."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A condition on a device: equal when the text is equal."""

    expression: str
    matches: Callable[[Device], bool] = field(compare=False, repr=False)
    """Raises SelectorFault."""
    reads: frozenset[str] | None = field(default=None, compare=False, repr=False)
    """The attributes and capacities (`domain/name`) and "driver" that it looks at, so that devices which are alike in
    these are asked about once; None: it may look at all."""
    parts: Callable[[], "tuple[Selector, ...]"] = field(default=tuple, compare=False, repr=False)
    """The conditions that it joins by "and", for people who ask which of them fails; none where it is a single one."""
    cost: int = field(default=0, compare=False, repr=False)
    """Steps, of about a microsecond, that one device takes at most."""


class Toleration(NamedTuple):
    """Which taints a request puts up with."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class DeviceAsk:
    """A number of devices that meet the same conditions."""

    name: str
    """Of the request; `request/subrequest` for one of several alternatives."""
    selectors: tuple[Selector, ...] = ()
    """Those of the class first."""
    count: int = 1
    """0 for all devices that meet them."""
    admin: bool = False
    """Whether it only looks: devices that others have are given as well, and stay free for them."""
    tolerations: tuple[Toleration, ...] = ()
    capacity: tuple[tuple[str, Amount], ...] = ()
    """At least so much of each capacity, by the name as asked, sorted."""


@dataclass(frozen=True, slots=True)
class RequestAsk:
    """A request of a claim: the first of its alternatives that can be had."""

    name: str
    alternatives: tuple[DeviceAsk, ...]


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the devices of some requests must have in common, or must not."""

    attribute: str
    """`domain/name`; a device without it does not do."""
    requests: tuple[str, ...] = ()
    """Requests or subrequests by name; () for all of the claim."""
    distinct: bool = False
    """Whether the values must all differ, and not be the same."""


@dataclass(frozen=True, slots=True)
class ClaimAsk:
    """What one claim asks."""

    requests: tuple[RequestAsk, ...]
    constraints: tuple[Constraint, ...] = ()


@dataclass(frozen=True, slots=True)
class DevicesAsked:
    """What a pod asks by all of its claims that have no devices yet: they are allocated together or not at all.

    Equal for pods that ask the same by claims of their own, so that decisions are remembered for all of them.
    """

    claims: tuple[ClaimAsk, ...]

    @property
    def cost(self) -> int:
        """Steps that all its different selectors take at most on one device."""
        asks = (ask for claim in self.claims for request in claim.requests for ask in request.alternatives)
        return sum(selector.cost for selector in {selector for ask in asks for selector in ask.selectors})

    @property
    def num_devices(self) -> int:
        """How many devices it asks for at least: those of the first alternatives, of "all" one."""
        asks = (request.alternatives[0] for claim in self.claims for request in claim.requests)
        return sum(max(ask.count, 1) for ask in asks)
