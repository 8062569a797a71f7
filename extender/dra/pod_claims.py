"""The ResourceClaims of pods, and devices that are held for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import Amount, DeviceId
from extender.dra.objects import ResourceClaim
from extender.kube import objects

Amounts = tuple[tuple[str, Amount], ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Devices of a node that a claim is to have, until the claim itself says so or it is certain that it never will."""

    node: str
    devices: tuple[tuple[DeviceId, Amounts], ...]
    """By their names, for an inventory may be read anew meanwhile; of shareable ones how much of each capacity."""
    claim: ResourceClaim
    """As it was when that was decided."""
    pod: objects.Pod
    """Whom it is for."""
    allocation: Mapping[str, Any]
    """What is to be written on it."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod."""

    allocated: tuple[ResourceClaim, ...] = ()
    """Those that have their devices."""
    unallocated: tuple[ResourceClaim, ...] = ()
    """Those that Kerf has to find devices for."""
    asked: DevicesAsked | None = None
    """What these ask, in their order; None when there are none."""
    missing: str = ""
    """The first that does not exist yet."""
    left: tuple[ResourceClaim, ...] = ()
    """Those without devices that are kube-scheduler's to allocate."""
    undecided: str = ""
    """One of which it is not known yet whose it is to allocate."""

    @property
    def places(self) -> list[objects.NodeSelector]:
        """Where the devices are that it has: it may go nowhere else."""
        allocations = (claim.status.allocation for claim in self.allocated)
        return [found.node_selector for found in allocations if found and found.node_selector]


NO_CLAIMS = PodClaims()


def claim_keys(pod: objects.Pod) -> list[str]:
    """`namespace/name` of the ResourceClaims that a pod names, or that were made for it."""
    named = (*(pod.spec.resource_claims or ()), *(pod.status.resource_claim_statuses or ()))
    return [f"{pod.metadata.namespace}/{item.resource_claim_name}" for item in named if item.resource_claim_name]
