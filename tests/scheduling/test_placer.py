"""Placing pods: candidates by name, what is remembered, and what a decision holds."""

from dataclasses import dataclass, field

import pytest

from extender.core.fit.reasons import Reason
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.ledger.ledger import ClaimState, Ledger
from extender.scheduling.placer import Placement, Placer, PodIdentity
from tests.ledger.builders import Clock, node_object, pod_object

BEST_FIT = POLICIES["bestfit"]
POD = PodIdentity("default", "p", "u")


@dataclass
class Rig:
    num_nodes: int = 2
    clock: Clock = field(default_factory=Clock)
    ledger: Ledger = field(default_factory=lambda: Ledger(reservation_ttl_s=30.0))

    def __post_init__(self) -> None:
        for number in range(self.num_nodes):
            self.ledger.upsert_node(node_object(f"n{number}", 2))
        self.placer = Placer(
            self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=lambda: 1.5e9, num_kept=3
        )

    def place(self, *names: str, pod: PodIdentity = POD, request: GpuRequest | None = None) -> Placement:
        return self.placer.place(pod, request or GpuRequest(1), BEST_FIT, names)


class Names(list[str]):
    """Candidates that count how often they are looked at."""

    looked_at = 0
    num_bytes = 1000

    def __contains__(self, name: object, /) -> bool:
        self.looked_at += 1
        return super().__contains__(name)

    def decode(self) -> list[str]:
        raise AssertionError("all of the names were looked at")


def test_the_winner_is_among_the_candidates() -> None:
    placement = Rig().place("n1")
    assert (placement.node, placement.decision.gpus, placement.unknown, placement.decided_at) == ("n1", (0,), (), 1.5e9)


@pytest.mark.parametrize(
    ("names", "rows", "unknown"),
    [
        pytest.param([], [], (), id="none"),
        pytest.param(["n1", "n0"], [1, 0], (), id="in the order given"),
        pytest.param(["n1", "n0", "n1", "n1"], [1, 0], (), id="each once"),
        pytest.param(["x", "n1", "y", "x"], [1], ("x", "y"), id="unknown ones apart, each once"),
        pytest.param(["x"], [], ("x",), id="only unknown"),
        pytest.param(["", "größe"], [], ("", "größe"), id="names that are none"),
    ],
)
def test_candidates(names: list[str], rows: list[int], unknown: tuple[str, ...]) -> None:
    placement = Rig().place(*names)
    assert (placement.decision.rows.tolist(), placement.unknown) == (rows, unknown)
    assert (placement.node is None) == (not rows)


def test_a_removed_node_is_unknown_though_its_row_remains() -> None:
    rig = Rig()
    rig.ledger.remove_node("n0")
    placement = rig.place("n0", "", "n1")
    assert (placement.node, placement.unknown) == ("n1", ("n0", ""))


def test_a_decision_holds_what_it_reserves() -> None:
    rig = Rig()
    rig.placer.reserve(rig.place("n0", request=GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20000)))
    claim = rig.ledger.claim("u")
    assert claim is not None
    assert (claim.node, claim.units, claim.gpus, claim.state) == ("n0", 2, (0, 1), ClaimState.RESERVED)


def test_a_pod_is_no_rival_of_its_own_reservation() -> None:
    rig = Rig()
    for _ in range(3):
        placement = rig.place("n0", request=GpuRequest(2))
        assert placement.node == "n0"
        rig.placer.reserve(placement)


def test_a_pod_without_a_uid_reserves_nothing() -> None:
    rig = Rig()
    placement = rig.place("n0", pod=PodIdentity("default", "p", ""))
    rig.placer.reserve(placement)
    assert rig.ledger.num_claims(ClaimState.RESERVED) == 0


def test_what_fits_nowhere_reserves_nothing() -> None:
    rig = Rig()
    placement = rig.place("n0", request=GpuRequest(3))
    rig.placer.reserve(placement)
    assert placement.decision.evaluation.reason.tolist() == [Reason.TOO_FEW_INSTALLED]
    assert rig.ledger.num_claims(ClaimState.RESERVED) == 0


# From the top of the ranking.


def test_of_many_candidates_only_the_best_are_looked_at() -> None:
    rig = Rig(300)
    rig.ledger.upsert_pod(pod_object("q", 1, node="n250"), 0.0)
    names = Names(f"n{number}" for number in range(300))
    placement = rig.placer.place_best(POD, GpuRequest(1), BEST_FIT, names)
    assert placement is not None
    assert (placement.node, placement.offered, names.looked_at) == ("n250", names, 1)


