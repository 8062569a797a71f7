"""Pods that kube-scheduler refuses on nodes with room: what they may hold, and which pods go first."""

from dataclasses import replace

import pytest

from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.kube.watches import NODES
from extender.ledger.allocations import AllocationState
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_node
from extender.scheduling.placer import PodIdentity
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.rigs import Rig

WORDS = "0/10 nodes are available: 10 Insufficient rdma/hca."
TRIED_FIRST = "others that it refused are tried first"


class Picky:
    """A kube-scheduler that refuses some pods all nodes, for an unknown reason, and binds the others."""

    def __init__(self, rig: Rig, refuses: str = "bad") -> None:
        self.rig = rig
        self.refuses = refuses
        self.num_refusals = 0

    def go(self, later_s: float = 0.1) -> None:
        """A round, and what kube-scheduler does after it."""
        self.rig.round(later_s)
        if isinstance(self.rig, DirectRig):
            self.rig.settle()
        for name in self.rig.placed():
            pod = self.rig.api.pods[name]
            if pod["spec"].get("nodeName"):
                continue
            if not name.startswith(self.refuses):
                self.rig.bind(name)
            elif "conditions" not in pod["status"]:
                self.num_refusals += 1
                self.rig.refuse(name, WORDS)

    def bound(self) -> list[str]:
        return [name for name, pod in self.rig.api.pods.items() if pod["spec"].get("nodeName")]


def cpu(milli: int) -> dict[str, object]:
    return {"cpu": f"{milli}m"}


def nodes(rig: Rig, number: int, gpus: int = 8) -> None:
    for at in range(number):
        rig.node(f"n{at}", gpus)


def excess(rig: Rig, name: str, gpus: int = 8) -> str:
    """The answer to filter when kube-scheduler retries a pod by itself."""
    return rig.queue.over_quota(PodIdentity("ns", name, name), GpuRequest(gpus))


def two_refused(stage: Stage, limits: dict[str, object] | None = None, gpus: int = 8) -> Rig:
    """Two refused pods on ten nodes of 8 GPUs, in a stage and without reservations."""
    rig = two_refused_and_one_nominated_again(limits, gpus)
    put_back(rig, stage)
    return rig


def two_refused_and_one_nominated_again(limits: dict[str, object] | None = None, gpus: int = 8) -> Rig:
    rig = Rig()
    nodes(rig, 10)
    for name in ("bad-0", "bad-1"):
        rig.pod(name, gpus, limits=limits)
    Picky(rig).go()
    rig.round()
    return rig


def put_back(rig: Rig, stage: Stage) -> None:
    """Put the two in a stage and release their reservations."""
    for name in ("bad-0", "bad-1"):
        rig.entry(name).stage = stage
        rig.ledger.release(name)


def held_after_refusal(rig: Rig, refused: set[str]) -> int:
    """GPUs that are reserved for pods which kube-scheduler has refused before."""
    claims = [rig.ledger.allocation(uid) for uid in rig.queue.backlog.entries.keys() & refused]
    return sum(claim.holding.units for claim in claims if claim is not None and claim.state is AllocationState.RESERVED)


@pytest.mark.parametrize(("rig_of", "num_bad"), [(Rig, 30), (DirectRig, 1)], ids=["extender", "direct"])
def test_a_pod_that_nothing_can_place_keeps_its_node_from_no_other(rig_of: type[Rig], num_bad: int) -> None:
    rig = rig_of(order=Order.FIFO, reserve_after_s=1.0)
    nodes(rig, 1)
    for number in range(num_bad):
        rig.pod(f"bad-{number}", 8, owner="careless")
    scheduler = Picky(rig)
    scheduler.go()
    for name in ("a", "b", "c"):
        rig.pod(name, 2)
    until = rig.now + 15.0
    while len(scheduler.bound()) < 3 and rig.now < until:
        scheduler.go(0.25)
    assert scheduler.bound() == ["a", "b", "c"]
    assert all(rig.entry(f"bad-{number}") for number in range(num_bad))


