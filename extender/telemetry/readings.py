"""A refresh in the service: the GPUs and arrays of their samples."""

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
    """A source's H hosts and D GPUs; grows from refresh to refresh."""

    hosts: list[Host] = field(default_factory=list)
    host_idx: list[int] = field(default_factory=list)
    """(D,) index into `hosts`."""
    numbers: list[int] = field(default_factory=list)
    """(D,) index of each GPU on its node; -1 if unknown."""
    uuids: list[str] = field(default_factory=list)
    """(D,)"""


@dataclass(frozen=True, slots=True)
class Reading:
    """One refresh."""

    inventory: Inventory
    values: Mapping[Gauge, Float32s]
    """Each (D,), NaN where there is no sample."""
    age_s: Float32s
    """(H,) age of each host's samples at the time of reading; NaN if unknown."""
    pods: PodUsage
    report: Report
    read_at: float
    """Monotonic time of the request."""
    pod_devices: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """Each pod's GPUs as indices into D; pods may be missing."""


class Feed(Protocol):
    """A source of readings."""

    async def read(self, command: Command) -> Reading:
        """Read one refresh. Raises TelemetryError."""

    async def close(self) -> None:
        """Release all resources."""
