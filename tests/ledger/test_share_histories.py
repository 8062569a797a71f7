"""Any history of shares, whole GPUs, foreign pods, deaths and restarts, beside a slow account of who has what."""

from dataclasses import dataclass, field

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.core.annotations import COUNT, MEMORY_EACH, SHARE
from extender.core.policies.registry import POLICIES
from extender.kube import objects
from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.holdings import Holding
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE, format_gpus
from extender.plugins.pods import read_pod_request
from extender.scheduling.placer import Assignment, Placer, PodIdentity
from tests.ledger.builders import TTL_S, Clock, node_object, pod_manifest

MIB = 15360
NODES = {"n": 2, "m": 3}
"""GPUs of each node, all T4."""

ASKED = st.sampled_from(
    [
        {SHARE: "500"},
        {SHARE: "300", MEMORY_EACH: "4Gi"},
        {SHARE: "100", MEMORY_EACH: "9Gi"},
        {SHARE: "999"},
        {SHARE: "400", COUNT: "2"},
        {COUNT: "1"},
        {COUNT: "2", MEMORY_EACH: "8Gi"},
    ]
)


@dataclass
class Given:
    """What Kerf gave a pod, and how it stands."""

    asked: dict[str, str]
    assignment: Assignment
    since: float
    bound: bool = False
    undecided: bool = False
    """Asked to bind, without an answer: held however long that takes."""

    def manifest(self, uid: str) -> objects.Pod:
        """The pod as the API server has it."""
        written = {ASSIGNED_GPUS: format_gpus(self.assignment.gpus)}
        if self.assignment.shared:
            written |= {ASSIGNED_SHARE: str(self.assignment.milli), ASSIGNED_MEMORY: str(self.assignment.mib)}
        manifest = pod_manifest(uid, uid=uid, node=self.assignment.node, annotations=self.asked | written)
        return msgspec.convert(manifest, objects.Pod)


