"""Pods' ResourceClaims, and devices held for them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extender.core.dra.asks import DeviceClaims
from extender.core.dra.devices import Amount, DeviceId
from extender.dra.objects import ResourceClaim
from extender.kube import objects

Amounts = tuple[tuple[str, Amount], ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Devices held for a claim until its allocation is written or has definitely failed."""

    node: str
    devices: tuple[tuple[DeviceId, Amounts], ...]
    """By id, since the inventory may be reread meanwhile; for shareable devices with the amount of each capacity."""
    claim: ResourceClaim
    """The claim at the time of the decision."""
    pod: objects.Pod
    allocation: Mapping[str, Any]
    """The `status.allocation` to write."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """One pod's claims."""

    allocated: tuple[ResourceClaim, ...] = ()
    unallocated: tuple[ResourceClaim, ...] = ()
    """Unallocated claims that Kerf allocates."""
    asked: DeviceClaims | None = None
    """The requests of `unallocated`, in that order; None if there are none."""
    missing: str = ""
    """The first claim that does not exist yet."""
    left: tuple[ResourceClaim, ...] = ()
    """Unallocated claims that kube-scheduler allocates."""
    undecided: str = ""
    """A claim of which it is not known yet who allocates it."""

    @property
    def places(self) -> list[objects.NodeSelector]:
        """Node selectors of the allocated claims; the pod must match all of them."""
        allocations = (claim.status.allocation for claim in self.allocated)
        return [allocation.node_selector for allocation in allocations if allocation and allocation.node_selector]


NO_CLAIMS = PodClaims()


def claim_keys(pod: objects.Pod) -> list[str]:
    """`namespace/name` of the ResourceClaims that a pod references, or that were created for it."""
    named = (*(pod.spec.resource_claims or ()), *(pod.status.resource_claim_statuses or ()))
    return [f"{pod.metadata.namespace}/{item.resource_claim_name}" for item in named if item.resource_claim_name]
