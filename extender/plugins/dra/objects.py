"""Dynamic resource allocation, `resource.k8s.io/v1`: the few fields that Kerf reads."""

import msgspec

from extender.kube.objects import Named, Object


class Attribute(Object):
    string: str | None = None


class Capacity(Object):
    value: str | int | float = 0


class DeviceTaint(Object):
    key: str = ""
    effect: str = ""


class Device(Object):
    name: str = ""
    attributes: dict[str, Attribute] | None = None
    capacity: dict[str, Capacity] | None = None
    taints: list[DeviceTaint] | None = None


class Pool(Object, rename="camel"):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Object, rename="camel"):
    driver: str = ""
    pool: Pool = msgspec.field(default_factory=Pool)
    node_name: str | None = None
    devices: list[Device] | None = None


class ResourceSlice(Named):
    spec: ResourceSliceSpec = msgspec.field(default_factory=ResourceSliceSpec)


class CelSelector(Object):
    expression: str = ""


class DeviceSelector(Object):
    cel: CelSelector | None = None


class ExactRequest(Object, rename="camel"):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    count: int = 0
    admin_access: bool | None = None


class DeviceRequest(Object, rename="camel"):
    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] | None = None


class DeviceClaim(Object):
    requests: list[DeviceRequest] | None = None


class ResourceClaimSpec(Object):
    devices: DeviceClaim = msgspec.field(default_factory=DeviceClaim)


class AllocatedDevice(Object, rename="camel"):
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class AllocatedDevices(Object):
    results: list[AllocatedDevice] | None = None


class Allocation(Object):
    devices: AllocatedDevices = msgspec.field(default_factory=AllocatedDevices)


class Consumer(Object):
    resource: str = ""
    uid: str = ""


class ResourceClaimStatus(Object, rename="camel"):
    allocation: Allocation | None = None
    reserved_for: list[Consumer] | None = None


class ResourceClaim(Named):
    spec: ResourceClaimSpec = msgspec.field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = msgspec.field(default_factory=ResourceClaimStatus)
