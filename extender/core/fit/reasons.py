"""What a node fails first: the checks by name. Their numbers are the order in which they are made, and its one home."""

from enum import IntEnum
from typing import Final


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
