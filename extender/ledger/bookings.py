"""What decisions do to the ledger: reservations, bindings under way, and what became of them."""

from extender.core.resources.nodes import OF_CLAIMS, NodeReading
from extender.kube import objects
from extender.ledger.claims import Claim, ClaimState
from extender.ledger.pod_groups import Cycles
from extender.ledger.rows import NodeRows
from extender.plugins.holdings import NOTHING, Holding
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import Reading, read_holdings


class Bookings:
    """What is held for pods that were decided on. Not thread-safe; every method returns at once."""

    def __init__(self, reading: NodeReading, reservation_ttl_s: float) -> None:
        self.rows = NodeRows(reading, reservation_ttl_s)
        """The nodes."""
        self._claims = self.rows.claims
        self._seen_pods: set[str] = set()  # those that the watch has told of, by UID
        self._told: dict[str, Reading] = {}  # by pod with a node: what it said first
        self.cycles = Cycles(self.release)
        """What gangs were told that are not being bound yet."""

    def claim(self, uid: str) -> Claim | None:
        """What is held for a pod."""
        return self._claims.get(uid)

    def reserve(
        self, uid: str, node: str, holding: Holding, now: float, *, cpu_milli: int = 0, memory_mib: int = 0
    ) -> None:
        """Hold GPUs for a pod that was decided on, for the TTL; replaces an earlier reservation of the same pod.

        A pod that is bound or being bound keeps what it has. With CPU or memory the pod counts among the node's
        requests from now on, as it will once the watch has told of it.
        """
        if self._claims.is_settled(uid):
            return
        self._claims.drop(uid)
        claim = Claim(uid, node, holding, ClaimState.RESERVED, now)
        self._add(claim)
        self._claims.begin_ttl(claim, now)
        if cpu_milli or memory_mib:
            self.rows.request(uid, node, cpu_milli, memory_mib)

    def reserve_as_written(self, pod: objects.Pod, node: str, now: float) -> None:
        """Hold what is written on a pod without a node that it is to get of this one, as firmly as `make_firm` does."""
        uid = pod.metadata.uid
        if self._claims.is_settled(uid):
            return
        self._claims.drop(uid)
        told, _ = read_holdings(pod)
        if told:
            holding = told.on(self.rows.plugin_on(node))
            self._add(Claim(uid, node, holding, ClaimState.RESERVED, now, told=told, firm=True))
        self.rows.request(uid, node, *read_compute(pod.spec))

    def make_firm(self, uid: str) -> None:
        """A pod's reservation is being written on it, and stands until `release`, or until the pod has a node."""
        claim = self._claims.get(uid)
        if claim is not None and claim.state is ClaimState.RESERVED:
            claim.firm = True

    def assign_anew(self, uid: str, holding: Holding) -> None:
        """What a bound pod of which nobody knew that is given of its node."""
        claim = self._claims.get(uid)
        if claim is not None and claim.state is ClaimState.BOUND:
            claim.holding = claim.decided = holding
            claim.anew = True
            self.rows.write(claim.node)

    def release(self, uid: str) -> None:
        """Give back what a pod has reserved; what is bound or being bound stays."""
        if not self._claims.is_settled(uid):
            self._end(uid)

    def is_reserved(self, uid: str, node: str) -> bool:
        """Whether a pod's reservation on a node stands: whatever came to that node since leaves room for it."""
        claim = self._claims.get(uid)
        reserved = claim is not None and claim.state is ClaimState.RESERVED and claim.node == node
        return reserved and self.rows.manifest(node) is not None and not self.rows.state_of(node).crowded

    def renew(self, uid: str, node: str, now: float) -> bool:
        """Begin the TTL of a pod's reservation on a node anew, if it stands; whether it does."""
        self._expire(now)
        claim = self._claims.get(uid)
        if claim is None or not self.is_reserved(uid, node):
            return False
        self._claims.begin_ttl(claim, now)
        return True

    def begin_binding(self, uid: str, node: str, holding: Holding, now: float) -> Claim:
        """Hold GPUs for a pod while the API server is asked to bind it. The claim is the caller's to end."""
        self.cycles.begin_binding(uid)
        known = self._claims.get(uid)
        if known is not None and (known.node, known.holding) == (node, holding):
            known.state, known.since, known.decided = ClaimState.BINDING, now, holding
            return known
        self._claims.drop(uid)
        claim = Claim(uid, node, holding, ClaimState.BINDING, now, decided=holding)
        self._add(claim)
        return claim

    def end_binding(self, claim: Claim, outcome: ClaimState | None, now: float) -> None:
        """The API server has answered: BOUND, None for not bound, or UNDECIDED when nobody knows yet.

        What is undecided ends by a second call, which knows the node and not whose Binding it was. Where the watch has
        told meanwhile of a pod that says something else, that counts if this Binding has failed.
        """
        if self.claim(claim.uid) is not claim or claim.state not in (ClaimState.BINDING, ClaimState.UNDECIDED):
            return
        told = self._told.get(claim.uid)
        if outcome is None and told is None:
            self._end(claim.uid)
            return
        if outcome is None:
            outcome, claim.decided, claim.told = ClaimState.BOUND, None, told
        elif outcome is ClaimState.BOUND:
            claim.disputed = claim.state is ClaimState.UNDECIDED
        claim.state, claim.since = outcome, now
        self._settle(claim)

    def hold_as_read(self, pod: objects.Pod, now: float) -> Claim | None:
        """Hold what a pod says that was read and has a node, UNDECIDED until the watch or a second look tells.

        What was held for it on that node so far is held besides: it may be this process' own Binding, and its author
        faster than its answer. None when it holds nothing, has ended, or the watch has told already.
        """
        uid, node = pod.metadata.uid, pod.spec.node_name
        known = self._claims.get(uid)
        if not node or (known is not None and known.state is ClaimState.BOUND):
            return None
        if pod.finished:
            self._end(uid)
            return None
        self._claims.drop(uid)
        decided = known.decided if known is not None and known.node == node else None
        told = self._told.get(uid) or read_holdings(pod)[0]
        if not told and decided is None:
            return None
        disputed = decided is not None
        claim = Claim(uid, node, NOTHING, ClaimState.UNDECIDED, now, decided=decided, told=told, disputed=disputed)
        claim.holding = claim.holding_on(self.rows.plugin_on(node))
        self._add(claim)
        return claim

    def _confirm(self, claim: Claim, pod: objects.Pod, reading: Reading, now: float) -> None:
        """The watch tells for the first time that a pod has the node which this process has chosen for it."""
        claim.pod = pod.key
        claim.told = claim.told or reading
        if claim.state is not ClaimState.BOUND:
            same = claim.decided in (None, claim.told.on(self.rows.plugin_on(claim.node)))
            if same or claim.state is ClaimState.UNDECIDED:
                claim.state, claim.since = ClaimState.BOUND, now
            claim.disputed = not same  # until the answer tells whose Binding that was, if it ever does
        self._settle(claim)

    def _settle(self, claim: Claim) -> None:
        """Work out anew what a claim comes to."""
        holding = claim.holding_on(self.rows.plugin_on(claim.node))
        devices = self.rows.offer_of(claim.node).unit in OF_CLAIMS and claim.state is ClaimState.BOUND
        if claim.told is not None and not claim.told and (devices or claim.decided is None):
            self._claims.drop(claim.uid)  # devices of ResourceClaims are not the pod's
        elif holding != claim.holding or self.rows.given.of(claim.node, claim.pod, claim.uid) is not None:
            claim.holding = holding
            self.rows.write(claim.node)

    def _expire(self, now: float) -> None:
        self.cycles.expire(now)
        for claim in self._claims.expired(now):
            self._end(claim.uid)

    def _add(self, claim: Claim) -> None:
        if claim.pod:
            self.rows.given.meet(claim.node, claim.pod, claim.uid)
        self._claims.add(claim)

    def _end(self, uid: str) -> None:
        """Nothing is held for a pod any more; one that the watch has not told of requests nothing, either."""
        self._claims.drop(uid)
        if uid not in self._seen_pods:
            self.rows.request(uid, "", 0, 0)
