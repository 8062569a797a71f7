"""Devices are held from before they are written until it is certain who has them, and never twice."""

import asyncio
import contextlib
import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from extender.core.annotations import CLAIM
from extender.core.fit.device_fits import why_not
from extender.core.fit.fits import fit_devices
from extender.core.fit.reasons import Reason
from extender.dra.objects import CLASSES, SLICES, DeviceClass, ResourceSlice
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.commit import FencedError
from extender.parts.dra.turns import Turns
from extender.parts.dra.writer import _FINALIZER
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import Kinds
from tests.dra.claim_api import ClaimApi
from tests.ledger.builders import until
from tests.parts.dra.rigs import ClaimRig
from tests.parts.dra.test_whose import THEIRS, publish_theirs, rig_beside_others


def started(rig: ClaimRig, name: str) -> None:
    """A pod with a claim of its name, for which devices are held."""
    rig.api.add(name)
    rig.tell(name)
    entry = rig.pod(name)
    assert rig.decide(entry.pod)
    entry.reserve("n")


def test_what_is_decided_is_held_and_then_the_claims() -> None:
    rig = ClaimRig(gpus=2)
    started(rig, "a")
    assert rig.free() == 1
    assert asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
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
    rig = ClaimRig(gpus=2)
    for name in "ab":
        started(rig, name)
    rig.api.add("c")
    rig.tell("c")
    assert not rig.decide(rig.pod("c").pod)


def test_a_claim_that_has_changed_is_not_written_and_nothing_is_held_for_it() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.claims["a"]["metadata"]["resourceVersion"] = "999"
    assert not asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 1
    assert "allocation" not in rig.api.claims["a"]["status"]


