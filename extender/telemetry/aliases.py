"""One table of the names and units under which exporters tell the same thing.

dcgm-exporter publishes DCGM's fields under the names of its counters file. Up to 4.8 those are the names and units of
`etc/default-counters.csv` at tag 4.5.3-4.8.2. DCGM 4.7's field list has twins in base units (bytes, ratios), which
newer counter files use: DCGM_FI_DEV_FB_USED_BYTES is field 1627 where DCGM_FI_DEV_FB_USED, in MiB, is field 252.
Another exporter is one more block of this table.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.observations import Gauge
from extender.core.resources.nodes import MAX_MEMORY_MIB

LEGACY: Final = "dcgm-exporter up to 4.8"
CURRENT: Final = "dcgm-exporter from 4.9"
OBSERVERWARD: Final = "ObserverWard"

_MIB: Final = 1 / 2**20
_PERCENT: Final = 0.01

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
"""In each gauge's own unit. Larger is no value: another unit than the name promises, or a sentinel. DCGM's blanks are
2^31-16, 2^47 and 2^63-16 upwards (dcgm_structs.h), and the exporters before 4.0 let some of them through."""
_BLANK_INT32: Final = 2**31 - 16
_LARGEST_FRACTION: Final = 1.05  # interval averages overshoot a little

FRACTIONS: Final = frozenset({Gauge.LOAD, Gauge.ENCODER, Gauge.DECODER, Gauge.BANDWIDTH, Gauge.TENSOR})


@dataclass(frozen=True, slots=True)
class Alias:
    """One metric name."""

    name: str
    exporter: str
    gauge: Gauge
    scale: float = 1.0
    """What turns its unit into the gauge's."""
    rank: int = 0
    """Among names of one gauge on one GPU the smaller rank is believed."""


