"""The GPUs that a node offers, read from its resources and its vendor's labels."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from extender.core.resources.gpu_models import UNKNOWN_MODEL, GpuModel, describe_model
from extender.core.resources.quantities import parse_quantity
from extender.core.vendors.registry import PRODUCT_MEMORY_MIB, VENDORS
from extender.core.vendors.vendor import Vendor

MEMORY_TOLERANCE_FRAC: Final = 0.02
"""Fraction by which the memory that a driver reports may fall short of the nominal size."""
MAX_GPUS_PER_NODE: Final = 64
"""Arrays are as wide as the largest node: one node of 500 GPUs among 5,000 nodes of 8 would slow `fit` on all rows from
1.1 ms to 24 ms."""
MAX_UNITS_PER_GPU: Final = 1024
MAX_MEMORY_MIB: Final = 2**21
"""2 TiB, more than any GPU has."""


Quantities = Mapping[str, str | int | float]
"""Amounts of resources, as Kubernetes writes them."""


class GpuUnit(IntEnum):
    """What one unit of a node's GPU resource is."""

    NONE = 0
    WHOLE = 1
    """A whole GPU."""
    REPLICA_AS_GPU = 2
    """A time slice, under the resource name of whole GPUs."""
    REPLICA = 3
    """A time slice, under its own resource name."""
    PART = 4
    """A part of a GPU by memory and compute, which the device plugin enforces."""
    CLAIM = 5
    """A whole GPU that kube-scheduler picks and allocates to ResourceClaims."""
    OWNED = 6
    """A GPU that Kerf allocates to ResourceClaims; pods that request by number can't get it."""


OF_CLAIMS: Final = (GpuUnit.CLAIM, GpuUnit.OWNED)
SLICES: Final = (GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU)
"""Units of which a GPU has several."""


class LeftOut(IntEnum):
    """Why Kerf uses none or not all of a node's GPUs."""

    NOTHING = 0
    """All GPUs count."""
    UNREADABLE = 1
    """An annotation that describes the GPUs can't be parsed."""
    PLUGIN_GONE = 2
    """A device plugin's annotations remain, but no plugin offers GPUs."""
    ONE_BY_ONE = 3
    """The device plugin only accepts one pod at a time, from an extender."""
    TOO_MANY = 4
    """More than MAX_GPUS_PER_NODE GPUs; the rest is ignored."""
    NONE_HEALTHY = 5
    """The node has GPU capacity but nothing allocatable: the plugin is down, or all GPUs are unhealthy."""


