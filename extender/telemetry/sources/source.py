"""What a source of telemetry is, and what sources share. A source is a file beside this one and a line in
`registry.SOURCES`."""

from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import numpy as np

from extender.core.clusters import Floats
from extender.core.observations import Gauge
from extender.telemetry.aliases import Alias
from extender.telemetry.tables import DeviceTable

PROMETHEUS: Final = "prometheus"
EXPORTERS: Final = "exporters"

PodUsage = dict[tuple[str, str], tuple[float, float]]
"""By namespace and name: load as a fraction and MiB used, NaN where one is not told."""


class Access(msgspec.Struct, frozen=True):
    """How to get at a source. Files are read again for every connection, so that rotated secrets are taken up."""

    username: str = ""
    password_file: str = ""
    bearer_token_file: str = ""
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure_skip_verify: bool = False
    headers: dict[str, str] = {}
    connect_timeout_s: float = 2.0
    timeout_s: float = 5.0

    def anonymous(self) -> "Access":
        """The same without anything that says who asks: for addresses that nobody has set."""
        return msgspec.structs.replace(
            self, username="", password_file="", bearer_token_file="", cert_file="", key_file="", headers={}
        )


class Command(msgspec.Struct):
    """Read once more."""

    kind: str = ""
    """Of source, a key of SOURCES."""
    addresses: list[str] = []
    """The first that has something to tell, or all: as the kind will have it."""
    access: Access = msgspec.field(default_factory=Access)


class Report(msgspec.Struct):
    """What a refresh met, for people."""

    source: str = ""
    version: str = ""
    series: dict[str, int] = {}
    """Series of each metric name."""
    refused: dict[str, int] = {}
    """Samples of each name that were no values."""
    skew_s: float = 0.0
    """How far the source's clock is ahead of ours."""
    skew_uncertainty_s: float = 0.0
    faults: dict[str, str] = {}
    """What went wrong with parts of the source."""
    read_s: float = 0.0
    """Time that the refresh took."""
    cpu_s: float = 0.0
    """CPU time of the reading process in it."""
    rss_mib: float = 0.0
    """Most memory that the reading process has held."""


@dataclass
class Samples:
    """One refresh."""

    table: DeviceTable
    values: dict[Gauge, Floats]
    """Each (D,), NaN where there is none."""
    age_s: Floats
    """(H,) age of each host's oldest sample by the source's own clock, NaN where it is not told."""
    report: Report
    pods: PodUsage = field(default_factory=dict)


class Source(Protocol):
    """Something that can be asked for samples."""

    def read(self) -> Samples:
        """All samples now. Raises SourceError."""

    def close(self) -> None:
        """Let go of connections."""


def add_pod_sample(pods: PodUsage, namespace: str, pod: str, alias: Alias, raw: float) -> None:
    """Put one sample of a pod beside what is known of it; what is no value is left out."""
    value = raw * alias.scale
    if not 0 <= value < 2**31 or not pod:
        return
    load, memory = pods.get((namespace, pod), (float("nan"), float("nan")))
    pods[namespace, pod] = (load, value) if alias.gauge is Gauge.MEMORY_USED else (min(value, 1.0), memory)


def merge(values: dict[Gauge, Floats], alias: Alias, plane: Floats, num_refused: int, report: Report) -> None:
    """Put a name's values beside those of names that are believed more."""
    if num_refused:
        report.refused[alias.name] = report.refused.get(alias.name, 0) + num_refused
    known = values.get(alias.gauge)
    if known is None:
        values[alias.gauge] = plane
        return
    filled = plane.copy()
    filled[: len(known)] = np.where(np.isnan(known), plane[: len(known)], known)
    values[alias.gauge] = filled


def grow(samples: Samples) -> None:
    """Devices that only later names told of are missing in the earlier planes."""
    num_devices, num_hosts = len(samples.table.devices), len(samples.table.hosts)
    for gauge, plane in samples.values.items():
        samples.values[gauge] = np.append(plane, np.full(num_devices - len(plane), np.nan))
    samples.age_s = np.append(samples.age_s, np.full(num_hosts - len(samples.age_s), np.nan))
