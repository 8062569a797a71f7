"""A pod's GPU request."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import msgspec

from extender.core.dra.asks import DeviceClaims
from extender.core.resources.gpu_models import ModelPattern
from extender.core.resources.quantities import format_mib
from extender.core.texts import printable
from extender.core.vendors.registry import VENDORS


class RequestError(ValueError):
    """An invalid request. The message is one printable line with the key, the value and a valid form."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class AskedUnit(IntEnum):
    """Unit of a request's `count`."""

    NONE = 0
    """No GPUs: only CPU and main memory count."""
    GPU = 1
    """Units of the vendor's resource: whole GPUs, or time slices where the device plugin uses that name for them."""
    WHOLE = 2
    """Whole GPUs, requested by annotation or label alone; time slices don't satisfy it."""
    SHARED = 3
    """Time slices, requested by their own resource."""
    MIG = 4
    """MIG devices, requested by the resources of their profiles."""
    PART = 5
    """GPUs or parts of GPUs, requested by resources of a device plugin that shares GPUs; only its nodes match."""
    CLAIM = 6
    """Whole GPUs, requested by ResourceClaims."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """A pod's GPU request. Equal requests form a class, by which fits and scores are cached."""

    count: int
    """Number of units; 0 with `memory_total_mib` set means as few GPUs as have that much memory."""
    unit: AskedUnit = AskedUnit.GPU
    memory_each_mib: int = 0
    memory_total_mib: int = 0
    include: ModelPattern | None = None
    exclude: ModelPattern | None = None
    milli: int = 0
    """Compute of each GPU: 0 for whole GPUs, 1..999 for shares, which book `memory_each_mib` of each GPU."""
    uuids: frozenset[str] = frozenset()
    """Allowed GPUs; empty for any."""
    uuids_exclude: frozenset[str] = frozenset()
    mig: tuple[tuple[str, int], ...] = ()
    """Number of MIG devices by profile."""
    cpu_milli: int = 0
    """CPU of the pod if the policy weighs it, else 0 to keep the number of classes small."""
    memory_mib: int = 0
    """Main memory of the pod, likewise."""
    memory_each_percent: int = 0
    """Memory of a share in percent of the GPU's memory."""
    containers: int = 1
    """Number of the pod's containers that share each GPU and whose shares were added up."""
    devices: DeviceClaims | None = None
    """Requests of ResourceClaims that Kerf allocates. They alone determine fit; `count` is their number of devices."""
    vendor: int = 0
    """Vendor's number in the registry."""

    @property
    def shares_by_memory(self) -> bool:
        """Whether it is a share where the device plugin shares GPUs, and a request for whole GPUs elsewhere."""
        asks_memory = self.memory_each_mib > 0 or self.memory_each_percent > 0
        return self.milli == 0 and asks_memory and self.memory_total_mib == 0 and not self.mig

    @property
    def by_identity(self) -> bool:
        """Whether fit depends on the identity of nodes or GPUs, not only on their properties and what is free."""
        return bool(self.uuids or self.uuids_exclude) or self.devices is not None

    @property
    def noun(self) -> str:
        """Singular noun for one unit of `count`."""
        vendor = f"{VENDORS[self.vendor].title} " if self.vendor else ""
        return f"{vendor}GPU replica" if self.unit is AskedUnit.SHARED else f"{vendor}GPU"

    def __str__(self) -> str:
        """The request in words: "2 GPUs of model a100 with 40 GiB"."""
        if self.devices is not None:
            return f"{self.count} device{'' if self.count == 1 else 's'} by ResourceClaim"
        if self.mig:
            return " and ".join(f"{count} x mig-{profile}" for profile, count in self.mig)
        words = f"{self.count} {self.noun}{'' if self.count == 1 else 's'}" if self.count else f"{self.noun}s"
        if self.milli:
            words = f"{self.milli} milli of {'a GPU' if self.count == 1 else f'each of {words}'}"
        if self.include:
            words += f" of model {printable(self.include.text)}"
        if self.exclude:
            words += f" not of model {printable(self.exclude.text)}"
        if self.uuids:
            words += f" of UUID {_any_of(self.uuids)}"
        if self.uuids_exclude:
            words += f" not of UUID {_any_of(self.uuids_exclude)}"
        if self.memory_each_mib:
            words += f" with {format_mib(self.memory_each_mib)}"
        if self.memory_each_percent:
            words += f" with {self.memory_each_percent} % of its memory"
        if self.containers > 1:
            words += f" for {self.containers} containers together"
        if self.memory_total_mib:
            words += f" with {format_mib(self.memory_total_mib)} in total"
        return words


class PodRequest(msgspec.Struct, frozen=True):
    """Everything a decision needs to know about a pod."""

    gpus: GpuRequest | None = None
    policy: str = ""
    """Name of the pod's policy, "" for the deployment's."""
    priority: int = 0
    stale: tuple[str, ...] = ()
    """Assignment annotations on a pod without a node, such as a copy of another pod. A Binding can't remove them, so it
    blanks those that it does not set."""
    cpu_milli: int = 0
    """CPU request of the whole pod."""
    memory_mib: int = 0
    """Main memory request of the whole pod."""


NO_REQUEST: Final = PodRequest()
"""The request of a pod without GPUs."""


def _any_of(uuids: frozenset[str]) -> str:
    first = min(uuids)
    return first if len(uuids) == 1 else f"{first} or {len(uuids) - 1} more"


def wrong(text: str, fault: str) -> str:
    """A value with its fault: `"x" is not a quantity`, `"40GB": unknown suffix GB`."""
    return f'"{shorten(text)}"{": " if fault.startswith("unknown") else " is "}{fault}'


def named(name: str) -> str:
    """A name, printable and shortened, for use in a sentence."""
    return shorten(printable(name))


def shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
