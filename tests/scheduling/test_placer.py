"""Placing pods: candidates by name, what is remembered, and what a decision reserves."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from extender.core.fit.reasons import Reason
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.ledger.ledger import AllocationState
from extender.scheduling.placer import Placement, Placer, PodIdentity
from tests.ledger.builders import Clock, ledger_of, pod_object

BEST_FIT = POLICIES["bestfit"]
POD = PodIdentity("default", "p", "u")


@dataclass
class Rig:
    num_nodes: int = 2
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.ledger = ledger_of(**{f"n{number}": 2 for number in range(self.num_nodes)})
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=lambda: 1.5e9)

    def place(self, *names: str, pod: PodIdentity = POD, request: GpuRequest | None = None) -> Placement:
        return self.placer.place(pod, request or GpuRequest(1), BEST_FIT, names)


class Names:
    """Candidates that count how often they are looked at, and whether they are decoded."""

    num_bytes = 1000
    encoded = b""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = list(names)
        self.looked_at = 0
        self.decoded = False

    def __contains__(self, name: object, /) -> bool:
        self.looked_at += 1
        return name in self.names

    def __len__(self) -> int:
        return len(self.names)

    def decode(self) -> list[str]:
        self.decoded = True
        return self.names


def test_candidates() -> None:
    placement = Rig().place("n1")
    assert (placement.node, placement.decision.gpus, placement.unknown, placement.decided_at) == ("n1", (0,), (), 1.5e9)
    rows: tuple[tuple[list[str], list[int], tuple[str, ...]], ...] = (
        ([], [], ()),
        (["n1", "n0", "n1", "n1"], [1, 0], ()),
        (["x", "n1", "y", "x"], [1], ("x", "y")),
        (["", "größe"], [], ("", "größe")),
    )
    for names, found, unknown in rows:
        placement = Rig().place(*names)
        assert (placement.decision.rows.tolist(), placement.unknown) == (found, unknown)
        assert (placement.node is None) == (not found)


def test_a_removed_node_is_unknown_though_its_row_remains() -> None:
    rig = Rig()
    rig.ledger.remove_node("n0")
    placement = rig.place("n0", "", "n1")
    assert (placement.node, placement.unknown) == ("n1", ("n0", ""))


def test_a_pod_does_not_compete_with_its_own_reservation() -> None:
    rig = Rig()
    for request in (GpuRequest(2), GpuRequest(2), GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=20000)):
        rig.placer.reserve(rig.place("n0", request=request))
        claim = rig.ledger.allocation("u")
        assert claim is not None
        assert (claim.node, claim.units, claim.gpus, claim.state) == ("n0", 2, (0, 1), AllocationState.RESERVED)


def test_nothing_is_reserved_without_a_uid_or_a_node() -> None:
    rig = Rig()
    rig.placer.reserve(rig.place("n0", pod=PodIdentity("default", "p", "")))
    placement = rig.place("n0", request=GpuRequest(3))
    rig.placer.reserve(placement)
    assert placement.decision.evaluation.reason.tolist() == [Reason.TOO_FEW_INSTALLED]
    assert rig.ledger.num_allocations(AllocationState.RESERVED) == 0


# From the top of the ranking.


def test_of_many_candidates_only_the_best_are_looked_at() -> None:
    rig = Rig(300)
    rig.ledger.upsert_pod(pod_object("q", 1, node="n250"), 0.0)
    names = Names(f"n{number}" for number in range(300))
    placement = rig.placer.place(POD, GpuRequest(1), BEST_FIT, names, only_best=True)
    assert (placement.node, placement.offered, names.looked_at, names.decoded) == ("n250", names, 1, False)
    names = Names(f"n{number}" for number in range(1, 300) if number != 250)
    placement = rig.placer.place(POD, GpuRequest(1), BEST_FIT, names, only_best=True)
    assert placement.node == rig.place(*names.names).node == "n1"
    assert names.looked_at == 3, "n250 and n0 are no candidates"


def test_where_that_does_not_pay_all_candidates_are_looked_up() -> None:
    for num_nodes, candidates, gpus in (
        (300, range(255), 1),  # too few names: 255 < 256
        (516, range(257), 1),  # less than half of the nodes: 257 < 258
        (300, range(300), 3),  # nothing fits
        (300, range(300, 600), 1),  # none of the best is a candidate
    ):
        names = Names(f"n{number}" for number in candidates)
        placement = Rig(num_nodes).placer.place(POD, GpuRequest(gpus), BEST_FIT, names, only_best=True)
        assert placement.offered is None


# Policies, and what is remembered.


def test_policies_by_name() -> None:
    placer = Rig().placer
    assert placer.policy_of(PodRequest()) is BEST_FIT
    assert placer.policy_of(PodRequest(policy="spread")) is POLICIES["spread"]
    with pytest.raises(RequestError, match=r'^kerf\.dev/policy: "best" is not a policy; use one of tightest, '):
        placer.policy_of(PodRequest(policy="best"))


def test_what_a_pod_requests_is_read_of_the_watched_one_only_if_it_is_the_same_version() -> None:
    sent, watched = pod_object("p", 2), pod_object("p", 1)
    sent.metadata.resource_version, watched.metadata.resource_version = "5", "4"
    placer = Placer(
        Rig().ledger, default_policy="bestfit", clock=Clock(), wall_clock=lambda: 0.0, watched={"uid-p": watched}.get
    )
    assert placer.read_request(sent).gpus == GpuRequest(2)
    watched.metadata.resource_version = "5"
    assert placer.read_request(sent) is placer.read_request(watched)


def test_a_request_is_remembered_until_its_pod_is_bound_or_not_asked_about_for_a_while() -> None:
    rig = Rig()
    request = PodRequest(GpuRequest(1))
    rig.placer.remember(PodIdentity("default", "deleted", "uid-deleted"), request)
    rig.clock.now += 800
    for name in ("asked", "bound", "forgotten"):
        rig.placer.remember(PodIdentity("default", name, f"uid-{name}"), request)
    assert rig.placer.remembered("uid-deleted") is request
    rig.placer.pod_changed(None, pod_object("bound", 1, node="n0"))
    for _ in range(2):
        rig.placer.forget("uid-forgotten")
    rig.clock.now += 200
    rig.placer.forget_old()
    kept = [rig.placer.remembered(f"uid-{name}") for name in ("deleted", "bound", "forgotten", "asked")]
    assert kept == [None, None, None, request]


def test_a_namespace_with_many_pods_has_its_own_forgotten() -> None:
    placer = Rig().placer
    placer.remember(PodIdentity("good", "p", "good"), PodRequest())
    for number in range(20_001):
        placer.remember(PodIdentity("hostile", "p", str(number)), PodRequest())
    remembered = [placer.remembered(uid) is not None for uid in ("good", "1", "2")]
    assert remembered == [True, False, True]


def test_fits_somewhere() -> None:
    placer = Rig().placer
    assert [placer.fits_somewhere(PodRequest(GpuRequest(count))) for count in (2, 3)] == [True, False]
    assert not placer.fits_somewhere(PodRequest())