@pytest.mark.parametrize(
    ("num_pods", "namespaces", "owned"),
    [
        pytest.param(60, 1, False, id="bare, of one namespace"),
        pytest.param(1000, 1, False, id="bare, a thousand", marks=pytest.mark.slow),
        pytest.param(60, 60, True, id="owned, of many"),
    ],
)
def test_a_thousand_pods_that_are_all_different_hold_5_percent_once_they_were_refused(
    num_pods: int, namespaces: int, owned: bool
) -> None:
    rig = Rig(order=Order.FIFO, max_open=2000)
    nodes(rig, 10)
    for number in range(num_pods):
        namespace, owner = f"ns{number % namespaces}", f"rs-{number}" if owned else ""
        rig.pod(f"bad-{number}", 1 + number % 8, namespace=namespace, owner=owner, limits=cpu(1000 + number))
    most, refused = 0, set[str]()
    for _ in range(20):
        rig.round(0.25)
        held = held_after_refusal(rig, refused)
        most = max(most, held)
        largest = max((rig.entry(name).num_gpus for name in refused), default=0)
        assert held <= max(0.05 * 80, largest)
        for name in rig.placed():
            if "conditions" not in rig.api.pods[name]["status"]:
                refused.add(name)
                rig.refuse(name, WORDS)
    assert most > 0
    assert len(refused) >= 10
    scheduler = Picky(rig)
    rig.pod("good", 8, namespace="others")
    until = rig.now + 15.0
    while "good" not in scheduler.bound() and rig.now < until:
        scheduler.go(0.25)
    assert "good" in scheduler.bound()


@pytest.mark.parametrize("how", ["node", "pod"])
def test_a_node_that_has_changed_or_that_a_pod_has_left_is_tried_before_its_time(how: str) -> None:
    rig = Rig()
    rig.node("n0", 9)
    rig.pod("runs", 1)
    scheduler = Picky(rig)
    scheduler.go()
    rig.pod("bad-0", 8, owner="careless")
    for _ in range(80):
        scheduler.go(0.5)
    known = scheduler.num_refusals
    scheduler.refuses = "none"
    for _ in range(4):
        scheduler.go(0.5)
    assert (scheduler.bound(), scheduler.num_refusals) == (["runs"], known)
    if how == "pod":
        rig.ledger.remove_pod("runs")
    else:
        allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "9", "rdma/hca": "1"}
        node = decode_node({"metadata": {"name": "n0", "uid": "n0"}, "status": {"allocatable": allocatable}})
        rig.hub.cache(NODES).upsert(node)
    scheduler.go(1.0)
    assert "bad-0" in scheduler.bound()


def test_a_gang_counts_as_one_and_is_ruled_out_as_a_whole() -> None:
    rig = Rig()
    nodes(rig, 10)
    for gang in ("g", "h"):
        for number in range(4):
            rig.pod(f"bad-{gang}{number}", 8, gang=gang, gang_size="4")
    scheduler = Picky(rig)
    scheduler.go()
    assert scheduler.num_refusals == 8
    for _ in range(20):
        rig.round(1.0)
        held = {entry.planned.gang for entry in rig.queue.backlog.entries.values() if entry.is_out and entry.planned}
        assert len(held) <= 1
        scheduler.go(0.1)
    assert scheduler.num_refusals > 8


def test_a_node_without_room_is_no_refusal_and_costs_no_turn() -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 1)
    rig.pod("p", 8)
    rig.round()
    rig.ledger.release("p")
    rig.ledger.reserve("other", "n0", Holding(1), rig.now)
    rig.refuse("p", WORDS)
    rig.round()
    assert rig.entry("p").num_refused == 0
    rig.pod("q", 8)
    rig.ledger.release("other")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("q")) == ("n0", "")


def test_the_next_process_takes_those_that_were_refused_or_nominated_again_as_refused() -> None:
    """Else they could hold twice the limit."""
    before = two_refused_and_one_nominated_again()
    (again,) = (name for name, pod in before.api.pods.items() if "conditions" not in pod["status"])
    assert before.node_of(again)
    assert before.note(again, "nomination-lost")
    rig = Rig(before.api)
    nodes(rig, 10)
    for name in before.api.pods:
        rig.told(name)
        assert rig.entry(name).suspect
    rig.round()
    assert rig.placed() == [again]


def test_what_kube_scheduler_gets_by_asking_counts_against_the_bound() -> None:
    """Another extender behind Kerf refuses what Kerf's filter has reserved."""
    rig = two_refused(Stage.LOST)
    rig.pod("bad-2", 8)
    may_hold = rig.queue.refusals.may_hold
    assert not excess(rig, "bad-1")
    assert may_hold([rig.entry("bad-1")])
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert TRIED_FIRST in excess(rig, "bad-1")
    assert not may_hold([rig.entry("bad-1")])
    assert may_hold([rig.entry("bad-0")])  # its own reservation does not count
    rig.round()
    assert not rig.node_of("bad-2"), "pods of the namespace that were not tried yet share the bound"
    rig.ledger.release("bad-0")
    assert not excess(rig, "bad-1")
    rig.round()
    assert rig.node_of("bad-2")


