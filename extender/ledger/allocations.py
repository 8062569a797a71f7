"""Allocations of a node's GPUs to pods, and the sums of a node's allocations by GPU.

The state of an allocation only advances: RESERVED by a decision, BINDING while the Binding is sent, UNDECIDED when the
answer is lost, BOUND for as long as the pod exists.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.nodes import SLICES, GpuUnit, NodeOffer
from extender.kube.indexes import Index
from extender.ledger.arrays import HeldAmounts
from extender.plugins.holdings import Holding, Part, either
from extender.plugins.pods import Holdings
from extender.plugins.protocol import DevicePlugin


class AllocationState(Enum):
    """The state of an allocation."""

    RESERVED = auto()
    """Decided, no Binding sent yet: ends with its TTL."""
    BINDING = auto()
    """The Binding is sent: ends with the API server's answer."""
    UNDECIDED = auto()
    """The answer was lost and the Binding may still take effect: ends once the pod shows the outcome."""
    BOUND = auto()
    """The pod has its node: ends with the pod."""


@dataclass(slots=True, eq=False)
class PodAllocation:
    """GPUs of one node that are held for one pod."""

    uid: str
    node: str
    holding: Holding
    state: AllocationState
    since: float
    """Monotonic time of the last change of state."""
    pod: str = ""
    """`namespace/name`, once the watch has reported it."""
    decided: Holding | None = None
    """What this process sent with a Binding, None when another client's Binding counts."""
    annotated: Holdings | None = None
    """What the pod's annotations said when it was first seen with its node."""
    given_by_kubelet: Holding | None = None
    """What the kubelet gave, None where that is not reported or implausible."""
    disputed: bool = False
    """Whether `annotated` and `decided` may both be true: it is unknown whose Binding took effect."""
    reassigned: bool = False
    """Whether a bound pod was assigned other GPUs than its annotations said, which are not updated yet."""
    pinned: bool = False
    """Whether neither the TTL nor a change of its node ends the reservation, as when it is written on its pod, which
    kube-scheduler may then bind at any time."""

    def holding_on(self, plugin: DevicePlugin) -> Holding:
        """Return what it amounts to on a node of this plugin."""
        if self.annotated is None or (self.decided is not None and not self.disputed):
            return self.holding if self.decided is None else self.decided
        written = self.annotated.on(plugin)
        return written if self.decided is None else either(self.decided, written)

    @property
    def held(self) -> Holding:
        """What the pod's containers have, as far as known."""
        return self.holding if self.given_by_kubelet is None else self.given_by_kubelet

    @property
    def mistaken(self) -> bool:
        """Whether the pod's annotations name other GPUs than it was given, and can be corrected."""
        if self.given_by_kubelet is None or self.state is not AllocationState.BOUND or not self.holding.parts:
            return False
        given = set(self.given_by_kubelet.gpus)
        return given != set(self.holding.gpus) and len(given) == self.given_by_kubelet.units

    @property
    def units(self) -> int:
        """GPU units held, with or without known indices."""
        return self.held.units

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs held, as far as known."""
        return self.held.gpus


class PodAllocations:
    """The allocations by pod and by node. Not thread-safe."""

    def __init__(self, ttl_s: float, changed: Callable[[str], None]) -> None:
        """`changed` is called with a node when one of its allocations is added or dropped."""
        self._ttl_s = ttl_s
        self._changed = changed
        self._by_uid: dict[str, PodAllocation] = {}
        self._by_node: Index[PodAllocation] = Index()
        self._expiries: deque[tuple[float, PodAllocation]] = deque()  # earliest expiry of each TTL, in that order

    def __iter__(self) -> Iterator[PodAllocation]:
        return iter(tuple(self._by_uid.values()))

    def get(self, uid: str) -> PodAllocation | None:
        """Return a pod's allocation."""
        return self._by_uid.get(uid)

    def on(self, node: str) -> Collection[PodAllocation]:
        """Return the allocations on a node."""
        return self._by_node.of(node).values()

    def uids(self, node: str) -> Mapping[str, str]:
        """Return the UIDs of a node's pods that the watch has reported, by `namespace/name`."""
        return {held.pod: held.uid for held in self.on(node) if held.pod}

    def add(self, allocation: PodAllocation) -> None:
        """Add the allocation of a pod that has none."""
        self._by_uid[allocation.uid] = allocation
        self._by_node.put(allocation.node, allocation.uid, allocation)
        self._changed(allocation.node)

    def drop(self, uid: str) -> None:
        """Drop a pod's allocation, if any."""
        allocation = self._by_uid.pop(uid, None)
        if allocation is not None:
            self._by_node.pop(allocation.node, uid)
            self._changed(allocation.node)

    def is_settled(self, uid: str) -> bool:
        """Whether a pod is bound or being bound."""
        allocation = self._by_uid.get(uid)
        return allocation is not None and allocation.state is not AllocationState.RESERVED

    def begin_ttl(self, allocation: PodAllocation, now: float) -> None:
        """Start a reservation's TTL."""
        allocation.since = now
        self._expiries.append((now + self._ttl_s, allocation))

    def expired(self, now: float) -> Iterator[PodAllocation]:
        """Yield the reservations whose TTL has expired."""
        while self._expiries and self._expiries[0][0] <= now:
            _, allocation = self._expiries.popleft()
            reserved = self._by_uid.get(allocation.uid) is allocation and allocation.state is AllocationState.RESERVED
            if reserved and not allocation.pinned and allocation.since + self._ttl_s <= now:
                yield allocation


