"""Bindings whose answer was lost: nothing is released before the pod shows the outcome, and how pods are changed."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import Resolver, is_permanent_refusal
from extender.kube.memory import MemoryCluster
from extender.ledger.ledger import AllocationState
from extender.plugins.holdings import whole_gpus
from extender.scheduling.binding import Binding, BindingTools, Handovers, change, read
from extender.scheduling.placer import PodIdentity
from tests.ledger.builders import Clock, Fault, FaultyTransport, ledger_of, node_manifest, open_fence, pod_manifest
from tests.scheduling.binding.rigs import STATUS_PATH


class Rig:
    """A resolver that has one Binding of pod "p" to GPU 0 of node "n" to settle."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster([node_manifest("n", 2), node_manifest("m", 2), pod_manifest("p", 1, uid="u")])
        self.transport = FaultyTransport(self.cluster)
        self.ledger = ledger_of(n=2, m=2)
        self.fence = open_fence()
        clock = Clock()
        self.resolver = Resolver(self.fence, clock)
        handovers = Handovers(self.transport, self.ledger.rows, clock, clock)
        self.tools = BindingTools(self.transport, self.ledger, self.resolver, handovers, clock)
        self.lose("p", "u", str(self.cluster.pod("default", "p")["metadata"]["resourceVersion"]))

    def lose(self, name: str, uid: str, version: str) -> None:
        """Lose the answer to a Binding of this version, "" for one that was not sent."""
        claim = self.ledger.begin_binding(uid, "n", whole_gpus(1, (0,)), 0.0)
        self.ledger.end_binding(claim, AllocationState.UNDECIDED, 0.0)
        pod = PodIdentity("default", name, uid)
        binding = Binding(self.tools, pod, PodRequest(GpuRequest(1)), "n", held=claim)
        binding.version = version
        self.resolver.add(binding)

    def mark(self) -> None:
        """Mark the pod as a successor."""
        body = msgspec.json.encode({"metadata": {"annotations": {"kerf.dev/epoch-kerf": "2-bb"}}})
        asyncio.run(self.cluster.patch(STATUS_PATH, body))

    def settle(self, uid: str = "u") -> AllocationState | None:
        """The state after one round."""
        asyncio.run(self.resolver.resolve_round())
        claim = self.ledger.allocation(uid)
        return claim.state if claim else None


def test_a_standby_writes_nothing_and_releases_nothing_unread() -> None:
    def cut_off(rig: Rig) -> None:
        rig.transport.gets.append(Fault(UnreachableError("GET: refused")))

    bound, again = pod_manifest("p", 1, uid="u", node="n", assigned="0"), pod_manifest("p", 1, uid="another")
    rows: tuple[tuple[Callable[[Rig], None], AllocationState | None], ...] = (
        (lambda rig: None, AllocationState.UNDECIDED),  # nobody takes its lease, so it may still take effect
        (cut_off, AllocationState.UNDECIDED),
        (Rig.mark, None),
        (lambda rig: rig.cluster.apply(bound), AllocationState.BOUND),
        (lambda rig: rig.cluster.delete(bound), None),
        (lambda rig: rig.cluster.apply(again), None),
    )
    for meanwhile, state in rows:
        rig = Rig()
        rig.fence.shut(lambda: "b leads")
        meanwhile(rig)
        assert rig.settle() is state
        assert {verb for verb, _, _ in rig.transport.calls} == {"GET"}


def test_a_pod_that_is_bound_elsewhere_holds_what_it_says_there() -> None:
    rig = Rig()
    rig.cluster.apply(pod_manifest("p", 1, uid="u", node="m", assigned="1"))
    assert rig.settle() is AllocationState.UNDECIDED
    claim = rig.ledger.allocation("u")
    assert claim is not None
    assert (claim.node, claim.gpus) == ("m", (1,))
    assert rig.settle() is AllocationState.BOUND


def test_a_binding_that_was_never_sent_is_settled_by_any_read() -> None:
    rig = Rig()
    rig.cluster.apply(pod_manifest("q", 1, uid="v"))
    rig.lose("q", "v", "")
    rig.fence.shut(lambda: "b leads")
    assert rig.settle("v") is None


# Changing a pod makes a late write fail; tests/kube/test_commit.py has the errors after which that is given up.

POD = PodIdentity("default", "p", "u")
KEY = "kerf.dev/sealed"


def line_to(*uids: str, refusals: int = 0, **annotations: str) -> FaultyTransport:
    """A cluster with pod "p" of this UID; so many patches are refused."""
    pods = [pod_manifest("p", 1, uid=uid, annotations=annotations) for uid in uids]
    line = FaultyTransport(MemoryCluster(pods))
    line.patches.extend([Fault(ApiError(422, "Invalid", "no"))] * refusals)
    return line


@pytest.mark.parametrize("uids", [(), ("another",)])
def test_a_pod_that_is_gone_is_not_changed(uids: tuple[str, ...]) -> None:
    line = line_to(*uids)
    assert asyncio.run(change(line, POD, KEY, "1")) is None
    assert asyncio.run(read(line, POD)) is None


def test_a_pod_that_takes_no_annotation_is_changed_in_a_smaller_way() -> None:
    """A Binding would replace the removed annotations: what is left is smaller than a bound pod."""
    theirs = {"theirs": "x", "kerf.dev/gpu-count": "1"}
    messages = set()
    for _ in range(2):
        line = line_to("u", refusals=1, **theirs, **{"kerf.dev/explanation": "y", "hami.io/vgpu-node": "z"})
        answer = asyncio.run(change(line, POD, KEY, "1"))
        assert answer is not None
        changed = line.inner.pod("default", "p")
        assert msgspec.json.decode(answer) == changed
        assert changed["metadata"]["annotations"] == theirs
        messages.add(changed["status"]["message"])
    assert len(messages) == 2, "a patch that changes nothing would not change the resourceVersion"
    assert all(message.startswith("Kerf ") for message in messages)


def test_a_pod_that_refuses_both_is_an_error() -> None:
    with pytest.raises(ApiError) as raised:
        asyncio.run(change(line_to("u", refusals=2), POD, KEY, "1"))
    assert is_permanent_refusal(raised.value)
