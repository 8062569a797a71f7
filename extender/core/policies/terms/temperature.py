"""Temperature headroom: 1 up to 50 °C, falling to 0 at 90 °C."""

from typing import Final

import numpy as np

from extender.core.gauges import Gauge
from extender.core.policies.terms.term import Plane, Samples, Term

_COOL_C: Final = 50.0
_HOT_C: Final = 90.0


def headroom(samples: Samples) -> Plane:
    """(N, G) headroom."""
    return np.clip((_HOT_C - samples.gauge(Gauge.TEMPERATURE)) / (_HOT_C - _COOL_C), 0, 1)


TERM = Term("temperature", 1.0, "Distance from 90 °C.", headroom)
