"""Devices are held from before they are written until it is certain who has them, and never twice."""

import asyncio
import contextlib
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from extender.core.fit.device_fits import explain_no_fit
from extender.core.fit.fits import fit_devices
from extender.core.fit.reasons import Reason
from extender.dra.objects import CLASSES, SLICES, DeviceClass, ResourceClaim, ResourceSlice
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.commit import FencedError
from extender.parts.dra.selection import PodSelector
from extender.parts.dra.writer import _FINALIZER
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.dra.claim_api import ClaimApi
from tests.ledger.builders import until
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_allocator_choice import THEIRS, publish_theirs, rig_beside_others
from tests.parts.dra.test_maker import NAME
from tests.parts.dra.test_maker import pod as asking_pod


def started(*names: str, gpus: int = 1) -> ClaimRig:
    """Pods that are being released to a node, for which devices are held."""
    rig = ClaimRig(gpus=gpus)
    for name in names or ("a",):
        rig.hold(name).reserve("n")
    return rig


def test_a_decision_holds_the_device_and_then_the_claim_does() -> None:
    rig = started(gpus=2)
    assert rig.free() == 1
    assert rig.allocate()
    assert rig.free() == 1
    assert not rig.owned.holds
    claim = rig.api.claims["a"]
    assert claim["metadata"]["finalizers"] == [_FINALIZER]
    result = claim["status"]["allocation"]["devices"]["results"][0]
    assert (result["pool"], result["request"]) == ("n", "gpu")
    assert claim["status"]["allocation"]["allocationTimestamp"]
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "a", "uid": "p-a"}]
    assert rig.api.writes == [("a", ""), ("a", "status")]
    assert rig.fence.confirmed_after == [[("a", "")]]


def test_two_pods_never_get_the_same_device() -> None:
    rig = started("a", "b", gpus=2)
    rig.add("c")
    assert not rig.decide(rig.pod("c").pod)


def test_nothing_is_held_for_a_claim_that_has_changed_or_whose_write_is_refused() -> None:
    rig = started()
    rig.api.claims["a"]["metadata"]["resourceVersion"] = "999"
    assert not rig.allocate()
    assert (rig.free(), rig.is_allocated()) == (1, False)
    rig = started()
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "no") if part == "status" else None
    with pytest.raises(ApiError):
        rig.allocate()
    assert rig.free() == 1


@pytest.mark.parametrize("done", [False, True])
def test_a_lost_answer_holds_the_device_until_the_claim_was_read(done: bool) -> None:
    rig = started()
    setattr(rig.api, "lose" if done else "fail", lambda name, part: UnreachableError("") if part == "status" else None)
    rig.api.unread = True
    with pytest.raises(UnreachableError):
        rig.allocate()
    rig.wait()
    assert rig.free() == 0, "it can't be read yet"
    assert rig.keeper.read(rig.entries["a"].pod).missing == "a", "it is not decided on again"
    rig.entries["a"].put_back(rig.now)
    rig.api.lose = rig.api.fail = lambda name, part: None
    rig.api.unread = False
    rig.wait()
    assert rig.free() == (0 if done else 1)
    assert not rig.owned.holds
    assert rig.changed[-1] == "default/a"


@pytest.mark.parametrize("opened", [False, True])
def test_devices_of_a_claim_that_no_pod_on_its_way_needs_are_taken_back(opened: bool) -> None:
    rig = started()
    rig.allocate()
    entry = rig.entries["a"]
    if opened:
        entry.open(rig.now)
        entry.was_opened()
    rig.wait(60)
    assert rig.free() == 0  # its pod is on its way
    if opened:
        entry.node = "another"
    else:
        entry.put_back(rig.now)
    rig.wait()
    assert rig.free() == 0  # it may be planned on its node the next moment
    rig.wait(3)
    assert rig.free() == 1
    assert rig.api.claims["a"]["status"] == {}
    assert rig.keeper.counts.freed == 1


def test_devices_of_a_pod_that_is_gone_are_taken_back_where_nobody_else_does() -> None:
    rig = started()
    rig.allocate()
    del rig.entries["a"]
    rig.wait()
    rig.wait(10)
    assert rig.free() == 0  # kube-controller-manager's to free, for now
    rig.wait(10)
    assert rig.free() == 1


def test_a_reservation_that_comes_first_keeps_the_devices() -> None:
    rig = started()
    rig.allocate()
    del rig.entries["a"]
    rig.wait()
    rig.api.claims["a"]["metadata"]["resourceVersion"] = "999"  # kube-scheduler has reserved it for another pod
    rig.wait(60)
    assert (rig.free(), rig.is_allocated()) == (0, True)