def test_a_refusal_is_certain() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "no") if part == "status" else None
    with pytest.raises(ClusterError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 1


@pytest.mark.parametrize("done", [False, True])
def test_a_lost_answer_holds_the_device_until_the_claim_was_read(done: bool) -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    lost = lambda name, part: UnreachableError("no answer") if part == "status" else None  # noqa: E731
    setattr(rig.api, "lose" if done else "fail", lost)
    rig.api.unread = True
    with pytest.raises(UnreachableError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 0
    rig.entries["a"].put_back(rig.now)
    rig.api.lose = rig.api.fail = lambda name, part: None
    rig.api.unread = False
    asyncio.run(rig.look())
    assert rig.free() == (0 if done else 1)
    assert not rig.owned.holds
    assert rig.changed[-1] == "default/a"


@pytest.mark.parametrize("done", [False, True])
def test_what_became_of_a_write_without_an_answer_is_asked_at_once(done: bool) -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    lost = lambda name, part: UnreachableError("no answer") if part == "status" else None  # noqa: E731
    setattr(rig.api, "lose" if done else "fail", lost)
    if done:
        assert asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    else:
        version = rig.api.claims["a"]["metadata"]["resourceVersion"]
        with pytest.raises(UnreachableError):
            asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
        assert int(rig.api.claims["a"]["metadata"]["resourceVersion"]) > int(version) + 1, "protected, and sealed"
    assert (rig.free(), rig.owned.holds, rig.keeper.writing) == (0 if done else 1, {}, set())


def test_a_write_that_comes_after_all_changes_nothing() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.fail = lambda name, part: UnreachableError("no answer") if part == "status" else None
    rig.api.unread = True
    with pytest.raises(UnreachableError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    rig.api.unread = False
    late = rig.api.claims["a"]["metadata"]["resourceVersion"]
    rig.api.fail = lambda name, part: None
    rig.entries["a"].put_back(rig.now)
    asyncio.run(rig.look())
    assert rig.free() == 1
    assert rig.api.claims["a"]["metadata"]["resourceVersion"] != late  # the API server would refuse it: 409


def test_what_is_still_doubtful_stays_held() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.fail = lambda name, part: UnreachableError("no answer") if part == "status" else None
    rig.api.unread = True
    with pytest.raises(UnreachableError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    rig.entries["a"].put_back(rig.now)
    asyncio.run(rig.look())
    assert rig.free() == 0


def test_devices_of_a_claim_that_no_pod_on_its_way_needs_are_taken_back() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    asyncio.run(rig.look())
    rig.now += 60
    asyncio.run(rig.look())
    assert rig.free() == 0  # its pod is on its way
    rig.entries["a"].put_back(rig.now)
    asyncio.run(rig.look())
    assert rig.free() == 0  # it may be planned on its node the next moment
    rig.now += 3
    asyncio.run(rig.look())
    assert rig.free() == 1
    assert rig.api.claims["a"]["status"] == {}
    assert rig.keeper.counts.freed == 1


def test_devices_for_a_pod_that_is_gone_are_taken_back_where_nobody_else_does() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    asyncio.run(rig.keeper.allocate(rig.entries.pop("a").pod))
    asyncio.run(rig.look())
    rig.now += 10
    asyncio.run(rig.look())
    assert rig.free() == 0  # kube-controller-manager's to free, for now
    rig.now += 10
    asyncio.run(rig.look())
    assert rig.free() == 1


def test_a_reservation_that_comes_first_keeps_what_is_taken_back() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    asyncio.run(rig.keeper.allocate(rig.entries.pop("a").pod))
    asyncio.run(rig.look())
    rig.now += 60
    rig.api.claims["a"]["metadata"]["resourceVersion"] = "999"  # kube-scheduler has reserved it for another pod
    asyncio.run(rig.look())
    assert "allocation" in rig.api.claims["a"]["status"]
    assert rig.free() == 0


def test_whoever_stands_by_holds_nothing_and_takes_nothing_back() -> None:
    rig = ClaimRig(gpus=2)
    started(rig, "a")
    started(rig, "b")
    asyncio.run(rig.keeper.allocate(rig.entries["b"].pod))
    del rig.entries["a"], rig.entries["b"]
    rig.fence.others_lead = "standby"
    rig.now += 60
    writes = len(rig.api.writes)
    asyncio.run(rig.look())
    assert rig.free() == 1
    assert len(rig.api.writes) == writes


def test_a_new_leader_changes_the_claims_that_its_predecessor_may_be_about_to_write() -> None:
    rig = ClaimRig(gpus=2)
    rig.api.add("a")["metadata"]["finalizers"] = [_FINALIZER]
    rig.api.add("b")
    known = rig.api.claims["a"]["metadata"]["resourceVersion"]
    asyncio.run(rig.keeper.catch_up())  # whoever names them, and whatever its watch has told
    assert rig.api.claims["a"]["metadata"]["resourceVersion"] != known
    assert rig.api.writes == [("a", "")]  # b is first to be protected, and then to be confirmed


def test_what_a_leader_that_was_paused_writes_afterwards_is_refused() -> None:
    old = ClaimRig(gpus=1)
    new = ClaimRig(gpus=1, api=old.api)
    started(old, "a")
    (hold,) = old.owned.holds.values()
    protected = asyncio.run(old.keeper.writer.protect(hold.claim))
    assert protected is not None
    asyncio.run(new.keeper.catch_up())
    version = protected.metadata.resource_version
    with pytest.raises(ApiError, match="409"):
        asyncio.run(old.keeper.writer.allocate(protected, version, hold.pod, hold.allocation))
    assert new.free() == 1


def test_whoever_may_lead_no_more_gives_no_devices_and_holds_none() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.fence.others_lead = "standby"
    with pytest.raises(FencedError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.api.writes == [("a", "")]
    assert rig.free() == 1


def test_what_was_decided_in_one_term_is_not_written_in_the_next() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")

    def lapse(name: str, part: str) -> None:
        rig.fence.term = "second"  # while the answer is on its way
        rig.ledger.let_go_devices("u-a")  # as who stands by does
        rig.api.add("b")
        rig.tell("b")
        assert rig.decide(rig.pod("b").pod)

    rig.api.lose = lapse
    with pytest.raises(FencedError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.api.writes == [("a", "")]
    assert set(rig.owned.holds) == {"u-b"}


def test_what_was_decided_before_somebody_else_led_is_not_written_afterwards() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.fence.term = "second"  # before its turn to be written has come
    with pytest.raises(FencedError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert "allocation" not in rig.api.claims["a"]["status"]
    assert rig.free() == 1


def test_nothing_is_decided_between_two_terms() -> None:
    rig = ClaimRig(gpus=1)
    rig.api.add("a")
    rig.tell("a")
    rig.fence.others_lead = "standby"
    assert not rig.decide(rig.pod("a").pod)
    assert rig.free() == 1


def test_a_claim_that_takes_no_annotation_holds_no_new_leader_up() -> None:
    rig = ClaimRig()
    rig.api.add("a")["metadata"]["finalizers"] = ["example.org/own", _FINALIZER]
    before = rig.api.claims["a"]["metadata"]["resourceVersion"]
    rig.api.refuse = "annotations"
    asyncio.run(rig.keeper.catch_up())
    metadata = rig.api.claims["a"]["metadata"]
    assert metadata["resourceVersion"] != before
    assert metadata["finalizers"] == ["example.org/own"]


def test_a_claim_in_doubt_that_takes_no_annotation_loses_its_finalizer_instead() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.fail = lambda name, part: UnreachableError("no answer") if part == "status" else None
    rig.api.unread = True
    with pytest.raises(UnreachableError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    rig.api.fail = lambda name, part: None
    rig.api.unread = False
    rig.api.refuse = "annotations"
    rig.entries["a"].put_back(rig.now)
    version = rig.api.claims["a"]["metadata"]["resourceVersion"]
    asyncio.run(rig.look())
    assert rig.api.claims["a"]["metadata"]["finalizers"] == []
    assert rig.api.claims["a"]["metadata"]["resourceVersion"] != version
    assert rig.free() == 1


def test_a_claim_that_nobody_can_write_holds_no_new_leader_up() -> None:
    rig = ClaimRig()
    rig.api.add("a")["metadata"]["finalizers"] = [_FINALIZER]
    rig.api.fail = lambda name, part: ApiError(500, "", "etcdserver: request is too large")
    asyncio.run(rig.keeper.catch_up())


def test_nothing_is_held_for_a_claim_that_is_too_large_to_be_written() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.fail = lambda name, part: ApiError(500, "", "etcdserver: request is too large")
    with pytest.raises(ApiError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 1


def test_a_claim_that_is_being_deleted_is_given_nothing() -> None:
    rig = ClaimRig()
    rig.api.add("a")["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.org/own"]}
    rig.tell("a")
    assert rig.keeper.read(rig.pod("a").pod).missing == "a"


def test_a_new_leader_takes_in_what_its_predecessor_has_allocated_meanwhile() -> None:
    rig = ClaimRig(gpus=1)
    other = ClaimRig(gpus=1, api=rig.api)
    rig.api.add("a")
    rig.tell("a")
    rig.pod("a")
    other.tell("a")
    entry = other.pod("a")
    assert other.decide(entry.pod)
    assert asyncio.run(other.keeper.allocate(entry.pod))
    assert rig.free() == 1  # its watch lags
    asyncio.run(rig.keeper.catch_up())
    assert rig.free() == 0


def test_what_a_watch_tells_from_before_the_own_write_is_no_news() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    before = dict(rig.api.claims["a"], metadata=dict(rig.api.claims["a"]["metadata"]), status={})
    asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    now, rig.api.claims["a"] = rig.api.claims["a"], before
    rig.tell("a")
    assert rig.free() == 0
    rig.api.claims["a"] = now
    rig.tell("a")
    assert rig.free() == 0


def test_what_others_do_to_a_claim_before_its_write_is_answered_counts() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")

    def taken_away(name: str, part: str) -> None:
        if part == "status":
            rig.api.take_away(name)
            rig.tell(name)

    rig.api.lose = taken_away
    asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 1
    assert rig.owned.claims["u-a"].status.allocation is None


def test_a_claim_that_is_gone_before_its_write_is_answered_does_not_come_back() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.lose = lambda name, part: rig.forget(name) if part == "status" else None
    asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 1
    assert not rig.owned.claims


def test_a_claim_that_is_deleted_under_a_running_pod_keeps_its_device_for_that_pod() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    pod = rig.entries.pop("a").pod
    asyncio.run(rig.keeper.allocate(pod))
    pod.spec.node_name = "n"
    rig.ledger.upsert_pod(pod, rig.now)
    rig.ledger.remove_device(type(rig.owned.claims["u-a"]), "u-a")  # its author has taken the finalizer off
    asyncio.run(rig.look())
    assert rig.free() == 0
    rig.ledger.remove_pod("p-a")
    asyncio.run(rig.look())
    rig.now += 6
    asyncio.run(rig.look())
    assert rig.free() == 1


def test_a_claim_that_is_being_freed_can_not_be_planned_with() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.keeper.read(rig.entries["a"].pod).allocated
    rig.keeper.freeing.add("u-a")
    assert rig.keeper.read(rig.entries["a"].pod).missing == "a"


def test_a_pod_on_its_way_counts_by_its_node() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    entry = rig.entries["a"]
    asyncio.run(rig.keeper.allocate(entry.pod))
    entry.open(rig.now)
    entry.was_opened()
    assert entry.stage is Stage.OPENED
    entry.node = "another"
    asyncio.run(rig.look())
    rig.now += 3
    asyncio.run(rig.look())
    assert rig.free() == 1


def test_a_round_takes_only_some_new_asks_of_each_namespace() -> None:
    rig = ClaimRig(gpus=2)
    asked = []
    for number in range(6):
        request = {"name": f"gpu-{number}", "exactly": {"deviceClassName": "gpu"}}
        rig.api.add(f"c{number}", request)
        rig.tell(f"c{number}")
        entry = rig.pod(f"c{number}")
        entry.planned = plan_pod(entry.pod, Kinds(), rig.keeper.read(entry.pod))
        asked.append(entry)
    turns = Turns(rig.keeper, lambda: None)
    planned, passed = turns.sort_out(asked)
    assert (planned, [entry for entry, _ in passed]) == (asked[:4], asked[4:])
    assert turns.sort_out(asked) == (asked, [])


def test_a_claim_in_doubt_is_not_decided_on_again() -> None:
    rig = ClaimRig(gpus=2)
    started(rig, "a")
    rig.api.fail = lambda name, part: UnreachableError("no answer") if part == "status" else None
    rig.api.unread = True
    with pytest.raises(UnreachableError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    rig.entries["a"].put_back(rig.now)
    assert rig.keeper.read(rig.entries["a"].pod).missing == "a"
    assert rig.free() == 1


@pytest.mark.parametrize("status", [500, 504])
def test_a_server_that_fails_may_have_done_it(status: int) -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.api.lose = lambda name, part: ApiError(status, "", "etcd timed out") if part == "status" else None
    rig.api.unread = True
    with pytest.raises(ApiError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 0
    rig.entries["a"].put_back(rig.now)
    rig.api.unread = False
    asyncio.run(rig.look())
    assert rig.free() == 0
    assert not rig.owned.holds


def test_a_write_that_is_given_up_leaves_the_device_held() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")

    async def cancelled() -> None:
        task = asyncio.create_task(rig.keeper.allocate(rig.entries["a"].pod))
        await sent.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    sent, blocked = asyncio.Event(), asyncio.Event()
    patch = rig.api.patch

    async def slow(path: str, body: bytes) -> bytes:
        if path.endswith("/status"):
            sent.set()
            await blocked.wait()
        return await patch(path, body)

    rig.api.patch = slow  # type: ignore[method-assign]
    asyncio.run(cancelled())
    assert rig.free() == 0


def test_nothing_is_written_for_a_pod_whose_devices_are_not_held_any_more() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    rig.ledger.let_go_devices("u-a")
    assert not asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.api.writes == []


def test_devices_are_given_once_a_watch_has_told_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kerf's own write is no sign that kube-scheduler's watch has told it, too."""
    monkeypatch.setattr("extender.parts.dra.keeper._TOLD_WITHIN_S", 30.0)
    rig = ClaimRig()
    started(rig, "a")

    async def scenario() -> None:
        giving = asyncio.create_task(rig.keeper.allocate(rig.entries["a"].pod))
        await until(lambda: rig.keeper.counts.allocated)
        await asyncio.sleep(0.01)
        assert not giving.done()
        rig.tell("a")
        for _ in range(10):
            await asyncio.sleep(0)
        assert giving.done(), "at once"
        assert await giving

    asyncio.run(scenario())


@pytest.mark.parametrize("refused", [False, True])
def test_who_was_told_to_wait_for_a_claim_hears_that_it_is_written_or_never_will_be(refused: bool) -> None:
    rig = ClaimRig()
    rig.api.add("c")
    rig.tell("c")
    pod, other = rig.pod("p", "c").pod, rig.pod("q", "c").pod
    assert rig.decide(pod)
    waited = []

    def watch_tells(name: str, part: str) -> ClusterError | None:
        rig.tell(name)
        waited.append(bool(rig.keeper.read(other).missing))
        rig.changed.clear()
        return ApiError(403, "Forbidden", name) if refused else None

    if refused:
        rig.api.fail = watch_tells
    else:
        rig.api.lose = watch_tells
    with contextlib.suppress(ApiError):
        assert asyncio.run(rig.keeper.allocate(pod))
    assert (waited[-1], rig.changed) == (True, ["default/c"])
    assert not rig.keeper.read(other).missing


def test_and_that_nothing_is_held_for_it_any_more() -> None:
    rig = ClaimRig()
    rig.api.add("p")
    rig.tell("p")
    pod = rig.pod("p").pod
    assert rig.decide(pod)
    rig.changed.clear()
    rig.keeper.let_go(pod)
    rig.keeper.let_go(pod)
    assert rig.changed == ["default/p"]


def test_and_that_its_devices_were_not_taken_back() -> None:
    rig = ClaimRig()
    rig.api.add("p")
    rig.tell("p")
    pod = rig.pod("p").pod
    assert rig.decide(pod)
    assert asyncio.run(rig.keeper.allocate(pod))
    rig.entries.clear()
    rig.tell("p")
    rig.changed.clear()
    rig.api.fail = lambda name, part: ApiError(500, "InternalError", name)
    for _ in range(2):
        asyncio.run(rig.look())
        rig.now += 20
    assert rig.changed == ["default/p"] * 2, "told as it begins, and as it ends"
    assert not rig.keeper.freeing


def test_devices_that_a_pod_is_about_to_use_can_t_be_taken_back_by_a_leader_before() -> None:
    rig = ClaimRig()
    pod = rig.allot("a").pod
    known = rig.owned.claim_at("default/a")
    assert known is not None
    rig.keeper.let_go(pod)
    assert asyncio.run(rig.keeper.allocate(pod)), "it has its devices, and is let go for them"
    assert asyncio.run(rig.keeper.writer.free(known, rig.fence.as_of_now())) is None
    assert rig.api.claims["a"]["status"]["allocation"]


def test_a_pod_is_not_let_go_for_devices_that_were_taken_back_meanwhile() -> None:
    rig = ClaimRig()
    pod = rig.allot("a").pod
    rig.api.take_away("a")
    assert not asyncio.run(rig.keeper.allocate(pod))


def test_devices_of_a_pod_that_runs_are_not_written_for_each_pod_that_shares_them() -> None:
    rig = ClaimRig()
    rig.allot("a")
    metadata = {"name": "a", "namespace": "default", "uid": "p-a"}
    bound = decode_pod({"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}})
    rig.ledger.upsert_pod(bound, rig.now)
    before = len(rig.api.writes)
    assert asyncio.run(rig.keeper.allocate(rig.pod("b", "a").pod))
    assert len(rig.api.writes) == before


def test_a_claim_that_is_deleted_before_the_watch_of_bound_pods_tells_of_its_pod_keeps_its_device() -> None:
    rig = ClaimRig(gpus=1)
    started(rig, "a")
    pod = rig.entries["a"].pod
    asyncio.run(rig.keeper.allocate(pod))
    rig.ledger.remove_device(type(rig.owned.claims["u-a"]), "u-a")
    del rig.entries["a"]
    asyncio.run(rig.look())
    assert rig.free() == 0
    pod.spec.node_name = "n"
    rig.ledger.upsert_pod(pod, rig.now)
    for _ in range(3):
        rig.now += 20
        asyncio.run(rig.look())
    assert rig.free() == 0


def test_a_pod_whose_devices_are_refused_rests_longer_each_time_and_says_why() -> None:
    rig = ClaimRig(gpus=1)
    rig.api.add("a")
    rig.tell("a")
    entry = rig.pod("a")
    entry.planned = plan_pod(entry.pod, Kinds(), rig.keeper.read(entry.pod))
    turns = Turns(rig.keeper, lambda: None)
    turns.sort_out([entry])
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "the fence") if part == "status" else None
    for rest_s in (1, 2, 4):
        assert turns.sort_out([entry]) == ([entry], [])
        assert rig.decide(entry.pod)
        with pytest.raises(ApiError):
            asyncio.run(rig.keeper.allocate(entry.pod))
        rig.tell("a")
        rig.now += rest_s - 0.5
        ((_, why),) = turns.sort_out([entry])[1]
        assert "the fence" in str(why)
        rig.now += 1
    rig.api.fail = lambda name, part: None
    assert rig.decide(entry.pod)
    assert asyncio.run(rig.keeper.allocate(entry.pod))
    rig.api.take_away("a")
    rig.tell("a")
    assert rig.decide(entry.pod)
    rig.api.fail = lambda name, part: ApiError(403, "Forbidden", "x" * 1000) if part == "status" else None
    with pytest.raises(ApiError):
        asyncio.run(rig.keeper.allocate(entry.pod))
    assert len(rig.keeper.resting("p-a")) == 300
    rig.now += 1.0
    assert rig.keeper.resting("p-a") == "", "as short as the first time"


def test_whoever_makes_up_pods_whose_devices_are_refused_takes_no_more_memory_than_there_is_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("extender.parts.dra.keeper._MAX_RESTS", 100)
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


@pytest.mark.parametrize("known", [True, False])
def test_nothing_is_held_where_claims_ask_for_something_else_than_was_decided_on(known: bool) -> None:
    rig = ClaimRig(gpus=1)
    rig.api.add("a")
    if known:
        rig.tell("a")
    assert not rig.keeper.hold(rig.pod("a").pod, "n", None)
    assert not rig.owned.holds


def test_a_pod_whose_claims_have_their_devices_is_let_go_with_nothing_held_for_it() -> None:
    rig = ClaimRig(gpus=1)
    pod = rig.allot("a").pod
    assert rig.keeper.hold(pod, "n", None)
    assert not rig.owned.holds
    assert asyncio.run(rig.keeper.allocate(pod))


def test_a_pod_is_let_go_of_though_what_was_held_for_it_is_gone() -> None:
    rig = ClaimRig(gpus=2)
    for name in "ab":
        rig.api.add(name)
        rig.tell(name)
    pod = rig.pod("p", "a", "b").pod
    assert rig.decide(pod)
    rig.ledger.let_go_devices("u-a")
    rig.changed.clear()
    rig.keeper.let_go(pod)
    assert (rig.free(), rig.owned.holds, rig.changed) == (2, {}, ["default/b"])


def test_all_that_a_pod_has_is_kept_for_it_whatever_it_gets_beside() -> None:
    """Each time by another word, for what changes nothing in a claim leaves its version as it was."""
    rig = ClaimRig(gpus=2)
    rig.allot("had")
    rig.api.add("new")
    rig.tell("new")
    known = rig.owned.claim_at("default/had")
    assert known is not None
    pod, words = rig.pod("p", "new", "had").pod, list[str]()
    assert rig.decide(pod)
    for _ in range(2):
        assert asyncio.run(rig.keeper.allocate(pod))
        words += rig.api.claims["had"]["metadata"]["annotations"].values()
    assert rig.keeper.counts.allocated == 2
    assert asyncio.run(rig.keeper.writer.free(known, rig.fence.as_of_now())) is None
    assert len(set(words)) == 2
    assert all(words)


def test_pods_of_a_gang_that_share_a_claim_are_told_so() -> None:
    rig = ClaimRig(gpus=2)
    rig.api.add("shared")
    rig.tell("shared")
    entries = [rig.pod(name, "shared") for name in "ab"]
    for entry in entries:
        planned = plan_pod(entry.pod, Kinds(), rig.keeper.read(entry.pod))
        entry.planned = replace(planned, gang="default/train")
    planned_, passed = Turns(rig.keeper, lambda: None).sort_out(entries)
    assert not planned_
    assert len(passed) == 2
    assert all(
        "default/train share ResourceClaim shared: give each a claim of its own" in str(why) for _, why in passed
    )


@pytest.mark.parametrize(("told", "idle"), [("0", 1), ("4", 4)])
def test_devices_of_a_node_whose_kubelet_tells_of_gpus_of_a_device_plugin_too(told: str, idle: int) -> None:
    """Of a plugin that is gone a kubelet goes on telling that it offers none."""
    rig = ClaimRig(gpus=2)
    rig.publish("n", 2, type={"string": "gpu"})
    allocatable = {"allocatable": {"nvidia.com/gpu": told}}
    rig.ledger.upsert_node(decode_node({"metadata": {"name": "n", "uid": "u-n"}, "status": allocatable}))
    started(rig, "a")
    assert asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.free() == 1
    cluster = rig.ledger.snapshot(rig.now)
    assert cluster.gpu_idle[cluster.row_of["n"]].sum() == idle


def test_devices_of_a_node_that_is_set_aside_are_given_to_nobody_and_that_is_said() -> None:
    rig = ClaimRig(gpus=1)
    rig.api.add("a")
    rig.tell("a")
    asked = rig.keeper.read(rig.pod("a").pod).asked
    assert asked is not None
    cluster = replace(rig.ledger.snapshot(rig.now), set_aside=np.array([7], np.int32))
    rows = np.array([0])
    found = fit_devices(cluster, asked, rows)
    assert (Reason(found.reason[0]), found.available[0]) == (Reason.SET_ASIDE, 7)
    assert why_not(cluster, asked, rows, found.reason) == (
        "every node with devices that Kerf allocates is quarantined: pods failed there soon after starting"
    )
    rig.publish("m", 1)
    cluster = replace(rig.ledger.snapshot(rig.now), set_aside=np.array([7, 0], np.int32))
    reason = np.array([Reason.SET_ASIDE, Reason.BUSY], np.uint8)
    assert why_not(cluster, asked, np.array([0, 1]), reason).endswith("(node m)"), "the other is nearer"


def test_what_claims_may_be_given_is_news_once() -> None:
    def anything_new() -> bool:
        return asyncio.run(rig.keeper.anything_new())

    rig = ClaimRig()
    hub, (reflector, *_) = rig.mirror.hub, rig.keeper.reflectors.values()
    assert anything_new(), "it begins"
    assert not anything_new()
    hub.cache(SLICES).keep(set(), rig.now)
    assert anything_new(), "devices were listed"
    assert not anything_new()
    reflector.num_lists, reflector.last_error = 0, "timed out"
    assert anything_new(), "nothing is known any more"
    assert not anything_new()
    reflector.num_lists = 1
    assert anything_new()
    assert not anything_new()


def test_what_a_watch_tells_is_heard_by_whom_it_concerns() -> None:
    rig = ClaimRig()
    hub = rig.mirror.hub
    assert asyncio.run(rig.keeper.anything_new())
    rig.api.add("a")
    rig.tell("a")
    rig.forget("a")
    assert rig.changed == ["default/a"] * 2, "pods that name it"
    assert rig.dirty == []
    assert not asyncio.run(rig.keeper.anything_new())
    hub.cache(SLICES).upsert(msgspec.convert({"metadata": {"name": "s", "uid": "s"}}, ResourceSlice))
    assert rig.dirty.pop(), "all pods"
    assert asyncio.run(rig.keeper.anything_new())
    hub.cache(CLASSES).upsert(msgspec.convert({"metadata": {"name": "c", "uid": "c"}}, DeviceClass))
    assert rig.dirty.pop()
    assert asyncio.run(rig.keeper.anything_new())
    assert len(rig.changed) == 2


def test_nothing_is_chosen_before_all_is_known_and_when_that_is_too_old_and_it_is_said_why() -> None:
    rig = ClaimRig()
    pod = rig.pod("p", "a", "b").pod
    reflector = rig.keeper.reflectors["slices"]
    assert rig.keeper.fault() == ""
    reflector.num_lists = 0
    assert rig.keeper.fault() == "slices are not synced yet"
    assert rig.keeper.read(pod).missing == "a"
    reflector.last_error = "refused"
    assert rig.keeper.fault() == "slices are not synced yet: refused"
    reflector.num_lists, rig.keeper.max_age_s = 1, 30.0
    assert rig.keeper.fault().startswith("slices were last current")
    assert rig.keeper.fault().endswith("refused")


def test_what_is_another_s_than_before_is_news_once() -> None:
    rig = rig_beside_others()
    rig.api.add("c", {"name": "r", "exactly": {"deviceClassName": THEIRS}})
    rig.tell("c")
    pod = rig.pod("c").pod
    assert rig.keeper.read(pod).undecided
    for _ in range(2):
        asyncio.run(rig.keeper.anything_new())
    assert rig.keeper.read(pod).left
    publish_theirs(rig, "other", driver="third.example.com", generation=2)
    asyncio.run(rig.keeper.anything_new())
    rig.keeper.read(pod)
    assert asyncio.run(rig.keeper.anything_new())
    assert not rig.keeper.read(pod).left
    assert not asyncio.run(rig.keeper.anything_new())


def test_a_claim_that_is_gone_has_no_name() -> None:
    rig = ClaimRig()
    rig.api.add("a")
    rig.tell("a")
    assert (rig.keeper.name_of("u-a"), rig.keeper.name_of("u-b")) == ("a", "")


@pytest.mark.parametrize("owner", ["p-a", "p-another"])
def test_devices_that_a_claim_got_of_somebody_else_are_not_its_own(owner: str) -> None:
    """Its answer is lost, and another has written: other devices for this pod, or the same for another pod."""
    rig = ClaimRig(gpus=2)
    started(rig, "a")
    other = ClaimRig(gpus=2, api=ClaimApi())
    other.allot("other")
    status = other.api.claims["other"]["status"]
    status["reservedFor"][0]["uid"] = owner
    if owner == "p-a":
        for result in status["allocation"]["devices"]["results"]:
            result["device"] = "gpu-1"

    def taken(name: str, part: str) -> ClusterError | None:
        if part != "status":
            return None
        rig.api.claims["a"]["status"] = status
        return UnreachableError("no answer")

    rig.api.fail = taken
    with pytest.raises(UnreachableError):
        asyncio.run(rig.keeper.allocate(rig.entries["a"].pod))
    assert rig.keeper.counts.allocated == 0
    assert rig.keeper.writing == set()


def test_claims_that_pods_lack_are_made_as_long_as_nothing_keeps_this_process_from_it() -> None:
    class Creating(ClaimApi):
        async def post(self, path: str, body: bytes) -> bytes:
            posted.append(path)
            return body

    posted: list[str] = []
    rig = ClaimRig(api=Creating())
    rig.keeper.classes_to_make = {"gpu"}
    name = "kerf-0123456789abcdef"
    asked = {"name": name, "requests": [{"name": "container-0", "class": "gpu", "count": 1}]}
    entry = rig.pod("a", name)
    metadata = msgspec.structs.replace(entry.pod.metadata, annotations={CLAIM: json.dumps(asked)})
    entry.pod = msgspec.structs.replace(entry.pod, metadata=metadata)
    (reflector, *_) = rig.keeper.reflectors.values()

    rig.fence.others_lead = "another one leads"
    asyncio.run(rig.keeper.maker().look())
    rig.fence.others_lead, reflector.num_lists = "", 0
    asyncio.run(rig.keeper.maker().look())
    assert posted == [], "which claims there are is not known"
    reflector.num_lists = 1
    maker = rig.keeper.maker()
    asyncio.run(maker.look())
    assert posted == ["/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"]
    asyncio.run(maker.look())
    assert len(posted) == 1, "the watch is about to tell"
    rig.now += 100.0
    asyncio.run(maker.look())
    assert len(posted) == 2
    rig.api.add(name)
    rig.tell(name)
    rig.now += 100.0
    asyncio.run(maker.look())
    assert len(posted) == 2, "it is there"
