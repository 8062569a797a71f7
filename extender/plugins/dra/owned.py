"""Devices of pools that Kerf owns: which a node has, which claims have them, and which are held for claims that are
being written."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import Amount, DeviceId, Inventory, NodeDevices, Taking
from extender.kube import objects
from extender.kube.indexes import Index
from extender.plugins.dra.asks import read_asks
from extender.plugins.dra.inventory import NodePools, PoolState, read_pools
from extender.plugins.dra.objects import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice
from extender.plugins.dra.results import takings_of
from extender.plugins.dra.unhandled import MISSING_CLASS, UnhandledError
from extender.plugins.protocol import NodeReading

_NO_POOLS = NodePools()
Amounts = tuple[tuple[str, Amount], ...]


@dataclass(frozen=True, slots=True)
class Hold:
    """Devices of a node that a claim is to have, until the claim itself says so or it is certain that it never will."""

    node: str
    devices: tuple[tuple[DeviceId, Amounts], ...]
    """By their names, for an inventory may be read anew meanwhile; of shareable ones how much of each capacity."""
    claim: ResourceClaim
    """As it was when that was decided."""
    pod: objects.Pod
    """Whom it is for."""
    allocation: Mapping[str, Any]
    """What is to be written on it."""


@dataclass(frozen=True, slots=True)
class PodClaims:
    """The claims of one pod."""

    allocated: tuple[ResourceClaim, ...] = ()
    """Those that have their devices."""
    unallocated: tuple[ResourceClaim, ...] = ()
    """Those that Kerf has to find devices for."""
    asked: DevicesAsked | None = None
    """What these ask, in their order; None when there are none."""
    missing: str = ""
    """The first that does not exist yet."""
    left: tuple[ResourceClaim, ...] = ()
    """Those without devices that are kube-scheduler's to allocate."""
    undecided: str = ""
    """One of which it is not known yet whose it is to allocate."""

    @property
    def places(self) -> list[objects.NodeSelector]:
        """Where the devices are that it has: it may go nowhere else."""
        allocations = (claim.status.allocation for claim in self.allocated)
        return [found.node_selector for found in allocations if found and found.node_selector]


NO_CLAIMS = PodClaims()


