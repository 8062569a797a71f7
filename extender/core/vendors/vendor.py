"""The vendor interface: everything Kerf knows about a GPU vendor, as one object.

Other packages add vendors by the entry point group `kerf.vendors`: `NAME = "package.module:VENDOR"`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.core.gauges import Gauge

_SHARING_SUFFIX: Final = re.compile(r"-(?:shared|mig-[0-9]+g\.[0-9]+gb.*)$")
_SEPARATORS: Final = re.compile(r"[\s_-]+")


def as_label(product: str) -> str:
    """A product name in lower case, with hyphens between words and without the suffixes of sharing and MIG."""
    return _SHARING_SUFFIX.sub("", _SEPARATORS.sub("-", product.strip().lower()))


def brands_pattern(brands: str) -> re.Pattern[str]:
    """A pattern that matches leading brands (alternatives of a regular expression) in a result of `as_label`."""
    return re.compile(f"^(?:(?:{brands})-)+")


PERCENT: Final = 0.01
"""Scale of a metric in percent whose gauge is a fraction."""


class Told(NamedTuple):
    """A node's GPUs according to its labels; "" and 0 where they don't say."""

    product: str = ""
    memory_mib: int = 0
    """Of each GPU or partition."""
    num_gpus: int = 0
    """Number of GPUs, or of partitions if known."""
    clients: int = 0
    """Number of pods that time-share each GPU."""
    partition: str = ""
    """Profile of partitions that use the resource name of GPUs."""


class Product(NamedTuple):
    """Data sheet of a GPU product."""

    multiprocessors: int
    """Streaming multiprocessors or compute units."""
    decoders: int
    encoders: int
    bandwidth_gb_s: float
    power_limit_w: float
    memory_mib: int = 0
    """Total as the driver reports it, for nodes without a memory label; 0 if unknown or if the name covers several
    sizes."""


class Slices(NamedTuple):
    """Compute slices of a partition and of its GPU."""

    num: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """GPUs that are partitioned into devices with their own resources."""

    resource_prefix: str
    """Prefix of the profile in resource names and in their labels (`.count`, `.replicas`)."""
    profiles: tuple[str, ...]
    """Profiles for which kube-scheduler must call Kerf."""
    slices: Callable[[str, str], Slices]
    """(profile, model of the GPU by any name or "") to compute slices."""
    strategy_label: str
    """Label that is "single" where all devices of a node are equal and use the resource name of whole GPUs."""
    in_product: re.Pattern[str]
    """Finds the profile in the lower-cased product label of such a node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A DRA driver and the names of its device attributes."""

    name: str
    """Name of the driver and of its device class for whole GPUs."""
    whole: str
    """`type` of a device that is a whole GPU."""
    uuid: str = ""
    """Attribute that identifies a GPU globally; "" for none."""
    identity: str
    """Attribute that identifies a GPU within its node."""
    parent: str
    """Attribute of a partition with the identity of its GPU."""
    product: str
    compute: str
    """Capacity that measures the compute of partitions."""
    index: re.Pattern[str]
    """Finds the GPU's index in a device's name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of an exporter."""

    name: str
    exporter: str
    """Display name of the exporter."""
    gauge: Gauge
    scale: float = 1.0
    """Factor from its unit to the gauge's."""
    rank: int = 0
    """If a GPU has several metrics of a gauge, the smallest rank wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """A vendor's exporter: how to find it, its metrics, and its labels."""

    metrics: tuple[Metric, ...]
    names: tuple[str, ...] = ()
    """Values of the labels `app.kubernetes.io/name` and `app` of its pods; the first is its display name."""
    always: str = ""
    """A metric that every GPU has, used to find nodes and products in past data."""
    index: tuple[str, ...] = ()
    """Labels with the GPU's number on its node; the first one present counts, as for the next fields."""
    uuid: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    model: str = ""
    instance: str = ""
    """Label with the number of a partition."""
    profile: str = ""
    """Label with the profile of a partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installing:
    """What `kerf install check` looks for and recommends."""

    signs: tuple[str, ...]
    """Labels that are "true" on nodes with such cards, before anything is installed."""
    plugins: re.Pattern[str]
    """Matches images of its device plugins."""
    plugin: str
    """Command that installs the device plugin."""
    discovery: str
    """Command that installs the labeller of GPU models and memory."""
    discovery_name: str
    exporter: str
    """Command that installs the exporter."""
    exporter_name: str
    others: tuple[str, ...] = ()
    """Prefixes of other resources for such GPUs, which Kerf does not manage."""
    operator_label: str = ""
    """Label of nodes on which an operator installs the device plugin."""
    operator_pods: str = ""
    """Value of the label `app` of that plugin's pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A GPU vendor."""

    name: str
    """Name in the API and configuration."""
    title: str
    """Display name."""
    domain: str
    """Domain of its resources and labels."""
    words: tuple[str, ...]
    """Lower-case words that identify it in texts: its name and those of its tools."""
    resource: str
    """Resource of whole GPUs."""
    shared_resource: str = ""
    """Resource of time slices, if different."""
    partitions: Partitions | None = None
    product_label: str = ""
    count_label: str = ""
    memory_label: str = ""
    """Label with whole MiB; "" for none."""
    sizes_by: tuple[str, ...] = ()
    """Labels from which `labels` derives the memory, without a label of whole MiB."""
    replicas_label: str = ""
    labels: Callable[[Mapping[str, str]], Told] = lambda labels: Told()
    """Reads a node's labels."""
    brands: str = ""
    """Regular expression of brand words that prefix product names and don't distinguish products."""
    products: Mapping[str, Product] = field(default_factory=dict)
    """By canonical name."""
    fault_codes: frozenset[int] = frozenset()
    """Values of `Gauge.XID` that indicate broken hardware."""
    driver: Driver | None = None
    exporter: Exporter | None = None
    plugin_guide: str = ""
    """Path of the documentation on steering its device plugin to the GPUs that Kerf chooses."""
    visible_devices: str = ""
    """Environment variable that exposes GPUs to a container without a device plugin."""
    installing: Installing | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """Resources of GPUs by number."""
        return (self.resource, self.shared_resource) if self.shared_resource else (self.resource,)
