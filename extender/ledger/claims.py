"""Claims: GPUs of a node that are held for a pod.

A claim moves one way: RESERVED by the call that decides, BINDING while the API server is asked, UNDECIDED when its
answer is lost, BOUND for as long as the pod exists.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from extender.kube.indexes import Index
from extender.plugins.holdings import Holding, either
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
