"""GPUs that kube-scheduler allocates to ResourceClaims: which nodes have them, which are allocated, who asks for them.

Fed by two reflectors, read by the ledger. The API may be missing: then there are none.
"""

from collections import Counter
from collections.abc import Iterable

from extender.cluster import objects
from extender.cluster.contracts import dra
from extender.cluster.contracts.dra import Inventory
from extender.cluster.contracts.readings import NodeReading
from extender.cluster.holdings import Holding, Part, whole_gpus
from extender.core.nodes import NodeOffer
from extender.core.requests import GpuRequest


class DevicePools:
    """ResourceSlices and ResourceClaims of NVIDIA's driver. Not thread-safe; every method returns at once."""

    def __init__(self, reading: NodeReading) -> None:
        self._reading = reading
        self._slices: dict[str, objects.ResourceSlice] = {}  # by uid
        self._slices_of: dict[str, dict[str, objects.ResourceSlice]] = {}  # by pool, then uid
        self._inventories: dict[str, Inventory] = {}  # by node
        self._pools_on: dict[str, set[str]] = {}  # by node
        self._node_of: dict[str, str] = {}  # by pool
        self._claims: dict[str, objects.ResourceClaim] = {}  # by uid
        self._claim_at: dict[str, str] = {}  # uid by namespace/name
        self._allocated: dict[str, dict[str, tuple[str, ...]]] = {}  # by pool: devices by claim
        self._served: dict[str, set[str]] = {}  # allocated claims by the pod that uses them
        self.num_allocated: Counter[str] = Counter()
        """Devices that claims hold, by namespace."""

    # Reading

    def offer_of(self, node: str) -> NodeOffer | None:
        """The GPUs of a node that are allocated to ResourceClaims, None when it has none."""
        inventory = self._inventories.get(node)
        return inventory.offer if inventory else None

    def holdings_on(self, node: str) -> list[Holding]:
        """What ResourceClaims hold of a node's GPUs."""
        inventory = self._inventories.get(node)
        if inventory is None:
            return []
        holdings = []
        for pool in self._pools_on.get(node, ()):
            for devices in self._allocated.get(pool, {}).values():
                known = {inventory.index_of[pool, device] for device in devices if (pool, device) in inventory.index_of}
                unknown = sum((pool, device) not in inventory.index_of for device in devices)
                holdings.append(Holding(len(known) + unknown, tuple(Part(gpu) for gpu in sorted(known))))
        return _apart(holdings)

    def is_served(self, pod_uid: str) -> bool:
        """Whether a pod has its devices already: they are its claims', and not its own to hold."""
        return pod_uid in self._served

    def request_of(self, pod: objects.Pod) -> GpuRequest | None:
        """What a pod asks by claims that have no devices yet, None when nothing."""
        names = [
            *(claim.resource_claim_name for claim in pod.spec.resource_claims or ()),
            *(claim.resource_claim_name for claim in pod.status.resource_claim_statuses or ()),
        ]
        uids = {self._claim_at.get(f"{pod.metadata.namespace}/{name}", "") for name in names if name}
        claims = [self._claims[uid] for uid in sorted(uids - {""})]
        return dra.read_request(claim for claim in claims if claim.status.allocation is None)

    # What the watch tells; each returns the nodes of which something has changed

    def upsert_slice(self, item: objects.ResourceSlice) -> set[str]:
        """A slice was added or changed."""
        nodes = self.remove_slice(item.metadata.uid)
        if item.spec.driver != dra.DRIVER or not item.spec.node_name:
            return nodes
        self._slices[item.metadata.uid] = item
        self._slices_of.setdefault(item.spec.pool.name, {})[item.metadata.uid] = item
        self._node_of[item.spec.pool.name] = item.spec.node_name
        self._pools_on.setdefault(item.spec.node_name, set()).add(item.spec.pool.name)
        self._take_stock(item.spec.node_name)
        return nodes | {item.spec.node_name}

    def remove_slice(self, uid: str) -> set[str]:
        """A slice is gone."""
        item = self._slices.pop(uid, None)
        if item is None or not item.spec.node_name:
            return set()
        pool, node = item.spec.pool.name, item.spec.node_name
        del self._slices_of[pool][uid]
        if not self._slices_of[pool]:
            del self._slices_of[pool], self._node_of[pool]
            self._pools_on[node].discard(pool)
            if not self._pools_on[node]:
                del self._pools_on[node]
        self._take_stock(node)
        return {node}

    def keep_slices(self, listed: set[str]) -> set[str]:
        """Slices that a complete list does not name are gone."""
        return _joined(self.remove_slice(uid) for uid in list(self._slices.keys() - listed))

    def upsert_claim(self, claim: objects.ResourceClaim) -> set[str]:
        """A claim was added or changed."""
        uid = claim.metadata.uid
        nodes = self.remove_claim(uid)
        self._claims[uid] = claim
        self._claim_at[_key(claim)] = uid
        for pool, device in dra.allocated_devices(claim):
            of_pool = self._allocated.setdefault(pool, {})
            of_pool[uid] = (*of_pool.get(uid, ()), device)
            nodes |= {self._node_of.get(pool, "")}
            self.num_allocated[claim.metadata.namespace] += 1
        if claim.status.allocation:
            for consumer in claim.status.reserved_for or ():
                self._served.setdefault(consumer.uid, set()).add(uid)
        return nodes - {""}

    def remove_claim(self, uid: str) -> set[str]:
        """A claim is gone."""
        claim = self._claims.pop(uid, None)
        if claim is None:
            return set()
        if self._claim_at.get(_key(claim)) == uid:
            del self._claim_at[_key(claim)]
        nodes = set()
        for pool, _ in dra.allocated_devices(claim):
            of_pool = self._allocated.get(pool, {})
            of_pool.pop(uid, None)
            if not of_pool:
                self._allocated.pop(pool, None)
            nodes.add(self._node_of.get(pool, ""))
            self.num_allocated[claim.metadata.namespace] -= 1
        if not self.num_allocated[claim.metadata.namespace]:
            del self.num_allocated[claim.metadata.namespace]
        for consumer in claim.status.reserved_for or ():
            served = self._served.get(consumer.uid, set())
            served.discard(uid)
            if not served:
                self._served.pop(consumer.uid, None)
        return nodes - {""}

    def keep_claims(self, listed: set[str]) -> set[str]:
        """Claims that a complete list does not name are gone."""
        return _joined(self.remove_claim(uid) for uid in list(self._claims.keys() - listed))

    # Inside

    def _take_stock(self, node: str) -> None:
        slices = [
            item
            for pool in sorted(self._pools_on.get(node, ()))
            for item in dra.newest_complete(self._slices_of[pool].values())
        ]
        if slices:
            self._inventories[node] = dra.read_inventory(slices, self._reading)
        else:
            self._inventories.pop(node, None)


def _apart(holdings: list[Holding]) -> list[Holding]:
    """Holdings that never hold the same GPU: partitions of one, or a device that claims share, count once."""
    seen: set[int] = set()
    apart = []
    for holding in holdings:
        gpus = [gpu for gpu in holding.gpus if gpu not in seen]
        seen.update(gpus)
        apart.append(whole_gpus(holding.units - len(holding.gpus) + len(gpus), gpus))
    return apart


def _key(claim: objects.ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _joined(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)
