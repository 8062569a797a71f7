"""Pods that kube-scheduler refuses nodes with room: what they hold, who gets the GPUs, what is said, when it ends."""

from dataclasses import replace

import pytest

from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.kube.watches import NODES, PODS
from extender.ledger.claims import ClaimState
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.refusals import _FIRST_S, _MOST_S
from extender.scheduling.placer import PodIdentity
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.rigs import GATES, Manifest, Rig

WORDS = "0/10 nodes are available: 10 Insufficient rdma/hca."


class Picky:
    """A kube-scheduler that refuses some pods all nodes, for what nobody else knows, and binds the others."""

    def __init__(self, rig: Rig, refuses: str = "bad") -> None:
        self.rig = rig
        self.refuses = refuses
        self.num_refusals = 0

    def go(self, later_s: float = 0.1) -> None:
        """A round, and what kube-scheduler does after it."""
        self.rig.round(later_s)
        if isinstance(self.rig, DirectRig):
            self.rig.settle()
        for name, pod in self.rig.api.pods.items():
            if not self.rig.node_of(name) or pod["spec"].get("nodeName"):
                continue
            if not name.startswith(self.refuses):
                self.rig.bind(name)
            elif "conditions" not in pod["status"]:
                self.num_refusals += 1
                self.rig.refuse(name, WORDS)

    def bound(self) -> list[str]:
        return [name for name, pod in self.rig.api.pods.items() if pod["spec"].get("nodeName")]


def submit(rig: Rig, name: str, gpus: int, *, namespace: str = "ns", owner: str = "", cpu: object = 1) -> None:
    metadata: Manifest = {"name": name, "namespace": namespace, "uid": name, "annotations": {}, "resourceVersion": "1"}
    if owner:
        metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}]
    limits = {"nvidia.com/gpu": gpus, "cpu": cpu}
    spec = {"schedulingGates": GATES, "containers": [{"resources": {"limits": limits}}]}
    rig.api.pods[name] = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    rig.told(name)


def nodes(rig: Rig, number: int, gpus: int = 8) -> None:
    for at in range(number):
        rig.node(f"n{at}", gpus)


def two_refused(stage: Stage) -> Rig:
    """Two pods that ask for 8 GPUs, were refused, are in a stage now and have nothing reserved."""
    rig = two_refused_and_one_nominated_anew()
    put_back(rig, stage)
    return rig


def two_refused_and_one_nominated_anew() -> Rig:
    """Ten nodes of 8 GPUs and two pods that ask for 8 and were refused: one of them is tried again."""
    rig = Rig()
    nodes(rig, 10)
    for name in ("bad-0", "bad-1"):
        submit(rig, name, 8)
    Picky(rig).go()
    rig.round()
    return rig


def two_refused_beside_another() -> Rig:
    """The same, waiting, and `other`, a pod of another kind of their namespace, which was let go for its node."""
    rig = two_refused(Stage.LOST)
    submit(rig, "other", 8, cpu=2)
    rig.round()
    assert rig.node_of("other")
    put_back(rig, Stage.LOST)
    return rig


def put_back(rig: Rig, stage: Stage) -> None:
    """The two are in a stage and have nothing reserved."""
    for name in ("bad-0", "bad-1"):
        rig.queue.backlog.entries[name].stage = stage
        rig.ledger.release(name)


def held_after_refusal(rig: Rig, refused: set[str]) -> int:
    """GPUs that are kept for pods which kube-scheduler has refused before."""
    held = 0
    for entry in rig.queue.backlog.entries.values():
        claim = rig.ledger.claim(entry.uid)
        if entry.uid in refused and claim is not None and claim.state is ClaimState.RESERVED:
            held += claim.holding.units
    return held


