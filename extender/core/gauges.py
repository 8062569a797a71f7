"""Measured values of a GPU, independent of the exporter."""

from enum import IntEnum


class Gauge(IntEnum):
    """Index into the first axis of `Observations.value`; values from 11 on are the GPU's capacities.

    Fractions are 0 to 1.
    """

    LOAD = 0
    """Fraction of time in which a kernel ran."""
    MEMORY_USED = 1
    """MiB in use by any process."""
    MEMORY_FREE = 2
    """MiB free."""
    POWER = 3
    """W drawn."""
    TEMPERATURE = 4
    """Degrees Celsius."""
    ENCODER = 5
    """Fraction of time in which the encoder worked."""
    DECODER = 6
    """Fraction of time in which the decoder worked."""
    BANDWIDTH = 7
    """Fraction of cycles in which device memory was read or written."""
    TENSOR = 8
    """Fraction of cycles in which tensor cores worked."""
    XID = 9
    """Code of the last XID error, 0 for none."""
    ROW_REMAP_FAILED = 10
    """1 when a memory row could not be remapped."""
    MEMORY_TOTAL = 11
    """MiB installed."""
    NUM_MULTIPROCESSORS = 12
    """Streaming multiprocessors; 0 where the exporter does not read capacities."""
    NUM_DECODERS = 13
    NUM_ENCODERS = 14
