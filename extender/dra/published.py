"""What drivers publish in ResourceSlices, read into the devices of a node.

The devices of one node that Kerf may give, of all pools that drivers publish there.

The pools of one node as kube-scheduler's allocator gathers them: newest, complete, free of contradictions.

Read in kubernetes 1.37.2 `dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go`, which
kube-scheduler 1.37 uses by default, and `resourceslice/tracker/tracker.go` for the rules that add taints.

Vendors' drivers for dynamic resource allocation (DRA): GPUs that kube-scheduler itself allocates to ResourceClaims.

Read in kubernetes 1.36 `api/resource/v1/types.go`, `dynamic-resource-allocation/structured/internal/stable`.

A device as a driver publishes it, read into the core's terms exactly, or not at all.

Which GPU of its node a device is, or is a part of, and how much of it.

Drivers publish partitions with what tells their GPU, and may let all devices of a GPU share one set of counters.
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
    """What a pool is called; in order, that in which kube-scheduler looks at them."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"pool {self.pool} of {self.driver}"


@dataclass(frozen=True, slots=True)
class _NodePool:
    """The newest generation of a pool, seen from one node."""

    id: PoolId
    slices: tuple[ResourceSlice, ...]
    """Those of the node's devices, and those that may be of any node, by name."""
    counter_sets: tuple[CounterSet, ...] = ()
    elsewhere: tuple[ResourceSlice, ...] = ()
    """Those of other nodes' devices."""
    incomplete: str = ""
    """Why kube-scheduler waits for more slices, "" where it does not."""
    invalid: str = ""
    """Why kube-scheduler refuses the pool, "" where it does not."""

    @property
    def sound(self) -> bool:
        """Whether kube-scheduler allocates of it."""
        return not self.incomplete and not self.invalid

    @property
    def devices(self) -> Iterator[objects.Device]:
        """The node's devices, in the order in which kube-scheduler looks at them."""
        return (device for item in self.slices for device in item.spec.devices or ())


@dataclass(slots=True)
class _Slices:
    """The slices of one pool."""

    near: list[ResourceSlice] = field(default_factory=list)
    far: list[ResourceSlice] = field(default_factory=list)


def _gather_pools(node: str, slices: Iterable[ResourceSlice]) -> list[_NodePool]:
    """A node's pools, in the order in which kube-scheduler looks at them.

    `slices` are all slices of every pool of which one is the node's, and those of devices that are reached over the
    network: whether a node meets their node selector is not looked at.
    """
    of: dict[PoolId, _Slices] = {}
    for item in slices:
        spec = item.spec
        found = of.setdefault(PoolId(spec.driver, spec.pool.name), _Slices())
        (found.near if spec.node_name == node or spec.of_network else found.far).append(item)
    pools = (_pool(name, of[name].near, of[name].far) for name in sorted(of) if of[name].near)
    return [pool for pool in pools if pool]


def _pool(name: PoolId, near: Sequence[ResourceSlice], far: Sequence[ResourceSlice]) -> _NodePool | None:
    """None while its driver is replacing it by a generation that has nothing on this node."""
    newest = max(item.spec.pool.generation for item in near)
    near = sorted((item for item in near if item.spec.pool.generation == newest), key=lambda item: item.metadata.name)
    count = near[0].spec.pool.resource_slice_count
    if len(near) != count and any(item.spec.pool.generation > newest for item in far):
        return None
    far = sorted((item for item in far if item.spec.pool.generation == newest), key=lambda item: item.metadata.name)
    if count not in (len(near), len(near) + len(far)):
        found = len(near) + len(far)
        return _NodePool(name, tuple(near), incomplete=f"{found} of its {count} slices are there")
    counters = [item for item in (*near, *far) if item.spec.shared_counters]
    holding = [item for item in near if not item.spec.shared_counters]
    elsewhere = [item for item in far if not item.spec.shared_counters]
    sets = [counter_set for item in counters for counter_set in item.spec.shared_counters or ()]
    pool = _NodePool(name, tuple(holding), tuple(sets), tuple(elsewhere))
    return replace(pool, invalid=_invalid(pool))


def _invalid(pool: _NodePool) -> str:
    """Why a pool is refused, "" where it is not."""
    twice = _repeated(device.name for device in pool.devices)
    if twice:
        return f"device name {twice} is there twice"
    twice = _repeated(counters.name for counters in pool.counter_sets)
    if twice:
        return f"counter set {twice} is there twice"
    sets = {counters.name: counters.counters or {} for counters in pool.counter_sets}
    for item in (*pool.slices, *pool.elsewhere):
        for device in item.spec.devices or ():
            for consumed in device.consumes_counters or ():
                if consumed.counter_set not in sets:
                    return f"counter set {consumed.counter_set} of device {device.name} is missing"
                for counter in consumed.counters or ():
                    if counter not in sets[consumed.counter_set]:
                        return f"counter {counter} of device {device.name} is missing"
    return ""


