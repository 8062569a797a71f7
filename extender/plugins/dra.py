"""GPUs of DRA drivers: nodes that have them, allocations, and requests."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from extender.core.dra.devices import NO_DEVICES, DeviceId, NodeDevices
from extender.core.resources.nodes import NO_GPUS, GpuUnit, NodeOffer, NodeReading
from extender.core.resources.requests import GpuRequest
from extender.core.vendors.registry import DRIVERS
from extender.dra.conditions import read_request
from extender.dra.objects import (
    CLAIMS,
    CLASSES,
    RULES,
    SLICES,
    DeviceClass,
    DeviceTaintRule,
    ResourceClaim,
    ResourceSlice,
)
from extender.dra.owned import OwnedDevices
from extender.dra.pod_claims import claim_keys
from extender.dra.published import NodePools
from extender.dra.results import devices_of
from extender.dra.slices import NodeSlices
from extender.dra.uses import DeviceUse, uses_of
from extender.kube import objects
from extender.kube.indexes import Index
from extender.kube.watches import Feed
from extender.plugins.holdings import Holding, Part, whole_gpus
from extender.plugins.protocol import DevicePlugin, Stock


class Dra(DevicePlugin):
    """Vendors' DRA drivers. kube-scheduler allocates their GPUs, so a Binding carries nothing for them."""

    name = "dra"

    def stock(self, reading: NodeReading) -> Stock | None:
        return _DevicePools(reading)


