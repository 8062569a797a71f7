"""Clusters of nodes whose devices Kerf allocates to ResourceClaims."""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from extender.core.dra.asks import ClaimSpec, Constraint, DeviceClaims, DeviceSpec, RequestSpec, Selector
from extender.core.dra.devices import Device, DeviceId, Inventory, NodeDevices, Taking
from extender.core.resources.nodes import GpuUnit
from extender.ledger.arrays import ClusterArrays
from tests.core.builders import A100_40, NodeState, arrays_of, node
from tests.core.dra.cases import selector
from tests.core.dra.machines import DRIVER, a100_node

ROOT = "resource.kubernetes.io/pcieRoot"
OF_TYPE, OF_H200, OF_A100 = (
    selector(f"{DRIVER}/{name}", value)
    for name, value in (("type", "gpu"), ("productName", "H200"), ("productName", "A100"))
)


def device(name: str, *, gpu: int = -1, milli: int = 0, mib: int = 0, **options: object) -> Device:
    """A device in a pool of its driver."""
    return Device(DeviceId(DRIVER, "p", name), gpu=gpu, milli=milli, mib=mib, **options)  # type: ignore[arg-type]


def having(*devices: Device, taken: Sequence[Taking] = ()) -> NodeDevices:
    """The devices of a node, some of them taken."""
    return NodeDevices.of(Inventory(devices), taken)


def gpus(number: int, *taken: int, name: str = "n") -> NodeDevices:
    """A100s, two on each PCIe root, some of them taken."""
    return NodeDevices.of(a100_node(name, number, mig=False), [Taking(index) for index in taken])


def ask(*selectors: Selector, count: int = 1, name: str = "gpu", **options: object) -> DeviceSpec:
    """A request for devices."""
    return DeviceSpec(name, selectors, count, **options)  # type: ignore[arg-type]


def new_name() -> str:
    """A request name that was never used, so that no result is cached."""
    return f"gpu-{uuid4()}"


def claim(*asks: DeviceSpec, constraints: tuple[Constraint, ...] = ()) -> ClaimSpec:
    """A claim of these requests, without alternatives."""
    return ClaimSpec(tuple(RequestSpec(one.name, (one,)) for one in asks), constraints)


def asked(*asks: DeviceSpec, constraints: tuple[Constraint, ...] = ()) -> DeviceClaims:
    """A single such claim."""
    return DeviceClaims((claim(*asks, constraints=constraints),))


def owned(nodes: Mapping[str, NodeDevices | None], **options: object) -> ClusterArrays:
    """A cluster of A100s, booked as far as their devices are taken; None: Kerf allocates no devices of the node."""
    states = {name: _state(devices, **options) for name, devices in nodes.items()}
    arrays = arrays_of(states)
    for row, devices in enumerate(nodes.values()):
        arrays.set_devices(row, devices)
    return arrays


def _state(devices: NodeDevices | None, **options: object) -> NodeState:
    if devices is None:
        return node()
    of_gpus = [one.gpu for one in devices.inventory.devices if one.gpu >= 0]
    used: dict[int, tuple[int, int]] = {}
    for index, one in enumerate(devices.inventory.devices):
        if devices.taken >> index & 1 and one.gpu >= 0:
            milli, mib = used.get(one.gpu, (0, 0))
            used[one.gpu] = milli + one.milli, mib + one.mib
    number = max(of_gpus, default=-1) + 1
    return node(*[A100_40] * number, used=used, unit=GpuUnit.OWNED, **options)  # type: ignore[arg-type]
