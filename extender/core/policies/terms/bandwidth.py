"""Unused memory bandwidth, where profiled."""

from extender.core.gauges import Gauge
from extender.core.policies.terms.term import Term

TERM = Term("bandwidth", 1.0, "Unused memory bandwidth.", lambda samples: 1 - samples.gauge(Gauge.BANDWIDTH))
