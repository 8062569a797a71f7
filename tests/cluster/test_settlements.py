"""A Binding whose answer was lost is settled: it took effect, or never will."""

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest

from extender.cluster.holdings import whole_gpus
from extender.cluster.ledger import ClaimState, Ledger
from extender.cluster.placements import PodIdentity
from extender.cluster.settlements import SETTLED, Settler
from extender.cluster.transports import ApiError, ClusterError, UnreachableError
from tests.cluster.builders import Clock, FaultyTransport, node_object, pod_manifest, pod_object, until


@dataclass
class LossyTransport(FaultyTransport):
    """Loses the answer of every patch while it has an error."""

    error: ClusterError | None = None

    async def patch(self, path: str, body: bytes) -> bytes:
        answer = await super().patch(path, body)
        if self.error:
            raise self.error
        return answer


@dataclass
class Rig:
    """Pod "p" whose Binding to GPU 0 of node "n" is undecided."""

    clock: Clock = field(default_factory=Clock)
    transport: LossyTransport = field(default_factory=LossyTransport)

    def __post_init__(self) -> None:
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.ledger.upsert_node(node_object("n", 2))
        self.transport.inner.apply(pod_manifest("p", 1, uid="u"))
        self.settler = Settler(self.transport, self.ledger, self.clock)
        self.claim = self.ledger.begin_binding("u", "n", whole_gpus(1, (0,)), self.clock())
        self.ledger.end_binding(self.claim, ClaimState.UNDECIDED, self.clock())
        self.settler.undecided(PodIdentity("default", "p", "u"), self.claim)

    def settle(self, after_s: float = 0.0) -> ClaimState | None:
        """What the claim is after a round."""
        self.clock.now += after_s
        asyncio.run(self.settler.settle_round())
        claim = self.ledger.claim("u")
        return claim.state if claim else None

    def version(self) -> str:
        return str(self.transport.inner.pod("default", "p")["metadata"]["resourceVersion"])


def test_a_pod_not_bound_is_changed_so_that_no_late_binding_can_take_effect() -> None:
    rig = Rig()
    before = rig.version()
    assert rig.settle() is None
    ((verb, path, body),) = rig.transport.calls
    assert (verb, path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert msgspec.json.decode(body)["metadata"]["uid"] == "u"
    assert msgspec.json.decode(body)["metadata"]["annotations"].keys() == {SETTLED}
    late = {"metadata": {"uid": "u", "resourceVersion": before}, "target": {"name": "n"}}
    with pytest.raises(ApiError, match="409"):
        asyncio.run(rig.transport.post("/api/v1/namespaces/default/pods/p/binding", msgspec.json.encode(late)))


def test_a_pod_that_is_bound_holds_on() -> None:
    rig = Rig()
    rig.transport.inner.apply(pod_manifest("p", 1, uid="u", node="n", assigned="0"))
    assert rig.settle() is ClaimState.BOUND


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and created again"])
def test_a_pod_that_is_gone_holds_nothing(again: bool) -> None:
    rig = Rig()
    rig.transport.inner.delete(pod_manifest("p"))
    if again:
        rig.transport.inner.apply(pod_manifest("p", 1, uid="another"))
    assert rig.settle() is None


def test_nothing_is_given_back_before_the_api_server_answers() -> None:
    rig = Rig()
    rig.transport.error = UnreachableError("PATCH: timed out")
    assert rig.settle() is ClaimState.UNDECIDED
    assert rig.settle(1000.0) is ClaimState.UNDECIDED
    rig.transport.error = None
    assert rig.settle() is ClaimState.UNDECIDED, "not asked again at once"
    assert rig.settle(10.0) is None


def test_a_refusal_of_the_change_says_nothing_of_the_binding() -> None:
    rig = Rig()
    rig.transport.error = ApiError(422, "Invalid", "spec: something else is not as it should be")
    assert rig.settle() is ClaimState.UNDECIDED


def test_what_the_watch_tells_meanwhile_counts() -> None:
    rig = Rig()
    rig.ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), rig.clock())
    assert rig.settle() is ClaimState.BOUND
    assert rig.transport.calls == []


def test_rounds_run_in_the_background_until_the_stop() -> None:
    async def scenario() -> None:
        rig = Rig()
        rig.settler.start()
        await until(lambda: rig.ledger.claim("u") is None)
        await rig.settler.stop()

    asyncio.run(scenario())
