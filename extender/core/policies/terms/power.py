"""Power headroom: 1 - draw / limit of the product."""

import numpy as np

from extender.core.gauges import Gauge
from extender.core.policies.terms.term import Plane, Samples, Term
from extender.core.resources.gpu_models import attributes


def headroom(samples: Samples) -> Plane:
    """(N, G) headroom."""
    limit = attributes(samples.cluster.models)[4][samples.cluster.gpu_model]
    power: Plane = 1 - np.minimum(samples.gauge(Gauge.POWER) / limit, 1)
    return power


TERM = Term("power", 1.0, "Distance from the power limit of the GPU model.", headroom)
