"""Claims: GPUs of a node that are held for a pod, and what those of one node come to, GPU by GPU.

A claim moves one way: RESERVED by the call that decides, BINDING while the API server is asked, UNDECIDED when its
answer is lost, BOUND for as long as the pod exists.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.nodes import SLICES, GpuUnit, NodeOffer
from extender.kube.indexes import Index
from extender.ledger.arrays import Held
from extender.plugins.holdings import Holding, Part, either
from extender.plugins.pods import Reading
from extender.plugins.protocol import DevicePlugin


class ClaimState(Enum):
    """How firm a claim is."""

    RESERVED = auto()
    """Decided, not yet asked to bind: ends with its TTL."""
    BINDING = auto()
    """The API server is being asked: ends with its answer."""
    UNDECIDED = auto()
    """Asked, with no answer: may take effect yet, so it is given away only once the pod has told."""
    BOUND = auto()
    """The pod has its node: ends with the pod."""


@dataclass(slots=True, eq=False)
class Claim:
    """GPUs of one node held for one pod."""

    uid: str
    node: str
    holding: Holding
    state: ClaimState
    since: float
    """Monotonic time of the last change of state."""
    pod: str = ""
    """`namespace/name`, once the watch has told of it."""
    decided: Holding | None = None
    """What this process has sent with a Binding, None where somebody else's counts."""
    told: Reading | None = None
    """What the pod said when it was first seen with its node."""
    given: Holding | None = None
    """What the node's kubelet really gave, where it tells and can be believed."""
    disputed: bool = False
    """Whether `told` may be as true as `decided`: nobody can say whose Binding took effect."""
    anew: bool = False
    """Whether a bound pod was assigned other GPUs than it had said: it is to say so yet."""
    firm: bool = False
    """Whether a reservation is written on its pod: kube-scheduler may bind it by that at any time, so that neither
    time nor a change of its node ends it."""

    def holding_on(self, plugin: DevicePlugin) -> Holding:
        """What it comes to on a node of a plugin."""
        if self.told is None or (self.decided is not None and not self.disputed):
            return self.holding if self.decided is None else self.decided
        told = self.told.on(plugin)
        return told if self.decided is None else either(self.decided, told)

    @property
    def held(self) -> Holding:
        """What the pod's containers have, as far as anybody knows."""
        return self.holding if self.given is None else self.given

    @property
    def mistaken(self) -> bool:
        """Whether the pod says that it has other GPUs than it was given; which it was to have is known, and an
        annotation can say which it has."""
        if self.given is None or self.state is not ClaimState.BOUND or not self.holding.parts:
            return False
        given = set(self.given.gpus)
        return given != set(self.holding.gpus) and len(given) == self.given.units

    @property
    def units(self) -> int:
        """GPU units held, whether or not their indices are known."""
        return self.held.units

    @property
    def gpus(self) -> tuple[int, ...]:
        """Indices of the GPUs held, as far as they are known."""
        return self.held.gpus


class Claims:
    """The claims by pod and by node. Not thread-safe."""

    def __init__(self, ttl_s: float, changed: Callable[[str], None]) -> None:
        """`changed` hears of nodes of which a claim was added or dropped."""
        self._ttl_s = ttl_s
        self._changed = changed
        self._by_uid: dict[str, Claim] = {}
        self._by_node: Index[Claim] = Index()
        self._passing: deque[tuple[float, Claim]] = deque()  # claims with a TTL and when it may end, in that order

    def __iter__(self) -> Iterator[Claim]:
        return iter(tuple(self._by_uid.values()))

    def get(self, uid: str) -> Claim | None:
        """What is held for a pod."""
        return self._by_uid.get(uid)

    def on(self, node: str) -> Collection[Claim]:
        """What is held on a node."""
        return self._by_node.of(node).values()

    def uids(self, node: str) -> Mapping[str, str]:
        """UIDs of the pods of a node that the watch has told of, by `namespace/name`."""
        return {claim.pod: claim.uid for claim in self.on(node) if claim.pod}

    def add(self, claim: Claim) -> None:
        """Hold something for a pod that nothing is held for."""
        self._by_uid[claim.uid] = claim
        self._by_node.put(claim.node, claim.uid, claim)
        self._changed(claim.node)

    def drop(self, uid: str) -> None:
        """Hold nothing for a pod any more."""
        claim = self._by_uid.pop(uid, None)
        if claim is not None:
            self._by_node.pop(claim.node, uid)
            self._changed(claim.node)

    def is_settled(self, uid: str) -> bool:
        """Whether a pod is bound, or being bound."""
        claim = self._by_uid.get(uid)
        return claim is not None and claim.state is not ClaimState.RESERVED

    def begin_ttl(self, claim: Claim, now: float) -> None:
        """A reservation ends a TTL from now."""
        claim.since = now
        self._passing.append((now + self._ttl_s, claim))

    def expired(self, now: float) -> Iterator[Claim]:
        """Reservations whose TTL has ended."""
        while self._passing and self._passing[0][0] <= now:
            _, claim = self._passing.popleft()
            reserved = self._by_uid.get(claim.uid) is claim and claim.state is ClaimState.RESERVED
            if reserved and not claim.firm and claim.since + self._ttl_s <= now:
                yield claim


