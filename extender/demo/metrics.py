"""Sample metrics for the demo: made-up, changing GPU use of an in-memory cluster."""

import math
import time
from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np

from extender.core.gauges import Gauge
from extender.core.resources.nodes import read_node
from extender.kube import objects
from extender.kube.memory import MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.plugins.kerf import ASSIGNED_GPUS, parse_gpus
from extender.telemetry.readings import Float32s, Inventory, Reading
from extender.telemetry.series import Host
from extender.telemetry.sources.source import Command, Report

_PERIOD_S: Final = 40.0
_NODE_WITH_UNMANAGED_USE: Final = "a100-0"
"""Node whose last GPU is used by an unknown process."""


class SampleFeed:
    """Readings of an in-memory cluster: the load of GPUs with pods follows sine waves of different phases."""

    def __init__(self, cluster: MemoryCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock

    async def read(self, command: Command) -> Reading:
        """Make a reading."""
        now = self._clock()
        nodes = msgspec.json.decode(await self._cluster.get(NODES_PATH), type=objects.ObjectList[objects.Node])
        pods = msgspec.json.decode(await self._cluster.get(PODS_PATH), type=objects.ObjectList[objects.Pod])
        holders: dict[tuple[str, int], objects.Pod] = {}
        for pod in pods.items or ():
            for index in parse_gpus((pod.metadata.annotations or {}).get(ASSIGNED_GPUS, "")):
                holders[pod.spec.node_name or "", index] = pod
        inventory, columns = Inventory(), {gauge: list[float]() for gauge in _GAUGES}
        usage: dict[tuple[str, str], tuple[float, float]] = {}
        for node in nodes.items or ():
            name = node.metadata.name
            gpus = read_node(node.status.allocatable or {}, node.metadata.labels or {}).gpus
            for number, gpu in enumerate(gpus):
                holder = holders.get((name, number))
                phase = (len(inventory.numbers) * 0.61803) % 1  # differs from GPU to GPU
                load = 0.55 + 0.4 * math.sin(2 * math.pi * (now / _PERIOD_S + phase)) if holder else 0.0
                used = gpu.memory_mib * (0.35 + 0.5 * phase) if holder else 450.0
                if name == _NODE_WITH_UNMANAGED_USE and number == len(gpus) - 1 and not holder:
                    load, used = 0.3, gpu.memory_mib * 0.4
                for gauge, value in zip(_GAUGES, _values(load, used, gpu.memory_mib), strict=True):
                    columns[gauge].append(value)
                inventory.host_idx.append(len(inventory.hosts))
                inventory.numbers.append(number)
                inventory.uuids.append("")
                if holder:
                    usage[holder.metadata.namespace, holder.metadata.name] = load, used
            inventory.hosts.append(Host((name,), ""))
        values: dict[Gauge, Float32s] = {gauge: np.array(column, np.float32) for gauge, column in columns.items()}
        ages = np.zeros(len(inventory.hosts), np.float32)
        series = {gauge.name.lower(): len(column) for gauge, column in columns.items()}
        return Reading(inventory, values, ages, usage, Report(source="sample metrics", series=series), now)

    async def close(self) -> None:
        """There is nothing to close."""


_GAUGES: Final = (Gauge.LOAD, Gauge.MEMORY_USED, Gauge.MEMORY_FREE, Gauge.POWER, Gauge.TEMPERATURE, Gauge.BANDWIDTH)


def _values(load: float, used_mib: float, total_mib: int) -> tuple[float, ...]:
    return load, used_mib, max(total_mib - used_mib, 0.0), 60 + 240 * load, 34 + 40 * load, 0.8 * load