class _DevicePools:
    """ResourceSlices and ResourceClaims of vendors' drivers. Not thread-safe."""

    feeds: Sequence[Feed[Any]] = (SLICES, CLAIMS)

    def __init__(self, reading: NodeReading) -> None:
        self._slices = NodeSlices(reading)
        self.owned = OwnedDevices(self._slices) if reading.allocates else None
        """The devices that Kerf allocates itself, or None."""
        if self.owned is not None:
            self.feeds = (*self.feeds, CLASSES, RULES)
        self._claims: dict[str, ResourceClaim] = {}  # by uid
        self._claim_at: dict[str, str] = {}  # uid by namespace/name
        self._allocated: Index[list[DeviceId]] = Index()  # devices by pool, `driver/pool`, and a claim's uid
        self._served: Index[str] = Index()  # allocated claims by UID of the pod and of the claim
        self.num_allocated: Counter[str] = Counter()
        """Devices that claims hold, by namespace."""

    def offer_of(self, node: str) -> NodeOffer | None:
        offer = self._slices.pools_on(node).offer
        if offer is NO_GPUS:
            return None
        owned = self.owned is not None and self.owned.has_gpus(node)
        return replace(offer, unit=GpuUnit.OWNED) if owned else offer

    def holdings_on(self, node: str) -> list[Holding]:
        """Return what ResourceClaims hold of a node's GPUs.

        In pools that Kerf owns, each device holds its part of the GPU. In others, partitions of one GPU, or a device
        shared by claims, count once.
        """
        pools = self._slices.pools_on(node)
        if pools.offer is NO_GPUS:
            return []
        owned = None if self.owned is None else self.owned.devices_on(node)
        holdings = [] if owned is None else _parts_taken(owned)
        known: Collection[DeviceId] = () if owned is None else owned.inventory.index_of
        gpu_of = _gpu_of(pools)
        seen: set[int] = set()
        for pool in self._pools_of(node):
            for devices in self._allocated.of(pool).values():
                others = [device for device in devices if device not in known]
                indices = [gpu_of.get(device) for device in others]
                gpus = sorted({index for index in indices if index is not None} - seen)
                seen.update(gpus)
                if others or not devices:
                    holdings.append(whole_gpus(len(gpus) + indices.count(None), gpus))
        return holdings

    def uses_on(self, node: str) -> list[DeviceUse]:
        """Return the uses of a node's devices; if Kerf owns no pools, of vendors' drivers only."""
        gpu_of, owned = _gpu_of(self._slices.pools_on(node)), self.owned
        if owned is not None:
            pools = frozenset((state.id.driver, state.id.pool) for state in owned.pools_on(node))
            orphans = frozenset(owned.orphans)
            inventory = owned.inventory_on(node)
            return uses_of(list(owned.claims_on(node)), owned.holds_on(node), inventory, gpu_of, pools, orphans)
        names = self._pools_of(node)
        uids = dict.fromkeys(uid for pool in names for uid in self._allocated.of(pool))
        of_gpus = frozenset((name.partition("/")[0], name.partition("/")[2]) for name in names)
        return uses_of([self._claims[uid] for uid in uids], {}, NO_DEVICES, gpu_of, of_gpus)

    def _pools_of(self, node: str) -> list[str]:
        """Return the pools of vendors' drivers, `driver/pool`."""
        return [name for name in self._slices.names_on(node) if name.partition("/")[0] in DRIVERS]

    def serves(self, pod_uid: str) -> bool:
        return bool(self._served.of(pod_uid))

    def request_of(self, pod: objects.Pod) -> GpuRequest | None:
        """Return what a pod requests by unallocated claims."""
        uids = {self._claim_at.get(key, "") for key in claim_keys(pod)}
        claims = [self._claims[uid] for uid in sorted(uids - {""})]
        return read_request(claim for claim in claims if claim.status.allocation is None)

    def upsert(self, item: ResourceSlice | ResourceClaim | DeviceClass | DeviceTaintRule) -> set[str]:
        nodes = set[str]()
        if self.owned is not None:
            nodes = self.owned.upsert(item)
        elif isinstance(item, ResourceSlice):
            of_gpus = item.spec.driver in DRIVERS and item.spec.node_name
            nodes = self._slices.upsert(item) if of_gpus else self._slices.remove(item.metadata.uid)
        if isinstance(item, ResourceClaim):
            nodes |= self._remove_claim(item.metadata.uid) | self._add_claim(item)
        return nodes

    def remove(self, kind: type, uid: str) -> set[str]:
        nodes = set[str]()
        if self.owned is not None:
            nodes = self.owned.remove(kind, uid)
        elif kind is ResourceSlice:
            nodes = self._slices.remove(uid)
        return nodes | self._remove_claim(uid) if kind is ResourceClaim else nodes

    # Claims

    def _add_claim(self, claim: ResourceClaim) -> set[str]:
        uid, namespace = claim.metadata.uid, claim.metadata.namespace
        self._claims[uid] = claim
        self._claim_at[claim.key] = uid
        devices = _devices(claim)
        for device in devices:
            pool = f"{device.driver}/{device.pool}"
            self._allocated.put(pool, uid, [*self._allocated.of(pool).get(uid, ()), device])
        if devices:
            self.num_allocated[namespace] += len(devices)
        for consumer in (claim.status.reserved_for or ()) if claim.status.allocation else ():
            self._served.put(consumer.uid, uid, uid)
        return self._nodes_with(devices)

    def _remove_claim(self, uid: str) -> set[str]:
        claim = self._claims.pop(uid, None)
        if claim is None:
            return set()
        namespace = claim.metadata.namespace
        if self._claim_at.get(claim.key) == uid:
            del self._claim_at[claim.key]
        devices = _devices(claim)
        for device in devices:
            self._allocated.pop(f"{device.driver}/{device.pool}", uid)
        self.num_allocated[namespace] -= len(devices)
        if not self.num_allocated[namespace]:
            del self.num_allocated[namespace]
        for consumer in claim.status.reserved_for or ():
            self._served.pop(consumer.uid, uid)
        return self._nodes_with(devices)

    def _nodes_with(self, devices: Collection[DeviceId]) -> set[str]:
        return {node for device in devices for node in self._slices.nodes_of(f"{device.driver}/{device.pool}")}


def _devices(claim: ResourceClaim) -> list[DeviceId]:
    """Return a claim's devices of vendors' drivers."""
    return [device for device in devices_of(claim) if device.driver in DRIVERS]


def _gpu_of(pools: NodePools) -> dict[DeviceId, int]:
    """Return the GPU index of each device of a node's GPU driver."""
    return {DeviceId(pools.driver, pool, device): index for (pool, device), index in pools.index_of.items()}


def _parts_taken(devices: NodeDevices) -> list[Holding]:
    """Return what taken devices hold of GPUs."""
    taken = (device for index, device in enumerate(devices.inventory.devices) if devices.taken >> index & 1)
    return [Holding(1, (Part(device.gpu, device.milli, device.mib),)) for device in taken if device.gpu >= 0]