def test_a_pod_that_lost_what_a_plan_gave_it_is_held_to_the_bound_before_a_round_has_seen_that() -> None:
    rig = two_refused(Stage.OPENED)
    for name, node in (("bad-0", "n0"), ("bad-1", "n1")):
        assert rig.entry(name).suspect
        rig.ledger.reserve(name, node, Holding(8), rig.now)
    assert not excess(rig, "bad-1")  # reserved by the plan
    rig.ledger.release("bad-1")
    assert TRIED_FIRST in excess(rig, "bad-1")
    rig.ledger.release("bad-0")
    assert not excess(rig, "bad-1")


def as_gang(rig: Rig, *names: str) -> None:
    for name in names:
        entry = rig.entry(name)
        assert entry.planned is not None
        entry.planned = replace(entry.planned, gang="ns/g")


def test_a_pod_of_a_gang_with_a_refused_pod_is_held_to_the_bound() -> None:
    """kube-scheduler had not refused this one itself, or its node had no room for it."""
    rig = two_refused(Stage.LOST)
    refused, mate = rig.entry("bad-0"), rig.entry("bad-1")
    mate.forgive()
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert not excess(rig, "bad-1"), "of no gang"
    as_gang(rig, "bad-0", "bad-1")
    assert excess(rig, "bad-1").startswith(f"kube-scheduler refused it {mate.lost};")
    mate.lost = ""
    assert excess(rig, "bad-1").startswith("kube-scheduler refused another of its gang;")
    rig.ledger.release("bad-0")
    assert not excess(rig, "bad-1")
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    refused.forgive()
    assert not excess(rig, "bad-1"), "none of its gang"


@pytest.mark.parametrize("stage", [Stage.OPENED, Stage.LOST])
def test_what_others_of_a_namespace_hold_counts_only_if_one_of_their_gang_was_refused(stage: Stage) -> None:
    rig = two_refused(Stage.LOST)
    rig.pod("other", 8, limits=cpu(2000))
    rig.round()
    assert rig.node_of("other")
    put_back(rig, Stage.LOST)
    rig.entry("other").stage = stage  # LOST: kube-scheduler retries it by itself
    assert rig.queue.refusals.may_hold([rig.entry("bad-1")])
    as_gang(rig, "bad-0", "other")
    assert not rig.queue.refusals.may_hold([rig.entry("bad-1")])


def test_a_pod_that_was_refused_just_now_counts_before_a_plan_judges_whether_its_node_had_room() -> None:
    rig = Rig()
    nodes(rig, 10)
    for name in ("bad-0", "bad-1"):
        rig.pod(name, 8)
    rig.round()
    for name in ("bad-0", "bad-1"):
        rig.refuse(name, WORDS)
        rig.entry(name).lose("n0")
    assert not rig.entry("bad-1").suspect
    assert not excess(rig, "bad-1")
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert TRIED_FIRST in excess(rig, "bad-1")


@pytest.mark.parametrize("rig_of", [Rig, DirectRig], ids=["extender", "direct"])
def test_a_quota_counts_pods_let_go_however_long_kube_scheduler_takes(rig_of: type[Rig]) -> None:
    rig = rig_of(quotas=Quotas({"ns": 2.0}))
    nodes(rig, 2)
    for number in range(6):
        rig.pod(f"p{number}", 1)
    for _ in range(10):
        rig.round(31.0)
        assert len(rig.placed()) == 2
    assert rig.queue.use.by_namespace()["ns"] == 2.0


def test_a_pod_that_is_deleted_behind_a_finalizer_holds_nothing() -> None:
    rig = DirectRig(quotas=Quotas({"ns": 2.0}))
    nodes(rig, 2)
    for number in range(8):
        rig.pod(f"p{number}", 1)
        rig.round()
        assert rig.node_of(f"p{number}")
        rig.api.pods[f"p{number}"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        rig.versions.touch(f"p{number}")
        assert rig.free() < 16
        rig.told(f"p{number}")
        assert rig.free() == 16
    assert rig.queue.use.by_namespace().get("ns", 0.0) == 0.0
