"""Reads a node's ResourceSlices into its pools, GPUs and allocatable devices.

Pools are gathered and validated like kube-scheduler's allocator does: kubernetes 1.37.2
`dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go`, and `resourceslice/tracker/tracker.go`
for DeviceTaintRules. A pool that can't be read exactly is not read at all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple

from extender.core.clusters import WHOLE_MILLI
from extender.core.dra import owning
from extender.core.dra.devices import (
    NO_DEVICES,
    Amount,
    Capacity,
    CounterId,
    Device,
    DeviceId,
    Inventory,
    Taint,
    Value,
    Version,
)
from extender.core.resources.gpu_models import UNKNOWN_MODEL, describe_model
from extender.core.resources.nodes import (
    MAX_GPUS_PER_NODE,
    MAX_MEMORY_MIB,
    NO_GPUS,
    Gpu,
    GpuUnit,
    NodeOffer,
    NodeReading,
    nominal_mib,
)
from extender.core.resources.quantities import MIB, parse_quantity
from extender.core.vendors.registry import DRIVERS, NUMBER_OF_DRIVER
from extender.core.vendors.vendor import Driver
from extender.dra import objects
from extender.dra.objects import CounterSet, DeviceTaintRule, ResourceSlice
from extender.dra.results import amount_of


class PoolId(NamedTuple):
    """A pool's name; sorts in kube-scheduler's allocation order."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"pool {self.pool} of {self.driver}"


@dataclass(frozen=True, slots=True)
class _NodePool:
    """The newest generation of a pool, as seen from one node."""

    id: PoolId
    slices: tuple[ResourceSlice, ...]
    """Slices of the node's devices and of network-attached devices, sorted by name."""
    counter_sets: tuple[CounterSet, ...] = ()
    other_nodes: tuple[ResourceSlice, ...] = ()
    """Slices of other nodes' devices."""
    incomplete: str = ""
    """Why kube-scheduler waits for more slices; "" if it does not."""
    invalid: str = ""
    """Why kube-scheduler rejects the pool; "" if it does not."""

    @property
    def is_valid(self) -> bool:
        """Whether kube-scheduler allocates from the pool."""
        return not self.incomplete and not self.invalid

    @property
    def devices(self) -> Iterator[objects.Device]:
        """The node's devices, in kube-scheduler's allocation order."""
        return (device for item in self.slices for device in item.spec.devices or ())


@dataclass(slots=True)
class _Slices:
    """The slices of one pool: of this node and of other nodes."""

    local: list[ResourceSlice] = field(default_factory=list)
    remote: list[ResourceSlice] = field(default_factory=list)


def _gather_pools(node: str, slices: Iterable[ResourceSlice]) -> list[_NodePool]:
    """A node's pools, in kube-scheduler's allocation order.

    `slices` are all slices of every pool with a slice on the node, and network-attached slices, whose node selector is
    not evaluated.
    """
    slices_of: dict[PoolId, _Slices] = {}
    for item in slices:
        spec = item.spec
        of_pool = slices_of.setdefault(PoolId(spec.driver, spec.pool.name), _Slices())
        (of_pool.local if spec.node_name == node or spec.of_network else of_pool.remote).append(item)
    pools = (_pool(name, slices_of[name].local, slices_of[name].remote) for name in sorted(slices_of))
    return [pool for pool in pools if pool]


def _pool(name: PoolId, local: Sequence[ResourceSlice], remote: Sequence[ResourceSlice]) -> _NodePool | None:
    """One pool; None without local slices, or while its driver replaces it by a generation without any."""
    if not local:
        return None
    newest = max(item.spec.pool.generation for item in local)
    local = sorted((item for item in local if item.spec.pool.generation == newest), key=lambda item: item.metadata.name)
    count = local[0].spec.pool.resource_slice_count
    if len(local) != count and any(item.spec.pool.generation > newest for item in remote):
        return None
    remote = sorted(
        (item for item in remote if item.spec.pool.generation == newest), key=lambda item: item.metadata.name
    )
    num_slices = len(local) + len(remote)
    if count not in (len(local), num_slices):
        return _NodePool(name, tuple(local), incomplete=f"{num_slices} of its {count} slices exist")
    counters = [item for item in (*local, *remote) if item.spec.shared_counters]
    of_node = [item for item in local if not item.spec.shared_counters]
    other_nodes = [item for item in remote if not item.spec.shared_counters]
    sets = [counter_set for item in counters for counter_set in item.spec.shared_counters or ()]
    pool = _NodePool(name, tuple(of_node), tuple(sets), tuple(other_nodes))
    return replace(pool, invalid=_invalid(pool))


