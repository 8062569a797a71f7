"""What a pod holds of its node's GPUs."""

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from extender.core.clusters import WHOLE_MILLI

UNKNOWN_GPU = -1


class Part(NamedTuple):
    """What is held of one GPU; by default all of it."""

    gpu: int
    """Index, UNKNOWN_GPU if only the UUID is known."""
    milli: int = WHOLE_MILLI
    """Compute, 0..1000; 1000 means the whole GPU, whatever `mib` is."""
    mib: int = 0
    """Memory of a share, in MiB."""
    uuid: str = ""
    """Takes precedence over the index on nodes that publish UUIDs."""

    @property
    def whole(self) -> bool:
        """Whether the GPU is held exclusively."""
        return self.milli >= WHOLE_MILLI


class Holding(msgspec.Struct, frozen=True):
    """What one pod holds on its node."""

    units: int
    """Number of GPUs, shares or time slices; those not in `parts` have an unknown index."""
    parts: tuple[Part, ...] = ()
    mig: tuple[tuple[str, int], ...] = ()
    """MIG devices by profile."""
    unserved: bool = False
    """Whether it was requested by annotation or label only, so that the kubelet does not know of it."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """The known indices."""
        return tuple(part.gpu for part in self.parts)

    def __bool__(self) -> bool:
        return self.units > 0 or bool(self.mig)


def whole_gpus(units: int, gpus: Iterable[int] = ()) -> Holding:
    """Return a holding of whole GPUs or time slices, of which these indices are known."""
    return Holding(units, tuple(Part(gpu) for gpu in gpus))


NOTHING = Holding(0)


def either(one: Holding, other: Holding) -> Holding:
    """Return the smallest holding that covers both, for when it is unknown which one is held.

    GPUs of unknown index count by number; whole GPUs of the other holding cover them.
    """
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
    """Return what covers two parts of one GPU."""
    if one.whole or other.whole:
        return one if one.whole else other
    return Part(one.gpu, max(one.milli, other.milli), max(one.mib, other.mib), one.uuid or other.uuid)
