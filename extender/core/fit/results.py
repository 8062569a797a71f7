"""What a check of a request comes to, node by node."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Longs, Mask, Rows
from extender.core.fit.reasons import Reason


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