def _invalid(pool: _NodePool) -> str:
    """Why a pool is invalid; "" if it is valid."""
    if duplicate := _duplicate(device.name for device in pool.devices):
        return f"device name {duplicate} is published twice"
    if duplicate := _duplicate(counters.name for counters in pool.counter_sets):
        return f"counter set {duplicate} is published twice"
    sets = {counters.name: counters.counters or {} for counters in pool.counter_sets}
    for item in (*pool.slices, *pool.other_nodes):
        for device in item.spec.devices or ():
            for consumed in device.consumes_counters or ():
                if consumed.counter_set not in sets:
                    return f"counter set {consumed.counter_set} of device {device.name} is missing"
                for counter in consumed.counters or ():
                    if counter not in sets[consumed.counter_set]:
                        return f"counter {counter} of device {device.name} is missing"
    return ""


def _duplicate(names: Iterable[str]) -> str:
    """The first name that occurs a second time; "" if none does."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


# Taints


def _taints_of(pool: PoolId, device: objects.Device, rules: Sequence[DeviceTaintRule]) -> tuple[Taint, ...]:
    """A device's taints: those its driver publishes, then those of the rules that select it."""
    published = (Taint(taint.key, taint.value, taint.effect) for taint in device.taints or ())
    added = (
        Taint(rule.spec.taint.key, rule.spec.taint.value, rule.spec.taint.effect)
        for rule in rules
        if _selects(rule, pool, device.name)
    )
    return (*published, *added)


def _rules_for(pool: PoolId, rules: Iterable[DeviceTaintRule]) -> list[DeviceTaintRule]:
    """The rules that may select devices of a pool."""
    return [rule for rule in rules if _selects(rule, pool, None)]


def _selects(rule: DeviceTaintRule, pool: PoolId, device: str | None) -> bool:
    selector = rule.spec.device_selector
    return (
        selector is not None
        and selector.driver in (None, pool.driver)
        and selector.pool in (None, pool.pool)
        and (device is None or selector.device in (None, device))
    )


_NO_INDEX: Final = 2**31
"""Sorts devices whose name has no index last."""


@dataclass(frozen=True, slots=True)
class _PublishedGpus:
    """The GPUs of one node's complete pools."""

    driver: Driver | None
    """The GPUs' driver; None if there are no GPUs."""
    offer: NodeOffer
    index_of: Mapping[tuple[str, str], int]
    """GPU index by (pool, device); a partition has its parent GPU's index."""


_NO_GPUS: Final = _PublishedGpus(None, NO_GPUS, {})


# ResourceSlices