@pytest.mark.parametrize("rig_of", [Rig, DirectRig], ids=["extender", "direct"])
@pytest.mark.parametrize("num_bad", [1, 30])
def test_a_pod_that_nothing_can_place_keeps_its_node_from_nobody(rig_of: type[Rig], num_bad: int) -> None:
    rig = rig_of(order=Order.FIFO, reserve_after_s=1.0)
    nodes(rig, 1)
    for number in range(num_bad):
        submit(rig, f"bad-{number}", 8, owner="careless")
    scheduler = Picky(rig)
    scheduler.go()
    for name in ("a", "b", "c"):
        submit(rig, name, 2)
    until = rig.now + 15.0
    while len(scheduler.bound()) < 3 and rig.now < until:
        scheduler.go(0.25)
    assert scheduler.bound() == ["a", "b", "c"]
    assert all(rig.queue.backlog.entries[f"bad-{number}"] for number in range(num_bad))


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
    scheduler = Picky(rig)
    for number in range(num_pods):
        namespace, owner = f"ns{number % namespaces}", f"rs-{number}" if owned else ""
        submit(rig, f"bad-{number}", 1 + number % 8, namespace=namespace, owner=owner, cpu=f"{1000 + number}m")
    most, refused = 0, set[str]()
    for _ in range(20):
        rig.round(0.25)
        held = held_after_refusal(rig, refused)
        most = max(most, held)
        largest = max(
            (entry.num_gpus for entry in rig.queue.backlog.entries.values() if entry.uid in refused), default=0
        )
        assert held <= max(0.05 * 80, largest)
        for name, pod in rig.api.pods.items():
            if rig.node_of(name) and "conditions" not in pod["status"]:
                refused.add(name)
                rig.refuse(name, WORDS)
    assert most > 0
    assert len(refused) >= 10
    submit(rig, "good", 8, namespace="others")
    until = rig.now + 15.0
    while "good" not in scheduler.bound() and rig.now < until:
        scheduler.go(0.25)
    assert "good" in scheduler.bound()


def test_a_node_is_ruled_out_for_pods_of_the_same_owner_and_for_longer_each_time() -> None:
    rig = Rig()
    nodes(rig, 1)
    submit(rig, "bad-0", 8, owner="careless")
    scheduler = Picky(rig)
    waited = []
    for number in range(1, 9):
        began = rig.now
        while scheduler.num_refusals < number:
            scheduler.go(0.5)
        waited.append(rig.now - began)
        if number == 1:
            submit(rig, "bad-1", 8, owner="careless")
            rig.round(_FIRST_S / 4)
            assert not rig.node_of("bad-1")
            rig.api.pods.pop("bad-1")
            rig.hub.cache(PODS).remove(rig.queue.backlog.entries["bad-1"].pod)
    assert waited[1:] == pytest.approx([_FIRST_S * 2**n for n in range(6)] + [_MOST_S], abs=1.3)


