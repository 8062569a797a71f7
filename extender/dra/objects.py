"""Types of `resource.k8s.io/v1` (kubernetes 1.37 `api/resource/v1/types.go`) and the feeds that watch them.

Fields that Kerf does not support are decoded only to detect that they are set.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from extender.kube.objects import Metadata, Named, NodeSelector, Object
from extender.kube.watches import Feed

Quantity = str | int | float


# What drivers publish


class Attribute(Object, rename={"integer": "int", "boolean": "bool", "integers": "ints", "booleans": "bools"}):
    """An attribute's value: exactly one field is set."""

    string: str | None = None
    integer: int | None = None
    boolean: bool | None = None
    version: str | None = None
    integers: list[int] | None = None
    booleans: list[bool] | None = None
    strings: list[str] | None = None
    versions: list[str] | None = None


class CapacityRange(Object):
    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class RequestPolicy(Object, rename="camel"):
    default: Quantity | None = None
    valid_values: list[Quantity] | None = None
    valid_range: CapacityRange | None = None


class Capacity(Object, rename="camel"):
    value: Quantity = 0
    request_policy: RequestPolicy | None = None


class DeviceTaint(Object):
    key: str = ""
    value: str = ""
    effect: str = ""


class Counter(Object):
    value: Quantity = 0


class CounterSet(Object):
    name: str = ""
    counters: dict[str, Counter] | None = None


class CounterConsumption(Object, rename="camel"):
    counter_set: str = ""
    counters: dict[str, Counter] | None = None
    compatibility_groups: list[str] | None = None


class Device(Object, rename="camel"):
    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, Capacity] | None = None
    consumes_counters: list[CounterConsumption] | None = None
    taints: list[DeviceTaint] | None = None
    allow_multiple_allocations: bool | None = None
    binds_to_node: bool | None = None
    binding_conditions: list[str] | None = None
    binding_failure_conditions: list[str] | None = None
    node_allocatable_resources: dict[str, Any] | None = None
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None


class Pool(Object, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Object, rename="camel"):
    driver: str = ""
    pool: Pool = msgspec.field(default_factory=Pool)
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[Device] | None = None
    shared_counters: list[CounterSet] | None = None
    skip_node_operations: list[str] | None = None

    @property
    def of_network(self) -> bool:
        """Whether the slice's devices are network-attached: not local to one named node."""
        return not self.node_name and bool(self.all_nodes or self.node_selector or self.per_device_node_selection)


class ResourceSlice(Named):
    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)


class DeviceTaintSelector(Object):
    """Selects devices by name; a field that is None matches any name."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None


class DeviceTaintRuleSpec(Object, rename="camel"):
    device_selector: DeviceTaintSelector | None = None
    """None selects no devices."""
    taint: DeviceTaint = msgspec.field(default_factory=DeviceTaint)


class DeviceTaintRule(Named):
    spec: DeviceTaintRuleSpec = msgspec.field(default_factory=DeviceTaintRuleSpec)


# Claims and classes


class CelSelector(Object):
    expression: str = ""


class DeviceSelector(Object):
    cel: CelSelector | None = None
    """None if the selector is of a type that Kerf does not know."""


class DeviceToleration(Object, rename="camel", omit_defaults=True):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Object):
    requests: dict[str, Quantity] | None = None


class DerivedAttribute(Object):
    name: str = ""


class ExactRequest(Object, rename="camel"):
    """`ExactDeviceRequest`, or `DeviceSubRequest`; only the latter has a name."""

    name: str = ""
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    capacity: CapacityRequirements | None = None
    derived_attributes: list[DerivedAttribute] | None = None


class DeviceRequest(Object, rename="camel"):
    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] | None = None


class DeviceConstraint(Object, rename="camel"):
    requests: list[str] | None = None
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class Opaque(Object):
    """A driver's configuration parameters, passed on byte for byte."""

    driver: str = ""
    parameters: msgspec.Raw = msgspec.Raw(b"null")

    def __post_init__(self) -> None:
        self.parameters = self.parameters.copy()  # a msgspec.Raw view keeps the whole response alive