LEFT_OUT_WORDS: Final = {
    LeftOut.UNREADABLE: "the node's GPU annotations can't be parsed",
    LeftOut.PLUGIN_GONE: "annotations of a removed device plugin remain, and no plugin offers GPUs",
    LeftOut.ONE_BY_ONE: "its device plugin accepts pods only from an extender",
    LeftOut.NONE_HEALTHY: "the kubelet has GPUs but offers none: the device plugin is down, or all GPUs are unhealthy",
    LeftOut.TOO_MANY: f"Kerf counts at most {MAX_GPUS_PER_NODE} GPUs per node",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU."""

    model: GpuModel
    memory_mib: int
    """Memory in nominal MiB (see `nominal_mib`), 0 when unknown."""
    uuid: str = ""
    healthy: bool = True
    numa: int = -1
    """NUMA node, -1 when unknown."""
    link: int = -1
    """Group of GPUs joined by fast links (NVLink), -1 when unknown."""
    max_holders: int = 0
    """Largest number of pods that the device plugin lets share it, 0 for no bound."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node's GPUs; models and sizes may be mixed."""

    gpus: tuple[Gpu, ...] = ()
    """By the driver's index."""
    unit: GpuUnit = GpuUnit.NONE
    units_per_gpu: int = 1
    allocatable_units: int = 0
    """Units the kubelet offers; fewer than GPUs x `units_per_gpu` when some are unhealthy."""
    mig: tuple[tuple[str, int], ...] = ()
    """MIG devices the kubelet offers, by profile ("1g.5gb"); their GPUs are withheld or not among `gpus`."""
    warnings: tuple[str, ...] = ()
    plugin_picks: bool = False
    """Whether the device plugin picks whole GPUs itself. It may pick GPUs that Kerf gave to an annotation-only pod."""
    slices_led: bool = False
    """Whether the device plugin hands out time slices of the GPUs that Kerf chooses."""
    set_aside: int = 0
    """On a quarantined node, the number of pods that failed soon after they started, else 0."""
    left_out: LeftOut = LeftOut.NOTHING
    vendor: int = 0
    """Vendor's number in the registry; on a node with GPUs of several vendors, only this one's count."""

    @property
    def withheld_units(self) -> int:
        """Units of healthy GPUs that the kubelet does not offer. Their index is unknown, so any idle GPU may be one."""
        healthy = len([gpu for gpu in self.gpus if gpu.healthy])
        return max(healthy * self.units_per_gpu - self.allocatable_units, 0)


NO_GPUS: Final = NodeOffer()


@dataclass(frozen=True, slots=True)
class NodeReading:
    """Settings for reading nodes."""

    memory_tolerance_frac: float = MEMORY_TOLERANCE_FRAC
    aliases: Mapping[str, Iterable[str]] = field(default_factory=dict)
    allocates: bool = False
    """Whether Kerf allocates devices to ResourceClaims from pools that it owns."""
    extender: bool = True
    """Whether kube-scheduler calls Kerf, which then binds pods itself."""
    sets_aside: bool = False
    """Whether quarantined nodes take no pods."""


def nominal_mib(memory_mib: int, tolerance_frac: float) -> int:
    """The nominal size of a card: the next whole GiB when within the tolerance, else the reported size.

    Reported memory varies by 1-2 % with the driver: 40536 MiB is a 40 GiB card and 81559 an 80 GiB one, while a T4's
    15360 is exactly 15 GiB and 11019 stays as reported.
    """
    rounded_up = -(-memory_mib // 1024) * 1024
    return rounded_up if rounded_up - memory_mib <= tolerance_frac * rounded_up else memory_mib


def read_node(
    allocatable: Quantities,
    labels: Mapping[str, str],
    *,
    capacity: Quantities | None = None,
    memory_tolerance_frac: float = MEMORY_TOLERANCE_FRAC,
    aliases: Mapping[str, Iterable[str]] | None = None,
) -> NodeOffer:
    """The GPUs that a node offers. `capacity` also counts unhealthy devices.

    An invalid value counts as absent and adds to `warnings`. Without a number of GPUs there are none; an unknown memory
    or model satisfies no request for one.
    """
    offers = [
        offer
        for vendor in range(len(VENDORS))
        if (offer := _of_vendor(vendor, allocatable, labels, capacity or {}, memory_tolerance_frac, aliases or {}))
        is not NO_GPUS
    ]
    if not offers:
        return NO_GPUS
    first = next((offer for offer in offers if offer.gpus or offer.mig), offers[0])
    others = [VENDORS[offer.vendor].title for offer in offers if offer is not first and (offer.gpus or offer.mig)]
    if not others:
        return first
    warning = f"only GPUs of {VENDORS[first.vendor].title} are used here, not those of {', '.join(others)}"
    return replace(first, warnings=(*first.warnings, warning))


def _of_vendor(
    number: int,
    allocatable: Quantities,
    labels: Mapping[str, str],
    capacity: Quantities,
    memory_tolerance_frac: float,
    aliases: Mapping[str, Iterable[str]],
) -> NodeOffer:
    """The GPUs of one vendor that a node offers."""
    vendor, warnings = VENDORS[number], list[str]()

    def whole_number(source: Quantities, key: str, largest: int = 2**31 - 1) -> int:
        if key not in source:
            return 0
        try:
            value = parse_quantity(str(source[key]))
            if value.denominator != 1 or not 0 <= value <= largest:
                raise ValueError("not a whole number in range")
        except ValueError as error:
            warnings.append(f"{key}: {str(source[key])[:80]!r} is ignored: {error}")
            return 0
        return int(value)

    shared_units = whole_number(allocatable, vendor.shared_resource)
    units = shared_units or whole_number(allocatable, vendor.resource)
    mig = tuple(
        (profile, devices)
        for name in sorted(allocatable)
        if (profile := profile_of(name, vendor)) and (devices := whole_number(allocatable, name))
    )
    if units == 0:
        return NodeOffer(mig=mig, warnings=tuple(warnings), vendor=number) if warnings or mig else NO_GPUS

    described = vendor.labels(labels)
    cut = bool(described.partition)
    replicas = max(whole_number(labels, vendor.replicas_label, MAX_UNITS_PER_GPU), described.clients, 1)
    count = whole_number(labels, vendor.count_label) or described.num_gpus
    installed = whole_number(capacity, vendor.shared_resource if shared_units else vendor.resource)
    if replicas == 1 and not cut:
        replicas = _slices_each(max(installed, units), count, named=bool(shared_units))
    elif installed == count > 0 and not (shared_units or mig or cut):
        replicas = 1  # a stale label: the node is no longer time-sliced
    # Without a label, or with one below what the kubelet offers, the kubelet's number counts.
    count = max(count, -(-units // replicas))
    left_out = LeftOut.NOTHING
    if count > MAX_GPUS_PER_NODE:
        warnings.append(f"{count} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
        count, left_out = MAX_GPUS_PER_NODE, LeftOut.TOO_MANY
    unit = GpuUnit.REPLICA if shared_units else GpuUnit.REPLICA_AS_GPU if replicas > 1 or cut else GpuUnit.WHOLE

    model = describe_model(described.product, aliases, number) if described.product else UNKNOWN_MODEL
    # The product's memory does not apply to partitions.
    of_product = 0 if cut else PRODUCT_MEMORY_MIB.get(model.name, 0)
    memory_mib = whole_number(labels, vendor.memory_label, MAX_MEMORY_MIB) or min(
        described.memory_mib or of_product, MAX_MEMORY_MIB
    )
    gpu = Gpu(model, nominal_mib(memory_mib, memory_tolerance_frac))
    units = min(units, count * replicas)
    picks = unit is GpuUnit.WHOLE
    return NodeOffer(
        (gpu,) * count, unit, replicas, units, mig, tuple(warnings), picks, left_out=left_out, vendor=number
    )


def profile_of(resource: str, vendor: Vendor) -> str:
    """The partition profile of a resource, "" for other resources.

    For vendors other than the first it is the full resource name.
    """
    if vendor.partitions is None or not resource.startswith(vendor.partitions.resource_prefix):
        return ""
    return resource.removeprefix(vendor.partitions.resource_prefix) if vendor is VENDORS[0] else resource


def resource_of(profile: str, vendor: Vendor) -> str:
    """The resource name of a profile as from `profile_of`."""
    prefix = vendor.partitions.resource_prefix if vendor is VENDORS[0] and vendor.partitions else ""
    return f"{prefix}{profile}"


def _slices_each(devices: int, count: int, *, named: bool) -> int:
    """Time slices per GPU, derived from the number of devices on `count` GPUs; 1 where these are whole GPUs.

    Device plugins make equally many slices of each GPU, so a multiple of `count` devices means slices even without a
    label of replicas. `named`: whether the resource name already says that they are slices.
    """
    if not count or devices <= count or (devices % count and not named):
        return 1
    each = -(-devices // count)
    return each if each <= MAX_UNITS_PER_GPU else 1