def test_the_best_that_is_no_candidate_is_passed_over() -> None:
    rig = Rig(300)
    rig.ledger.upsert_pod(pod_object("q", 1, node="n250"), 0.0)
    names = Names(f"n{number}" for number in range(1, 300) if number != 250)
    placement = rig.placer.place_best(POD, GpuRequest(1), BEST_FIT, names)
    assert placement is not None
    assert placement.node == rig.place(*names).node == "n1"


@pytest.mark.slow
def test_a_sample_is_walked_from_the_top() -> None:
    """kube-scheduler offers 500 of 5,000 nodes: the best 40 are not among them, and the next one is."""
    rig = Rig(5000)
    ranking = sorted(f"n{number}" for number in range(5000))
    names = Names(ranking[40:540])
    placement = rig.placer.place_best(POD, GpuRequest(1), BEST_FIT, names)
    assert placement is not None
    assert (placement.node, names.looked_at) == (ranking[40], 41)


@pytest.mark.parametrize(
    ("num_nodes", "names", "gpus"),
    [
        pytest.param(300, [f"n{number}" for number in range(255)], 1, id="few names: 255 < 256"),
        pytest.param(3612, [f"n{number}" for number in range(257)], 1, id="less than a 14th of the nodes: 257 < 258"),
        pytest.param(300, [f"n{number}" for number in range(300)], 3, id="nothing fits"),
        pytest.param(300, [f"x{number}" for number in range(300)], 1, id="none of the best is a candidate"),
    ],
)
def test_where_that_does_not_pay_place_has_to_decide(num_nodes: int, names: list[str], gpus: int) -> None:
    assert Rig(num_nodes).placer.place_best(POD, GpuRequest(gpus), BEST_FIT, Names(names)) is None


# Policies, and what is remembered.


def test_policies_by_name() -> None:
    placer = Rig().placer
    assert placer.policy_of(PodRequest()) is BEST_FIT
    assert placer.policy_of(PodRequest(policy="spread")) is POLICIES["spread"]
    with pytest.raises(RequestError, match=r'^kerf\.dev/policy: "best" is not a policy; use one of tightest, '):
        placer.policy_of(PodRequest(policy="best"))


def test_a_request_is_remembered_until_it_is_forgotten() -> None:
    placer = Rig().placer
    request = PodRequest(GpuRequest(1))
    placer.remember(POD, request)
    assert placer.remembered("u") is request
    placer.forget("u")
    placer.forget("u")
    assert placer.remembered("u") is None


def test_the_oldest_of_very_many_requests_is_forgotten() -> None:
    placer = Rig().placer
    for number in range(20_001):
        placer.remember(PodIdentity("default", "p", str(number)), PodRequest())
    assert placer.remembered("0") is None
    assert placer.remembered("1") is not None


def test_who_has_many_pods_has_his_own_forgotten() -> None:
    placer = Rig().placer
    placer.remember(PodIdentity("good", "p", "good"), PodRequest())
    for number in range(20_001):
        placer.remember(PodIdentity("hostile", "p", str(number)), PodRequest())
    assert placer.remembered("good") is not None


def test_pods_that_nobody_asks_about_any_more_are_forgotten_and_so_are_those_that_others_bind() -> None:
    rig = Rig()
    placer = rig.placer
    placer.remember(PodIdentity("default", "deleted", "deleted"), PodRequest(GpuRequest(1)))
    rig.clock.now += 800
    for name in ("asked", "bound"):
        placer.remember(PodIdentity("default", name, f"uid-{name}"), PodRequest(GpuRequest(1)))
    placer.pod_changed(None, pod_object("bound", 1, node="n0"))
    rig.clock.now += 200
    placer.forget_old()
    assert [placer.remembered(uid) is None for uid in ("deleted", "uid-bound", "uid-asked")] == [True, True, False]


def test_the_newest_decisions_are_kept() -> None:
    rig = Rig()
    kept = [rig.place("n0", pod=PodIdentity("default", name, name)) for name in ("a", "b", "a", "c")]
    for placement in kept:
        rig.placer.decided.add(placement)
    assert rig.placer.decided.last("default", "a") is kept[2]
    assert rig.placer.decided.last("other", "a") is None


def test_fits_somewhere() -> None:
    placer = Rig().placer
    assert [placer.fits_somewhere(PodRequest(GpuRequest(count))) for count in (2, 3)] == [True, False]
    assert not placer.fits_somewhere(PodRequest())
