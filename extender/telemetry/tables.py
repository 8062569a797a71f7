"""GPUs as their series name them, numbered once, and samples folded into arrays by that number."""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.resources.mig import mig_slices
from extender.core.vendors.vendor import Metric
from extender.telemetry.errors import SourceError
from extender.telemetry.series import FRACTIONS, Device, Host, Labels, read_values

_SUMMED: Final = frozenset({Gauge.MEMORY_USED, Gauge.MEMORY_FREE, Gauge.MEMORY_TOTAL}) | FRACTIONS
"""What the MIG instances of one GPU add up to; of all other gauges each instance tells the GPU's own value."""


_SERIES_EACH: Final = 32
"""Of one name and GPU: MIG instances, and labels that have changed."""
_TOO_MANY: Final = (
    ", far more than this cluster has: if it is yours, name it in telemetry.url, and this cluster's series in "
    "telemetry.matchers"
)


class Most(msgspec.Struct, frozen=True):
    """How many are taken, 0 for any number."""

    hosts: int = 0
    devices: int = 0


class DeviceTable:
    """H hosts and D devices, in the order in which they were met; a MIG instance counts for the GPU that has it."""

    def __init__(self, most: Most | None = None) -> None:
        self._most = most or Most()
        self.hosts: list[Host] = []
        self.host_idx: list[int] = []
        """(D,) index into `hosts`."""
        self.devices: list[Device] = []
        """(D,)"""
        self._host_of: dict[Host, int] = {}
        self._device_of: dict[tuple[int, str], int] = {}
        self._met: dict[Labels, tuple[int, float, int]] = {}
        """Device of each series; its part of the GPU: 1 for a whole GPU, below 1 for a MIG instance; and that
        instance's number."""
        self._instance_of: dict[tuple[int, str], int] = {}

    def host(self, labels: Labels) -> int:
        """Number of the host that a series is of. Raises SourceError where there are too many."""
        host = labels.host()
        index = self._host_of.get(host)
        if index is None:
            index = self._host_of[host] = len(self.hosts)
            if 0 < self._most.hosts <= index:
                raise SourceError(f"series of more than {self._most.hosts} hosts{_TOO_MANY}")
            self.hosts.append(host)
        return index

    def device(self, labels: Labels) -> int:
        """Number of the GPU that a series is of. Raises SourceError where there are too many."""
        host, device = self.host(labels), labels.device()
        key = (host, device.uuid or str(device.number))
        index = self._device_of.get(key)
        if index is None:
            index = self._device_of[key] = len(self.devices)
            if 0 < self._most.devices <= index:
                raise SourceError(f"series of more than {self._most.devices} GPUs{_TOO_MANY}")
            self.devices.append(device)
            self.host_idx.append(host)
        return index

    def fold(self, alias: Metric, series: Sequence[Labels], raw: Floats) -> tuple[Floats, int]:
        """(D,) values of the devices so far, NaN where there are none, and how many samples were refused. Raises
        SourceError where there are too many devices."""
        found = [self._met.get(labels) or self._meet(labels) for labels in series]
        devices = np.array([device for device, _, _ in found], np.intp)
        parts = np.array([part for _, part, _ in found])
        values, num_refused = read_values(alias, raw)
        gauge = alias.gauge
        folded = np.full(len(self.devices), np.nan)
        reduce = np.fmin if gauge is Gauge.MEMORY_FREE else np.fmax
        of_instance = parts < 1
        if gauge in _SUMMED and of_instance.any():
            # An instance that several pods share has a series for each of them.
            instances = np.array([instance for _, _, instance in found], np.intp)[of_instance]
            told = np.full(len(self._instance_of), np.nan)
            reduce.at(told, instances, values[of_instance])
            instances, first = np.unique(instances, return_index=True)
            counted = ~np.isnan(told[instances])
            instances, first = instances[counted], np.flatnonzero(of_instance)[first[counted]]
            weights = parts[first] if gauge in FRACTIONS else np.ones(len(first))
            total = np.bincount(devices[first], told[instances] * weights, len(folded))
            folded[devices[first]] = total[devices[first]]
            devices, values = devices[~of_instance], values[~of_instance]
        reduce.at(folded, devices, values)
        return folded, num_refused

    def _meet(self, labels: Labels) -> tuple[int, float, int]:
        """Number the GPU of a series that was never seen before."""
        if 0 < self._most.devices * _SERIES_EACH <= len(self._met):
            raise SourceError(f"more than {self._most.devices * _SERIES_EACH} different series{_TOO_MANY}")
        index = self.device(labels)
        instance = self._instance_of.setdefault((index, labels.instance_id), len(self._instance_of))
        self._met[labels] = found = index, _part(labels), instance
        return found


def _part(labels: Labels) -> float:
    """How much of its GPU's compute a MIG instance has, 1 for what is none."""
    if not labels.instance_id:
        return 1.0
    num, of = mig_slices(labels.profile, labels.model_name)
    return min(num / of, 1 - 1e-9)
