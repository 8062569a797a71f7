"""The interface and shared code of telemetry sources. A source is a module here and a line in `registry.SOURCES`."""

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
"""By namespace and name: load as a fraction and MiB used; NaN if unknown."""


class Bounds(msgspec.Struct, frozen=True):
    """Limits on what a source may return."""

    answer_bytes: int = 64 * 2**20
    """Largest response."""
    most: Most = Most()
    """Most hosts and GPUs."""
    is_found: bool = False
    """Whether the source was discovered, not configured."""


class Access(msgspec.Struct, frozen=True):
    """Connection settings. Files are reread for every request, so that rotated secrets take effect."""

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
    """Per query."""
    matchers: str = ""
    """PromQL label matchers of this cluster's series."""
    bounds: Bounds = Bounds()

    def remedy(self, words: str) -> str:
        """The settings that may help after a status of 401 or 403 with the message `words`."""
        first = "telemetry.url and " if self.bounds.is_found else ""
        if "org id" in words.lower() or "orgid" in words.lower():
            return f"set {first}telemetry.headers, as in {{X-Scope-OrgID: the tenant's name}}"
        if self.bearer_token_file:
            return "the token in telemetry.bearer_token_file is not accepted"
        if self.username:
            return "telemetry.username and telemetry.password_file are not accepted"
        return f"set {first}telemetry.bearer_token_file, or telemetry.username and password_file, or telemetry.headers"

    def anonymous(self) -> "Access":
        """The same without credentials, for discovered addresses."""
        return msgspec.structs.replace(
            self, username="", password_file="", bearer_token_file="", cert_file="", key_file="", headers={}
        )


class Command(msgspec.Struct):
    """The command to read one refresh."""

    kind: str = ""
    """A key of SOURCES."""
    addresses: list[str] = []
    """The kind decides whether all are read, or only the first that has samples."""
    access: Access = msgspec.field(default_factory=Access)
    bounds: Bounds = Bounds()


class Report(msgspec.Struct):
    """A report on a refresh, for display."""

    source: str = ""
    version: str = ""
    series: dict[str, int] = {}
    """Number of series by metric name."""
    refused: dict[str, int] = {}
    """Number of invalid samples by metric name."""
    skew_s: float = 0.0
    """How far the source's clock is ahead of Kerf's."""
    skew_uncertainty_s: float = 0.0
    faults: dict[str, str] = {}
    """Faults of exporters by address."""
    given_up: dict[str, str] = {}
    """Why sources that responded are not read, by address."""
    read_s: float = 0.0
    """Duration of the refresh."""
    cpu_s: float = 0.0
    """CPU time of the reader process."""
    rss_mib: float = 0.0
    """Peak memory of the reader process."""


@dataclass
class Samples:
    """The samples of one refresh."""

    table: DeviceTable
    values: dict[Gauge, Floats]
    """Each (D,), NaN where there is no sample."""
    age_s: Floats
    """(H,) age of each host's oldest sample by the source's clock; NaN if unknown."""
    report: Report
    pods: PodUsage = field(default_factory=dict)
    pod_devices: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    """Numbers of each pod's GPUs; pods may be missing."""


class Source(Protocol):
    """A source of samples."""

    def read(self) -> Samples:
        """Read all current samples. Raises SourceError."""

    def close(self) -> None:
        """Close connections."""


@dataclass(eq=False)
class PodTable:
    """Samples of pods, one per GPU: several exporters of a node, or several scrapes of one, duplicate series."""

    _values: dict[tuple[str, str], dict[Gauge, dict[tuple[str, str], float]]] = field(default_factory=dict)
    _devices: dict[tuple[str, str], set[int]] = field(default_factory=dict)

    def add(self, alias: Metric, labels: Labels, device: int, raw: float) -> None:
        """Add a sample of the GPU number `device`; invalid samples and those without a pod are skipped."""
        value = raw * alias.scale
        key = labels.pod_key()
        if not 0 <= value < 2**31 or not key[1]:
            return
        host, gpu = labels.host(), labels.device()
        gpu_key = gpu.uuid or f"{(host.names or (host.instance,))[0]}/{gpu.number}", labels.instance_id
        known = self._values.setdefault(key, {}).setdefault(alias.gauge, {})
        known[gpu_key] = max(value, known.get(gpu_key, 0.0))
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
        """Numbers of each pod's GPUs."""
        return {key: sorted(numbers) for key, numbers in self._devices.items()}


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def merge(values: dict[Gauge, Floats], alias: Metric, plane: Floats, num_refused: int, report: Report) -> None:
    """Merge a metric's values into `values`, where earlier metrics of the same gauge take precedence."""
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
    """Pad earlier planes with NaN for hosts and GPUs that later metrics added."""
    num_devices, num_hosts = len(samples.table.devices), len(samples.table.hosts)
    for gauge, plane in samples.values.items():
        samples.values[gauge] = np.append(plane, np.full(num_devices - len(plane), np.nan))
    samples.age_s = np.append(samples.age_s, np.full(num_hosts - len(samples.age_s), np.nan))
