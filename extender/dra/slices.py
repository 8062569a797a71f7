"""ResourceSlices by node, kept up to date by watches."""

from collections.abc import Collection
from functools import partial

from extender.core.dra.devices import Inventory
from extender.core.resources.nodes import NodeReading
from extender.dra.objects import DeviceTaintRule, ResourceSlice
from extender.dra.published import NodePools, read_pools
from extender.kube.indexes import Index

_NO_POOLS = NodePools()


class NodeSlices:
    """ResourceSlices, read together with DeviceTaintRules. Methods that change state return the affected nodes."""

    def __init__(self, reading: NodeReading) -> None:
        self._read = partial(read_pools, reading=reading, gpus_alone=not reading.allocates)
        self._slices: dict[str, ResourceSlice] = {}  # by uid
        self._in_pool: Index[ResourceSlice] = Index()  # by pool and uid
        self._names_on: Index[str] = Index()  # pools by node and a slice's uid
        self._pools: dict[str, NodePools] = {}  # by node
        self._rules: dict[str, DeviceTaintRule] = {}  # by uid
        self.version = 0
        """Increases with every change."""
        self._all_owned: bool | None = None

    def nodes(self) -> Collection[str]:
        """Nodes that have pools."""
        return self._pools.keys()

    def pool_of(self, uid: str) -> str:
        """A slice's pool, `driver/pool`; "" if the slice is unknown."""
        item = self._slices.get(uid)
        return "" if item is None else pool_of(item)

    def pools_on(self, node: str) -> NodePools:
        """A node's pools."""
        return self._pools.get(node, _NO_POOLS)

    def names_on(self, node: str) -> list[str]:
        """The names of a node's pools, `driver/pool`."""
        return sorted(set(self._names_on.of(node).values()))

    def nodes_of(self, pool: str) -> set[str]:
        """Nodes that have slices of a pool, `driver/pool`."""
        return {item.spec.node_name for item in self._in_pool.of(pool).values() if item.spec.node_name}

    def all_owned(self) -> bool:
        """Whether there are devices, and all of them are Kerf's."""
        if self._all_owned is None:
            pools = self._pools.values()
            owned, others = any(item.inventory.devices for item in pools), any(item.others for item in pools)
            self._all_owned = owned and not others
        return self._all_owned

    def inventories(self) -> list[tuple[Inventory, bool]]:
        """Each node's inventory, and whether the node has pools of other schedulers."""
        return [(pools.inventory, pools.others) for pools in self._pools.values()]

    def upsert(self, item: ResourceSlice | DeviceTaintRule) -> set[str]:
        """Add or replace an object."""
        uid = item.metadata.uid
        if isinstance(item, DeviceTaintRule):
            known = self._rules.get(uid)
            self._rules[uid] = item
            if known is not None and known.spec == item.spec:
                return set()  # only its status changed
            return self._reread(self._selected(item) | (self._selected(known) if known is not None else set()))
        changed = self._drop(uid)
        self._slices[uid] = item
        self._in_pool.put(pool_of(item), uid, item)
        if item.spec.node_name:
            self._names_on.put(item.spec.node_name, uid, pool_of(item))
        return self._reread(changed | self.nodes_of(pool_of(item)))

    def remove(self, uid: str) -> set[str]:
        """Remove an object."""
        if (rule := self._rules.pop(uid, None)) is not None:
            return self._reread(self._selected(rule))
        return self._reread(self._drop(uid))

    def _selected(self, rule: DeviceTaintRule) -> set[str]:
        """Nodes whose devices a rule may select."""
        selector = rule.spec.device_selector
        driver = selector.driver if selector is not None else None
        names = self._in_pool.groups()
        return set().union(*(self.nodes_of(name) for name in names if not driver or name.startswith(f"{driver}/")))

    def _drop(self, uid: str) -> set[str]:
        item = self._slices.pop(uid, None)
        if item is None:
            return set()
        nodes = self.nodes_of(pool_of(item))
        self._in_pool.pop(pool_of(item), uid)
        if item.spec.node_name:
            self._names_on.pop(item.spec.node_name, uid)
        return nodes

    def _reread(self, nodes: set[str]) -> set[str]:
        rules = list(self._rules.values())
        for node in nodes:
            if names := self.names_on(node):
                slices = [item for name in names for item in self._in_pool.of(name).values()]
                self._pools[node] = self._read(slices, rules, node=node)
            else:
                self._pools.pop(node, None)
        self.version += 1
        self._all_owned = None
        return nodes


def pool_of(item: ResourceSlice) -> str:
    """A slice's pool, `driver/pool`."""
    return f"{item.spec.driver}/{item.spec.pool.name}"
