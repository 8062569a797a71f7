"""A telemetry source for tests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from extender.core.gauges import Gauge
from extender.telemetry.errors import TelemetryError
from extender.telemetry.readings import Inventory, Reading
from extender.telemetry.series import Host
from extender.telemetry.sources.source import Command, Report
from tests.api.services import Clock


@dataclass
class FakeFeed:
    """Returns `gauges` of each node's GPUs; raises `fault` if there is one."""

    clock: Clock
    gauges: dict[str, Mapping[Gauge, Sequence[float]]] = field(default_factory=dict)
    ages: dict[str, float] = field(default_factory=dict)
    pods: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    pod_devices: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    fault: TelemetryError | None = None
    report: Report = field(default_factory=lambda: Report(source="a test"))
    asked: list[Command] = field(default_factory=list)
    num_closed: int = 0
    instances: dict[str, str] = field(default_factory=dict)
    """Addresses, by name."""
    uuids: dict[tuple[str, int], str] = field(default_factory=dict)

    async def read(self, command: Command) -> Reading:
        self.asked.append(command)
        if self.fault:
            raise self.fault
        inventory = Inventory()
        values: dict[Gauge, list[float]] = {
            gauge: [] for gauge in Gauge if any(gauge in samples for samples in self.gauges.values())
        }
        for name, samples in self.gauges.items():
            for number in range(max(map(len, samples.values()), default=0)):
                inventory.host_idx.append(len(inventory.hosts))
                inventory.numbers.append(number)
                inventory.uuids.append(self.uuids.get((name, number), f"{name}-{number}"))
                for gauge, column in values.items():
                    row = samples.get(gauge, ())
                    column.append(row[number] if number < len(row) else float("nan"))
            inventory.hosts.append(Host((name,), self.instances.get(name, "")))
        return Reading(
            inventory,
            {gauge: np.array(column, np.float32) for gauge, column in values.items()},
            np.array([self.ages.get(name, 0.0) for name in self.gauges], np.float32),
            dict(self.pods),
            self.report,
            self.clock.now,
            self.pod_devices,
        )

    async def close(self) -> None:
        self.num_closed += 1
