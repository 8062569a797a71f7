"""GPUs as their series name them, numbered once, and samples folded into arrays by that number."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Floats
from extender.core.observations import Gauge
from extender.core.resources.mig import mig_slices
from extender.telemetry.aliases import FRACTIONS, Alias, read_values
from extender.telemetry.series import Device, Host, Labels

_SUMMED: Final = frozenset({Gauge.MEMORY_USED, Gauge.MEMORY_FREE, Gauge.MEMORY_TOTAL}) | FRACTIONS
"""What the MIG instances of one GPU add up to; of all other gauges each instance tells the GPU's own value."""


class DeviceTable:
    """H hosts and D devices, in the order in which they were met; a MIG instance counts for the GPU that has it."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.host_idx: list[int] = []
        """(D,) index into `hosts`."""
        self.devices: list[Device] = []
        """(D,)"""
        self._host_of: dict[Host, int] = {}
        self._device_of: dict[tuple[int, str], int] = {}
        self._met: dict[Labels, tuple[int, float]] = {}
        """Device of each series, and its part of the GPU: 1 for a whole GPU, below 1 for a MIG instance."""

    def host(self, labels: Labels) -> int:
        """Number of the host that a series is of."""
        host = labels.host()
        index = self._host_of.get(host)
        if index is None:
            index = self._host_of[host] = len(self.hosts)
            self.hosts.append(host)
        return index

    def fold(self, alias: Alias, series: Sequence[Labels], raw: Floats) -> tuple[Floats, int]:
        """(D,) values of the devices so far, NaN where there are none, and how many samples were refused."""
        found = [self._met.get(labels) or self._meet(labels) for labels in series]
        devices = np.array([device for device, _ in found], np.intp)
        parts = np.array([part for _, part in found])
        values, num_refused = read_values(alias, raw)
        gauge = alias.gauge
        folded = np.full(len(self.devices), np.nan)
        reduce = np.fmin if gauge is Gauge.MEMORY_FREE else np.fmax
        of_instance = parts < 1
        if gauge in _SUMMED and of_instance.any():
            counted = of_instance & ~np.isnan(values)
            weights = parts if gauge in FRACTIONS else np.ones(len(parts))
            total = np.bincount(devices[counted], (values * weights)[counted], len(folded))
            folded[devices[counted]] = total[devices[counted]]
            devices, values = devices[~of_instance], values[~of_instance]
        reduce.at(folded, devices, values)
        return folded, num_refused

    def _meet(self, labels: Labels) -> tuple[int, float]:
        """Number the GPU of a series that was never seen before."""
        host = self.host(labels)
        device = labels.device()
        key = (host, device.uuid or str(device.number))
        index = self._device_of.get(key)
        if index is None:
            index = self._device_of[key] = len(self.devices)
            self.devices.append(device)
            self.host_idx.append(host)
        self._met[labels] = found = index, _part(labels)
        return found


def _part(labels: Labels) -> float:
    """How much of its GPU's compute a MIG instance has, 1 for what is none."""
    if not labels.instance_id:
        return 1.0
    num, of = mig_slices(labels.profile, labels.model_name)
    return min(num / of, 1 - 1e-9)
