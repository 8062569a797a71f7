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
    unserved: bool = False
    """Whether the kubelet knows nothing of it: it is asked by annotation or label alone."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """The indices known."""
        return tuple(part.gpu for part in self.parts)

    def __bool__(self) -> bool:
        return self.units > 0 or bool(self.mig)


def whole_gpus(units: int, gpus: Iterable[int] = ()) -> Holding:
    """So many whole GPUs, or time slices, of which these indices are known."""
    return Holding(units, tuple(Part(gpu) for gpu in gpus))


NOTHING = Holding(0)


def either(one: Holding, other: Holding) -> Holding:
    """The least that covers both, where nobody can tell which of them is held. GPUs of unknown index count by number:
    whole ones of the other side do for them."""
    parts: dict[int | str, Part] = {}
    for part in (*one.parts, *other.parts):
        key = _key(part)
        parts[key] = _larger(parts[key], part) if key in parts else part
    num_unknown = 0
    for holding in (one, other):
        own = {_key(part) for part in holding.parts}
        others_whole = sum(part.whole for key, part in parts.items() if key not in own)
        num_unknown = max(num_unknown, holding.units - len(holding.parts) - others_whole)
    profiles = {profile for profile, _ in (*one.mig, *other.mig)}
    mig = tuple((name, max(dict(one.mig).get(name, 0), dict(other.mig).get(name, 0))) for name in sorted(profiles))
    unserved = one.unserved or other.unserved
    return Holding(len(parts) + num_unknown, tuple(parts.values()), mig, unserved)


def _key(part: Part) -> int | str:
    return part.gpu if part.gpu != UNKNOWN_GPU else part.uuid


def _larger(one: Part, other: Part) -> Part:
    """What covers two parts of one GPU; all of it where one is all of it."""
    if one.whole or other.whole:
        return one if one.whole else other
    return Part(one.gpu, max(one.milli, other.milli), max(one.mib, other.mib), one.uuid or other.uuid)
