"""What a pod asks for."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.resources.gpu_models import ModelPattern
from extender.core.resources.quantities import format_mib
from extender.core.texts import printable
from extender.core.vendors.registry import VENDORS


class RequestError(ValueError):
    """A request that can't be understood: names the key, the value and what would be right, on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class AskedUnit(IntEnum):
    """What a pod counts its GPUs in."""

    NONE = 0
    """It asks for none: what counts is the CPU and main memory that it takes from beside the GPUs."""
    GPU = 1
    """Units of the vendor's resource: whole GPUs, or time slices where the node's plugin gives them that name."""
    WHOLE = 2
    """Whole GPUs, asked by annotation or label alone: time slices never satisfy it."""
    SHARED = 3
    """Time slices, by a resource of their own."""
    MIG = 4
    """MIG devices, by the resources of their profiles."""
    PART = 5
    """GPUs or parts of them, asked by resources of a plugin that hands out parts: only its nodes will do."""
    CLAIM = 6
    """Whole GPUs, asked by ResourceClaims."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs a pod asks for; equal requests are one class, which fit and scores are remembered by."""

    count: int
    """Units asked; 0 with `memory_total_mib` set means: as few GPUs as hold that much."""
    unit: AskedUnit = AskedUnit.GPU
    memory_each_mib: int = 0
    memory_total_mib: int = 0
    include: ModelPattern | None = None
    exclude: ModelPattern | None = None
    milli: int = 0
    """Compute asked of each GPU: 0 whole GPUs, 1..999 a share of one GPU (of each of `count` GPUs where that is more);
    the memory of each is what the share books then."""
    uuids: frozenset[str] = frozenset()
    """The only GPUs that will do; empty: any."""
    uuids_exclude: frozenset[str] = frozenset()
    mig: tuple[tuple[str, int], ...] = ()
    """MIG devices asked, by profile."""
    cpu_milli: int = 0
    """CPU of the pod, where the policy weighs it: other policies would only have more classes to remember."""
    memory_mib: int = 0
    """Main memory of the pod, likewise."""
    memory_each_percent: int = 0
    """Memory of each GPU in percent of what it has, for a share whose memory is asked so."""
    containers: int = 1
    """Among how many containers of the pod each GPU is shared, where that is why so much of it is asked."""
    devices: DevicesAsked | None = None
    """What is asked by ResourceClaims whose devices Kerf chooses: that alone says what fits, `count` how many there
    are."""
    vendor: int = 0
    """Whose GPUs, by number in the registry."""

    @property
    def shares_by_memory(self) -> bool:
        """Whether it is a share where the node's plugin hands out parts of GPUs, and asks whole GPUs elsewhere."""
        asks_memory = self.memory_each_mib > 0 or self.memory_each_percent > 0
        return self.milli == 0 and asks_memory and self.memory_total_mib == 0 and not self.mig

    @property
    def by_identity(self) -> bool:
        """Whether it matters which node and GPUs these are, beside what they are like and what is free of them."""
        return bool(self.uuids or self.uuids_exclude) or self.devices is not None

    @property
    def noun(self) -> str:
        """What `count` counts, one of them."""
        whose = f"{VENDORS[self.vendor].title} " if self.vendor else ""
        return f"{whose}GPU replica" if self.unit is AskedUnit.SHARED else f"{whose}GPU"

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


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything a decision needs to know of a pod."""

    gpus: GpuRequest | None = None
    policy: str = ""
    """Name of the policy chosen for this pod, "" for the deployment's."""
    priority: int = 0
    stale: tuple[str, ...] = ()
    """Annotations of an assignment that a pod without a node carries, as a copy of another pod does: a Binding blanks
    those that it does not write."""
    cpu_milli: int = 0
    """CPU of the pod, whatever its GPUs."""
    memory_mib: int = 0
    """Main memory of the pod, likewise."""


NO_REQUEST: Final = PodRequest()
"""Of a pod that asks for no GPU, whatever else it says."""


def _any_of(uuids: frozenset[str]) -> str:
    first = min(uuids)
    return first if len(uuids) == 1 else f"{first} or {len(uuids) - 1} more"


def wrong(text: str, fault: str) -> str:
    """What is wrong with a value: `"x" is not a quantity`, `"40GB": unknown suffix GB`."""
    return f'"{shorten(text)}"{": " if fault.startswith("unknown") else " is "}{fault}'


def named(name: str) -> str:
    """A name as it may stand in a sentence."""
    return shorten(printable(name))


def shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
