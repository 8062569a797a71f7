"""Reason codes of failed checks, remedies, and the result of a fit."""

from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Longs, Mask, Rows


class Reason(IntEnum):
    """The first check that a node fails. Checks run in the order of these codes.

    Permanent reasons come first, then those that pass when other pods end. Other packages' filters use codes between.
    """

    FITS = 0
    UNKNOWN_NODE = 1
    NO_GPUS = 2
    NOT_THIS_KIND = 3
    TOO_FEW_INSTALLED = 4
    UNHEALTHY = 5
    WRONG_UUID = 6
    WRONG_MODEL = 7
    MODEL_UNKNOWN = 8
    TOO_SMALL = 9
    TOTAL_TOO_SMALL = 10
    MEMORY_UNKNOWN = 11
    SET_ASIDE = 96
    KEPT_FOR_MOVE = 97
    NOT_COUNTED = 98
    """Reported as NO_GPUS: the GPUs that Kerf counts are taken, and the node has more than Kerf counts."""
    KEPT_APART = 128
    COMPUTE_BUSY = 192
    MEMORY_BUSY = 193
    BUSY = 194
    TOTAL_BUSY = 195
    OCCUPIED = 255
    """Free by bookings but not as observed. Not a check: see `evaluations.reasons`."""


FITS: Final = int(Reason.FITS)
"""As a plain number: NumPy is slow to see that a member of an enum is one."""


FIRST_LASTING: Final = 64
"""First code of other packages' filters that fail permanently."""
FIRST_PASSING: Final = 160
"""First code of other packages' filters that pass when other pods end."""
MAX_FILTERS: Final = 32
"""Of each of these two kinds."""


class Kind(StrEnum):
    """What a remedy changes."""

    WAIT = "wait"
    POD = "pod"
    """The pod or its owner."""
    MOVE = "move"
    """Running pods, by moving them."""
    NODES = "nodes"
    """Nodes, by adding or changing them."""
    SETTING = "setting"
    """Kerf's deployment."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Advice for a pending pod."""

    kind: Kind
    text: str
    command: str = ""
    """Command that does it or shows more, "" for none."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of one request on R rows."""

    reason: npt.NDArray[np.uint8]
    """(R,) Reason."""
    available: Longs
    """(R,) units (MiB or milli for some reasons) that meet the first failed condition; usable units where it fits."""
    room: Mask
    """(R, G) GPUs with room for the request, each considered alone."""
    idle: Mask
    """(R, G) GPUs without any known booking."""
    free_units: Longs
    """(R,) free units of any model and memory."""
    taken_units: Longs
    """(R,) units that the request would take; valid where it fits."""
    shares: Mask
    """(R,) where the request would get shares instead of whole units."""

    @property
    def fits(self) -> Mask:
        """(R,) where the request fits."""
        fits: Mask = self.reason == FITS
        return fits

    def take(self, where: Rows) -> "Fit":
        """A copy for a selection of rows."""
        return Fit(*(getattr(self, item.name).take(where, axis=0) for item in fields(Fit)))