def test_others_of_the_same_request_are_not_kept_off_and_a_change_of_the_request_begins_anew() -> None:
    rig = Rig()
    nodes(rig, 1)
    submit(rig, "bad-0", 8, owner="careless")
    scheduler = Picky(rig)
    for _ in range(40):
        scheduler.go(0.5)
    submit(rig, "good", 8, owner="another")
    scheduler.go()
    assert scheduler.bound() == ["good"]
    rig.ledger.remove_pod("good")
    entry, known = rig.queue.backlog.entries["bad-0"], scheduler.num_refusals
    assert entry.num_refused > 3
    rig.api.pods["bad-0"]["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}]
    rig.told("bad-0")
    scheduler.go()
    assert scheduler.num_refusals == known + 1


@pytest.mark.parametrize("how", ["node", "pod"])
def test_a_node_that_has_changed_or_that_a_pod_has_left_is_tried_before_its_time(how: str) -> None:
    rig = Rig()
    rig.node("n0", 9)
    submit(rig, "runs", 1)
    scheduler = Picky(rig)
    scheduler.go()
    submit(rig, "bad-0", 8, owner="careless")
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
        rig.hub.cache(NODES).upsert(
            decode_node({"metadata": {"name": "n0", "uid": "n0"}, "status": {"allocatable": allocatable}})
        )
    scheduler.go(1.0)
    assert "bad-0" in scheduler.bound()


def test_it_is_told_what_kube_scheduler_said_and_no_node_is_kept_for_it() -> None:
    rig = Rig(order=Order.FIFO, reserve_after_s=1.0)
    told: list[tuple[str, str]] = []
    rig.queue.refusals.tell = lambda entry, message: told.append((entry.uid, message))
    nodes(rig, 1)
    submit(rig, "bad-0", 8, owner="careless")
    scheduler = Picky(rig)
    for _ in range(12):
        scheduler.go(0.5)
    scheduler.go(31.0)
    rig.round()
    assert told[0] == ("bad-0", f"kube-scheduler refused node n0, which is ruled out for 1 s: {WORDS}")
    entry = rig.queue.backlog.entries["bad-0"]
    assert str(entry.skips.reason) == f"kube-scheduler refused it n0: {WORDS}"
    assert not entry.lacks_only_room


def test_a_second_refusal_is_noticed_at_once_and_its_nomination_ends() -> None:
    rig = Rig()
    nodes(rig, 1)
    submit(rig, "bad-0", 8)
    Picky(rig).go()
    rig.round()
    for number in (1, 2, 3):
        rig.round(_MOST_S)
        assert "conditions" not in rig.api.pods["bad-0"]["status"]
        # It keeps the nomination of a pod that may evict nobody.
        rig.refuse("bad-0", WORDS)
        rig.api.pods["bad-0"]["status"]["nominatedNodeName"] = "n0"
        rig.told("bad-0")
        rig.round()
        rig.round()  # once that is taken back
        assert rig.ledger.claim("bad-0") is None
        assert not rig.api.pods["bad-0"]["status"].get("nominatedNodeName")
        assert rig.queue.backlog.entries["bad-0"].num_lost == number + 1


def test_what_kube_scheduler_does_not_answer_is_taken_back() -> None:
    rig = Rig()
    nodes(rig, 1)
    submit(rig, "bad-0", 8)
    Picky(rig).go()
    rig.round()
    rig.round(_MOST_S)
    assert rig.node_of("bad-0") == "n0"
    rig.round(4.9)
    assert rig.ledger.claim("bad-0") is not None
    rig.round(0.2)
    assert rig.queue.backlog.entries["bad-0"].stage is Stage.LOST
    assert not rig.node_of("bad-0")


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


def test_a_pod_that_fits_and_was_refused_by_accident_has_its_node_soon() -> None:
    rig = Rig()
    nodes(rig, 2)
    submit(rig, "p", 8)
    rig.round()
    rig.refuse("p", "0/2 nodes are available: 2 Insufficient cpu.")
    rig.round()
    rig.round()
    assert rig.node_of("p")  # the other one, at once
    rig.bind("p")
    assert rig.queue.counts.honoured == 1


def test_a_node_without_room_is_no_refusal_and_costs_no_turn() -> None:
    rig = Rig(order=Order.FIFO)
    nodes(rig, 1)
    submit(rig, "p", 8)
    rig.round()
    rig.ledger.release("p")
    rig.ledger.reserve("other", "n0", Holding(1), rig.now)
    rig.refuse("p", WORDS)
    rig.round()
    assert rig.queue.backlog.entries["p"].num_refused == 0
    submit(rig, "q", 8)
    rig.ledger.release("other")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("q")) == ("n0", "")


def test_a_kerf_that_starts_takes_those_that_were_refused_before_it_as_refused() -> None:
    before = Rig()
    nodes(before, 10)
    scheduler = Picky(before)
    for number in range(20):
        submit(before, f"bad-{number}", 8, cpu=f"{1000 + number}m")
    for _ in range(40):
        scheduler.go(1.0)
    refused = {name for name, pod in before.api.pods.items() if "conditions" in pod["status"]}
    assert len(refused) >= 10
    rig = Rig(before.api)
    nodes(rig, 10)
    for name in before.api.pods:
        rig.told(name)
    for name in refused:
        assert rig.queue.backlog.entries[name].suspect
    for _ in range(10):
        rig.round(0.25)
        assert held_after_refusal(rig, refused) <= 8


def test_a_kerf_that_starts_takes_one_that_was_nominated_anew_as_refused_before() -> None:
    """Else it would give as much again to those that it finds waiting."""
    before = two_refused_and_one_nominated_anew()
    (anew,) = (name for name, pod in before.api.pods.items() if "conditions" not in pod["status"])
    assert before.node_of(anew)
    assert before.note(anew, "nomination-lost")
    rig = Rig(before.api)
    nodes(rig, 10)
    for name in before.api.pods:
        rig.told(name)
        assert rig.queue.backlog.entries[name].suspect
    rig.round()
    assert [name for name in before.api.pods if rig.node_of(name)] == [anew]