def test_a_standby_holds_nothing_and_takes_nothing_back() -> None:
    rig = started("a", "b", gpus=2)
    rig.allocate("b")
    rig.entries.clear()
    rig.fence.others_lead = "standby"
    num_writes = len(rig.api.writes)
    rig.wait(60)
    assert rig.free() == 1
    assert len(rig.api.writes) == num_writes


def test_a_new_leader_changes_the_claims_that_its_predecessor_may_be_about_to_write() -> None:
    rig = ClaimRig(gpus=2)
    rig.api.add("a")["metadata"]["finalizers"] = [_FINALIZER]
    rig.api.add("b")
    known = rig.version()
    asyncio.run(rig.keeper.catch_up())  # before the watch has reported them
    assert rig.version() != known
    assert rig.api.writes == [("a", "")]  # b has to be protected first


def test_a_new_leader_counts_what_its_predecessor_has_allocated_meanwhile() -> None:
    rig = ClaimRig(gpus=1)
    ClaimRig(gpus=1, api=rig.api).allot()
    assert rig.free() == 1  # its watch lags
    asyncio.run(rig.keeper.catch_up())
    assert rig.free() == 0


def test_without_the_lease_no_device_is_decided_on_or_given() -> None:
    rig = started()
    rig.fence.others_lead = "standby"
    with pytest.raises(FencedError):
        rig.allocate()
    assert rig.api.writes == [("a", "")]
    assert rig.free() == 1
    rig.add("b")
    assert not rig.decide(rig.pod("b").pod)
    assert rig.free() == 1


def test_a_decision_of_one_term_is_not_written_in_the_next() -> None:
    rig = started()
    rig.fence.term = "second"  # before its write
    with pytest.raises(FencedError):
        rig.allocate()
    assert (rig.free(), rig.is_allocated()) == (1, False)

    def lapse(name: str, part: str) -> None:
        """While the answer is on its way."""
        rig.fence.term = "third"
        rig.ledger.release_devices("u-b")  # as a standby does
        rig.hold("c")

    rig.hold("b")
    rig.api.lose = lapse
    with pytest.raises(FencedError):
        rig.allocate("b")
    assert not rig.is_allocated("b")
    assert set(rig.owned.holds) == {"u-c"}


def test_a_claim_that_is_being_deleted_is_given_nothing() -> None:
    rig = ClaimRig()
    rig.api.add("a")["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.org/own"]}
    rig.tell("a")
    assert rig.keeper.read(rig.pod("a").pod).missing == "a"


def test_watch_events_older_than_the_own_write_are_ignored() -> None:
    rig = started()
    before = dict(rig.api.claims["a"], metadata=dict(rig.api.claims["a"]["metadata"]), status={})
    rig.allocate()
    for claim in (before, rig.api.claims["a"]):
        rig.api.claims["a"] = claim
        rig.tell("a")
        assert rig.free() == 0


def test_changes_by_others_before_a_write_is_answered_count() -> None:
    rig = started()

    def take_away(name: str, part: str) -> None:
        if part == "status":
            rig.api.take_away(name)
            rig.tell(name)

    rig.api.lose = take_away
    rig.allocate()
    assert rig.free() == 1
    assert rig.owned.claims["u-a"].status.allocation is None
    rig = started()
    rig.api.lose = lambda name, part: rig.forget(name) if part == "status" else None
    rig.allocate()
    assert (rig.free(), rig.owned.claims) == (1, {})


def test_a_claim_that_is_deleted_under_a_running_pod_keeps_its_device_for_that_pod() -> None:
    rig = started()
    rig.allocate()
    pod = rig.entries.pop("a").pod
    pod.spec.node_name = "n"
    rig.ledger.upsert_pod(pod, rig.now)
    rig.ledger.remove_device(ResourceClaim, "u-a")  # its author has taken the finalizer off
    rig.wait()
    assert rig.free() == 0
    rig.ledger.remove_pod("p-a")
    rig.wait()
    rig.wait(6)
    assert rig.free() == 1


def test_a_claim_that_is_deleted_before_the_watch_of_bound_pods_reports_its_pod_keeps_its_device() -> None:
    rig = started()
    rig.allocate()
    pod = rig.entries.pop("a").pod
    rig.ledger.remove_device(ResourceClaim, "u-a")
    rig.wait()
    assert rig.free() == 0
    pod.spec.node_name = "n"
    rig.ledger.upsert_pod(pod, rig.now)
    for _ in range(3):
        rig.wait(20)
    assert rig.free() == 0