def _repeated(names: Iterable[str]) -> str:
    """The first name that is there again, "" where each is there once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


# Taints


def _taints_of(pool: PoolId, device: objects.Device, rules: Sequence[DeviceTaintRule]) -> tuple[Taint, ...]:
    """A device's taints: those that its driver publishes, and those of the rules that select it."""
    own = (Taint(taint.key, taint.value, taint.effect) for taint in device.taints or ())
    added = (
        Taint(rule.spec.taint.key, rule.spec.taint.value, rule.spec.taint.effect)
        for rule in rules
        if _selects(rule, pool, device.name)
    )
    return (*own, *added)


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


_LAST: Final = 2**31


@dataclass(frozen=True, slots=True)
class _PublishedGpus:
    """The GPUs of one node's complete pools."""

    driver: Driver | None
    """Whose they are, None for none."""
    offer: NodeOffer
    index_of: Mapping[tuple[str, str], int]
    """Index of the GPU of each device, a partition's being that of the GPU it is cut from, by pool and device."""


_NO_GPUS: Final = _PublishedGpus(None, NO_GPUS, {})


# ResourceSlices


def _read_inventory(
    slices: Sequence[objects.ResourceSlice],
    reading: NodeReading,
    rules: Sequence[objects.DeviceTaintRule] = (),
    *,
    owned_only: bool = True,
) -> _PublishedGpus:
    """The GPUs in the slices of one node, in the order of their indices; of those of two vendors one's.

    Tainted ones are not healthy, but for the taint by which Kerf owns them. A GPU in MIG mode is published by its
    partitions alone: it counts where Kerf gives all of these (which is said without `owned_only`). Where kube-scheduler
    gives them it would pass for a whole one.
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
    parts: dict[str, list[tuple[str, objects.Device]]] = {}  # by the UUID of the GPU they are cut from
    for pool, device in devices:
        if parent := _text_of(device, driver.parent, driver):
            parts.setdefault(parent, []).append((pool, device))
    found = {
        (_index(device.name, driver), pool, device.name): (
            published.gpu(device, published.taints(pool, device)),
            _text_of(device, driver.identity, driver),
        )
        for pool, device in devices
        if _text_of(device, "type", driver) == driver.whole
    }
    identities = {identity for _, identity in found.values()}
    for parent in parts.keys() - identities:
        of = parts[parent]
        taints = [published.taints(pool, device) for pool, device in of]
        if not owned_only or all(map(owning.owns, taints)):
            pool, first = of[0]
            cut = published.cut([device for _, device in of], taints)
            # Its parts have what tells GPUs apart everywhere, or nothing has.
            uuid = parent if driver.identity == driver.uuid else ""
            found[_index(first.name, driver), pool, first.name] = replace(cut, uuid=uuid), parent
    ordered = sorted(found.items(), key=lambda item: item[0])[:MAX_GPUS_PER_NODE]
    gpus = tuple(gpu for _, (gpu, _) in ordered)
    index_of = {key[1:]: index for index, (key, _) in enumerate(ordered)}
    for index, (_, (_, identity)) in enumerate(ordered):
        index_of |= dict.fromkeys(((pool, device.name) for pool, device in parts.get(identity, ())), index)
    units, vendor = sum(gpu.healthy for gpu in gpus), NUMBER_OF_DRIVER[driver.name]
    return _PublishedGpus(driver, NodeOffer(gpus, GpuUnit.CLAIM, 1, units, vendor=vendor), index_of)


def _index(name: str, driver: Driver) -> int:
    match = driver.index.fullmatch(name)
    return int(match[1]) if match else _LAST


@dataclass(frozen=True, slots=True)
class _Published:
    """Reads devices of a driver."""

    driver: Driver
    reading: NodeReading
    rules: Sequence[objects.DeviceTaintRule]

    def gpu(self, device: objects.Device, taints: Iterable[Taint]) -> Gpu:
        """A whole GPU, or what a part says of its GPU."""
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

    def cut(self, parts: Sequence[objects.Device], taints: Iterable[Iterable[Taint]]) -> Gpu:
        """A GPU of which only parts are published: as large as these together, healthy while one of them is."""
        read = [self.gpu(part, of_part) for part, of_part in zip(parts, taints, strict=True)]
        memory_mib = min(sum(map(self._memory_mib, parts)), MAX_MEMORY_MIB)
        return replace(read[0], memory_mib=memory_mib, healthy=any(gpu.healthy for gpu in read))

    def taints(self, pool: str, device: objects.Device) -> tuple[Taint, ...]:
        """Those of a device, and of the rules."""
        return _taints_of(PoolId(self.driver.name, pool), device, self.rules)

    def _memory_mib(self, device: objects.Device) -> int:
        """A device's memory; 0 where it is unknown, or more than any GPU has."""
        capacity = device.capacity or {}
        memory = capacity.get("memory") or capacity.get(f"{self.driver.name}/memory")
        try:
            found = int(parse_quantity(str(memory.value)) // MIB) if memory else 0
        except ValueError:
            return 0
        return found if 0 < found <= MAX_MEMORY_MIB else 0


def _text_of(device: objects.Device, name: str, driver: Driver) -> str:
    """A device's attribute, under its name or the driver's domain; "" where it has none."""
    attributes = device.attributes or {}
    found = attributes.get(name) or attributes.get(f"{driver.name}/{name}")
    return (found.string or "") if found else ""


_NUMBER: Final = r"(?:0|[1-9][0-9]*)"
_WORD: Final = rf"(?:{_NUMBER}|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER: Final = re.compile(
    rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER})(?:-({_WORD}(?:\.{_WORD})*))?(?:\+[0-9a-zA-Z-]+(?:\.[0-9a-zA-Z-]+)*)?"
)
_MAX_VERSION_CHARS: Final = 256
_MAX_UINT64: Final = 2**64 - 1