def test_kube_scheduler_asking_by_itself_holds_no_more_for_them() -> None:
    """Another extender behind Kerf refuses what Kerf's filter has reserved."""
    rig = two_refused(Stage.LOST)
    request, identity = GpuRequest(8), PodIdentity("ns", "bad-1", "bad-1")
    assert not rig.queue.over_quota(identity, request)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert "others that it refused are tried first" in rig.queue.over_quota(identity, request)
    rig.ledger.release("bad-0")
    assert not rig.queue.over_quota(identity, request)


@pytest.mark.parametrize("stage", [Stage.OPENED, Stage.RENOMINATING])
def test_a_pod_that_lost_what_a_plan_gave_it_is_held_to_the_bound_before_a_round_has_seen_that(stage: Stage) -> None:
    rig = two_refused(stage)
    for name, node in (("bad-0", "n0"), ("bad-1", "n1")):
        assert rig.queue.backlog.entries[name].suspect
        rig.ledger.reserve(name, node, Holding(8), rig.now)
    request, identity = GpuRequest(8), PodIdentity("ns", "bad-1", "bad-1")
    assert not rig.queue.over_quota(identity, request)  # its own, by the plan
    rig.ledger.release("bad-1")
    assert "others that it refused are tried first" in rig.queue.over_quota(identity, request)
    rig.ledger.release("bad-0")
    assert not rig.queue.over_quota(identity, request)


def test_a_pod_of_a_gang_of_which_another_was_refused_is_held_to_the_bound_with_it() -> None:
    """kube-scheduler had not refused this one itself, or its node had no room for it."""
    rig = two_refused(Stage.LOST)
    refused, mate = (rig.queue.backlog.entries[name] for name in ("bad-0", "bad-1"))
    mate.forgive()
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    request, identity = GpuRequest(8), PodIdentity("ns", "bad-1", "bad-1")
    assert not rig.queue.over_quota(identity, request), "of no gang"
    for entry in (refused, mate):
        assert entry.planned is not None
        entry.planned = replace(entry.planned, gang="ns/g")
    assert rig.queue.over_quota(identity, request).startswith(f"kube-scheduler refused it {mate.lost};")
    mate.lost = ""
    assert rig.queue.over_quota(identity, request).startswith("kube-scheduler refused another of its gang;")
    rig.ledger.release("bad-0")
    assert not rig.queue.over_quota(identity, request)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    refused.forgive()
    assert not rig.queue.over_quota(identity, request), "none of its gang"


def test_what_kube_scheduler_asks_while_a_plan_is_made_counts_when_it_is_carried_out() -> None:
    rig = two_refused(Stage.LOST)
    first, second = (rig.queue.backlog.entries[name] for name in ("bad-0", "bad-1"))
    assert rig.queue.refusals.may_hold([second])
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert not rig.queue.refusals.may_hold([second])
    assert rig.queue.refusals.may_hold([first])  # its own is no other's


def test_pods_not_tried_yet_share_the_bound_with_those_of_their_namespace_that_were_refused() -> None:
    rig = two_refused(Stage.LOST)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    submit(rig, "bad-2", 8)
    rig.round()
    assert not rig.node_of("bad-2")
    rig.ledger.release("bad-0")
    rig.round()
    assert rig.node_of("bad-2")


def test_what_others_of_a_namespace_hold_does_not_keep_a_refused_pod_from_its_next_try() -> None:
    rig = two_refused_beside_another()
    assert rig.queue.refusals.may_hold([rig.queue.backlog.entries["bad-1"]])


@pytest.mark.parametrize("stage", [Stage.OPENED, Stage.LOST])
def test_pods_of_a_gang_of_which_one_was_refused_count_with_it(stage: Stage) -> None:
    rig = two_refused_beside_another()
    rig.queue.backlog.entries["other"].stage = stage  # kube-scheduler asks about it by itself where it was lost
    assert rig.queue.refusals.may_hold([rig.queue.backlog.entries["bad-1"]])
    for name in ("bad-0", "other"):
        entry = rig.queue.backlog.entries[name]
        assert entry.planned is not None
        entry.planned = replace(entry.planned, gang="ns/g")
    assert not rig.queue.refusals.may_hold([rig.queue.backlog.entries["bad-1"]])