def test_a_claim_that_is_being_freed_can_not_be_planned_with() -> None:
    rig = started()
    rig.allocate()
    assert rig.keeper.read(rig.entries["a"].pod).allocated
    rig.keeper.freeing.add("u-a")
    assert rig.keeper.read(rig.entries["a"].pod).missing == "a"


def test_nothing_is_written_for_a_pod_whose_devices_are_not_held_any_more() -> None:
    rig = started()
    rig.ledger.release_devices("u-a")
    assert not rig.allocate()
    assert rig.api.writes == []


def test_devices_are_given_once_the_watch_has_reported_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Kerf's watch has the write, kube-scheduler's may lack it too."""
    monkeypatch.setattr("extender.parts.dra.keeper._MAX_ECHO_S", 30.0)
    rig = started()

    async def scenario() -> None:
        giving = asyncio.create_task(rig.keeper.allocate(rig.entries["a"].pod))
        await until(lambda: rig.keeper.counts.allocated)
        for reported in (False, True):
            if reported:
                rig.tell("a")
            for _ in range(10):
                await asyncio.sleep(0)
            assert giving.done() is reported
        assert await giving

    asyncio.run(scenario())


@pytest.mark.parametrize("refused", [False, True])
def test_pods_that_wait_for_a_claim_are_read_again_once_it_is_written_or_refused(refused: bool) -> None:
    rig = ClaimRig()
    rig.add("c")
    pod, other = rig.pod("p", "c").pod, rig.pod("q", "c").pod
    assert rig.decide(pod)
    waited = []

    def report(name: str, part: str) -> ClusterError | None:
        rig.tell(name)
        waited.append(bool(rig.keeper.read(other).missing))
        rig.changed.clear()
        return ApiError(403, "Forbidden", name) if refused else None

    setattr(rig.api, "fail" if refused else "lose", report)
    with contextlib.suppress(ApiError):
        assert asyncio.run(rig.keeper.allocate(pod))
    assert (waited[-1], rig.changed) == (True, ["default/c"])
    assert not rig.keeper.read(other).missing


def test_pods_that_wait_for_a_claim_are_read_again_once_it_is_let_go_or_not_freed() -> None:
    rig = ClaimRig()
    pod = rig.hold("p").pod
    rig.changed.clear()
    rig.keeper.release_holds(pod)
    rig.keeper.release_holds(pod)
    assert rig.changed == ["default/p"]
    rig.allot("q")
    rig.entries.clear()
    rig.changed.clear()
    rig.api.fail = lambda name, part: ApiError(500, "InternalError", name)
    rig.wait()
    rig.wait(20)
    assert rig.changed == ["default/q"] * 2, "as it begins, and as it ends"
    assert not rig.keeper.freeing


def test_a_pod_is_not_released_for_devices_that_were_taken_back_meanwhile() -> None:
    rig = ClaimRig()
    rig.allot()
    rig.api.take_away("a")
    assert not rig.allocate()


def test_a_pod_whose_claims_are_allocated_is_released_with_nothing_held_for_it() -> None:
    rig = ClaimRig(gpus=1)
    assert rig.keeper.hold(rig.allot().pod, "n", None)
    assert not rig.owned.holds
    assert rig.allocate()


def test_claims_of_a_running_pod_are_not_written_for_each_pod_that_shares_them() -> None:
    rig = ClaimRig()
    rig.allot()
    metadata = {"name": "a", "namespace": "default", "uid": "p-a"}
    bound = decode_pod({"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}})
    rig.ledger.upsert_pod(bound, rig.now)
    num_writes = len(rig.api.writes)
    rig.pod("b", "a")
    assert rig.allocate("b")
    assert len(rig.api.writes) == num_writes


def test_a_previous_leader_can_not_take_back_devices_of_a_pod_that_is_released() -> None:
    """Each time by another annotation: a patch that changes nothing leaves the version as it was."""
    rig = ClaimRig(gpus=2)
    rig.allot("had")
    rig.add("new")
    known = rig.owned.claim_at("default/had")
    assert known is not None
    words = list[str]()
    assert rig.decide(rig.pod("p", "new", "had").pod)
    for _ in range(2):
        assert rig.allocate("p")
        words += rig.api.claims["had"]["metadata"]["annotations"].values()
    assert rig.keeper.counts.allocated == 2
    assert asyncio.run(rig.keeper.writer.free(known, rig.fence.as_of_now())) is None
    assert len(set(words)) == 2
    assert all(words)


def test_a_pod_whose_devices_are_refused_backs_off_and_says_why() -> None:
    rig = ClaimRig(gpus=1)
    rig.add("a")
    entry = rig.planned("a")
    turns = PodSelector(rig.keeper, lambda: None)
    turns.select([entry])
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "the fence") if part == "status" else None
    for backoff_s in (1, 2, 4):
        assert turns.select([entry]) == ([entry], [])
        assert rig.decide(entry.pod)
        with pytest.raises(ApiError):
            rig.allocate()
        rig.tell("a")
        rig.now += backoff_s - 0.5
        ((_, why),) = turns.select([entry])[1]
        assert "the fence" in str(why)
        rig.now += 1
    rig.api.fail = lambda name, part: None
    assert rig.decide(entry.pod)
    assert rig.allocate()
    rig.api.take_away("a")
    rig.tell("a")
    assert rig.decide(entry.pod)
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "x" * 1000) if part == "status" else None
    with pytest.raises(ApiError):
        rig.allocate()
    assert len(rig.keeper.resting("p-a")) == 300
    rig.now += 1.0
    assert rig.keeper.resting("p-a") == "", "as short as the first time"


def test_back_offs_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.parts.dra.keeper._MAX_BACKOFFS", 100)
    rig = ClaimRig(gpus=1)
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "no")
    rig.api.add("c")["status"] = {"allocation": {"devices": {"results": []}}}
    rig.tell("c")
    pods = [rig.pod(f"p{number}", "c").pod for number in range(101)]

    async def refused() -> None:
        for pod in pods:
            with contextlib.suppress(ApiError):
                await rig.keeper.allocate(pod)

    asyncio.run(refused())
    resting = [pod.metadata.name for pod in pods if rig.keeper.resting(pod.metadata.uid)]
    assert resting == ["p100"], "the others are tried again sooner"


def test_nothing_is_held_where_claims_differ_from_the_decision() -> None:
    rig = ClaimRig(gpus=1)
    rig.api.add("a")
    pod = rig.pod("a").pod
    assert not rig.keeper.hold(pod, "n", None)
    rig.tell("a")
    assert not rig.keeper.hold(pod, "n", None)
    assert not rig.owned.holds


def test_a_pod_is_let_go_though_one_of_its_holds_is_gone() -> None:
    rig = ClaimRig(gpus=2)
    rig.add("a", "b")
    pod = rig.pod("p", "a", "b").pod
    assert rig.decide(pod)
    rig.ledger.release_devices("u-a")
    rig.changed.clear()
    rig.keeper.release_holds(pod)
    assert (rig.free(), rig.owned.holds, rig.changed) == (2, {}, ["default/b"])


@pytest.mark.parametrize(("allocatable", "idle"), [("0", 1), ("4", 4)])
def test_devices_of_a_node_that_also_has_gpus_of_a_device_plugin(allocatable: str, idle: int) -> None:
    """A kubelet goes on reporting 0 for a plugin that is gone."""
    rig = ClaimRig(gpus=2)
    rig.publish("n", 2, type={"string": "gpu"})
    status = {"allocatable": {"nvidia.com/gpu": allocatable}}
    rig.ledger.upsert_node(decode_node({"metadata": {"name": "n", "uid": "u-n"}, "status": status}))
    rig.hold()
    assert rig.allocate()
    assert rig.free() == 1
    cluster = rig.ledger.snapshot(rig.now)
    assert cluster.gpu_idle[cluster.row_of["n"]].sum() == idle


def test_devices_of_a_quarantined_node_are_given_to_nobody_and_that_is_said() -> None:
    rig = ClaimRig(gpus=1)
    rig.add("a")
    asked = rig.keeper.read(rig.pod("a").pod).asked
    assert asked is not None
    cluster = replace(rig.ledger.snapshot(rig.now), set_aside=np.array([7], np.int32))
    rows = np.array([0])
    found = fit_devices(cluster, asked, rows)
    assert (Reason(found.reason[0]), found.available[0]) == (Reason.SET_ASIDE, 7)
    assert "every node" in explain_no_fit(cluster, asked, rows, found.reason)
    rig.publish("m", 1)
    cluster = replace(rig.ledger.snapshot(rig.now), set_aside=np.array([7, 0], np.int32))
    reason = np.array([Reason.SET_ASIDE, Reason.BUSY], np.uint8)
    assert explain_no_fit(cluster, asked, np.array([0, 1]), reason).endswith("(node m)"), "the other is nearer"


def anything_new(rig: ClaimRig) -> list[bool]:
    """Whether there is anything new, then whether there still is."""
    return [asyncio.run(rig.keeper.claims_outdated()) for _ in range(2)]


def test_changed_inputs_are_new_once() -> None:
    rig = ClaimRig()
    hub, (reflector, *_) = rig.mirror.hub, rig.keeper.reflectors.values()
    assert anything_new(rig) == [True, False], "it begins"
    hub.cache(SLICES).retain_only(set(), rig.now)
    assert anything_new(rig) == [True, False], "devices were listed"
    reflector.num_lists, reflector.last_error = 0, "timed out"
    assert anything_new(rig) == [True, False], "nothing is known any more"
    reflector.num_lists = 1
    assert anything_new(rig) == [True, False]


def test_watch_events_reach_the_pods_that_they_concern() -> None:
    rig = ClaimRig()
    hub = rig.mirror.hub
    anything_new(rig)
    rig.add("a")
    rig.forget("a")
    assert rig.changed == ["default/a"] * 2, "pods that name it"
    assert rig.dirty == []
    assert anything_new(rig) == [False, False]
    hub.cache(SLICES).upsert(msgspec.convert({"metadata": {"name": "s", "uid": "s"}}, ResourceSlice))
    assert rig.dirty.pop(), "all pods"
    assert anything_new(rig)[0]
    hub.cache(CLASSES).upsert(msgspec.convert({"metadata": {"name": "c", "uid": "c"}}, DeviceClass))
    assert rig.dirty.pop()
    assert anything_new(rig)[0]
    assert len(rig.changed) == 2


def test_a_claim_that_changes_its_allocator_is_new_once() -> None:
    rig = rig_beside_others()
    rig.add("c", deviceClassName=THEIRS)
    pod = rig.pod("c").pod
    while rig.keeper.read(pod).undecided:
        asyncio.run(rig.keeper.claims_outdated())
    assert rig.keeper.read(pod).left
    publish_theirs(rig, "other", driver="third.example.com", generation=2)
    asyncio.run(rig.keeper.claims_outdated())
    assert rig.keeper.read(pod).left
    assert any(asyncio.run(rig.keeper.claims_outdated()) for _ in range(100)), "once the other devices were examined"
    assert not rig.keeper.read(pod).left
    assert not asyncio.run(rig.keeper.claims_outdated())


def test_nothing_is_chosen_before_all_is_known_or_when_that_is_too_old() -> None:
    rig = ClaimRig()
    pod = rig.pod("p", "a", "b").pod
    reflector = rig.keeper.reflectors["slices"]
    assert rig.keeper.fault() == ""
    reflector.num_lists, reflector.last_error = 0, "refused"
    assert rig.keeper.fault() == "slices are not synced yet: refused"
    assert rig.keeper.read(pod).missing == "a"
    reflector.num_lists, rig.keeper.max_age_s = 1, 30.0
    assert rig.keeper.fault().startswith("slices were last current")


@pytest.mark.parametrize("owner", ["p-a", "p-another"])
def test_an_allocation_by_another_writer_is_not_taken_for_the_own_one(owner: str) -> None:
    """The answer is lost, and another has written: other devices for this pod, or the same for another pod."""
    rig = started(gpus=2)
    other = ClaimRig(gpus=2, api=ClaimApi())
    other.allot("other")
    status = other.api.claims["other"]["status"]
    status["reservedFor"][0]["uid"] = owner
    if owner == "p-a":
        status["allocation"]["devices"]["results"][0]["device"] = "gpu-1"

    def taken(name: str, part: str) -> ClusterError | None:
        if part != "status":
            return None
        rig.api.claims["a"]["status"] = status
        return UnreachableError("no answer")

    rig.api.fail = taken
    with pytest.raises(UnreachableError):
        rig.allocate()
    assert rig.keeper.counts.allocated == 0
    assert rig.keeper.writing == set()


def test_missing_claims_are_made_once_by_the_leader_that_knows_which_exist() -> None:
    rig = ClaimRig()
    rig.keeper.classes_to_make = {"gpu"}
    rig.pod("a").pod = asking_pod()
    (reflector, *_) = rig.keeper.reflectors.values()
    maker = rig.keeper.maker()

    def look(after_s: float = 0.0) -> int:
        rig.now += after_s
        asyncio.run(maker.look())
        return len(rig.api.posted)

    rig.fence.others_lead = "another one leads"
    assert look() == 0
    rig.fence.others_lead, reflector.num_lists = "", 0
    assert look() == 0
    reflector.num_lists = 1
    assert look() == 1
    assert rig.api.posted == ["/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"]
    assert look() == 1, "the watch is about to report it"
    assert look(100.0) == 2
    rig.add(NAME)
    assert look(100.0) == 2
