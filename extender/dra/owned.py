"""Devices of pools that Kerf owns, by node, with the claims that they are allocated to or held for."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

from extender.core.dra.asks import DeviceClaims
from extender.core.dra.devices import Amount, CounterId, DeviceId, Inventory, NodeDevices, Taking
from extender.dra.asks import MISSING_CLASS, UnhandledError, read_asks
from extender.dra.objects import DeviceClass, DeviceClasses, DeviceTaintRule, ResourceClaim, ResourceSlice
from extender.dra.pod_claims import Hold, PodClaims
from extender.dra.published import PoolState
from extender.dra.results import devices_of, pools_of, takings_of
from extender.dra.slices import NodeSlices, pool_of
from extender.kube import objects
from extender.kube.indexes import Index

_Consumption = tuple[tuple[CounterId, Amount], ...]


class _WithdrawnDevices:
    """Counters consumed by allocated devices that are no longer published. Not thread-safe.

    A driver withdraws devices that are unhealthy or repartitioned even if they are allocated. kube-scheduler's
    allocator then ignores their consumption and may allocate overlapping devices.
    """

    def __init__(self) -> None:
        self._consumed: dict[tuple[str, str], dict[DeviceId, _Consumption]] = {}  # by driver and pool

    def remember(self, inventory: Inventory, held: AbstractSet[DeviceId]) -> None:
        """Record the consumption of the `held` devices of an inventory, before its slices change."""
        names = {index: counter for counter, index in inventory.counter_of.items()}
        for device in inventory.index_of.keys() & held:
            consumes = inventory.devices[inventory.index_of[device]].consumes
            consumption = tuple((names[counter], amount) for counter, amount in consumes)
            self._consumed.setdefault(device[:2], {})[device] = consumption

    def forget(self, is_used: Callable[[str, str], bool]) -> None:
        """Drop pools that have no allocated devices; `is_used` takes a driver and a pool."""
        self._consumed = {pool: known for pool, known in self._consumed.items() if is_used(*pool)}

    def taken(
        self, inventory: Inventory, held: Collection[DeviceId]
    ) -> tuple[list[tuple[int, Amount]], tuple[str, ...]]:
        """Counters of an inventory consumed by `held` devices that it lacks: (index, amount) pairs, and faults.

        A device whose consumption this process has never seen takes all of its pool's counters and adds a fault.
        """
        taken: list[tuple[int, Amount]] = []
        faults = []
        for device in sorted(set(held) - inventory.index_of.keys()):
            counters = {counter: index for counter, index in inventory.counter_of.items() if counter[:2] == device[:2]}
            consumption = self._consumed.get(device[:2], {}).get(device)
            if consumption is not None:
                taken += [(counters[counter], amount) for counter, amount in consumption if counter in counters]
            elif counters:
                taken += [(index, inventory.counters[index]) for index in counters.values()]
                faults.append(
                    f"{device.driver}/{device.pool}: device {device.device} is allocated but no longer published; no "
                    "device that shares counters is allocated until its claim is deallocated"
                )
        for pool in {device[:2] for device in held}:
            if known := self._consumed.get(pool):
                self._consumed[pool] = {device: known[device] for device in known.keys() & set(held)}
        return taken, tuple(faults)


class OwnedDevices:
    """Not thread-safe; no method blocks. Methods that change state return the names of the nodes affected."""

    def __init__(self, slices: NodeSlices) -> None:
        self.slices = slices
        """The published slices."""
        self._withdrawn = _WithdrawnDevices()
        self._faults: dict[str, tuple[str, ...]] = {}  # of withdrawn devices, by node
        self._devices: dict[str, NodeDevices] = {}  # by node; a cache
        self.claims: dict[str, ResourceClaim] = {}
        """By uid."""
        self.orphans: dict[str, ResourceClaim] = {}
        """Deleted claims whose pods may still use the devices, by uid: finalizers can be removed early."""
        self._claim_at: dict[str, str] = {}  # uid by namespace/name
        self._allocated: Index[str] = Index()  # claim uids by pool
        self.holds: dict[str, Hold] = {}
        """By claim uid."""
        self.unhandled: dict[str, str] = {}
        """Kind (`asks.KINDS`) of each waiting pod's claim that can't be evaluated exactly, by claim uid."""
        self._held_on: Index[Hold] = Index()  # by node and claim uid
        self._classes = DeviceClasses()
        self._allotted: set[str] = set()  # allocated claims reserved for at most one pod

    # Reading

    def devices_on(self, node: str) -> NodeDevices | None:
        """A node's devices and their allocations; None if Kerf owns none."""
        inventory = self.slices.pools_on(node).inventory
        if not inventory.devices:
            return None
        known = self._devices.get(node)
        if known is None:
            withdrawn, self._faults[node] = self._withdrawn.taken(inventory, self._held(node))
            known = self._devices[node] = NodeDevices.of(inventory, self._taken(node, inventory), withdrawn)
        return known

    def faults_on(self, node: str) -> tuple[str, ...]:
        """Why devices of a node's pools can't be allocated."""
        self.devices_on(node)
        return self.slices.pools_on(node).faults + self._faults.get(node, ())

    def pools_on(self, node: str) -> tuple[PoolState, ...]:
        """A node's pools, including those that Kerf does not own."""
        return self.slices.pools_on(node).states

    def nodes(self) -> Collection[str]:
        """Nodes that have pools."""
        return self.slices.nodes()

    def claim_at(self, key: str) -> ResourceClaim | None:
        """A claim by its `namespace/name`."""
        return self.claims.get(self._claim_at.get(key, ""))

    def claims_on(self, node: str) -> Iterator[ResourceClaim]:
        """Claims with devices of a node's pools, including orphans."""
        seen: set[str] = set()
        for pool in self.slices.names_on(node):
            for uid in self._allocated.of(pool):
                if uid not in seen:
                    seen.add(uid)
                    yield self._claim(uid)

    def holds_on(self, node: str) -> Mapping[str, Hold]:
        """Holds on a node's devices, by claim uid."""
        return self._held_on.of(node)

    @property
    def version(self) -> int:
        """Increases when the set of satisfiable claims may have changed."""
        return self.slices.version + self._classes.version

    @property
    def classes(self) -> Mapping[str, DeviceClass]:
        """Device classes by name."""
        return self._classes.by_name

    def inventory_on(self, node: str) -> Inventory:
        """A node's devices that Kerf allocates."""
        return self.slices.pools_on(node).inventory

    def claims_of(self, pod: objects.Pod, is_kerfs: Callable[[DeviceClaims], bool | None]) -> PodClaims:
        """A pod's claims. `is_kerfs` returns whether Kerf allocates the request, None if that is not known yet.

        Raises RequestError if a claim can't be evaluated exactly and Kerf owns all devices.
        """
        claims, missing = self._named(pod)
        # A claim being deleted counts as missing, like in kube-scheduler: a finalizer could block deletion forever.
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
        """A pod's existing claims, in the pod's order."""
        return self._named(pod)[0]

    def allotted(self) -> Iterator[tuple[ResourceClaim, str]]:
        """Claims with devices of Kerf's pools that are reserved for at most one pod, with the devices' node."""
        for uid in self._allotted:
            nodes = {node for pool in pools_of(self.claims[uid]) for node in self.slices.nodes_of(pool)}
            owned = [node for node in nodes if self.inventory_on(node).devices]
            if len(nodes) == len(owned) == 1:
                yield self.claims[uid], owned[0]

    def _named(self, pod: objects.Pod) -> tuple[list[ResourceClaim], str]:
        generated = {item.name: item.resource_claim_name for item in pod.status.resource_claim_statuses or ()}
        claims: dict[str, ResourceClaim] = {}
        missing = ""
        for item in pod.spec.resource_claims or ():
            if item.name in generated and not generated[item.name]:
                continue  # an empty name in the status: the pod needs no claim
            name = item.resource_claim_name or generated.get(item.name) or ""
            claim = self.claims.get(self._claim_at.get(f"{pod.metadata.namespace}/{name}", ""))
            if claim is None:
                missing = missing or name or item.name
            else:
                claims[claim.metadata.uid] = claim
        return list(claims.values()), missing

    def _is_kerfs(self, claim: ResourceClaim, is_kerfs: Callable[[DeviceClaims], bool | None]) -> bool | None:
        """Whether Kerf allocates a claim. One that can't be evaluated exactly is left to kube-scheduler, if it can.

        Raises UnhandledError if it can't: Kerf owns all devices, or the class is missing.
        """
        try:
            asked = read_asks([claim], self.classes)
            self.unhandled.pop(claim.metadata.uid, None)
            return is_kerfs(asked)
        except UnhandledError as error:
            self.unhandled[claim.metadata.uid] = error.kind
            if self.slices.all_owned() or error.kind == MISSING_CLASS:
                raise
            return False

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

    def _held(self, node: str) -> set[DeviceId]:
        """Devices of a node's pools that are allocated or held."""
        allocated = (device for claim in self.claims_on(node) for device in devices_of(claim))
        holds = self._held_on.of(node).values()
        return {*allocated, *(device for hold in holds for device, _ in hold.devices)}

    def _before_change(self, *pools: str) -> None:
        """Record allocated devices' consumption before the slices of these pools change."""
        for pool in set(pools):
            held = {device for uid in self._allocated.of(pool) for device in devices_of(self._claim(uid))}
            held |= {device for hold in self.holds.values() for device, _ in hold.devices}
            for node in self.slices.nodes_of(pool) if held else ():
                self._withdrawn.remember(self.inventory_on(node), held)
        self._withdrawn.forget(lambda driver, pool: bool(self._allocated.of(f"{driver}/{pool}")))

    def _claim(self, uid: str) -> ResourceClaim:
        return self.claims.get(uid) or self.orphans[uid]

    def has_gpus(self, node: str) -> bool:
        """Whether Kerf allocates GPUs on a node."""
        return any(device.gpu >= 0 for device in self.inventory_on(node).devices)

    # Holding

    def hold(self, uid: str, hold: Hold) -> set[str]:
        """Hold devices for a claim before its allocation is written."""
        changed = self.release_hold(uid)
        self.holds[uid] = hold
        self._held_on.put(hold.node, uid, hold)
        return changed | self._forget({hold.node})

    def release_hold(self, uid: str) -> set[str]:
        """Release a claim's hold: its allocation was written, or never will be."""
        hold = self.holds.pop(uid, None)
        if hold is None:
            return set()
        self._held_on.pop(hold.node, uid)
        return self._forget({hold.node})

    # Watch events

    def upsert(self, item: objects.Named) -> set[str]:
        """Add or replace an object."""
        if isinstance(item, ResourceSlice):
            self._before_change(self.slices.pool_of(item.metadata.uid), pool_of(item))
        if isinstance(item, ResourceSlice | DeviceTaintRule):
            return self._forget(self.slices.upsert(item))
        if isinstance(item, ResourceClaim):
            return self._upsert_claim(item)
        if isinstance(item, DeviceClass):
            self._classes.upsert(item)
        return set()

    def remove(self, kind: type, uid: str) -> set[str]:
        """Remove an object."""
        if kind is ResourceClaim:
            return self._claim_deleted(uid)
        if kind is DeviceClass:
            self._classes.remove(uid)
            return set()
        self._before_change(self.slices.pool_of(uid))
        return self._forget(self.slices.remove(uid))

    def _upsert_claim(self, claim: ResourceClaim) -> set[str]:
        uid = claim.metadata.uid
        changed = self._remove_claim(uid)
        self.claims[uid] = claim
        self._claim_at[claim.key] = uid
        for pool in pools_of(claim):
            self._allocated.put(pool, uid, uid)
            if len(claim.status.reserved_for or ()) <= 1:
                self._allotted.add(uid)
            changed |= self.slices.nodes_of(pool)
        return self._forget(changed)

    def forget_orphan(self, uid: str) -> set[str]:
        """Forget a deleted claim whose pods are gone as well."""
        claim = self.orphans.pop(uid, None)
        return set() if claim is None else self._unallocate(claim)

    def _claim_deleted(self, uid: str) -> set[str]:
        claim = self.claims.get(uid)
        if claim is None or not (pools_of(claim) and claim.status.reserved_for):
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
        for pool in pools_of(claim):
            self._allocated.pop(pool, claim.metadata.uid)
            changed |= self.slices.nodes_of(pool)
        return self._forget(changed)

    def _forget(self, nodes: set[str]) -> set[str]:
        for node in nodes:
            self._devices.pop(node, None)
            self._faults.pop(node, None)
        return nodes