class _UnreadableDeviceError(ValueError):
    """What of a device or its slice can't be read exactly: the sentence says it."""


def _full_name(name: str, driver: str) -> str:
    """The name of an attribute or capacity with its domain, the driver's where none is published."""
    return name if "/" in name else f"{driver}/{name}"


def _unhandled(pool: _NodePool) -> str:
    """What of a pool Kerf does not handle, "" when it handles all of it."""
    if any(item.spec.of_network for item in (*pool.slices, *pool.elsewhere)):
        return "devices that are reached over the network are not handled"
    if any(item.spec.skip_node_operations for item in pool.slices):
        return "devices without operations on their node are not handled"
    for device in pool.devices:
        if facts := _unhandled_facts(device):
            return f"device {device.name} has {facts}: not handled"
    names = [device.name for item in (*pool.slices, *pool.elsewhere) for device in item.spec.devices or ()]
    if twice := _repeated(names):
        return f"device name {twice} is there on two nodes"
    if any(device.consumes_counters for item in pool.elsewhere for device in item.spec.devices or ()):
        return "counters that devices of several nodes share are not handled"
    return ""


def _unhandled_facts(device: objects.Device) -> str:
    if device.binding_conditions or device.binding_failure_conditions:
        return "binding conditions"
    if any(consumed.compatibility_groups for consumed in device.consumes_counters or ()):
        return "compatibility groups"
    if device.node_allocatable_resources:
        return "resources of its node"
    if device.node_name or device.node_selector or device.all_nodes:
        return "nodes of its own"
    return ""


def _read_device(
    pool: PoolId, device: objects.Device, taints: Sequence[Taint], counters: Mapping[tuple[str, str], int]
) -> Device:
    """A device of no GPU. Raises UnreadableDeviceError."""
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
        if twice := _repeated(_full_name(name, driver) for name in names):
            raise ValueError(f"{twice} is there with its domain and without")
    return {_full_name(name, driver): _value(name, value) for name, value in (device.attributes or {}).items()}


def _value(name: str, attribute: objects.Attribute) -> Value:
    """In the order in which `k8s.io/dynamic-resource-allocation/cel` looks for it."""
    lists = (attribute.integers, attribute.booleans, attribute.strings, attribute.versions)
    if any(values is not None for values in lists):
        raise ValueError(f"attribute {name} is a list: not handled")
    if attribute.integer is not None:
        return attribute.integer
    if attribute.boolean is not None:
        return attribute.boolean
    if attribute.string is not None:
        return attribute.string
    if attribute.version is None:
        raise ValueError(f"attribute {name} has a value of an unknown type")
    if not is_version(attribute.version):
        raise ValueError(f"attribute {name} is no semantic version")
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
    """How much of which counter a device takes."""
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