def test_a_pod_that_was_refused_just_now_counts_before_a_plan_tells_whether_its_node_had_room() -> None:
    rig = Rig()
    nodes(rig, 10)
    for name in ("bad-0", "bad-1"):
        submit(rig, name, 8)
    rig.round()
    for name in ("bad-0", "bad-1"):
        rig.refuse(name, WORDS)
        rig.ledger.release(name)
        rig.queue.backlog.entries[name].lose("n0")
    assert not rig.queue.backlog.entries["bad-1"].suspect
    request, identity = GpuRequest(8), PodIdentity("ns", "bad-1", "bad-1")
    assert not rig.queue.over_quota(identity, request)
    rig.ledger.reserve("bad-0", "n0", Holding(8), rig.now)
    assert "others that it refused are tried first" in rig.queue.over_quota(identity, request)


@pytest.mark.parametrize("rig_of", [Rig, DirectRig], ids=["extender", "direct"])
def test_a_quota_counts_pods_let_go_however_long_kube_scheduler_takes(rig_of: type[Rig]) -> None:
    rig = rig_of(quotas=Quotas({"ns": 2.0}))
    nodes(rig, 2)
    for number in range(6):
        submit(rig, f"p{number}", 1)
    for _ in range(10):
        rig.round(31.0)
        assert sum(bool(rig.node_of(name)) for name in rig.api.pods) == 2
    assert rig.queue.use.by_namespace()["ns"] == 2.0


def test_a_quota_counts_a_pod_that_has_left_the_queue_until_the_watch_tells_that_it_runs() -> None:
    rig = Rig(quotas=Quotas({"ns": 1.0}))
    nodes(rig, 1)
    submit(rig, "p0", 1)
    submit(rig, "p1", 1)
    rig.round()
    (first,) = [name for name in rig.api.pods if rig.node_of(name)]
    rig.bind(first)
    rig.round()
    assert sum(bool(rig.node_of(name)) for name in rig.api.pods) == 1
    rig.hub.cache(PODS).upsert(decode_pod(rig.api.pods[first]))
    assert rig.queue.use.by_namespace()["ns"] == 1.0
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods[first]))
    rig.ledger.remove_pod(first)
    rig.round()
    assert sum(bool(rig.node_of(name)) for name in rig.api.pods) == 2


def test_a_pod_that_has_lost_its_node_is_held_to_its_quota_when_kube_scheduler_finds_another() -> None:
    rig = Rig(quotas=Quotas({"ns": 1.0}))
    nodes(rig, 1)
    submit(rig, "p0", 1)
    rig.round()
    rig.remove_node("n0")
    rig.refuse("p0")
    rig.round()
    nodes(rig, 1)
    rig.ledger.reserve("p1", "n0", Holding(1), rig.now)
    rig.queue.running.gpus["ns"] = 1.0
    assert "quota of namespace ns: 1 GPUs" in rig.queue.over_quota(PodIdentity("ns", "p0", "p0"), GpuRequest(1))


def test_what_was_reserved_for_a_pod_that_is_deleted_is_free_at_once() -> None:
    rig = Rig()
    nodes(rig, 1)
    submit(rig, "p", 8)
    rig.round()
    assert rig.ledger.claim("p") is not None
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["p"]))
    assert rig.ledger.claim("p") is None


def test_a_pod_that_is_deleted_behind_a_finalizer_holds_nothing() -> None:
    rig = DirectRig(quotas=Quotas({"ns": 2.0}))
    nodes(rig, 2)
    for number in range(8):
        submit(rig, f"p{number}", 1)
        rig.round()
        if rig.node_of(f"p{number}"):
            rig.api.pods[f"p{number}"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            rig.versions.touch(f"p{number}")
            assert rig.free() < 16
            rig.told(f"p{number}")
            assert rig.free() == 16
    assert rig.queue.use.by_namespace().get("ns", 0.0) == 0.0