class Occupancy:
    """The sums of one node's allocations, by GPU."""

    def __init__(self, offer: NodeOffer) -> None:
        self._offer = offer
        self._index_of = {gpu.uuid: index for index, gpu in enumerate(offer.gpus) if gpu.uuid}
        self._sliced = offer.unit in SLICES
        self.held: dict[int, tuple[int, int]] = {}
        """(milli, MiB) by GPU index, above the GPU's capacity when overbooked."""
        self._slices: dict[int, int] = {}  # time slices by GPU index, where known
        self._holders: dict[int, int] = {}  # number of shares by GPU index
        self.untracked = offer.withheld_units
        self.mig: list[tuple[str, int]] = []
        self.num_served = self.num_unserved = 0
        self.overbooked = False
        """Whether the node is overbooked: not all allocations have room, or GPUs of their own."""

    @property
    def held_amounts(self) -> HeldAmounts:
        """The sums, for the arrays."""
        return HeldAmounts(self.held, self.untracked, self.mig, self.num_served, self.num_unserved, self._slices)

    @property
    def fully_held(self) -> HeldAmounts:
        """The sums with everything free counted as held."""
        offer = self._offer
        held = {index: (WHOLE_MILLI, gpu.memory_mib) for index, gpu in enumerate(offer.gpus)}
        untracked = len(offer.gpus) * offer.units_per_gpu if self._sliced else self.untracked
        return HeldAmounts(
            held, max(untracked, self.untracked), offer.mig, self.num_served, self.num_unserved, self._slices
        )

    def as_given(self, holding: Holding, uuids: tuple[str, ...]) -> Holding | None:
        """Return the holding of whole GPUs or time slices that the kubelet gave, None if that is implausible."""
        distinct = self._sliced or (self._offer.unit is GpuUnit.WHOLE and len(set(uuids)) == len(uuids))
        whole = distinct and all(part.whole for part in holding.parts)
        as_many = len(uuids) == holding.units and all(uuid in self._index_of for uuid in uuids)
        if not (whole and as_many) or holding.unserved:
            return None
        return Holding(holding.units, tuple(Part(self._index_of[uuid], uuid=uuid) for uuid in uuids))

    def book(self, holdings: Collection[Holding]) -> None:
        """Book all holdings, once. Shares come first, since a share is on the GPU that it names."""
        for holding in holdings:
            self._add_shares(holding)
        for holding in holdings:
            self._add_whole(holding)
        self._settle()

    def _add_shares(self, holding: Holding) -> None:
        """Book a holding's shares, and count its units of unknown index."""
        self.mig += holding.mig
        self.num_unserved += holding.unserved
        self.num_served += holding.units > 0 and not holding.unserved
        if self._sliced:
            self._add_slices(holding)
            return
        self.untracked += holding.units - len(holding.parts)
        for part in holding.parts:
            if self.is_whole(part):
                continue
            gpu = self.find(part.gpu, part.uuid)
            if gpu is None:
                self.untracked += 1
                self.overbooked = True
                continue
            milli, mib = self.held.get(gpu, (0, 0))
            self.held[gpu] = milli + part.milli, mib + part.mib
            self._holders[gpu] = self._holders.get(gpu, 0) + 1

    def _add_whole(self, holding: Holding) -> None:
        """Book a holding's whole GPUs; one that is missing or partly held counts as a unit of unknown index."""
        for part in holding.parts:
            if self._sliced or not self.is_whole(part):
                continue
            gpu = self.find(part.gpu, part.uuid)
            if gpu is None or gpu in self.held:
                self.untracked += 1
                self.overbooked = True
            else:
                self.held[gpu] = WHOLE_MILLI, self._offer.gpus[gpu].memory_mib

    def _add_slices(self, holding: Holding) -> None:
        """Book a holding's time slices by number, and by GPU where known."""
        self.untracked += holding.units
        for part in holding.parts:
            gpu = self.find(part.gpu, part.uuid)
            if gpu is not None:
                self._slices[gpu] = self._slices.get(gpu, 0) + 1

    def _settle(self) -> None:
        """Detect overbooking; if units of unknown index exceed the idle GPUs, count the shared GPUs as fully held."""
        gpus = self._offer.gpus
        self.overbooked = self.overbooked or (self._offer.plugin_picks and self.num_served > 0 < self.num_unserved)
        idle = len([index for index, gpu in enumerate(gpus) if gpu.healthy and index not in self.held])
        if self.untracked > idle * self._offer.units_per_gpu:
            self.overbooked = True
            self.held = {gpu: (WHOLE_MILLI, gpus[gpu].memory_mib) for gpu in self.held}
        self.overbooked = self.overbooked or any(count > self._offer.units_per_gpu for count in self._slices.values())
        for gpu, (milli, mib) in self.held.items():
            self.overbooked = self.overbooked or milli > WHOLE_MILLI or mib > gpus[gpu].memory_mib
        for gpu, num_holders in self._holders.items():
            if 0 < gpus[gpu].max_holders <= num_holders:
                self.overbooked = self.overbooked or num_holders > gpus[gpu].max_holders
                milli, mib = self.held[gpu]
                self.held[gpu] = max(milli, WHOLE_MILLI), max(mib, gpus[gpu].memory_mib)  # its plugin takes no more
        installed = dict(self._offer.mig)
        used: dict[str, int] = {}
        for profile, count in self.mig:
            used[profile] = used.get(profile, 0) + count
        self.overbooked = self.overbooked or any(count > installed.get(profile, 0) for profile, count in used.items())

    def is_whole(self, part: Part) -> bool:
        """Whether a part takes its GPU alone: a memory-only share does unless the node's plugin hands out shares."""
        return part.whole or (part.milli == 0 and self._offer.unit is not GpuUnit.PART)

    def find(self, gpu: int, uuid: str) -> int | None:
        """Return the index of a GPU of the node, None if unknown."""
        if uuid and self._index_of:
            return self._index_of.get(uuid)
        return gpu if 0 <= gpu < len(self._offer.gpus) else None