def _place(pool: _NodePool, devices: Sequence[Device], found: _PublishedGpus) -> Iterator[Device]:
    """The devices of a pool, each with its GPU. `devices` are those of the pool, in its order."""
    driver = found.driver
    if driver is None or pool.id.driver != driver.name:
        yield from devices
        return
    gpu_of = _gpu_by_counters(pool, found, driver)
    placed = [
        (_whole(device, driver), read, _gpu(pool, device, found, gpu_of))
        for device, read in zip(pool.devices, devices, strict=True)
    ]
    wholes = {gpu: [read] for whole, read, gpu in placed if whole}
    parts: dict[int, list[Device]] = {}
    for whole, read, gpu in placed:
        if not whole:
            parts.setdefault(gpu, []).append(read)
    for whole, read, gpu in placed:
        if gpu < 0:
            yield read
        elif whole:
            yield replace(read, gpu=gpu, milli=WHOLE_MILLI, mib=found.offer.gpus[gpu].memory_mib)
        else:
            yield _part(read, gpu, wholes.get(gpu) or parts[gpu], found.offer.gpus[gpu].memory_mib, driver)


def _gpu(pool: _NodePool, device: objects.Device, found: _PublishedGpus, gpu_of: Mapping[str, int]) -> int:
    """The index of a device's GPU; -1 for that of none, or of one that nobody can tell."""
    gpu = found.index_of.get((pool.id.pool, device.name), -1)
    if gpu >= 0:
        return gpu
    shared = {gpu_of[name] for name in _counter_sets(device) if name in gpu_of}
    return shared.pop() if len(shared) == 1 else -1


def _whole(device: objects.Device, driver: Driver) -> bool:
    return _text_of(device, "type", driver) == driver.whole


def _counter_sets(device: objects.Device) -> Iterator[str]:
    return (consumed.counter_set for consumed in device.consumes_counters or ())


def _gpu_by_counters(pool: _NodePool, found: _PublishedGpus, driver: Driver) -> dict[str, int]:
    """The GPU whose counters a set has, where one whole GPU alone consumes of it."""
    of: dict[str, set[int]] = {}
    for device in pool.devices:
        gpu = found.index_of.get((pool.id.pool, device.name))
        if gpu is not None and _whole(device, driver):
            for name in _counter_sets(device):
                of.setdefault(name, set()).add(gpu)
    return {name: gpus_of.pop() for name, gpus_of in of.items() if len(gpus_of) == 1}