ALIASES: Final = (
    Alias("DCGM_FI_DEV_GPU_UTIL", LEGACY, Gauge.LOAD, _PERCENT),
    Alias("DCGM_FI_PROF_GR_ENGINE_ACTIVE", LEGACY, Gauge.LOAD, rank=1),  # all there is of MIG instances
    Alias("DCGM_FI_DEV_FB_USED", LEGACY, Gauge.MEMORY_USED),
    Alias("DCGM_FI_DEV_FB_FREE", LEGACY, Gauge.MEMORY_FREE),
    Alias("DCGM_FI_DEV_POWER_USAGE", LEGACY, Gauge.POWER),
    Alias("DCGM_FI_DEV_GPU_TEMP", LEGACY, Gauge.TEMPERATURE),
    Alias("DCGM_FI_DEV_ENC_UTIL", LEGACY, Gauge.ENCODER, _PERCENT),
    Alias("DCGM_FI_DEV_DEC_UTIL", LEGACY, Gauge.DECODER, _PERCENT),
    Alias("DCGM_FI_PROF_DRAM_ACTIVE", LEGACY, Gauge.BANDWIDTH),
    Alias("DCGM_FI_DEV_MEM_COPY_UTIL", LEGACY, Gauge.BANDWIDTH, _PERCENT, rank=1),
    Alias("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", LEGACY, Gauge.TENSOR),
    Alias("DCGM_FI_DEV_XID_ERRORS", LEGACY, Gauge.XID),
    Alias("DCGM_FI_DEV_ROW_REMAP_FAILURE", LEGACY, Gauge.ROW_REMAP_FAILED),
    Alias("DCGM_FI_DEV_FB_TOTAL", LEGACY, Gauge.MEMORY_TOTAL),  # in no counters file of its own, and in many of others
    Alias("DCGM_FI_DEV_GPU_UTIL_RATIO", CURRENT, Gauge.LOAD),
    Alias("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", CURRENT, Gauge.LOAD, rank=1),
    Alias("DCGM_FI_DEV_FB_USED_BYTES", CURRENT, Gauge.MEMORY_USED, _MIB),
    Alias("DCGM_FI_DEV_FB_FREE_BYTES", CURRENT, Gauge.MEMORY_FREE, _MIB),
    Alias("DCGM_FI_DEV_BOARD_POWER_WATTS", CURRENT, Gauge.POWER),
    Alias("DCGM_FI_DEV_GPU_TEMP_CELSIUS", CURRENT, Gauge.TEMPERATURE),
    Alias("DCGM_FI_DEV_ENC_UTIL_RATIO", CURRENT, Gauge.ENCODER),
    Alias("DCGM_FI_DEV_DEC_UTIL_RATIO", CURRENT, Gauge.DECODER),
    Alias("DCGM_FI_PROF_DRAM_UTIL_RATIO", CURRENT, Gauge.BANDWIDTH),
    Alias("DCGM_FI_DEV_MEMORY_UTIL_RATIO", CURRENT, Gauge.BANDWIDTH, rank=1),
    Alias("DCGM_FI_PROF_TENSOR_UTIL_RATIO", CURRENT, Gauge.TENSOR),
    Alias("DCGM_FI_DEV_XID_ERROR", CURRENT, Gauge.XID),
    Alias("DCGM_FI_DEV_ROW_REMAP_FAILED", CURRENT, Gauge.ROW_REMAP_FAILED),
    # Genius' exporter (jiangxiaosheng/ObserverWard); it has no load of the GPU.
    Alias("observerward_dynamic_gpu_used_global_memory_MiB", OBSERVERWARD, Gauge.MEMORY_USED),
    Alias("observerward_dynamic_gpu_free_global_memory_MiB", OBSERVERWARD, Gauge.MEMORY_FREE),
    Alias("observerward_dynamic_gpu_power_usage_W", OBSERVERWARD, Gauge.POWER),
    Alias("observerward_dynamic_gpu_encoder_utilization", OBSERVERWARD, Gauge.ENCODER, _PERCENT),
    Alias("observerward_dynamic_gpu_decoder_utilization", OBSERVERWARD, Gauge.DECODER, _PERCENT),
    Alias("observerward_dynamic_gpu_memory_utilization", OBSERVERWARD, Gauge.BANDWIDTH, _PERCENT),
    Alias("observerward_static_gpu_memory_size", OBSERVERWARD, Gauge.MEMORY_TOTAL),  # in MiB, though it says MB
    Alias("observerward_static_gpu_multiprocessor_count", OBSERVERWARD, Gauge.NUM_MULTIPROCESSORS),
    Alias("observerward_static_gpu_shared_decoder_count", OBSERVERWARD, Gauge.NUM_DECODERS),
    Alias("observerward_static_gpu_shared_encoder_count", OBSERVERWARD, Gauge.NUM_ENCODERS),
)
ALIAS_OF: Final = {alias.name: alias for alias in ALIASES}


def known_names(names: Iterable[str]) -> list[Alias]:
    """The aliases among some metric names, in the order in which they are believed."""
    present = set(names)
    return sorted((alias for alias in ALIASES if alias.name in present), key=lambda alias: (alias.gauge, alias.rank))


def read_values(alias: Alias, raw: Floats) -> tuple[Floats, int]:
    """(S,) samples in the gauge's unit, NaN where they are none, and how many were refused.

    NaN, infinities, sentinels and what lies outside the gauge's range are no values. A name that promises a ratio
    and carries mostly more than one is in percent: DCGM 4.6 gave GPU_UTIL_RATIO to its percent field 203.
    """
    values = raw * alias.scale
    is_fraction = alias.gauge in FRACTIONS
    largest = _LARGEST_FRACTION if is_fraction else _LARGEST[alias.gauge]
    with np.errstate(invalid="ignore"):
        if alias.name.endswith("_RATIO"):
            busy = values[(values > 0) & (values <= 100)]
            if busy.size and np.median(busy) > _LARGEST_FRACTION:
                values = values * _PERCENT
        blank = (raw >= _BLANK_INT32) & (raw < 2**31)
        usable = (values >= 0) & (values <= largest) & ~blank
    values = np.where(usable, values, np.nan)
    return np.minimum(values, 1.0) if is_fraction else values, int(len(values) - usable.sum())
