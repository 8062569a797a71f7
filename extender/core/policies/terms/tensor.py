"""Unused tensor cores, where profiled."""

from extender.core.gauges import Gauge
from extender.core.policies.terms.term import Term

TERM = Term("tensor", 1.0, "Unused tensor cores.", lambda samples: 1 - samples.gauge(Gauge.TENSOR))