class Occupancy:
    """What the claims on one node come to."""

    def __init__(self, offer: NodeOffer) -> None:
        self._offer = offer
        self._index_of = {gpu.uuid: index for index, gpu in enumerate(offer.gpus) if gpu.uuid}
        self._sliced = offer.unit in SLICES
        self.held: dict[int, tuple[int, int]] = {}
        """(milli, MiB) by index, more than the GPU has where it is booked over its capacity."""
        self._slices: dict[int, int] = {}  # of each GPU that is known to have some
        self._holders: dict[int, int] = {}  # shares of each GPU
        self.untracked = offer.withheld_units
        self.mig: list[tuple[str, int]] = []
        self.num_served = self.num_unserved = 0
        self.crowded = False
        """Whether the claims don't all have room, or GPUs of their own."""

    @property
    def left(self) -> Held:
        """Who holds what, as the arrays take it."""
        return Held(self.held, self.untracked, self.mig, self.num_served, self.num_unserved, self._slices)

    @property
    def nothing_left(self) -> Held:
        """The same where all that is free counts as somebody's."""
        offer = self._offer
        held = {index: (WHOLE_MILLI, gpu.memory_mib) for index, gpu in enumerate(offer.gpus)}
        untracked = len(offer.gpus) * offer.units_per_gpu if self._sliced else self.untracked
        return Held(held, max(untracked, self.untracked), offer.mig, self.num_served, self.num_unserved, self._slices)

    def as_given(self, holding: Holding, uuids: tuple[str, ...]) -> Holding | None:
        """A pod's whole GPUs, or time slices, as the kubelet really gave them; None where that can't be true."""
        apart = self._sliced or (self._offer.unit is GpuUnit.WHOLE and len(set(uuids)) == len(uuids))
        plain = apart and all(part.whole for part in holding.parts)
        as_many = len(uuids) == holding.units and all(uuid in self._index_of for uuid in uuids)
        if not (plain and as_many) or holding.unserved:
            return None
        return Holding(holding.units, tuple(Part(self._index_of[uuid], uuid=uuid) for uuid in uuids))

    def book(self, holdings: Collection[Holding]) -> None:
        """Book all that is held, once. Shares come first: a share is on the GPU that it names."""
        for holding in holdings:
            self._add_shares(holding)
        for holding in holdings:
            self._add_whole(holding)
        self._settle()

    def _add_shares(self, holding: Holding) -> None:
        """Book the parts of GPUs, and count what is of unknown index."""
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
                self.crowded = True
                continue
            milli, mib = self.held.get(gpu, (0, 0))
            self.held[gpu] = milli + part.milli, mib + part.mib
            self._holders[gpu] = self._holders.get(gpu, 0) + 1

    def _add_whole(self, holding: Holding) -> None:
        """Book whole GPUs; one that is not there, or that somebody has something of, counts by number."""
        for part in holding.parts:
            if self._sliced or not self.is_whole(part):
                continue
            gpu = self.find(part.gpu, part.uuid)
            if gpu is None or gpu in self.held:
                self.untracked += 1
                self.crowded = True
            else:
                self.held[gpu] = WHOLE_MILLI, self._offer.gpus[gpu].memory_mib

    def _add_slices(self, holding: Holding) -> None:
        """All count by number; of which GPUs some are, is known besides."""
        self.untracked += holding.units
        for part in holding.parts:
            gpu = self.find(part.gpu, part.uuid)
            if gpu is not None:
                self._slices[gpu] = self._slices.get(gpu, 0) + 1

    def _settle(self) -> None:
        """See whether all have room; where they have not, the rest of the shared GPUs may be somebody's."""
        gpus = self._offer.gpus
        self.crowded = self.crowded or (self._offer.plugin_picks and self.num_served > 0 < self.num_unserved)
        idle = sum(gpu.healthy and index not in self.held for index, gpu in enumerate(gpus))
        if self.untracked > idle * self._offer.units_per_gpu:
            self.crowded = True
            self.held = {gpu: (WHOLE_MILLI, gpus[gpu].memory_mib) for gpu in self.held}
        self.crowded = self.crowded or any(count > self._offer.units_per_gpu for count in self._slices.values())
        for gpu, (milli, mib) in self.held.items():
            self.crowded = self.crowded or milli > WHOLE_MILLI or mib > gpus[gpu].memory_mib
        for gpu, num_holders in self._holders.items():
            if 0 < gpus[gpu].max_holders <= num_holders:
                self.crowded = self.crowded or num_holders > gpus[gpu].max_holders
                milli, mib = self.held[gpu]
                self.held[gpu] = max(milli, WHOLE_MILLI), max(mib, gpus[gpu].memory_mib)  # its plugin has no more
        installed = dict(self._offer.mig)
        used: dict[str, int] = {}
        for profile, count in self.mig:
            used[profile] = used.get(profile, 0) + count
        self.crowded = self.crowded or any(count > installed.get(profile, 0) for profile, count in used.items())

    def is_whole(self, part: Part) -> bool:
        """Whether nobody else may have anything of its GPU. A share of memory alone is one only where a plugin sees to
        it: elsewhere a request by memory is given a whole GPU."""
        return part.whole or (part.milli == 0 and self._offer.unit is not GpuUnit.PART)

    def find(self, gpu: int, uuid: str) -> int | None:
        """Which GPU of the node it is, None when that can't be told."""
        if uuid and self._index_of:
            return self._index_of.get(uuid)
        return gpu if 0 <= gpu < len(self._offer.gpus) else None
