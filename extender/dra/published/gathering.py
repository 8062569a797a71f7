"""The pools of one node as kube-scheduler's allocator gathers them: newest, complete, free of contradictions.

Read in kubernetes 1.37.2 `dynamic-resource-allocation/structured/internal/incubating/pools_incubating.go`, which
kube-scheduler 1.37 uses by default, and `resourceslice/tracker/tracker.go` for the rules that add taints.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from extender.core.dra.devices import Taint
from extender.dra.objects import CounterSet, Device, DeviceTaintRule, ResourceSlice


class PoolId(NamedTuple):
    """What a pool is called; in order, that in which kube-scheduler looks at them."""

    driver: str
    pool: str

    def __str__(self) -> str:
        return f"pool {self.pool} of {self.driver}"


@dataclass(frozen=True, slots=True)
class NodePool:
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
    def devices(self) -> Iterator[Device]:
        """The node's devices, in the order in which kube-scheduler looks at them."""
        return (device for item in self.slices for device in item.spec.devices or ())


@dataclass(slots=True)
class _Slices:
    """The slices of one pool."""

    near: list[ResourceSlice] = field(default_factory=list)
    far: list[ResourceSlice] = field(default_factory=list)


def gather_pools(node: str, slices: Iterable[ResourceSlice]) -> list[NodePool]:
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


def _pool(name: PoolId, near: Sequence[ResourceSlice], far: Sequence[ResourceSlice]) -> NodePool | None:
    """None while its driver is replacing it by a generation that has nothing on this node."""
    newest = max(item.spec.pool.generation for item in near)
    near = sorted((item for item in near if item.spec.pool.generation == newest), key=lambda item: item.metadata.name)
    count = near[0].spec.pool.resource_slice_count
    if len(near) != count and any(item.spec.pool.generation > newest for item in far):
        return None
    far = sorted((item for item in far if item.spec.pool.generation == newest), key=lambda item: item.metadata.name)
    if count not in (len(near), len(near) + len(far)):
        found = len(near) + len(far)
        return NodePool(name, tuple(near), incomplete=f"{found} of its {count} slices are there")
    counters = [item for item in (*near, *far) if item.spec.shared_counters]
    holding = [item for item in near if not item.spec.shared_counters]
    elsewhere = [item for item in far if not item.spec.shared_counters]
    sets = [counter_set for item in counters for counter_set in item.spec.shared_counters or ()]
    pool = NodePool(name, tuple(holding), tuple(sets), tuple(elsewhere))
    return replace(pool, invalid=_invalid(pool))


def _invalid(pool: NodePool) -> str:
    """Why a pool is refused, "" where it is not."""
    twice = repeated(device.name for device in pool.devices)
    if twice:
        return f"device name {twice} is there twice"
    twice = repeated(counters.name for counters in pool.counter_sets)
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


def repeated(names: Iterable[str]) -> str:
    """The first name that is there again, "" where each is there once."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


# Taints


def taints_of(pool: PoolId, device: Device, rules: Sequence[DeviceTaintRule]) -> tuple[Taint, ...]:
    """A device's taints: those that its driver publishes, and those of the rules that select it."""
    own = (Taint(taint.key, taint.value, taint.effect) for taint in device.taints or ())
    added = (
        Taint(rule.spec.taint.key, rule.spec.taint.value, rule.spec.taint.effect)
        for rule in rules
        if _selects(rule, pool, device.name)
    )
    return (*own, *added)


def rules_for(pool: PoolId, rules: Iterable[DeviceTaintRule]) -> list[DeviceTaintRule]:
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
