"""Rejected pods are woken when they fit, and only then; pods that keep waiting get the reason."""

import asyncio

import msgspec

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.kube.client import ApiError, UnreachableError
from extender.plugins.holdings import Holding, Part
from extender.scheduling.placer import PodIdentity
from extender.scheduling.waking import _WOKEN
from tests.ledger.builders import pod_manifest, pod_object, until
from tests.scheduling.waking.rigs import RefusingTransport, Rig


def test_a_pod_that_fits_is_woken_by_a_patch_of_its_status() -> None:
    rig = Rig()
    rig.reject()
    assert rig.woken(0.2) == ["p"]
    ((verb, path, body),) = rig.transport.calls
    assert (verb, path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert msgspec.json.decode(body) == {"metadata": {"uid": "uid-p", "annotations": {_WOKEN: "1"}}}
    assert rig.waker.num_woken == 1


def test_a_pod_that_fits_nowhere_sleeps_until_it_does() -> None:
    rig = Rig()
    rig.reject(gpus=2)
    rig.ledger.upsert_pod(pod_object("rival", 1, node="n"), 0.0)
    assert rig.woken(1.0) == []
    rig.ledger.remove_pod("uid-rival")
    assert rig.woken() == ["p"]


def test_waits_double_up_to_a_minute_from_the_last_rejection() -> None:
    rig = Rig()
    rig.reject()
    for wait_s in [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 60.0, 60.0]:
        assert rig.woken(wait_s - 0.01) == []
        assert rig.woken(0.02) == ["p"]
    rig.clock.now += 30.0
    rig.reject()
    assert rig.woken(59.0) == []
    assert rig.woken(2.0) == ["p"]


def test_higher_priority_is_woken_first_then_the_longest_wait() -> None:
    rig = Rig()
    for name, priority in (("old", 0), ("urgent", 5), ("new", 0)):
        rig.reject(name, priority=priority)
        rig.clock.now += 0.01
    assert rig.woken(1.0) == ["urgent", "old", "new"]


def test_a_round_wakes_so_many_and_the_next_goes_on() -> None:
    rig = Rig()
    for number in range(25):
        rig.reject(f"p{number}")
    assert [len(rig.woken(0.2)), len(rig.woken())] == [20, 5]


def test_a_pod_that_is_placed_or_bound_by_another_client_waits_no_more() -> None:
    rig = Rig()
    for name in ("placed", "bound"):
        rig.reject(name)
    for _ in range(2):
        rig.waker.placed("uid-placed")
    rig.ledger.upsert_pod(pod_object("bound", 1, node="n"), rig.clock())
    rig.waker.rejected(PodIdentity("default", "p", ""), PodRequest(GpuRequest(1)))
    assert (rig.woken(1.0), rig.waker.num_waiting) == ([], 0)


def test_a_pod_that_gets_a_node_or_is_being_deleted_waits_no_more() -> None:
    rig = Rig()
    for name in ("gone", "leaving", "stays"):
        rig.reject(name)
    rig.waker.pod_changed(pod_object("stays", 1), pod_object("stays", 1, annotations={"a": "b"}))
    rig.waker.pod_changed(pod_object("gone", 1), None)
    rig.waker.pod_changed(pod_object("leaving", 1), pod_object("leaving", 1, terminating=True))
    assert [pod.name for pod, _, _ in rig.waker.waiting()] == ["stays"]


def test_a_pod_that_kube_scheduler_no_longer_asks_about_is_forgotten() -> None:
    rig = Rig()
    rig.reject(gpus=3)
    for after_s, num_waiting in ((900.0, 1), (0.1, 0)):
        rig.woken(after_s)
        assert rig.waker.num_waiting == num_waiting


def test_a_refused_wake() -> None:
    for error, waiting in (
        (ApiError(404, "NotFound", ""), 0),
        (ApiError(422, "Invalid", ""), 0),  # another pod of that name
        (ApiError(403, "Forbidden", ""), 1),
        (UnreachableError("refused"), 1),
    ):
        rig = Rig(transport=RefusingTransport(error=error))
        rig.reject()
        assert rig.woken(0.2) == ["p"]
        assert (rig.waker.num_woken, rig.waker.num_waiting) == (0, waiting)


def test_rounds_run_in_the_background_until_the_stop() -> None:
    rig = Rig()
    rig.reject()
    rig.clock.now += 1.0

    async def run() -> None:
        rig.waker.start()
        await until(lambda: rig.waker.num_woken)
        await rig.waker.stop()

    asyncio.run(run())
    assert rig.transport.inner.pod("default", "p")["metadata"]["annotations"] == {_WOKEN: "1"}


def test_a_namespace_with_many_distinct_requests_delays_only_its_own_pods() -> None:
    rig = Rig()
    for number in range(300):
        request = PodRequest(GpuRequest(3 + number), priority=1_000)
        rig.waker.rejected(PodIdentity("hostile", f"h{number}", f"uid-h{number}"), request)
    rig.reject(gpus=2)
    assert rig.woken(1.0) == ["p"]
    assert len(rig.placer.looks) <= 16
    for _ in range(300 // 15):
        rig.woken(0.25)
    assert {request.gpus.count for request in rig.placer.looks if request.gpus} >= set(range(3, 303))


def test_a_pod_that_was_given_a_node_is_woken_once_kube_scheduler_refused_it_and_not_before() -> None:
    rig, request = Rig(), GpuRequest(1)
    for name in ("refused", "silent"):
        rig.transport.inner.apply(pod_manifest(name, 1))
        rig.placer.lost.answered(PodIdentity("default", name, f"uid-{name}"), request, "n")
        rig.unbound.changed(None, pod_object(name, 1))
    assert rig.woken(6.0) == []
    refused = pod_object("refused", 1)
    refused.status.conditions = [objects.Condition(type="PodScheduled", status="False", reason="Unschedulable")]
    rig.unbound.changed(None, refused)
    woken = [len(rig.woken(wait_s)) for wait_s in (1.0, 9.0, 2.0, 19.0, 2.0)]
    assert woken == [1, 0, 1, 0, 1]
    rig.placer.lost.forget("uid-refused")
    assert "refused" not in rig.woken(100.0)


# Explanations.


def test_a_pod_that_keeps_waiting_is_told_why_and_again_when_that_has_changed() -> None:
    rig = Rig()
    why = {"uid-p": "1 x needs 4 GPUs, best here: 2 installed"}
    rig.why = lambda pod: why.get(pod.uid, "")
    rig.reject(gpus=4)
    assert rig.explained(59.9) == []
    assert rig.explained(0.1) == ["pending: 1 x needs 4 GPUs, best here: 2 installed"]
    ((verb, path, _),) = rig.transport.calls
    assert (verb, path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert rig.waker.num_woken == 0
    assert rig.explained(301.0) == [], "nothing has changed"
    why["uid-p"] = "x" * 5_000
    assert rig.explained(299.0) == [], "each write makes kube-scheduler ask again"
    assert rig.explained(2.0) == [f"pending: {'x' * 991}"]


def test_an_explanation_that_was_not_written_is_tried_again() -> None:
    rig = Rig(why=lambda pod: "no room")
    rig.transport.error = UnreachableError("gone")
    rig.reject(gpus=4)
    assert rig.explained(60.0) == ["pending: no room"]
    rig.transport.error = None
    assert [len(rig.explained(300.0)) for _ in range(2)] == [1, 0]


def test_a_round_explains_one_pod_and_none_that_is_about_to_get_a_node() -> None:
    rig = Rig(why=lambda pod: "no room")
    for name in ("p", "q", "reserved"):
        rig.reject(name, gpus=4)
    rig.clock.now += 59.0
    rig.ledger.reserve("uid-reserved", "n", Holding(2, (Part(0), Part(1))), rig.clock())
    assert [len(rig.explained(after_s)) for after_s in (1.0, 0.0, 0.0)] == [1, 1, 0]
    rig.ledger.release("uid-reserved")
    assert rig.explained() == ["pending: no room"]
