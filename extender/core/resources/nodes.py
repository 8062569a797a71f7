"""What a node offers, read from its resources and labels as their vendor writes them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from extender.core.resources.gpu_models import UNKNOWN_MODEL, GpuModel, describe_model
from extender.core.resources.quantities import parse_quantity
from extender.core.vendors.registry import PRODUCT_MEMORY_MIB, VENDORS
from extender.core.vendors.vendor import Vendor

MEMORY_TOLERANCE_FRAC: Final = 0.02
"""By how much of it the memory that a driver tells may be less than the nominal size."""
MAX_GPUS_PER_NODE: Final = 64
"""Arrays are as wide as the node with most GPUs: one of 500 among 5,000 nodes of 8 would make a decision take 20 times
as long (24 ms for 1.1 ms, `fit` on all rows), and each change of a node 70 ms."""
MAX_UNITS_PER_GPU: Final = 1024
MAX_MEMORY_MIB: Final = 2**21
"""2 TiB: no GPU has more."""


Quantities = Mapping[str, str | int | float]
"""Amounts of resources, as Kubernetes writes them."""


class GpuUnit(IntEnum):
    """What one unit of a node's GPU resource is."""

    NONE = 0
    WHOLE = 1
    """The vendor's resource hands out whole GPUs."""
    REPLICA_AS_GPU = 2
    """The same resource hands out time slices: several holders share a GPU under the name of a whole one."""
    REPLICA = 3
    """A resource of its own hands out time slices."""
    PART = 4
    """The node's plugin hands out parts of GPUs by memory and compute, and enforces them."""
    CLAIM = 5
    """Whole GPUs, which kube-scheduler itself allocates to ResourceClaims: it picks the GPUs."""
    OWNED = 6
    """GPUs that Kerf allocates to ResourceClaims: kube-scheduler gives none of them to pods that ask by number."""


OF_CLAIMS: Final = (GpuUnit.CLAIM, GpuUnit.OWNED)
SLICES: Final = (GpuUnit.REPLICA, GpuUnit.REPLICA_AS_GPU)
"""Units of which a GPU gives several."""


class LeftOut(IntEnum):
    """Why nothing of a node is given, or not all of it, though GPUs are or were there."""

    NOTHING = 0
    """All that is there counts."""
    UNREADABLE = 1
    """A plugin, or somebody, has written on it what can't be read."""
    PLUGIN_GONE = 2
    """A device plugin has left its records behind, and nobody offers GPUs now."""
    ONE_BY_ONE = 3
    """Its plugin takes pods one by one, from an extender alone."""
    TOO_MANY = 4
    """It has more than MAX_GPUS_PER_NODE: so many count."""
    NONE_HEALTHY = 5
    """The kubelet has GPUs, and offers none: its plugin is down, or all are unhealthy."""