class OwnedDevices:
    """Not thread-safe; every method returns at once. What takes objects in returns the nodes that have changed."""

    def __init__(self, reading: NodeReading) -> None:
        self._reading = reading
        self._slices: dict[str, ResourceSlice] = {}  # by uid
        self._in_pool: Index[ResourceSlice] = Index()  # by pool and uid
        self._pools_on: Index[str] = Index()  # pools by node and a slice's uid
        self._pools: dict[str, NodePools] = {}  # by node
        self._devices: dict[str, NodeDevices] = {}  # by node, as they are now
        self.claims: dict[str, ResourceClaim] = {}
        """By uid."""
        self.orphans: dict[str, ResourceClaim] = {}
        """Claims that are gone, by uid, whose pods may have their devices yet: whoever may change a claim may take off
        what keeps it from being deleted."""
        self._claim_at: dict[str, str] = {}  # uid by namespace/name
        self._allocated: Index[str] = Index()  # claims by pool
        self._written: dict[str, int] = {}  # claims by uid, and the version of which no watch has told yet
        self.holds: dict[str, Hold] = {}
        """By a claim's uid."""
        self.unhandled: dict[str, str] = {}
        """Claims of pods that wait that can't be evaluated exactly, by uid: what kind of thing is in the way."""
        self._held_on: Index[Hold] = Index()  # by node and a claim's uid
        self._classes: dict[str, DeviceClass] = {}
        self._class_names: dict[str, str] = {}  # by uid
        self._rules: dict[str, DeviceTaintRule] = {}  # by uid
        self._allotted: set[str] = set()  # claims with devices, for one pod at most
        self.version = 0
        """Grows when other claims may be met than before."""
        self._all_owned: bool | None = None

    # Reading

    def devices_on(self, node: str) -> NodeDevices | None:
        """A node's devices and what is taken of them; None where Kerf owns none."""
        pools = self._pools.get(node)
        if pools is None or not pools.inventory.devices:
            return None
        known = self._devices.get(node)
        if known is None:
            known = self._devices[node] = NodeDevices.of(pools.inventory, self._taken(node, pools.inventory))
        return known

    def faults_on(self, node: str) -> tuple[str, ...]:
        """Why devices of a node's pools can't be used."""
        return self._pools.get(node, _NO_POOLS).faults

    def pools_on(self, node: str) -> tuple[PoolState, ...]:
        """A node's pools, whoever allocates their devices."""
        return self._pools.get(node, _NO_POOLS).states

    def nodes(self) -> Collection[str]:
        """Nodes that have pools."""
        return self._pools.keys()

    def claim_at(self, key: str) -> ResourceClaim | None:
        """A claim by its `namespace/name`."""
        return self.claims.get(self._claim_at.get(key, ""))

    def claims_on(self, node: str) -> Iterator[ResourceClaim]:
        """Claims that have devices of a node's pools, those that are gone while their pods run included."""
        seen: set[str] = set()
        for pool in sorted(set(self._pools_on.of(node).values())):
            for uid in self._allocated.of(pool):
                if uid not in seen:
                    seen.add(uid)
                    yield self.claims.get(uid) or self.orphans[uid]

    def holds_on(self, node: str) -> Mapping[str, Hold]:
        """What is held of a node's devices, by a claim's uid."""
        return self._held_on.of(node)

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """Device classes by name."""
        return self._classes

    def inventory_on(self, node: str) -> Inventory:
        """The devices of a node that Kerf allocates."""
        return self._pools.get(node, _NO_POOLS).inventory

    def claims_of(self, pod: objects.Pod, is_kerfs: Callable[[DevicesAsked], bool | None]) -> PodClaims:
        """The claims of a pod as they are now; `is_kerfs` tells whether Kerf allocates what is asked.

        Raises RequestError where what they ask can't be evaluated exactly and Kerf owns all devices that there are.
        """
        claims, missing = self._named(pod)
        # Refused as kube-scheduler does: whoever holds its deletion up might have it tried again for ever.
        missing = missing or next((claim.metadata.name for claim in claims if claim.metadata.deletion_timestamp), "")
        allocated = tuple(claim for claim in claims if claim.status.allocation is not None)
        ours: list[ResourceClaim] = []
        left: list[ResourceClaim] = []
        for claim in claims:
            if claim.status.allocation is None:
                kerfs = self._is_kerfs(claim, is_kerfs)
                if kerfs is None:
                    return PodClaims(undecided=claim.metadata.name)
                (ours if kerfs else left).append(claim)
        asked = read_asks(ours, self.classes) if ours else None
        return PodClaims(allocated, tuple(ours), asked, missing, tuple(left))

    def named(self, pod: objects.Pod) -> list[ResourceClaim]:
        """The claims of a pod that exist, in its order."""
        return self._named(pod)[0]

    def allotted(self) -> Iterator[tuple[ResourceClaim, str]]:
        """Claims that have devices of pools that Kerf owns, for one pod at most; with the node of these."""
        for uid in self._allotted:
            nodes = {node for pool in _pools_of(self.claims[uid]) for node in self._nodes_of(pool)}
            owned = [node for node in nodes if self.inventory_on(node).devices]
            if len(nodes) == len(owned) == 1:
                yield self.claims[uid], owned[0]

    def _named(self, pod: objects.Pod) -> tuple[list[ResourceClaim], str]:
        generated = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses or ()}
        claims: dict[str, ResourceClaim] = {}
        missing = ""
        for item in pod.spec.resource_claims or ():
            if item.name in generated and not generated[item.name]:
                continue  # its template makes no claim for this pod
            name = item.resource_claim_name or generated.get(item.name) or ""
            claim = self.claims.get(self._claim_at.get(f"{pod.metadata.namespace}/{name}", ""))
            if claim is None:
                missing = missing or name or item.name
            else:
                claims[claim.metadata.uid] = claim
        return list(claims.values()), missing

    def _is_kerfs(self, claim: ResourceClaim, is_kerfs: Callable[[DevicesAsked], bool | None]) -> bool | None:
        """Whether Kerf allocates for a claim: what can't be evaluated exactly is left to whoever else has devices."""
        try:
            asked = read_asks([claim], self.classes)
            self.unhandled.pop(claim.metadata.uid, None)
            return is_kerfs(asked)
        except UnhandledError as error:
            self.unhandled[claim.metadata.uid] = error.kind
            if self.all_owned() or error.kind == MISSING_CLASS:
                raise
            return False

    def all_owned(self) -> bool:
        """Whether all devices that there are are Kerf's."""
        if self._all_owned is None:
            pools = self._pools.values()
            owned, others = any(item.inventory.devices for item in pools), any(item.others for item in pools)
            self._all_owned = owned and not others
        return self._all_owned

    def inventories(self) -> list[Inventory]:
        """The devices that Kerf owns, node by node."""
        return [pools.inventory for pools in self._pools.values() if pools.inventory.devices]

    def _taken(self, node: str, inventory: Inventory) -> Iterable[Taking]:
        seen: set[str] = set()
        for claim in self.claims_on(node):
            seen.add(claim.metadata.uid)
            yield from takings_of(claim, inventory)
        for uid, hold in self._held_on.of(node).items():
            if uid not in seen:
                for device, capacity in hold.devices:
                    if (index := inventory.index_of.get(device)) is not None:
                        yield Taking(index, capacity)

    def has_gpus(self, node: str) -> bool:
        """Whether Kerf allocates GPUs of a node."""
        return any(device.gpu >= 0 for device in self.inventory_on(node).devices)

    # Holding

    def hold(self, uid: str, hold: Hold) -> set[str]:
        """Hold devices for a claim, from before it is written."""
        changed = self.let_go(uid)
        self.holds[uid] = hold
        self._held_on.put(hold.node, uid, hold)
        return changed | self._forget({hold.node})

    def let_go(self, uid: str) -> set[str]:
        """A claim says itself what it has, or will never have what was held for it."""
        hold = self.holds.pop(uid, None)
        if hold is None:
            return set()
        self._held_on.pop(hold.node, uid)
        return self._forget({hold.node})

    def wrote(self, claim: ResourceClaim) -> None:
        """This process has written a claim: what a watch tells of it from before is none of its news."""
        self._written[claim.metadata.uid] = _version(claim)

    def is_outdated(self, item: objects.Named) -> bool:
        """Whether a claim is told as it was before this process has written it."""
        written = self._written.get(item.metadata.uid)
        if written is None or not isinstance(item, ResourceClaim) or _version(item) < written:
            return written is not None
        del self._written[item.metadata.uid]
        return False

    # What the watches tell

    def upsert(self, item: objects.Named) -> set[str]:
        """An object was added or changed."""
        if isinstance(item, ResourceSlice):
            return self._upsert_slice(item)
        if isinstance(item, ResourceClaim):
            return self._upsert_claim(item)
        if isinstance(item, DeviceClass):
            self._classes[item.metadata.name] = item
            self._class_names[item.metadata.uid] = item.metadata.name
            self._is_news()
        if isinstance(item, DeviceTaintRule):
            self._rules[item.metadata.uid] = item
            return self._read_again(set(self._pools))
        return set()

    def remove(self, kind: type, uid: str) -> set[str]:
        """An object is gone."""
        if kind is ResourceSlice:
            return self._remove_slice(uid)
        if kind is ResourceClaim:
            return self._claim_gone(uid)
        if kind is DeviceClass:
            name = self._class_names.pop(uid, "")
            if name and self._classes[name].metadata.uid == uid:
                del self._classes[name]
            self._is_news()
            return set()
        return self._read_again(set(self._pools)) if self._rules.pop(uid, None) is not None else set()

    def keep(self, kind: type, uids: Collection[str]) -> set[str]:
        """A complete list names these objects of a kind; others are gone."""
        known: dict[type, Collection[str]] = {
            ResourceSlice: self._slices,
            ResourceClaim: self.claims,
            DeviceClass: self._class_names,
        }
        return set().union(*(self.remove(kind, uid) for uid in set(known.get(kind, self._rules)) - set(uids)))

    def _upsert_slice(self, item: ResourceSlice) -> set[str]:
        uid = item.metadata.uid
        changed = self._drop_slice(uid)
        self._slices[uid] = item
        self._in_pool.put(_pool_of(item), uid, item)
        if item.spec.node_name:
            self._pools_on.put(item.spec.node_name, uid, _pool_of(item))
        return self._read_again(changed | self._nodes_of(_pool_of(item)))

    def _remove_slice(self, uid: str) -> set[str]:
        return self._read_again(self._drop_slice(uid))

    def _drop_slice(self, uid: str) -> set[str]:
        item = self._slices.pop(uid, None)
        if item is None:
            return set()
        nodes = self._nodes_of(_pool_of(item))
        self._in_pool.pop(_pool_of(item), uid)
        if item.spec.node_name:
            self._pools_on.pop(item.spec.node_name, uid)
        return nodes

    def _nodes_of(self, pool: str) -> set[str]:
        """Nodes that have slices of a pool."""
        return {item.spec.node_name for item in self._in_pool.of(pool).values() if item.spec.node_name}

    def _upsert_claim(self, claim: ResourceClaim) -> set[str]:
        uid = claim.metadata.uid
        changed = self._remove_claim(uid)
        self.claims[uid] = claim
        self._claim_at[claim.key] = uid
        for pool in _pools_of(claim):
            self._allocated.put(pool, uid, uid)
            if len(claim.status.reserved_for or ()) <= 1:
                self._allotted.add(uid)
            changed |= self._nodes_of(pool)
        return self._forget(changed)

    def forget_orphan(self, uid: str) -> set[str]:
        """The pods of a claim that is gone are gone, too."""
        claim = self.orphans.pop(uid, None)
        return set() if claim is None else self._unallocate(claim)

    def _claim_gone(self, uid: str) -> set[str]:
        claim = self.claims.get(uid)
        self._written.pop(uid, None)
        if claim is None or not (_pools_of(claim) and claim.status.reserved_for):
            return self._remove_claim(uid)
        self.orphans[uid] = self.claims.pop(uid)
        self._allotted.discard(uid)
        self.unhandled.pop(uid, None)
        if self._claim_at.get(claim.key) == uid:
            del self._claim_at[claim.key]
        return set()

    def _remove_claim(self, uid: str) -> set[str]:
        claim = self.claims.pop(uid, None)
        if claim is None:
            return set()
        self._allotted.discard(uid)
        self.unhandled.pop(uid, None)
        if self._claim_at.get(claim.key) == uid:
            del self._claim_at[claim.key]
        return self._unallocate(claim)

    def _unallocate(self, claim: ResourceClaim) -> set[str]:
        changed: set[str] = set()
        for pool in _pools_of(claim):
            self._allocated.pop(pool, claim.metadata.uid)
            changed |= self._nodes_of(pool)
        return self._forget(changed)

    def _read_again(self, nodes: set[str]) -> set[str]:
        rules = list(self._rules.values())
        for node in nodes:
            pools = sorted(set(self._pools_on.of(node).values()))
            if pools:
                slices = [item for pool in pools for item in self._in_pool.of(pool).values()]
                self._pools[node] = read_pools(slices, rules, self._reading, node=node)
            else:
                self._pools.pop(node, None)
        self._is_news()
        return self._forget(nodes)

    def _is_news(self) -> None:
        self.version += 1
        self._all_owned = None

    def _forget(self, nodes: set[str]) -> set[str]:
        for node in nodes:
            self._devices.pop(node, None)
        return nodes


def claim_keys(pod: objects.Pod) -> list[str]:
    """`namespace/name` of the ResourceClaims that a pod names, or that were made for it."""
    named = (*(pod.spec.resource_claims or ()), *(pod.status.resource_claim_statuses or ()))
    return [f"{pod.metadata.namespace}/{item.resource_claim_name}" for item in named if item.resource_claim_name]


def _pools_of(claim: ResourceClaim) -> Sequence[str]:
    allocation = claim.status.allocation
    results = (allocation.devices.results or ()) if allocation is not None else ()
    return sorted({f"{result.driver}/{result.pool}" for result in results})


def _pool_of(item: ResourceSlice) -> str:
    return f"{item.spec.driver}/{item.spec.pool.name}"


def _version(claim: ResourceClaim) -> int:
    text = claim.metadata.resource_version
    return int(text) if text.isdecimal() else 0
