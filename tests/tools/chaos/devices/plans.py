"""What a run has of devices: pools, claims, and which pod names which claims."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Ask(StrEnum):
    """What a request asks a device for."""

    GPU = "gpu"
    """A whole GPU."""
    SMALL = "1g5gb"
    MEDIUM = "2g10gb"
    LARGE = "3g20gb"
    """A partition of one."""
    NETWORK = "network"
    """A part of the bandwidth of a network card."""
    OTHER = "other"
    """A device of a driver that leaves the choice to kube-scheduler."""


PARTITIONS: Final = (Ask.SMALL, Ask.MEDIUM, Ask.LARGE)


class PoolKind(StrEnum):
    """What a pool has."""

    WHOLE = "whole"
    """GPUs."""
    PARTED = "parted"
    """GPUs, and all partitions that could be made of them."""
    NETWORK = "network"
    """Network cards that claims may share."""
    OTHER = "other"
    """Devices that are not Kerf's."""


DRIVERS: Final = {
    PoolKind.WHOLE: "gpu.nvidia.com",
    PoolKind.PARTED: "gpu.nvidia.com",
    PoolKind.NETWORK: "net.example.com",
    PoolKind.OTHER: "other.example.com",
}
OWNED: Final = frozenset((DRIVERS[PoolKind.WHOLE], DRIVERS[PoolKind.NETWORK]))
"""Drivers of whose devices Kerf allocates all, and nobody else any."""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The devices of one driver on one node."""

    node: str
    kind: PoolKind
    num_devices: int

    @property
    def name(self) -> str:
        """As its slices name it."""
        return f"{self.node}-{self.kind}"


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """A request of a claim: the first of these that can be had."""

    alternatives: tuple[Ask, ...]
    count: int = 1
    """Devices."""
    gbit: int = 0
    """Bandwidth of a network card."""


@dataclass(frozen=True, slots=True)
class ClaimPlan:
    """A claim, or the template of claims that are made for each pod that names it."""

    name: str
    requests: tuple[RequestPlan, ...]
    template: bool = False


@dataclass(frozen=True, slots=True)
class DevicesPlan:
    """All of a run."""

    pools: tuple[PoolPlan, ...] = ()
    claims: tuple[ClaimPlan, ...] = ()


NO_DEVICES: Final = DevicesPlan()