def _read_inventory(
    slices: Sequence[objects.ResourceSlice],
    reading: NodeReading,
    rules: Sequence[objects.DeviceTaintRule] = (),
    *,
    owned_only: bool = True,
) -> _PublishedGpus:
    """The GPUs in one node's slices, by index; with several vendors, the first registered vendor's.

    A tainted GPU is unhealthy, except for Kerf's ownership taint. A GPU in MIG mode is published only as partitions: it
    counts if Kerf owns all of them or `owned_only` is False. If kube-scheduler allocates them, Kerf would take it for
    a whole GPU.
    """
    names = {item.spec.driver for item in slices}
    driver = next((driver for name, driver in DRIVERS.items() if name in names), None)
    if driver is None:
        return _NO_GPUS
    published = _Published(driver, reading, rules)
    devices = [
        (item.spec.pool.name, device)
        for item in slices
        if item.spec.driver == driver.name
        for device in item.spec.devices or ()
    ]
    partitions: dict[str, list[tuple[str, objects.Device]]] = {}  # by the parent GPU's UUID
    for pool, device in devices:
        if parent := _text_of(device, driver.parent, driver):
            partitions.setdefault(parent, []).append((pool, device))
    gpu_at = {
        (_index(device.name, driver), pool, device.name): (
            published.gpu(device, published.taints(pool, device)),
            _text_of(device, driver.identity, driver),
        )
        for pool, device in devices
        if _text_of(device, "type", driver) == driver.whole
    }
    identities = {identity for _, identity in gpu_at.values()}
    for parent in partitions.keys() - identities:
        of_parent = partitions[parent]
        taints = [published.taints(pool, device) for pool, device in of_parent]
        if not owned_only or all(map(owning.owns, taints)):
            pool, first = of_parent[0]
            gpu = published.partitioned_gpu([device for _, device in of_parent], taints)
            uuid = parent if driver.identity == driver.uuid else ""
            gpu_at[_index(first.name, driver), pool, first.name] = replace(gpu, uuid=uuid), parent
    ordered = sorted(gpu_at.items(), key=lambda item: item[0])[:MAX_GPUS_PER_NODE]
    gpus = tuple(gpu for _, (gpu, _) in ordered)
    index_of = {key[1:]: index for index, (key, _) in enumerate(ordered)}
    for index, (_, (_, identity)) in enumerate(ordered):
        index_of |= dict.fromkeys(((pool, device.name) for pool, device in partitions.get(identity, ())), index)
    units, vendor = sum(gpu.healthy for gpu in gpus), NUMBER_OF_DRIVER[driver.name]
    return _PublishedGpus(driver, NodeOffer(gpus, GpuUnit.CLAIM, 1, units, vendor=vendor), index_of)


def _index(name: str, driver: Driver) -> int:
    match = driver.index.fullmatch(name)
    return int(match[1]) if match else _NO_INDEX


