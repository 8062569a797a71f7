"""Names and units under which exporters tell the same thing: the tables of all vendors."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.resources.nodes import MAX_MEMORY_MIB
from extender.core.vendors.registry import VENDORS
from extender.core.vendors.vendor import PERCENT, Metric

_LARGEST: Final = {
    Gauge.MEMORY_USED: float(MAX_MEMORY_MIB),
    Gauge.MEMORY_FREE: float(MAX_MEMORY_MIB),
    Gauge.POWER: 5_000.0,
    Gauge.TEMPERATURE: 150.0,
    Gauge.XID: 10_000.0,
    Gauge.ROW_REMAP_FAILED: 1.0,
    Gauge.MEMORY_TOTAL: float(MAX_MEMORY_MIB),
    Gauge.NUM_MULTIPROCESSORS: 10_000.0,
    Gauge.NUM_DECODERS: 100.0,
    Gauge.NUM_ENCODERS: 100.0,
}
"""In each gauge's own unit. Larger is no value: another unit than the name promises, or a sentinel: exporters write
2^31-16, 2^47 and 2^63-16 upwards for what they have no value of."""
_BLANK_INT32: Final = 2**31 - 16
_LARGEST_FRACTION: Final = 1.05  # interval averages overshoot a little

FRACTIONS: Final = frozenset({Gauge.LOAD, Gauge.ENCODER, Gauge.DECODER, Gauge.BANDWIDTH, Gauge.TENSOR})


ALIASES: Final = tuple(metric for vendor in VENDORS if vendor.exporter for metric in vendor.exporter.metrics)
ALIAS_OF: Final = {alias.name: alias for alias in ALIASES}


def known_names(names: Iterable[str]) -> list[Metric]:
    """The aliases among some metric names, in the order in which they are believed."""
    present = set(names)
    return sorted((alias for alias in ALIASES if alias.name in present), key=lambda alias: (alias.gauge, alias.rank))


def read_values(alias: Metric, raw: Floats) -> tuple[Floats, int]:
    """(S,) samples in the gauge's unit, NaN where they are none, and how many were refused.

    NaN, infinities, sentinels and what lies outside the gauge's range are no values. A name that promises a ratio
    and carries mostly more than one is in percent: such exporters have been.
    """
    values = raw * alias.scale
    is_fraction = alias.gauge in FRACTIONS
    largest = _LARGEST_FRACTION if is_fraction else _LARGEST[alias.gauge]
    with np.errstate(invalid="ignore"):
        if alias.name.endswith("_RATIO"):
            busy = values[(values > 0) & (values <= 100)]
            if busy.size and np.median(busy) > _LARGEST_FRACTION:
                values = values * PERCENT
        blank = (raw >= _BLANK_INT32) & (raw < 2**31)
        usable = (values >= 0) & (values <= largest) & ~blank
    values = np.where(usable, values, np.nan)
    return np.minimum(values, 1.0) if is_fraction else values, int(len(values) - usable.sum())
