"""What a pod holds of its node's GPUs."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from extender.core.clusters import WHOLE_MILLI

UNKNOWN_GPU = -1


class Part(NamedTuple):
    """What is held of one GPU, all of it unless said otherwise."""

    gpu: int
    """Index, UNKNOWN_GPU when only the UUID is known."""
    milli: int = WHOLE_MILLI
    """Compute, 0..1000; all of it means the whole GPU, whatever `mib` says."""
    mib: int = 0
    """Memory, of a share."""
    uuid: str = ""
    """Where a node knows it, it is believed rather than the index."""

    @property
    def whole(self) -> bool:
        """Whether nobody else may have anything of the GPU."""
        return self.milli >= WHOLE_MILLI


@dataclass(frozen=True, slots=True)
class Holding:
    """What one pod holds on its node."""

    units: int
    """GPUs, shares or time slices, all counted; those that `parts` does not name are of unknown index."""
    parts: tuple[Part, ...] = ()
    mig: tuple[tuple[str, int], ...] = ()
    """MIG devices by profile."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """The indices known."""
        return tuple(part.gpu for part in self.parts)

    def __bool__(self) -> bool:
        return self.units > 0 or bool(self.mig)


def whole_gpus(units: int, gpus: Iterable[int] = ()) -> Holding:
    """So many whole GPUs, or time slices, of which these indices are known."""
    return Holding(units, tuple(Part(gpu) for gpu in gpus))
