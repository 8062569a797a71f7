"""Clusters of nodes whose devices Kerf gives to ResourceClaims."""

from collections.abc import Mapping, Sequence
from uuid import uuid4

from extender.core.dra.asks import ClaimAsk, Constraint, DeviceAsk, DevicesAsked, RequestAsk, Selector
from extender.core.dra.devices import Device, DeviceId, Inventory, NodeDevices, Taking
from extender.core.resources.nodes import GpuUnit
from extender.ledger.arrays import ClusterArrays
from tests.core.builders import NodeState, arrays_of, node
from tests.core.dra.cases import selector
from tests.core.dra.machines import DRIVER, a100_node

A100 = ("NVIDIA-A100-SXM4-40GB", 40960)
ROOT = "resource.kubernetes.io/pcieRoot"
OF_TYPE, OF_H200, OF_A100 = (
    selector(f"{DRIVER}/{name}", value)
    for name, value in (("type", "gpu"), ("productName", "H200"), ("productName", "A100"))
)


def device(name: str, *, gpu: int = -1, milli: int = 0, mib: int = 0, **options: object) -> Device:
    """A device of a pool of its driver's."""
    return Device(DeviceId(DRIVER, "p", name), gpu=gpu, milli=milli, mib=mib, **options)  # type: ignore[arg-type]


def having(*devices: Device, taken: Sequence[Taking] = ()) -> NodeDevices:
    """The devices of a node, of which so much is taken."""
    return NodeDevices.of(Inventory(devices), taken)


def gpus(number: int, *taken: int, name: str = "n") -> NodeDevices:
    """So many A100s, two on each PCIe root, of which some are taken."""
    return NodeDevices.of(a100_node(name, number, mig=False), [Taking(index) for index in taken])


def ask(*selectors: Selector, count: int = 1, name: str = "gpu", **options: object) -> DeviceAsk:
    """A request for devices."""
    return DeviceAsk(name, selectors, count, **options)  # type: ignore[arg-type]


def unheard_of() -> str:
    """A name of a request by which nothing was asked before: of what was, the answers are remembered."""
    return f"gpu-{uuid4()}"


def claim(*asks: DeviceAsk, constraints: tuple[Constraint, ...] = ()) -> ClaimAsk:
    """A claim of these requests."""
    return ClaimAsk(tuple(RequestAsk(one.name, (one,)) for one in asks), constraints)


def asked(*asks: DeviceAsk, constraints: tuple[Constraint, ...] = ()) -> DevicesAsked:
    """What one claim asks."""
    return DevicesAsked((claim(*asks, constraints=constraints),))


def owned(nodes: Mapping[str, NodeDevices | None], **options: object) -> ClusterArrays:
    """A cluster of nodes whose A100s are gone as far as their devices are taken; None: of such a node Kerf allocates
    none."""
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
    return node(*[A100] * number, used=used, unit=GpuUnit.OWNED, **options)  # type: ignore[arg-type]
