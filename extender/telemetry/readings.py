"""A refresh as the service has it: arrays, and who the GPUs are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from extender.core.gauges import Gauge
from extender.telemetry.series import Host
from extender.telemetry.sources.source import Command, PodUsage, Report

Float32s = npt.NDArray[np.float32]


@dataclass(eq=False)
class Inventory:
    """H hosts and D GPUs that a source tells of; grows from refresh to refresh."""

    hosts: list[Host] = field(default_factory=list)
    host_idx: list[int] = field(default_factory=list)
    """(D,) index into `hosts`."""
    numbers: list[int] = field(default_factory=list)
    """(D,) index of each GPU on its node, -1 when not told."""
    uuids: list[str] = field(default_factory=list)
    """(D,)"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One refresh."""

    inventory: Inventory
    values: Mapping[Gauge, Float32s]
    """Each (D,), NaN where there is no sample."""
    age_s: Float32s
    """(H,) age of each host's samples when they were read, NaN when not told."""
    pods: PodUsage
    report: Report
    read_at: float
    """Monotonic time at which it was asked for."""
    pod_devices: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """By pod, the GPUs that its samples are of, as indices into D; none where that is not told."""


class Feed(Protocol):
    """Where readings come from."""

    async def read(self, command: Command) -> Reading:
        """A refresh. Raises TelemetryError."""

    async def close(self) -> None:
        """Let go of everything."""
