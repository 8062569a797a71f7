"""What of devices is left, and whether it is enough for pods: found by trying all there is."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.tools.chaos.devices.books import Books, Device, DeviceKey, amount, takings_of
from tests.tools.chaos.devices.plans import DRIVERS, PARTITIONS, Ask, PoolKind
from tests.tools.chaos.holdings import Manifest, NodeUse

_KINDS = dict.fromkeys((Ask.GPU, *PARTITIONS), PoolKind.WHOLE) | {
    Ask.NETWORK: PoolKind.NETWORK,
    Ask.OTHER: PoolKind.OTHER,
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One alternative of a request."""

    ask: Ask
    count: int
    gbit: int

    def met_by(self, device: Device) -> bool:
        """Whether a device is of that kind."""
        if device.key.driver != DRIVERS[_KINDS[self.ask]]:
            return False
        if self.ask is Ask.GPU:
            return device.attributes["type"] == "gpu"
        return self.ask not in PARTITIONS or device.attributes.get("profile") == self.ask


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod needs."""

    requests: tuple[tuple[Wanted, ...], ...]
    """Each the first of its alternatives."""
    nodes: frozenset[str] | None
    """Where those of its claims are that have devices; None: anywhere."""

    @property
    def ours(self) -> bool:
        """Whether it needs devices that Kerf allocates."""
        return any(wanted.ask is not Ask.OTHER for alternatives in self.requests for wanted in alternatives)


def asked_of(books: Books, pod: Manifest) -> Asked | None:
    """What a pod needs; None while a claim is missing, or is about to go."""
    requests: list[tuple[Wanted, ...]] = []
    nodes: frozenset[str] | None = None
    for claim in books.claims_of(pod).values():
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            return None
        if takings := takings_of(claim):
            there = frozenset(books.devices[taking.key].node for taking in takings)
            nodes = there if nodes is None else nodes & there
        else:
            requests += (_read(request) for request in claim["spec"]["devices"]["requests"])
    return Asked(tuple(requests), nodes)


def _read(request: Manifest) -> tuple[Wanted, ...]:
    alternatives = request.get("firstAvailable") or [request["exactly"]]
    return tuple(
        Wanted(
            Ask(of["deviceClassName"].removesuffix(".example.com")),
            of.get("count", 1),
            amount(((of.get("capacity") or {}).get("requests") or {}).get("gbit", "0")),
        )
        for of in alternatives
    )


@dataclass
class Room:
    """What is left on nodes that take pods."""

    devices: dict[str, list[Device]] = field(default_factory=lambda: defaultdict(list))
    """Of each node that takes pods."""
    taken: set[DeviceKey] = field(default_factory=set)
    gbit: Counter[DeviceKey] = field(default_factory=Counter)
    """What is taken of the bandwidth of shared devices."""
    used: dict[tuple[str, str], Counter[tuple[str, str]]] = field(default_factory=dict)
    counters: dict[tuple[str, str], dict[tuple[str, str], int]] = field(default_factory=dict)
    doubtful: set[tuple[str, str]] = field(default_factory=set)
    """Pools of which somebody has a device that is published no more: who has come since can't know what it takes of
    counters, and may give nothing that takes of any."""

    @classmethod
    def of(cls, books: Books, nodes: Sequence[NodeUse]) -> "Room":
        """What is left now."""
        holders = books.holders()
        room = cls(taken=set(holders), used=books.used(holders), counters=books.counters)
        open_ = {node.name for node in nodes if node.schedulable}
        there = list(books.there())
        room.doubtful = {key[:2] for key in holders.keys() - {device.key for device in there}}
        for device in there:
            if device.node in open_:
                room.devices[device.node].append(device)
        for key, held in holders.items():
            room.gbit[key] = sum(dict(taking.consumed).get("gbit", 0) for _, taking in held)
        return room

    def places(self, pods: Sequence[Asked]) -> list[str]:
        """Nodes for all of these pods, [] where they have no room together."""
        return next(self._placed(pods), [])

    def _placed(self, pods: Sequence[Asked]) -> Iterator[list[str]]:
        if not pods:
            yield []
            return
        first, *rest = pods
        nodes = sorted(self.devices) if first.nodes is None else sorted(first.nodes & self.devices.keys())
        for node in nodes:
            for _ in self._served(node, first.requests):
                for others in self._placed(rest):
                    yield [node, *others]
                break  # which devices of this node does not matter: what is missed so is let pass

    def _served(self, node: str, requests: Sequence[tuple[Wanted, ...]]) -> Iterator[None]:
        """Ways to give a node's devices, each in effect until the next is asked for."""
        if not requests:
            yield
            return
        for wanted in requests[0]:
            for _ in self._given(node, wanted, wanted.count, 0):
                yield from self._served(node, requests[1:])

    def _given(self, node: str, wanted: Wanted, count: int, start: int) -> Iterator[None]:
        if not count:
            yield
            return
        devices = self.devices[node]
        for index in range(start, len(devices)):
            device = devices[index]
            if not wanted.met_by(device) or not self._free(device, wanted):
                continue
            self._take(device, wanted, 1)
            try:
                yield from self._given(node, wanted, count - 1, index + 1)
            finally:
                self._take(device, wanted, -1)

    def _free(self, device: Device, wanted: Wanted) -> bool:
        if device.shared:
            return self.gbit[device.key] + wanted.gbit <= device.capacity["gbit"]
        pool = device.key[:2]
        if device.counters and pool in self.doubtful:
            return False
        used, there = self.used.get(pool, Counter()), self.counters.get(pool, {})
        enough = all(used[counter] + needed <= there.get(counter, 0) for counter, needed in device.counters.items())
        return device.key not in self.taken and enough

    def _take(self, device: Device, wanted: Wanted, sign: int) -> None:
        if device.shared:
            self.gbit[device.key] += sign * wanted.gbit
            return
        (self.taken.add if sign > 0 else self.taken.discard)(device.key)
        used = self.used.setdefault(device.key[:2], Counter())
        for counter, needed in device.counters.items():
            used[counter] += sign * needed
