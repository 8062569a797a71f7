"""Bindings whose answer was lost: nothing is given back before the pod has told, whoever leads."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.kube.client import ApiError, UnreachableError
from extender.kube.commit import Resolver
from extender.kube.memory import MemoryCluster
from extender.ledger.ledger import Claim, ClaimState, Ledger
from extender.plugins.holdings import Holding
from extender.plugins.pods import read_holding
from extender.scheduling.binding import Binding, BindingTools, Handovers
from extender.scheduling.placer import PodIdentity
from tests.ledger.builders import Clock, Fault, FaultyTransport, node_manifest, node_object, open_fence, pod_manifest

POD = PodIdentity("default", "p", "u")
REFUSED = ApiError(422, "Invalid", "metadata.annotations: Too long: may not be more than 262144 bytes")


class Rig:
    """A resolver that has one Binding of pod "p" to GPU 0 of node "n" to settle."""

    def __init__(self) -> None:
        self.cluster = MemoryCluster([node_manifest("n", 2), node_manifest("m", 2), pod_manifest("p", 1, uid="u")])
        self.transport = FaultyTransport(self.cluster)
        self.ledger = Ledger(reservation_ttl_s=30.0)
        for name in ("n", "m"):
            self.ledger.upsert_node(node_object(name, 2))
        self.fence = open_fence()
        clock = Clock()
        self.resolver = Resolver(self.fence, clock)
        handovers = Handovers(self.transport, self.ledger.rows, clock, clock)
        self.tools = BindingTools(self.transport, self.ledger, self.resolver, handovers, clock)
        self.claim = self.undecided(POD, self.version())

    def undecided(self, pod: PodIdentity, version: str) -> Claim:
        """A claim of unknown outcome."""
        claim = self.ledger.begin_binding(pod.uid, "n", self.holding(), 0.0)
        self.ledger.end_binding(claim, ClaimState.UNDECIDED, 0.0)
        binding = Binding(self.tools, pod, PodRequest(GpuRequest(1)), "n", held=claim)
        binding.version = version
        self.resolver.add(binding)
        return claim

    def holding(self) -> Holding:
        """GPU 0, whole."""
        found = msgspec.convert(pod_manifest("p", 1, node="n", assigned="0"), objects.Pod)
        return read_holding(found)[0]

    def version(self) -> str:
        return str(self.cluster.pod("default", "p")["metadata"]["resourceVersion"])

    def settle(self) -> ClaimState | None:
        """After one round."""
        asyncio.run(self.resolver.resolve_round())
        claim = self.ledger.claim("u")
        return claim.state if claim else None

    def written(self) -> list[str]:
        return [verb for verb, _, _ in self.transport.calls if verb != "GET"]


def stand_by(rig: Rig) -> None:
    rig.fence.shut(lambda: "b leads")


def taken_over(rig: Rig) -> None:
    """A successor has marked the pod."""
    stand_by(rig)
    change: Any = {"metadata": {"annotations": {"kerf.dev/epoch-kerf": "2-bb"}}}
    asyncio.run(rig.cluster.patch("/api/v1/namespaces/default/pods/p/status", msgspec.json.encode(change)))


def bound(rig: Rig) -> None:
    stand_by(rig)
    rig.cluster.apply(pod_manifest("p", 1, uid="u", node="n", assigned="0"))


def gone(rig: Rig) -> None:
    stand_by(rig)
    rig.cluster.delete(rig.cluster.pod("default", "p"))


def created_again(rig: Rig) -> None:
    gone(rig)
    rig.cluster.apply(pod_manifest("p", 1, uid="another"))


def cut_off(rig: Rig) -> None:
    stand_by(rig)
    rig.transport.gets.append(Fault(UnreachableError("GET: refused")))


def unchangeable(rig: Rig) -> None:
    rig.transport.patches.extend([Fault(REFUSED)] * 2)


@pytest.mark.parametrize(
    ("happens", "state"),
    [
        pytest.param(stand_by, ClaimState.UNDECIDED, id="a standby whose lease nobody takes: it may come yet"),
        pytest.param(cut_off, ClaimState.UNDECIDED, id="a standby that is cut off"),
        pytest.param(taken_over, None, id="a successor has marked it: it can't come any more"),
        pytest.param(bound, ClaimState.BOUND, id="it came"),
        pytest.param(gone, None, id="the pod is gone"),
        pytest.param(created_again, None, id="another pod has its name"),
    ],
)
def test_a_standby_writes_nothing_and_gives_nothing_up_unread(
    happens: Callable[[Rig], None], state: ClaimState | None
) -> None:
    rig = Rig()
    happens(rig)
    assert rig.settle() is state
    assert rig.written() == []


def test_a_pod_that_cannot_be_changed_is_held_for_until_it_is_another() -> None:
    rig = Rig()
    unchangeable(rig)
    assert rig.settle() is ClaimState.UNDECIDED
    unchangeable(rig)
    taken_over(rig)
    rig.fence.take_over("", lambda: float("inf"), str)
    assert rig.settle() is None, "somebody else has changed it"


def test_a_pod_that_is_bound_elsewhere_holds_what_it_says_there() -> None:
    rig = Rig()
    rig.cluster.apply(pod_manifest("p", 1, uid="u", node="m", assigned="1"))
    assert rig.settle() is ClaimState.UNDECIDED
    claim = rig.ledger.claim("u")
    assert claim is not None
    assert (claim.node, claim.gpus) == ("m", (1,))
    assert rig.settle() is ClaimState.BOUND


def test_a_binding_that_was_never_sent_is_settled_by_any_look() -> None:
    rig = Rig()
    rig.cluster.apply(pod_manifest("q", 1, uid="v"))
    rig.undecided(PodIdentity("default", "q", "v"), "")
    stand_by(rig)
    rig.settle()
    assert rig.ledger.claim("v") is None


def test_an_exception_loses_nothing() -> None:
    rig = Rig()

    class Broken:
        """A pod whose path can't be made."""

        namespace, key, uid = "default", "broken", "broken"
        num_tries = 0

        @property
        def path(self) -> str:
            self.num_tries += 1
            raise RuntimeError("surprise")

    rig.settle()
    broken: Any = Broken()
    rig.undecided(broken, "1")
    rig.undecided(POD, "1")
    assert rig.settle() is None, "those behind it are settled"
    kept = rig.ledger.claim("broken")
    assert kept is not None
    assert kept.state is ClaimState.UNDECIDED
    tries = broken.num_tries
    rig.settle()
    assert broken.num_tries > tries > 0, "and it is tried again"
