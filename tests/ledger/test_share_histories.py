"""Decisions on shares and whole GPUs, beside foreign pods, through deaths and restarts, and a slow account of it."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from extender.core.annotations import COUNT, MEMORY_EACH, SHARE
from extender.core.policies.registry import POLICIES
from extender.kube import objects
from extender.ledger.ledger import AllocationState
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE, format_gpus
from extender.plugins.pods import read_pod_request
from extender.scheduling.placer import Assignment, Placer, PodIdentity
from tests.ledger.builders import T4_MIB, TTL_S, Clock, ledger_of, pod_object
from tests.nvidia import GPU_RESOURCE

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
        {MEMORY_EACH: "8Gi"},
        {COUNT: "2", MEMORY_EACH: "8Gi"},
        {GPU_RESOURCE: "1"},
        {GPU_RESOURCE: "2"},
    ]
)


def pod(name: str, asked: dict[str, str], node: str = "", **written: str) -> objects.Pod:
    """A pod that asks by a resource or by annotations."""
    annotations = {key: value for key, value in asked.items() if key != GPU_RESOURCE}
    return pod_object(name, asked.get(GPU_RESOURCE, 0), uid=name, node=node, annotations=annotations | written)


@dataclass
class Given:
    """What Kerf gave a pod, and its state."""

    asked: dict[str, str]
    assignment: Assignment
    since: float
    bound: bool = False
    undecided: bool = False
    """Whether its Binding has no answer: it is held however long that takes."""

    def pod(self, uid: str) -> objects.Pod:
        """Return the pod as the API server has it."""
        written = {ASSIGNED_GPUS: format_gpus(self.assignment.gpus)}
        if self.assignment.shared:
            written |= {ASSIGNED_SHARE: str(self.assignment.milli), ASSIGNED_MEMORY: str(self.assignment.mib)}
        return pod(uid, self.asked, self.assignment.node, **written)


@dataclass
class Account:
    """Pods only; everything is added up when it is needed."""

    given: dict[str, Given] = field(default_factory=dict)
    foreign: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Node and number of GPUs, of unknown index."""

    def parts(self, node: str, gpu: int) -> list[tuple[int, int]]:
        """Return (milli, MiB) of each pod on one GPU."""
        return [
            (given.assignment.milli, given.assignment.mib if given.assignment.shared else T4_MIB)
            for given in self.given.values()
            if given.assignment.node == node and gpu in given.assignment.gpus
        ]

    def num_foreign(self, node: str) -> int:
        return sum(count for where, count in self.foreign.values() if where == node)

    def idle(self, node: str) -> list[int]:
        """Return the GPUs that no pod is known to hold."""
        return [gpu for gpu in range(NODES[node]) if not self.parts(node, gpu)]


class ShareHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.account = Account()
        self.num_pods = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        """A new process knows what the API server has."""
        self.ledger = ledger_of(**NODES)
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        self.account.given = {uid: given for uid, given in self.account.given.items() if given.bound}
        for uid, given in self.account.given.items():
            self.ledger.upsert_pod(given.pod(uid), self.clock())
        for uid in self.account.foreign:
            self.report_foreign(uid)

    @rule(asked=ASKED, policy=st.sampled_from(sorted(POLICIES)))
    def decide(self, asked: dict[str, str], policy: str) -> None:
        self.num_pods += 1
        uid = f"u{self.num_pods}"
        request = read_pod_request(pod("p", asked)).gpus
        assert request is not None
        self.forget_expired()
        identity = PodIdentity("default", uid, uid)
        placement = self.placer.place(identity, request, POLICIES[policy], sorted(NODES))
        self.placer.reserve(placement)
        assignment = placement.assignment()
        if assignment is None:
            # A plugin that picks by itself shares no node with pods that it does not know.
            apart = {given.assignment.node for given in self.account.given.values() if GPU_RESOURCE not in given.asked}
            full = [len(self.account.idle(node)) <= self.account.num_foreign(node) for node in NODES.keys() - apart]
            assert asked != {GPU_RESOURCE: "1"} or all(full), "a free GPU was overlooked"
            return
        node, idle = assignment.node, self.account.idle(assignment.node)
        begun = [gpu for gpu in assignment.gpus if gpu in idle]
        assert len(idle) - len(begun) >= self.account.num_foreign(node), "a GPU of a pod of unknown index"
        assert len(idle) >= self.account.num_foreign(node)
        self.account.given[uid] = Given(asked, assignment, self.clock())
        for gpu in assignment.gpus:
            parts = self.account.parts(node, gpu)
            assert sum(milli for milli, _ in parts) <= 1000
            assert sum(mib for _, mib in parts) <= T4_MIB

    @rule(
        data=st.data(),
        outcome=st.sampled_from([AllocationState.BOUND, AllocationState.UNDECIDED, None]),
        told=st.booleans(),
    )
    def bind(self, data: st.DataObject, outcome: AllocationState | None, told: bool) -> None:
        self.forget_expired()
        waiting = [uid for uid, given in self.account.given.items() if not given.bound]
        if not waiting:
            return
        uid = data.draw(st.sampled_from(waiting))
        given = self.account.given[uid]
        claim = self.ledger.begin_binding(uid, given.assignment.node, given.assignment.holding, self.clock())
        self.ledger.end_binding(claim, outcome, self.clock())
        given.since, given.undecided = self.clock(), outcome is AllocationState.UNDECIDED
        if outcome is None:
            del self.account.given[uid]
        elif outcome is AllocationState.BOUND or told:
            given.bound = True
        if told and uid in self.account.given:
            self.ledger.upsert_pod(given.pod(uid), self.clock())

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
        self.report_foreign(f"f{self.num_pods}")

    def report_foreign(self, uid: str) -> None:
        node, gpus = self.account.foreign[uid]
        self.ledger.upsert_pod(pod(uid, {GPU_RESOURCE: str(gpus)}, node), self.clock())

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
                left = 1000 - sum(milli for milli, _ in parts), T4_MIB - sum(mib for _, mib in parts)
                expected = (0, 0) if crowded and parts else left
                assert (cluster.gpu_free_milli[row, gpu], cluster.gpu_free_mib[row, gpu]) == expected
                assert min(expected) >= 0

    @invariant()
    def every_claim_is_what_was_given(self) -> None:
        for uid, given in self.account.given.items():
            claim = self.ledger.allocation(uid)
            assert claim is not None
            assert (claim.node, claim.holding) == (given.assignment.node, given.assignment.holding)


TestShareHistory = ShareHistory.TestCase
TestShareHistory.settings = settings(stateful_step_count=40)