@dataclass
class Account:
    """The slow account: pods only, everything added up when it is asked."""

    given: dict[str, Given] = field(default_factory=dict)
    foreign: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Node and number of GPUs, of unknown index."""

    def parts(self, node: str, gpu: int) -> list[tuple[int, int]]:
        """(milli, MiB) of everybody on one GPU."""
        return [
            (given.assignment.milli, given.assignment.mib if given.assignment.shared else MIB)
            for given in self.given.values()
            if given.assignment.node == node and gpu in given.assignment.gpus
        ]

    def num_foreign(self, node: str) -> int:
        return sum(count for where, count in self.foreign.values() if where == node)

    def idle(self, node: str) -> list[int]:
        """GPUs that nobody is known to have anything of."""
        return [gpu for gpu in range(NODES[node]) if not self.parts(node, gpu)]


class ShareHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.account = Account()
        self.num_pods = 0
        self.restart()

    def restart(self) -> None:
        """A new Kerf: all it knows is what the API server has."""
        self.ledger = Ledger(reservation_ttl_s=TTL_S)
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        for name, gpus in NODES.items():
            self.ledger.upsert_node(node_object(name, gpus))
        self.account.given = {uid: given for uid, given in self.account.given.items() if given.bound}
        for uid, given in self.account.given.items():
            self.ledger.upsert_pod(given.manifest(uid), self.clock())
        for uid, (node, gpus) in self.account.foreign.items():
            self.tell_foreign(uid, node, gpus)

    @rule()
    def kill(self) -> None:
        self.restart()

    @rule(asked=ASKED, policy=st.sampled_from(sorted(POLICIES)))
    def decide(self, asked: dict[str, str], policy: str) -> None:
        self.num_pods += 1
        uid = f"u{self.num_pods}"
        request = read_pod_request(msgspec.convert(pod_manifest("p", annotations=asked), objects.Pod)).gpus
        assert request is not None
        self.forget_expired()
        identity = PodIdentity("default", uid, uid)
        placement = self.placer.place(identity, request, POLICIES[policy], sorted(NODES))
        self.placer.reserve(placement)
        assignment = placement.assignment()
        if assignment is None:
            return
        node, idle = assignment.node, self.account.idle(assignment.node)
        begun = [gpu for gpu in assignment.gpus if gpu in idle]
        assert len(idle) - len(begun) >= self.account.num_foreign(node), "a GPU of somebody of unknown index"
        assert len(idle) >= self.account.num_foreign(node)
        self.account.given[uid] = Given(asked, assignment, self.clock())
        for gpu in assignment.gpus:
            parts = self.account.parts(node, gpu)
            assert sum(milli for milli, _ in parts) <= 1000
            assert sum(mib for _, mib in parts) <= MIB

    @rule(data=st.data(), outcome=st.sampled_from([ClaimState.BOUND, ClaimState.UNDECIDED, None]), told=st.booleans())
    def bind(self, data: st.DataObject, outcome: ClaimState | None, told: bool) -> None:
        self.forget_expired()
        waiting = [uid for uid, given in self.account.given.items() if not given.bound]
        if not waiting:
            return
        uid = data.draw(st.sampled_from(waiting))
        given = self.account.given[uid]
        claim = self.ledger.begin_binding(uid, given.assignment.node, given.assignment.holding, self.clock())
        self.ledger.end_binding(claim, outcome, self.clock())
        given.since, given.undecided = self.clock(), outcome is ClaimState.UNDECIDED
        if outcome is None:
            del self.account.given[uid]
        elif outcome is ClaimState.BOUND or told:
            given.bound = True
        if told and uid in self.account.given:
            self.ledger.upsert_pod(given.manifest(uid), self.clock())

    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        uids = sorted(uid for uid, given in self.account.given.items() if given.bound) + sorted(self.account.foreign)
        if uids:
            uid = data.draw(st.sampled_from(uids))
            self.account.given.pop(uid, None)
            self.account.foreign.pop(uid, None)
            self.ledger.remove_pod(uid)

    @rule(node=st.sampled_from(sorted(NODES)), gpus=st.integers(1, 2))
    def foreign(self, node: str, gpus: int) -> None:
        self.num_pods += 1
        self.account.foreign[f"f{self.num_pods}"] = node, gpus
        self.tell_foreign(f"f{self.num_pods}", node, gpus)

    def tell_foreign(self, uid: str, node: str, gpus: int) -> None:
        manifest = pod_manifest(uid, gpus, uid=uid, node=node)
        self.ledger.upsert_pod(msgspec.convert(manifest, objects.Pod), self.clock())

    @rule(seconds=st.sampled_from([1.0, TTL_S]))
    def wait(self, seconds: float) -> None:
        self.clock.now += seconds
        self.forget_expired()

    def forget_expired(self) -> None:
        for uid, given in list(self.account.given.items()):
            if not given.bound and not given.undecided and given.since + TTL_S <= self.clock():
                del self.account.given[uid]

    @invariant()
    def what_is_free_is_what_the_account_leaves(self) -> None:
        self.forget_expired()
        cluster = self.ledger.snapshot(self.clock())
        for node, gpus in NODES.items():
            row = cluster.row_of[node]
            crowded = self.account.num_foreign(node) > len(self.account.idle(node))
            assert cluster.untracked_units[row] == self.account.num_foreign(node)
            for gpu in range(gpus):
                parts = self.account.parts(node, gpu)
                left = 1000 - sum(milli for milli, _ in parts), MIB - sum(mib for _, mib in parts)
                expected = (0, 0) if crowded and parts else left
                assert (cluster.gpu_free_milli[row, gpu], cluster.gpu_free_mib[row, gpu]) == expected
                assert min(expected) >= 0

    @invariant()
    def every_claim_is_what_was_given(self) -> None:
        for uid, given in self.account.given.items():
            claim = self.ledger.claim(uid)
            assert claim is not None
            expected: Holding = given.assignment.holding
            assert (claim.node, claim.holding) == (given.assignment.node, expected)


TestShareHistory = ShareHistory.TestCase
TestShareHistory.settings = settings(stateful_step_count=40)
