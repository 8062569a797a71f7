"""What a node fails first: the checks by name. Their numbers are the order in which they are made, and its one home.

What would help a pod that waits: a sentence, and the command that does it or tells more.

What a check of a request comes to, node by node.
"""

from dataclasses import dataclass, fields
from enum import IntEnum, StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Longs, Mask, Rows


class Reason(IntEnum):
    """Codes for the arrays. What no pod that ends changes comes first, then what passes.

    Checks of other packages have numbers of their own among them.
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
    """Called NO_GPUS: more GPUs are here than Kerf counts, and those that it counts are taken."""
    KEPT_APART = 128
    COMPUTE_BUSY = 192
    MEMORY_BUSY = 193
    BUSY = 194
    TOTAL_BUSY = 195
    OCCUPIED = 255
    """Free by bookings, and not as observed: no check by itself, see `evaluations.reasons`."""


FIRST_LASTING: Final = 64
"""Of checks of other packages that no pod which ends changes; those that do come from FIRST_PASSING on."""
FIRST_PASSING: Final = 160
MAX_FILTERS: Final = 32
"""Of each kind."""


class Kind(StrEnum):
    """What a remedy does."""

    WAIT = "wait"
    POD = "pod"
    """The pod, or what it belongs to, is changed."""
    MOVE = "move"
    """Running pods are moved."""
    NODES = "nodes"
    """Nodes are added or changed."""
    SETTING = "setting"
    """The deployment is changed."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One of them."""

    kind: Kind
    text: str
    command: str = ""
    """"" for none."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of one request on R rows."""

    reason: npt.NDArray[np.uint8]
    """(R,) Reason."""
    available: Longs
    """(R,) units (MiB or milli where the reason says so) that meet the first failed condition; where it fits, the
    usable ones."""
    room: Mask
    """(R, G) GPUs that have room for the request, each by itself."""
    idle: Mask
    """(R, G) GPUs that nobody is known to hold anything of."""
    free_units: Longs
    """(R,) units free on the node, whatever their model and memory."""
    taken_units: Longs
    """(R,) units that the request would take here; meaningful where it fits."""
    shares: Mask
    """(R,) where the request would get shares and not whole units."""

    @property
    def fits(self) -> Mask:
        """(R,) where the request fits."""
        fits: Mask = self.reason == Reason.FITS
        return fits

    def take(self, where: Rows) -> "Fit":
        """The same for a selection of its rows, copied."""
        return Fit(*(getattr(self, item.name).take(where, axis=0) for item in fields(Fit)))