def _part(read: Device, gpu: int, of: Sequence[Device], gpu_mib: int, driver: Driver) -> Device:
    """A device as so much of a GPU: compute by the driver's measure, else as memory; all of it where neither is known.

    `of` is the whole GPU, or all the parts that it is cut into for good.
    """
    memory = _share(read, of, _MEMORY, driver)
    compute = _share(read, of, driver.compute, driver) or memory
    mib = min(int(_amount_of(read, _MEMORY, driver) // MIB), gpu_mib)
    return replace(read, gpu=gpu, milli=compute or WHOLE_MILLI, mib=mib if memory else gpu_mib)


def _share(read: Device, of: Sequence[Device], name: str, driver: Driver) -> int:
    """How much a part has of what its GPU has, in thousandths, rounded down so that all parts fit; 0 for unknown."""
    part, all_of_it = _amount_of(read, name, driver), sum(_amount_of(device, name, driver) for device in of)
    return min(max(int(WHOLE_MILLI * part / all_of_it), 1), WHOLE_MILLI) if part > 0 and all_of_it > 0 else 0


def _amount_of(read: Device, name: str, driver: Driver) -> Amount:
    found = read.capacity.get(name) or read.capacity.get(f"{driver.name}/{name}")
    return found.value if found else 0


_MAX_DEVICES: Final = 4096
"""Of one node: eight GPUs have 200 with all their partitions."""


class Owner(StrEnum):
    """Who allocates a pool's devices."""

    KERF = "kerf"
    KUBE_SCHEDULER = "kube-scheduler"
    NOBODY = "nobody"
    """It is on its way from the one to the other, can't be read now, or Kerf owns it and can't use it."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as it is seen from one node."""

    id: PoolId
    num_devices: int
    """On this node."""
    owner: Owner
    fault: str = ""
    """Why Kerf gives none of its devices though it owns it, or nobody can tell."""


@dataclass(frozen=True, slots=True)
class NodePools:
    """What the slices of one node tell."""

    offer: NodeOffer = NO_GPUS
    """Its GPUs, whoever allocates them."""
    driver: str = ""
    """Of its GPUs, "" for none."""
    index_of: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Index of the GPU of each device of that driver, a partition's being that of the GPU it is cut from, by pool
    and device."""
    inventory: Inventory = NO_DEVICES
    """The devices that Kerf owns."""
    faults: tuple[str, ...] = ()
    """Why Kerf gives no device of a pool that it owns, in sentences that name the pool."""
    others: bool = False
    """Whether there are pools that Kerf does not own, nor is about to."""
    states: tuple[PoolState, ...] = ()
    """All of them, in order."""


def read_pools(
    slices: Sequence[ResourceSlice],
    rules: Iterable[DeviceTaintRule],
    reading: NodeReading,
    *,
    node: str = "",
    owned_only: bool = True,
    gpus_alone: bool = False,
) -> NodePools:
    """What one node has.

    `slices` are all slices of every pool of which one is the node's, and those of devices that are reached over the
    network; without `node` it is the node of the first that names one. Without `owned_only` all pools are Kerf's, and
    their taints count as they are. With `gpus_alone` nothing is read but which GPUs there are.
    """
    node = node or next((item.spec.node_name for item in slices if item.spec.node_name), "")
    pools, rules = _gather_pools(node, slices), tuple(rules)
    of_driver = [pool for pool in pools if pool.sound and pool.id.driver in DRIVERS]
    of_gpus = [item for pool in of_driver for item in pool.slices if item.spec.node_name]
    found = _read_inventory(of_gpus, reading, rules, owned_only=owned_only)
    reader = _Reader(rules, found, owned_only)
    for pool in () if gpus_alone else pools:
        reader.read(pool)
    return NodePools(
        found.offer,
        found.driver.name if found.driver else "",
        found.index_of,
        reader.inventory,
        tuple(reader.faults),
        reader.others,
        tuple(reader.states),
    )


class _Reader:
    """Reads one pool after the other, and collects what of them is Kerf's."""

    def __init__(self, rules: Sequence[DeviceTaintRule], found: _PublishedGpus, owned_only: bool) -> None:
        self._rules = rules
        self._found = found
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
        """One more pool."""
        taints = self._taints(pool)
        marked = not self._owned_only or any(taint.key == owning.KEY for of in taints.values() for taint in of)
        self.others |= bool(taints) and not marked
        fault = pool.incomplete or pool.invalid or _unhandled(pool)
        if not fault and len(self._devices) + len(self._unavailable) + len(taints) > _MAX_DEVICES:
            fault = f"more than {_MAX_DEVICES} devices on one node"
        owned = not self._owned_only or (bool(taints) and all(map(owning.owns, taints.values())))
        if not fault and marked and not owned and not _held(taints):
            fault = f"only some of its devices have the taint {owning.KEY}"
        try:
            if not pool.sound:
                raise _UnreadableDeviceError(fault)
            self._take(pool, taints, giving=owned and not fault)
        except _UnreadableDeviceError as error:
            fault = fault or str(error)
            self._complete = False
        if fault and marked:
            self.faults.append(f"{pool.id}: {fault}")
        unread = bool(pool.incomplete or pool.invalid)
        owner = Owner.NOBODY if marked or unread else Owner.KUBE_SCHEDULER
        owner = Owner.KERF if owned and not fault else owner
        self.states.append(PoolState(pool.id, sum(1 for _ in pool.devices), owner, fault if marked or unread else ""))

    def _taints(self, pool: _NodePool) -> dict[str, tuple[Taint, ...]]:
        """Of each device, those on other nodes too."""
        rules = _rules_for(pool.id, self._rules)
        devices = (device for item in (*pool.slices, *pool.elsewhere) for device in item.spec.devices or ())
        return {device.name: _taints_of(pool.id, device, rules) for device in devices}

    def _take(self, pool: _NodePool, taints: Mapping[str, Sequence[Taint]], giving: bool) -> None:
        """Read a pool's devices, to be given or not. Raises UnreadableDeviceError: then none of them is read."""
        index_of, amounts = _counters(pool, len(self._counters))
        devices = []
        for device in pool.devices:
            seen = [taint for taint in taints[device.name] if not self._owned_only or taint.key != owning.KEY]
            devices.append(_read_device(pool.id, device, seen, index_of))
        if giving:
            self._devices += _place(pool, devices, self._found)
            self._counters += amounts
            self._counter_of |= {
                CounterId(pool.id.driver, pool.id.pool, *counter): index for counter, index in index_of.items()
            }
        else:
            self._unavailable += [replace(device, consumes=()) for device in devices]


def _held(taints: Mapping[str, Sequence[Taint]]) -> bool:
    """Whether a pool is on its way to Kerf or back: that is no fault."""
    return owning.HELD in [taint for of in taints.values() for taint in of]


def _counters(pool: _NodePool, first: int) -> tuple[dict[tuple[str, str], int], list[Amount]]:
    """A pool's counters: the index of each by its set and name, and how much there is. Raises UnreadableDeviceError."""
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
