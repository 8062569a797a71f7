"""What Kerf knows of a maker of GPUs: one object. Kerf brings one; a package brings another by the entry point
group `kerf.vendors` (`NAME = "package.module:VENDOR"`).

How names of GPU products are compared.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.core.gauges import Gauge

_SHARING_SUFFIX: Final = re.compile(r"-(?:shared|mig-[0-9]+g\.[0-9]+gb.*)$")
_SEPARATORS: Final = re.compile(r"[\s_-]+")


def as_label(product: str) -> str:
    """In lower case, with hyphens between the words and without what sharing adds."""
    return _SHARING_SUFFIX.sub("", _SEPARATORS.sub("-", product.strip().lower()))


def brands_pattern(brands: str) -> re.Pattern[str]:
    """Finds the brands, alternatives of a regular expression, that a label of `as_label` begins with."""
    return re.compile(f"^(?:(?:{brands})-)+")


PERCENT: Final = 0.01
"""The scale of a metric in percent whose gauge is a fraction."""


class Told(NamedTuple):
    """What a node's labels tell of its GPUs; "" and 0 of what they don't."""

    product: str = ""
    memory_mib: int = 0
    """Of each GPU, or partition."""
    num_gpus: int = 0
    """GPUs, or partitions where the GPUs are cut and their number is known."""
    clients: int = 0
    """Among how many each is shared in turns."""
    partition: str = ""
    """Profile of the partitions that are handed out as GPUs."""


class Product(NamedTuple):
    """A GPU product as its data sheet describes it."""

    multiprocessors: int
    """What a kernel's blocks run on: streaming multiprocessors, compute units."""
    decoders: int
    encoders: int
    bandwidth_gb_s: float
    power_limit_w: float
    memory_mib: int = 0
    """As its driver reports the total, for nodes whose labels don't; 0 when not known, or when products of several
    sizes have one name."""


class Slices(NamedTuple):
    """Compute slices of a partition, and of its GPU."""

    num: int
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partitions:
    """GPUs that are cut into devices with resources of their own."""

    resource_prefix: str
    """Before the profile, in the name of the resource and of the labels that count it (`.count`, `.replicas`)."""
    profiles: tuple[str, ...]
    """Those that kube-scheduler has to ask Kerf about."""
    slices: Callable[[str, str], Slices]
    """Of a profile, and the model of the GPU where that is known, by any of its names."""
    strategy_label: str
    """Label that is "single" where all devices of a node are alike and have the name of whole GPUs."""
    in_product: re.Pattern[str]
    """Finds the profile in the label of such a node's product, lower-cased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """A driver for dynamic resource allocation, and what it calls the attributes of its devices."""

    name: str
    """Its own, which is that of its device class for whole GPUs too."""
    whole: str
    """`type` of a device that is a whole GPU."""
    uuid: str = ""
    """Attribute that tells GPUs apart wherever they are; "" where there is none."""
    identity: str
    """Attribute that tells the GPUs of one node apart."""
    parent: str
    """Attribute of a part with the identity of its GPU."""
    product: str
    compute: str
    """Capacity that parts of a GPU are measured by, beside their memory."""
    index: re.Pattern[str]
    """Finds the GPU's index in a device's name: GPUs are counted in this order."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A name under which an exporter tells something of a GPU."""

    name: str
    exporter: str
    """Where it is from, in words."""
    gauge: Gauge
    scale: float = 1.0
    """What turns its unit into the gauge's."""
    rank: int = 0
    """Among names of one gauge on one GPU the smaller rank is believed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """How the exporter of a vendor's metrics is found, and which labels tell what its series are of."""

    metrics: tuple[Metric, ...]
    names: tuple[str, ...] = ()
    """Values of the labels `app.kubernetes.io/name` and `app` of its pods; the first one is its name in sentences."""
    always: str = ""
    """A metric that every GPU has: whoever reads the past looks for nodes and products there."""
    index: tuple[str, ...] = ()
    """Labels with the GPU's number on its node, the first that is there is believed; likewise the others."""
    uuid: tuple[str, ...] = ()
    host: tuple[str, ...] = ()
    model: str = ""
    instance: str = ""
    """Label with the number of a partition."""
    profile: str = ""
    """Label with its profile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Installing:
    """What `kerf install check` looks for, and says where it is missing."""

    signs: tuple[str, ...]
    """Labels that are "true" on nodes with such cards, whatever is installed there."""
    plugins: re.Pattern[str]
    """Finds the images of its device plugins."""
    plugin: str
    """The command that installs one."""
    discovery: str
    """The command that installs what labels nodes with their GPUs' model and memory."""
    discovery_name: str
    exporter: str
    """The command that installs the exporter."""
    exporter_name: str
    others: tuple[str, ...] = ()
    """How resources begin that offer such GPUs otherwise, and are not Kerf's to give."""
    operator_label: str = ""
    """Label of nodes on which an operator brings the device plugin."""
    operator_pods: str = ""
    """Value of the label `app` of that plugin's pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A maker of GPUs."""

    name: str
    """In answers and configuration."""
    title: str
    """In sentences."""
    domain: str
    """Before the slash of its resources and labels."""
    words: tuple[str, ...]
    """By which it may be recognised in texts, lower-cased: its own name and those of its tools."""
    resource: str
    """What containers ask whole GPUs by."""
    shared_resource: str = ""
    """What they ask time slices by, where that is another name."""
    partitions: Partitions | None = None
    product_label: str = ""
    count_label: str = ""
    memory_label: str = ""
    """With whole MiB; "" where it is told in another way."""
    sizes_by: tuple[str, ...] = ()
    """Labels by which `labels` tells the memory, where that is no label of whole MiB."""
    replicas_label: str = ""
    labels: Callable[[Mapping[str, str]], Told] = lambda labels: Told()
    """All that a node's labels tell."""
    brands: str = ""
    """Regular expression of the words with which the names of products begin and without which they are the same."""
    products: Mapping[str, Product] = field(default_factory=dict)
    """By canonical name."""
    fault_codes: frozenset[int] = frozenset()
    """Values of `Gauge.XID` that tell of broken hardware."""
    driver: Driver | None = None
    exporter: Exporter | None = None
    plugin_guide: str = ""
    """What tells how its device plugin is led to the GPUs that Kerf chooses, a path in the documentation."""
    visible_devices: str = ""
    """Environment variable that shows a container its GPUs where no device plugin does."""
    installing: Installing | None = None

    @property
    def resources(self) -> tuple[str, ...]:
        """Of GPUs by number."""
        return (self.resource, self.shared_resource) if self.shared_resource else (self.resource,)