@dataclass(frozen=True, slots=True)
class _Published:
    """Reads a GPU driver's devices."""

    driver: Driver
    reading: NodeReading
    rules: Sequence[objects.DeviceTaintRule]

    def gpu(self, device: objects.Device, taints: Iterable[Taint]) -> Gpu:
        """A whole GPU, or a partition's attributes of its GPU."""
        product, memory_mib = _text_of(device, self.driver.product, self.driver), self._memory_mib(device)
        vendor = NUMBER_OF_DRIVER[self.driver.name]
        return Gpu(
            describe_model(product, self.reading.aliases, vendor) if product else UNKNOWN_MODEL,
            nominal_mib(memory_mib, self.reading.memory_tolerance_frac) if memory_mib else 0,
            _text_of(device, self.driver.uuid, self.driver) if self.driver.uuid else "",
            healthy=not any(
                taint.effect in ("NoSchedule", "NoExecute") and taint.key != owning.KEY for taint in taints
            ),
        )

    def partitioned_gpu(self, partitions: Sequence[objects.Device], taints: Iterable[Iterable[Taint]]) -> Gpu:
        """A GPU published only as partitions: has their total memory, and is healthy if any partition is."""
        gpus = [self.gpu(partition, its_taints) for partition, its_taints in zip(partitions, taints, strict=True)]
        memory_mib = min(sum(map(self._memory_mib, partitions)), MAX_MEMORY_MIB)
        return replace(gpus[0], memory_mib=memory_mib, healthy=any(gpu.healthy for gpu in gpus))

    def taints(self, pool: str, device: objects.Device) -> tuple[Taint, ...]:
        """A device's taints, including those of rules."""
        return _taints_of(PoolId(self.driver.name, pool), device, self.rules)

    def _memory_mib(self, device: objects.Device) -> int:
        """A device's memory; 0 if unknown, or above MAX_MEMORY_MIB."""
        capacity = device.capacity or {}
        memory = capacity.get("memory") or capacity.get(f"{self.driver.name}/memory")
        try:
            mib = int(parse_quantity(str(memory.value)) // MIB) if memory else 0
        except ValueError:
            return 0
        return mib if 0 < mib <= MAX_MEMORY_MIB else 0


def _text_of(device: objects.Device, name: str, driver: Driver) -> str:
    """A device's string attribute, without a domain or in the driver's; "" if there is none."""
    attributes = device.attributes or {}
    attribute = attributes.get(name) or attributes.get(f"{driver.name}/{name}")
    return (attribute.string or "") if attribute else ""


_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_WORD: Final = rf"(?:{_NUMBER}|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_WORD}(?:\.{_WORD})*))?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
_MAX_VERSION_CHARS: Final = 256
_MAX_UINT64: Final = 2**64 - 1


class _UnreadableDeviceError(ValueError):
    """A device, or its pool, can't be read exactly."""


def _full_name(name: str, driver: str) -> str:
    """An attribute's or capacity's qualified name; the domain defaults to the driver's."""
    return name if "/" in name else f"{driver}/{name}"


def _unsupported(pool: _NodePool) -> str:
    """The feature of a pool that Kerf does not support; "" if it supports the pool."""
    if any(item.spec.of_network for item in (*pool.slices, *pool.other_nodes)):
        return "network-attached devices are not supported"
    if any(item.spec.skip_node_operations for item in pool.slices):
        return "skipNodeOperations is not supported"
    for device in pool.devices:
        if fields := _unsupported_fields(device):
            return f"device {device.name} has {fields}: not supported"
    names = [device.name for item in (*pool.slices, *pool.other_nodes) for device in item.spec.devices or ()]
    if duplicate := _duplicate(names):
        return f"device name {duplicate} is published on two nodes"
    if any(device.consumes_counters for item in pool.other_nodes for device in item.spec.devices or ()):
        return "counters shared by devices of several nodes are not supported"
    return ""


def _unsupported_fields(device: objects.Device) -> str:
    if device.binding_conditions or device.binding_failure_conditions:
        return "binding conditions"
    if any(consumed.compatibility_groups for consumed in device.consumes_counters or ()):
        return "compatibility groups"
    if device.node_allocatable_resources:
        return "node allocatable resources"
    if device.node_name or device.node_selector or device.all_nodes:
        return "a node selection of its own"
    return ""


def _read_device(
    pool: PoolId, device: objects.Device, taints: Sequence[Taint], counters: Mapping[tuple[str, str], int]
) -> Device:
    """A device, not yet assigned to a GPU. Raises _UnreadableDeviceError."""
    try:
        return Device(
            DeviceId(pool.driver, pool.pool, device.name),
            _attributes(pool.driver, device),
            {name: _capacity(capacity) for name, capacity in (device.capacity or {}).items()},
            tuple(sorted(_consumed(device, counters).items())),
            tuple(taints),
            shareable=bool(device.allow_multiple_allocations),
        )
    except ValueError as error:
        raise _UnreadableDeviceError(f"device {device.name}: {error}") from None


def _attributes(driver: str, device: objects.Device) -> dict[str, Value]:
    for names in (device.attributes or (), device.capacity or ()):
        if duplicate := _duplicate(_full_name(name, driver) for name in names):
            raise ValueError(f"{duplicate} is published with and without its domain")
    return {_full_name(name, driver): _value(name, value) for name, value in (device.attributes or {}).items()}


def _value(name: str, attribute: objects.Attribute) -> Value:
    """An attribute's value; fields are checked in the order of `k8s.io/dynamic-resource-allocation/cel`."""
    lists = (attribute.integers, attribute.booleans, attribute.strings, attribute.versions)
    if any(values is not None for values in lists):
        raise ValueError(f"attribute {name} is a list: not supported")
    if attribute.integer is not None:
        return attribute.integer
    if attribute.boolean is not None:
        return attribute.boolean
    if attribute.string is not None:
        return attribute.string
    if attribute.version is None:
        raise ValueError(f"attribute {name} has a value of an unknown type")
    if not is_version(attribute.version):
        raise ValueError(f"attribute {name} is not a semantic version")
    return Version(attribute.version)


def is_version(text: str) -> bool:
    """Whether a text is a semantic version as `github.com/blang/semver` parses it."""
    match = _SEMVER.fullmatch(text) if len(text) <= _MAX_VERSION_CHARS else None
    if match is None:
        return False
    numbers = [match[1], match[2], match[3], *(word for word in (match[4] or "").split(".") if word.isdecimal())]
    return all(int(number) <= _MAX_UINT64 for number in numbers)


def _capacity(capacity: objects.Capacity) -> Capacity:
    policy = capacity.request_policy
    if policy is None:
        return Capacity(amount_of(capacity.value))
    span = policy.valid_range
    return Capacity(
        amount_of(capacity.value),
        None if policy.default is None else amount_of(policy.default),
        tuple(amount_of(value) for value in policy.valid_values or ()),
        (_optional(span.min), _optional(span.max), _optional(span.step)) if span else None,
    )


def _optional(quantity: objects.Quantity | None) -> Amount | None:
    return None if quantity is None else amount_of(quantity)


def _consumed(device: objects.Device, counters: Mapping[tuple[str, str], int]) -> dict[int, Amount]:
    """The amounts of counters that a device consumes, by counter index."""
    consumed: dict[int, Amount] = {}
    for name, counter, amount in _counters_of(device):
        index = counters[name, counter]
        consumed[index] = consumed.get(index, 0) + amount
    return consumed


def _counters_of(device: objects.Device) -> Iterator[tuple[str, str, Amount]]:
    for consumption in device.consumes_counters or ():
        for counter, value in (consumption.counters or {}).items():
            yield consumption.counter_set, counter, amount_of(value.value)


_MEMORY: Final = "memory"


def _assign_gpus(pool: _NodePool, devices: Sequence[Device], gpus: _PublishedGpus) -> Iterator[Device]:
    """`devices`, which are the pool's in its order, each with its GPU and its share of the GPU.

    A partition names its parent GPU, or shares counters with it.
    """
    driver = gpus.driver
    if driver is None or pool.id.driver != driver.name:
        yield from devices
        return
    gpu_of = _gpu_by_counters(pool, gpus, driver)
    assigned = [
        (_is_whole(device, driver), read, _gpu_index(pool, device, gpus, gpu_of))
        for device, read in zip(pool.devices, devices, strict=True)
    ]
    wholes = {gpu: [read] for whole, read, gpu in assigned if whole}
    partitions: dict[int, list[Device]] = {}
    for whole, read, gpu in assigned:
        if not whole:
            partitions.setdefault(gpu, []).append(read)
    for whole, read, gpu in assigned:
        if gpu < 0:
            yield read
        elif whole:
            yield replace(read, gpu=gpu, milli=WHOLE_MILLI, mib=gpus.offer.gpus[gpu].memory_mib)
        else:
            yield _partition(read, gpu, wholes.get(gpu) or partitions[gpu], gpus.offer.gpus[gpu].memory_mib, driver)


def _gpu_index(pool: _NodePool, device: objects.Device, gpus: _PublishedGpus, gpu_of: Mapping[str, int]) -> int:
    """The index of a device's GPU; -1 if it has none or the GPU is unknown."""
    gpu = gpus.index_of.get((pool.id.pool, device.name), -1)
    if gpu >= 0:
        return gpu
    shared = {gpu_of[name] for name in _counter_sets(device) if name in gpu_of}
    return shared.pop() if len(shared) == 1 else -1


def _is_whole(device: objects.Device, driver: Driver) -> bool:
    return _text_of(device, "type", driver) == driver.whole


def _counter_sets(device: objects.Device) -> Iterator[str]:
    return (consumed.counter_set for consumed in device.consumes_counters or ())


def _gpu_by_counters(pool: _NodePool, gpus: _PublishedGpus, driver: Driver) -> dict[str, int]:
    """GPU index by counter set, for sets that exactly one whole GPU consumes from."""
    consumers: dict[str, set[int]] = {}
    for device in pool.devices:
        gpu = gpus.index_of.get((pool.id.pool, device.name))
        if gpu is not None and _is_whole(device, driver):
            for name in _counter_sets(device):
                consumers.setdefault(name, set()).add(gpu)
    return {name: indices.pop() for name, indices in consumers.items() if len(indices) == 1}


def _partition(read: Device, gpu: int, whole: Sequence[Device], gpu_mib: int, driver: Driver) -> Device:
    """A partition with its share of the GPU: compute by the driver's measure, else by memory, else the whole GPU.

    `whole` is the whole GPU's device, or all of its static partitions.
    """
    memory = _share(read, whole, _MEMORY, driver)
    compute = _share(read, whole, driver.compute, driver) or memory
    mib = min(int(_amount_of(read, _MEMORY, driver) // MIB), gpu_mib)
    return replace(read, gpu=gpu, milli=compute or WHOLE_MILLI, mib=mib if memory else gpu_mib)


def _share(read: Device, whole: Sequence[Device], name: str, driver: Driver) -> int:
    """A partition's share of the whole in thousandths, rounded down so that all partitions fit; 0 if unknown."""
    part, total = _amount_of(read, name, driver), sum(_amount_of(device, name, driver) for device in whole)
    return min(max(int(WHOLE_MILLI * part / total), 1), WHOLE_MILLI) if part > 0 and total > 0 else 0


def _amount_of(read: Device, name: str, driver: Driver) -> Amount:
    capacity = read.capacity.get(name) or read.capacity.get(f"{driver.name}/{name}")
    return capacity.value if capacity else 0


_MAX_DEVICES: Final = 4096
"""Per node; eight GPUs with all their partitions are about 200."""


class Owner(StrEnum):
    """The scheduler that allocates a pool's devices."""

    KERF = "kerf"
    KUBE_SCHEDULER = "kube-scheduler"
    NONE = "nobody"
    """The pool is being handed over, can't be read now, or Kerf owns it and can't use it."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool, as seen from one node."""

    id: PoolId
    num_devices: int
    """Devices on this node."""
    owner: Owner
    fault: str = ""
    """Why Kerf allocates none of the devices of a pool that it owns, or why the owner is unknown."""


@dataclass(frozen=True, slots=True)
class NodePools:
    """The contents of one node's slices."""

    offer: NodeOffer = NO_GPUS
    """The node's GPUs, regardless of who allocates them."""
    driver: str = ""
    """The GPUs' driver; "" if there are no GPUs."""
    index_of: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """GPU index by (pool, device), for that driver; a partition has its parent GPU's index."""
    inventory: Inventory = NO_DEVICES
    """The devices that Kerf owns."""
    faults: tuple[str, ...] = ()
    """Why Kerf allocates no devices of pools that it owns; each sentence names the pool."""
    others: bool = False
    """Whether there are pools that Kerf neither owns nor is taking over."""
    states: tuple[PoolState, ...] = ()
    """All pools, in kube-scheduler's allocation order."""


def read_pools(
    slices: Sequence[ResourceSlice],
    rules: Iterable[DeviceTaintRule],
    reading: NodeReading,
    *,
    node: str = "",
    owned_only: bool = True,
    gpus_alone: bool = False,
) -> NodePools:
    """A node's pools, GPUs and allocatable devices.

    `slices` are all slices of every pool with a slice on the node, and network-attached slices. `node` defaults to the
    first node that a slice names. If not `owned_only`, all pools are Kerf's and ownership taints count like any other.
    `gpus_alone` reads only which GPUs there are.
    """
    node = node or next((item.spec.node_name for item in slices if item.spec.node_name), "")
    pools, rules = _gather_pools(node, slices), tuple(rules)
    gpu_pools = [pool for pool in pools if pool.is_valid and pool.id.driver in DRIVERS]
    gpu_slices = [item for pool in gpu_pools for item in pool.slices if item.spec.node_name]
    gpus = _read_inventory(gpu_slices, reading, rules, owned_only=owned_only)
    reader = _Reader(rules, gpus, owned_only)
    for pool in () if gpus_alone else pools:
        reader.read(pool)
    return NodePools(
        gpus.offer,
        gpus.driver.name if gpus.driver else "",
        gpus.index_of,
        reader.inventory,
        tuple(reader.faults),
        reader.others,
        tuple(reader.states),
    )


class _Reader:
    """Reads a node's pools one by one and collects the devices that Kerf owns."""

    def __init__(self, rules: Sequence[DeviceTaintRule], gpus: _PublishedGpus, owned_only: bool) -> None:
        self._rules = rules
        self._gpus = gpus
        self._owned_only = owned_only
        self._devices: list[Device] = []
        self._counters: list[Amount] = []
        self._counter_of: dict[CounterId, int] = {}
        self._unavailable: list[Device] = []
        self._complete = True
        self.faults: list[str] = []
        self.states: list[PoolState] = []
        self.others = False

    @property
    def inventory(self) -> Inventory:
        index_of: dict[DeviceId, int] = {device.id: index for index, device in enumerate(self._devices)}
        return Inventory(
            tuple(self._devices),
            tuple(self._counters),
            index_of,
            self._counter_of,
            tuple(self._unavailable),
            self._complete,
        )

    def read(self, pool: _NodePool) -> None:
        """Read a pool."""
        taints = self._taints(pool)
        marked = not self._owned_only or any(taint.key == owning.KEY for each in taints.values() for taint in each)
        self.others |= bool(taints) and not marked
        fault = pool.incomplete or pool.invalid or _unsupported(pool)
        if not fault and len(self._devices) + len(self._unavailable) + len(taints) > _MAX_DEVICES:
            fault = f"more than {_MAX_DEVICES} devices on one node"
        owned = not self._owned_only or (bool(taints) and all(map(owning.owns, taints.values())))
        if not fault and marked and not owned and not _held(taints):
            fault = f"only some of its devices have the taint {owning.KEY}"
        try:
            if not pool.is_valid:
                raise _UnreadableDeviceError(fault)
            self._add_devices(pool, taints, allocatable=owned and not fault)
        except _UnreadableDeviceError as error:
            fault = fault or str(error)
            self._complete = False
        if fault and marked:
            self.faults.append(f"{pool.id}: {fault}")
        unread = bool(pool.incomplete or pool.invalid)
        owner = Owner.NONE if marked or unread else Owner.KUBE_SCHEDULER
        owner = Owner.KERF if owned and not fault else owner
        self.states.append(PoolState(pool.id, sum(1 for _ in pool.devices), owner, fault if marked or unread else ""))

    def _taints(self, pool: _NodePool) -> dict[str, tuple[Taint, ...]]:
        """Taints by device, including devices on other nodes."""
        rules = _rules_for(pool.id, self._rules)
        devices = (device for item in (*pool.slices, *pool.other_nodes) for device in item.spec.devices or ())
        return {device.name: _taints_of(pool.id, device, rules) for device in devices}

    def _add_devices(self, pool: _NodePool, taints: Mapping[str, Sequence[Taint]], allocatable: bool) -> None:
        """Add all of a pool's devices as allocatable or unavailable. Adds none if it raises _UnreadableDeviceError."""
        index_of, amounts = _counters(pool, len(self._counters))
        devices = []
        for device in pool.devices:
            visible = [taint for taint in taints[device.name] if not self._owned_only or taint.key != owning.KEY]
            devices.append(_read_device(pool.id, device, visible, index_of))
        if allocatable:
            self._devices += _assign_gpus(pool, devices, self._gpus)
            self._counters += amounts
            self._counter_of |= {
                CounterId(pool.id.driver, pool.id.pool, *counter): index for counter, index in index_of.items()
            }
        else:
            self._unavailable += [replace(device, consumes=()) for device in devices]


def _held(taints: Mapping[str, Sequence[Taint]]) -> bool:
    """Whether a pool is being handed over to Kerf or back, which is not a fault."""
    return owning.HELD in [taint for each in taints.values() for taint in each]


def _counters(pool: _NodePool, first: int) -> tuple[dict[tuple[str, str], int], list[Amount]]:
    """A pool's counters: indices by (set, name), starting at `first`, and amounts. Raises _UnreadableDeviceError."""
    index_of: dict[tuple[str, str], int] = {}
    amounts: list[Amount] = []
    for counter_set in sorted(pool.counter_sets, key=lambda item: item.name):
        for name, counter in sorted((counter_set.counters or {}).items()):
            index_of[counter_set.name, name] = first + len(amounts)
            try:
                amounts.append(amount_of(counter.value))
            except ValueError as error:
                raise _UnreadableDeviceError(f"counter {name} of {counter_set.name}: {error}") from None
    return index_of, amounts
