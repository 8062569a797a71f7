"""The devices of one node that Kerf may give, of all pools that drivers publish there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from extender.core.dra import owning
from extender.core.dra.devices import NO_DEVICES, Amount, CounterId, Device, DeviceId, Inventory, Taint
from extender.core.resources.nodes import NO_GPUS, NodeOffer, NodeReading
from extender.core.vendors.registry import DRIVERS
from extender.dra.objects import DeviceTaintRule, ResourceSlice
from extender.dra.published import gpus
from extender.dra.published.devices import UnreadableDeviceError, read_device, unhandled
from extender.dra.published.gathering import NodePool, PoolId, gather_pools, rules_for, taints_of
from extender.dra.published.parts import place
from extender.dra.quantities import amount_of

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
    pools, rules = gather_pools(node, slices), tuple(rules)
    of_driver = [pool for pool in pools if pool.sound and pool.id.driver in DRIVERS]
    of_gpus = [item for pool in of_driver for item in pool.slices if item.spec.node_name]
    found = gpus.read_inventory(of_gpus, reading, rules, owned_only=owned_only)
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

    def __init__(self, rules: Sequence[DeviceTaintRule], found: gpus.Inventory, owned_only: bool) -> None:
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

    def read(self, pool: NodePool) -> None:
        """One more pool."""
        taints = self._taints(pool)
        marked = not self._owned_only or any(taint.key == owning.KEY for of in taints.values() for taint in of)
        self.others |= bool(taints) and not marked
        fault = pool.incomplete or pool.invalid or unhandled(pool)
        if not fault and len(self._devices) + len(self._unavailable) + len(taints) > _MAX_DEVICES:
            fault = f"more than {_MAX_DEVICES} devices on one node"
        owned = not self._owned_only or (bool(taints) and all(map(owning.owns, taints.values())))
        if not fault and marked and not owned and not _held(taints):
            fault = f"only some of its devices have the taint {owning.KEY}"
        try:
            if not pool.sound:
                raise UnreadableDeviceError(fault)
            self._take(pool, taints, giving=owned and not fault)
        except UnreadableDeviceError as error:
            fault = fault or str(error)
            self._complete = False
        if fault and marked:
            self.faults.append(f"{pool.id}: {fault}")
        unread = bool(pool.incomplete or pool.invalid)
        owner = Owner.NOBODY if marked or unread else Owner.KUBE_SCHEDULER
        owner = Owner.KERF if owned and not fault else owner
        self.states.append(PoolState(pool.id, sum(1 for _ in pool.devices), owner, fault if marked or unread else ""))

    def _taints(self, pool: NodePool) -> dict[str, tuple[Taint, ...]]:
        """Of each device, those on other nodes too."""
        rules = rules_for(pool.id, self._rules)
        devices = (device for item in (*pool.slices, *pool.elsewhere) for device in item.spec.devices or ())
        return {device.name: taints_of(pool.id, device, rules) for device in devices}

    def _take(self, pool: NodePool, taints: Mapping[str, Sequence[Taint]], giving: bool) -> None:
        """Read a pool's devices, to be given or not. Raises UnreadableDeviceError: then none of them is read."""
        index_of, amounts = _counters(pool, len(self._counters))
        devices = []
        for device in pool.devices:
            seen = [taint for taint in taints[device.name] if not self._owned_only or taint.key != owning.KEY]
            devices.append(read_device(pool.id, device, seen, index_of))
        if giving:
            self._devices += place(pool, devices, self._found)
            self._counters += amounts
            self._counter_of |= {
                CounterId(pool.id.driver, pool.id.pool, *counter): index for counter, index in index_of.items()
            }
        else:
            self._unavailable += [replace(device, consumes=()) for device in devices]


def _held(taints: Mapping[str, Sequence[Taint]]) -> bool:
    """Whether a pool is on its way to Kerf or back: that is no fault."""
    return owning.HELD in [taint for of in taints.values() for taint in of]


def _counters(pool: NodePool, first: int) -> tuple[dict[tuple[str, str], int], list[Amount]]:
    """A pool's counters: the index of each by its set and name, and how much there is. Raises UnreadableDeviceError."""
    index_of: dict[tuple[str, str], int] = {}
    amounts: list[Amount] = []
    for counter_set in sorted(pool.counter_sets, key=lambda item: item.name):
        for name, counter in sorted((counter_set.counters or {}).items()):
            index_of[counter_set.name, name] = first + len(amounts)
            try:
                amounts.append(amount_of(counter.value))
            except ValueError as error:
                raise UnreadableDeviceError(f"counter {name} of {counter_set.name}: {error}") from None
    return index_of, amounts