LEFT_OUT_WORDS: Final = {
    LeftOut.UNREADABLE: "what is written on the node of its GPUs can't be read",
    LeftOut.PLUGIN_GONE: "a device plugin has left its records behind, and none offers GPUs",
    LeftOut.ONE_BY_ONE: "its device plugin takes pods from an extender alone",
    LeftOut.NONE_HEALTHY: "the kubelet knows GPUs here and offers none: their plugin is down, or they are unhealthy",
    LeftOut.TOO_MANY: f"of one node {MAX_GPUS_PER_NODE} GPUs are counted, no more",
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """One physical GPU."""

    model: GpuModel
    memory_mib: int
    """Memory in nominal MiB (see `nominal_mib`), 0 when unknown."""
    uuid: str = ""
    healthy: bool = True
    """Whether it may be given to anybody."""
    numa: int = -1
    """NUMA node, -1 when unknown."""
    link: int = -1
    """Group of GPUs joined by fast links (NVLink), -1 when unknown."""
    max_holders: int = 0
    """Among how many the node's plugin shares it at most, 0 for no bound."""


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A node's GPUs. Mixed models and sizes in one node are possible."""

    gpus: tuple[Gpu, ...] = ()
    """By index, as the driver counts them."""
    unit: GpuUnit = GpuUnit.NONE
    units_per_gpu: int = 1
    allocatable_units: int = 0
    """Units the kubelet offers; fewer than GPUs x units_per_gpu when some are unhealthy."""
    mig: tuple[tuple[str, int], ...] = ()
    """MIG devices the kubelet offers, by profile ("1g.5gb"); the GPUs they are cut from are not among `gpus`, or are
    withheld."""
    warnings: tuple[str, ...] = ()
    plugin_picks: bool = False
    """Whether the device plugin picks whole GPUs by itself: it may pick those that Kerf gave to a pod which asks for no
    device of it."""
    slices_led: bool = False
    """Whether it gives time slices of the GPUs that Kerf chooses."""
    set_aside: int = 0
    """Pods that failed on it soon after their start, where it takes no more for that; 0 where it takes pods."""
    left_out: LeftOut = LeftOut.NOTHING
    vendor: int = 0
    """Whose GPUs they are, by number in the registry: of a node with those of several, one's are counted."""

    @property
    def withheld_units(self) -> int:
        """Units of healthy GPUs that are not offered: of unknown index, so they count against every choice."""
        healthy = sum(gpu.healthy for gpu in self.gpus)
        return max(healthy * self.units_per_gpu - self.allocatable_units, 0)


NO_GPUS: Final = NodeOffer()


@dataclass(frozen=True, slots=True)
class NodeReading:
    """How the facts of nodes are understood."""

    memory_tolerance_frac: float = MEMORY_TOLERANCE_FRAC
    aliases: Mapping[str, Iterable[str]] = field(default_factory=dict)
    allocates: bool = False
    """Whether Kerf allocates devices to ResourceClaims where it owns the pool."""
    extender: bool = True
    """Whether kube-scheduler calls Kerf, which then binds pods itself."""
    sets_aside: bool = False
    """Whether a node that is set aside takes no pods."""


def nominal_mib(memory_mib: int, tolerance_frac: float) -> int:
    """The size a card is sold as: the next whole GiB when that is within the tolerance, else what it reports.

    Reported memory varies by 1-2 % with the driver: 40536 MiB is a 40 GiB card, 81559 an 80 GiB one, while a T4's
    15360 is really 15 GiB and an 11019 stays what it is.
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
    """The offer of a node. `capacity` has the unhealthy devices, too.

    A value that can't be understood is treated as absent and named in `warnings`: an unknown number of GPUs is
    none, an unknown memory or model satisfies no request for one.
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
    told = f"GPUs of {VENDORS[first.vendor].title} are counted here, and none of {', '.join(others)}"
    return replace(first, warnings=(*first.warnings, told))


def _of_vendor(
    number: int,
    allocatable: Quantities,
    labels: Mapping[str, str],
    capacity: Quantities,
    memory_tolerance_frac: float,
    aliases: Mapping[str, Iterable[str]],
) -> NodeOffer:
    """What a node offers of one vendor's."""
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

    told = vendor.labels(labels)
    cut = bool(told.partition)
    replicas = max(whole_number(labels, vendor.replicas_label, MAX_UNITS_PER_GPU), told.clients, 1)
    count = whole_number(labels, vendor.count_label) or told.num_gpus
    installed = whole_number(capacity, vendor.shared_resource if shared_units else vendor.resource)
    if replicas == 1 and not cut:
        replicas = _slices_each(max(installed, units), count, named=bool(shared_units))
    elif installed == count > 0 and not (shared_units or mig or cut):
        replicas = 1  # a label of slices that are no more
    # Without a label, or with one that says less than the kubelet offers, the kubelet is believed.
    count = max(count, -(-units // replicas))
    left_out = LeftOut.NOTHING
    if count > MAX_GPUS_PER_NODE:
        warnings.append(f"{count} GPUs on one node: only {MAX_GPUS_PER_NODE} of them are used")
        count, left_out = MAX_GPUS_PER_NODE, LeftOut.TOO_MANY
    unit = GpuUnit.REPLICA if shared_units else GpuUnit.REPLICA_AS_GPU if replicas > 1 or cut else GpuUnit.WHOLE

    model = describe_model(told.product, aliases, number) if told.product else UNKNOWN_MODEL
    # What is known of the product is of no use where the devices are parts of it.
    of_product = 0 if cut else PRODUCT_MEMORY_MIB.get(model.name, 0)
    memory_mib = whole_number(labels, vendor.memory_label, MAX_MEMORY_MIB) or min(
        told.memory_mib or of_product, MAX_MEMORY_MIB
    )
    gpu = Gpu(model, nominal_mib(memory_mib, memory_tolerance_frac))
    units = min(units, count * replicas)
    picks = unit is GpuUnit.WHOLE
    return NodeOffer(
        (gpu,) * count, unit, replicas, units, mig, tuple(warnings), picks, left_out=left_out, vendor=number
    )


def profile_of(resource: str, vendor: Vendor) -> str:
    """The profile of a resource of a vendor's partitions, by its whole name but for the first vendor's; "" for another
    resource."""
    if vendor.partitions is None or not resource.startswith(vendor.partitions.resource_prefix):
        return ""
    return resource.removeprefix(vendor.partitions.resource_prefix) if vendor is VENDORS[0] else resource


def resource_of(profile: str, vendor: Vendor) -> str:
    """The resource of a profile of a vendor's partitions."""
    prefix = vendor.partitions.resource_prefix if vendor is VENDORS[0] and vendor.partitions else ""
    return f"{prefix}{profile}"


def _slices_each(devices: int, count: int, *, named: bool) -> int:
    """Time slices of each of `count` GPUs, told by the number of devices; 1 where these are whole GPUs.

    Device plugins make equally many of each GPU: a multiple of the GPUs that the labels count are slices, though the
    label of replicas says nothing, or 1. `named` where the resource's own name says that they are slices.
    """
    if not count or devices <= count or (devices % count and not named):
        return 1
    each = -(-devices // count)
    return each if each <= MAX_UNITS_PER_GPU else 1