class ClaimConfig(Object):
    requests: list[str] | None = None
    opaque: Opaque | None = None


class DeviceClaim(Object):
    requests: list[DeviceRequest] | None = None
    constraints: list[DeviceConstraint] | None = None
    config: list[ClaimConfig] | None = None


class ResourceClaimSpec(Object):
    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(
    Object,
    rename={"share_id": "shareID", "admin_access": "adminAccess", "consumed_capacity": "consumedCapacity"},
):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: list[DeviceToleration] | None = None
    share_id: str | None = None
    consumed_capacity: dict[str, Quantity] | None = None


class AllocatedDevices(Object):
    results: list[AllocatedDevice] | None = None


class Allocation(Object, rename="camel"):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)
    node_selector: NodeSelector | None = None
    allocation_timestamp: str | None = None

    @property
    def node(self) -> str:
        """The node of the devices; "" if the node selector does not select one node by name."""
        terms = (self.node_selector.node_selector_terms or ()) if self.node_selector else ()
        fields = [field for term in terms for field in term.match_fields or ()]
        values = [field.values or [] for field in fields if (field.key, field.operator) == ("metadata.name", "In")]
        return values[0][0] if len(terms) == 1 and len(values) == 1 and len(values[0]) == 1 else ""


class Consumer(Object):
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Object, rename="camel"):
    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None


class ClaimMetadata(Metadata, rename="camel"):
    finalizers: list[str] | None = None


class ResourceClaim(Named):
    metadata: ClaimMetadata = msgspec.field(default_factory=ClaimMetadata)
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)

    @property
    def results(self) -> Sequence[AllocatedDevice]:
        """The claim's allocated devices, including those with admin access."""
        allocation = self.status.allocation
        return (allocation.devices.results or ()) if allocation is not None else ()


class ClassConfig(Object):
    opaque: Opaque | None = None


class DeviceClassSpec(Object, rename="camel"):
    selectors: list[DeviceSelector] | None = None
    config: list[ClassConfig] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Named):
    spec: DeviceClassSpec = msgspec.field(default_factory=DeviceClassSpec)


class DeviceClasses:
    """DeviceClasses by name, kept up to date by a watch. Not thread-safe."""

    def __init__(self) -> None:
        self.by_name: dict[str, DeviceClass] = {}
        self._names: dict[str, str] = {}  # by uid
        self.version = 0
        """Increases with every change."""

    def upsert(self, item: DeviceClass) -> None:
        """Add or replace a class."""
        self.by_name[item.metadata.name] = item
        self._names[item.metadata.uid] = item.metadata.name
        self.version += 1

    def remove(self, uid: str) -> None:
        """Remove a class. Its name may already belong to a newer one."""
        name = self._names.pop(uid, "")
        if name and self.by_name[name].metadata.uid == uid:
            del self.by_name[name]
        self.version += 1


_API: Final = "/apis/resource.k8s.io/v1"
_RULES: Final = f"{_API}/devicetaintrules"
CLAIMS: Final = Feed("claims", f"{_API}/resourceclaims", ResourceClaim, served_at=_API)
SLICES: Final = Feed("slices", f"{_API}/resourceslices", ResourceSlice, served_at=_API)
CLASSES: Final = Feed("device classes", f"{_API}/deviceclasses", DeviceClass, served_at=_API)
RULES: Final = Feed("device taint rules", _RULES, DeviceTaintRule, served_at=f"{_RULES}?limit=1")
"""Served since Kubernetes 1.37."""
TO_ALLOCATE: Final[tuple[Feed[Any], ...]] = (SLICES, CLAIMS, CLASSES)
"""Kerf allocates nothing until all of these are synced."""
