"""Numbers the GPUs that series name, and folds samples into arrays by that number."""

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
"""Gauges that are summed over a GPU's MIG instances; of the others each instance reports the GPU's value."""


_SERIES_EACH: Final = 32
"""Most series per metric name and GPU: MIG instances, and changed labels."""
_TOO_MANY: Final = (
    ", far more than this cluster has: if the source is yours, set telemetry.url to it and telemetry.matchers to this "
    "cluster's series"
)


class Most(msgspec.Struct, frozen=True):
    """Limits; 0 for none."""

    hosts: int = 0
    devices: int = 0


class DeviceTable:
    """H hosts and D GPUs in order of first appearance; a MIG instance counts as its GPU."""

    def __init__(self, most: Most | None = None) -> None:
        self._most = most or Most()
        self.hosts: list[Host] = []
        self.host_idx: list[int] = []
        """(D,) index into `hosts`."""
        self.devices: list[Device] = []
        """(D,)"""
        self._host_of: dict[Host, int] = {}
        self._device_of: dict[tuple[int, str], int] = {}
        self._series: dict[Labels, tuple[int, float, int]] = {}
        """By series: device number, share of the GPU (below 1 for a MIG instance) and instance number."""
        self._instance_of: dict[tuple[int, str], int] = {}

    def host(self, labels: Labels) -> int:
        """The number of a series' host. Raises SourceError if there are too many hosts."""
        host = labels.host()
        index = self._host_of.get(host)
        if index is None:
            index = self._host_of[host] = len(self.hosts)
            if 0 < self._most.hosts <= index:
                raise SourceError(f"series of more than {self._most.hosts} hosts{_TOO_MANY}")
            self.hosts.append(host)
        return index

    def device(self, labels: Labels) -> int:
        """The number of a series' GPU. Raises SourceError if there are too many hosts or GPUs."""
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
        """(D,) values of all devices so far, NaN where there are none, and the number of invalid samples.

        Raises SourceError if there are too many devices.
        """
        keys = [self._series.get(labels) or self._add_series(labels) for labels in series]
        devices = np.array([device for device, _, _ in keys], np.intp)
        parts = np.array([part for _, part, _ in keys])
        values, num_refused = read_values(alias, raw)
        gauge = alias.gauge
        folded = np.full(len(self.devices), np.nan)
        reduce = np.fmin if gauge is Gauge.MEMORY_FREE else np.fmax
        of_instance = parts < 1
        if gauge in _SUMMED and of_instance.any():
            # An instance shared by several pods has a series for each of them.
            instances = np.array([instance for _, _, instance in keys], np.intp)[of_instance]
            by_instance = np.full(len(self._instance_of), np.nan)
            reduce.at(by_instance, instances, values[of_instance])
            instances, first = np.unique(instances, return_index=True)
            counted = ~np.isnan(by_instance[instances])
            instances, first = instances[counted], np.flatnonzero(of_instance)[first[counted]]
            weights = parts[first] if gauge in FRACTIONS else np.ones(len(first))
            total = np.bincount(devices[first], by_instance[instances] * weights, len(folded))
            folded[devices[first]] = total[devices[first]]
            devices, values = devices[~of_instance], values[~of_instance]
        reduce.at(folded, devices, values)
        return folded, num_refused

    def _add_series(self, labels: Labels) -> tuple[int, float, int]:
        """Number a new series' GPU and instance. Raises SourceError."""
        if 0 < self._most.devices * _SERIES_EACH <= len(self._series):
            raise SourceError(f"more than {self._most.devices * _SERIES_EACH} different series{_TOO_MANY}")
        index = self.device(labels)
        instance = self._instance_of.setdefault((index, labels.instance_id), len(self._instance_of))
        self._series[labels] = key = index, _part(labels), instance
        return key


def _part(labels: Labels) -> float:
    """A MIG instance's share of its GPU's compute; 1 for a whole GPU."""
    if not labels.instance_id:
        return 1.0
    num, total = mig_slices(labels.profile, labels.model_name)
    return min(num / total, 1 - 1e-9)
