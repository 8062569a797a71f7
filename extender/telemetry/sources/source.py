"""What a source of telemetry is, and what sources share. A source is a file beside this one and a line in
`registry.SOURCES`."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec
import numpy as np

from extender.core.clusters import Floats
from extender.core.gauges import Gauge
from extender.core.vendors.vendor import Metric
from extender.telemetry.series import Labels
from extender.telemetry.tables import DeviceTable, Most

PROMETHEUS: Final = "prometheus"
EXPORTERS: Final = "exporters"

PodUsage = dict[tuple[str, str], tuple[float, float]]
"""By namespace and name: load as a fraction and MiB used, NaN where one is not told."""


class Bounds(msgspec.Struct, frozen=True):
    """How much is taken from a source."""

    answer_bytes: int = 64 * 2**20
    """Of one answer."""
    most: Most = Most()
    """Hosts and GPUs."""
    is_found: bool = False
    """Whether it was found in the cluster, and nobody has named it."""


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
    timeout_s: float = 10.0
    """Of one query."""
    matchers: str = ""
    """Label matchers of the series that are this cluster's, as in PromQL."""
    bounds: Bounds = Bounds()

    def remedy(self, words: str) -> str:
        """Which setting may help where a server that says this asks who asks."""
        first = "telemetry.url and " if self.bounds.is_found else ""
        if "org id" in words.lower() or "orgid" in words.lower():
            return f"set {first}telemetry.headers, as in {{X-Scope-OrgID: the tenant's name}}"
        if self.bearer_token_file:
            return "the token in telemetry.bearer_token_file is not accepted"
        if self.username:
            return "telemetry.username and telemetry.password_file are not accepted"
        return f"set {first}telemetry.bearer_token_file, or telemetry.username and password_file, or telemetry.headers"

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
    bounds: Bounds = Bounds()


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
    given_up: dict[str, str] = {}
    """Addresses of sources that answered, and why they are not read."""
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
    pod_devices: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """By pod, the numbers of the GPUs that its samples are of; may be left out."""


class Source(Protocol):
    """Something that can be asked for samples."""

    def read(self) -> Samples:
        """All samples now. Raises SourceError."""

    def close(self) -> None:
        """Let go of connections."""


@dataclass(eq=False)
class PodTable:
    """Samples of pods, of each GPU one: two exporters of a node, or one that is scraped twice, tell the same."""

    _values: dict[tuple[str, str], dict[Gauge, dict[tuple[str, str], float]]] = field(default_factory=dict)
    _devices: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def add(self, alias: Metric, labels: Labels, device: int, raw: float) -> None:
        """Put one sample beside what is known; what is no value, or no pod's, is left out. `device` is its number."""
        value = raw * alias.scale
        key = labels.pod_key()
        if not 0 <= value < 2**31 or not key[1]:
            return
        host, gpu = labels.host(), labels.device()
        which = gpu.uuid or f"{(host.names or (host.instance,))[0]}/{gpu.number}", labels.instance_id
        known = self._values.setdefault(key, {}).setdefault(alias.gauge, {})
        known[which] = max(value, known.get(which, 0.0))
        self._devices.setdefault(key, set()).add(device)

    def usage(self) -> PodUsage:
        """The mean load of each pod's GPUs, and the sum of their memory."""
        return {
            key: (
                min(_mean(gauges.get(Gauge.LOAD, {}).values()), 1.0),
                sum(gauges[Gauge.MEMORY_USED].values()) if Gauge.MEMORY_USED in gauges else float("nan"),
            )
            for key, gauges in self._values.items()
        }

    def devices(self) -> dict[tuple[str, str], list[int]]:
        """Numbers of the GPUs that each pod's samples are of."""
        return {key: sorted(numbers) for key, numbers in self._devices.items()}


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def merge(values: dict[Gauge, Floats], alias: Metric, plane: Floats, num_refused: int, report: Report) -> None:
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
