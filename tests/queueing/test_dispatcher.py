"""Carrying out a plan: reservations, writes, and what is counted and logged if they fail."""

import asyncio
from dataclasses import replace

import pytest

from extender.api.wire import NodeNames
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.queueing.pods.entries import Entry, Stage
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.rigs import Rig, idle, lost, nominating

DENIED = ApiError(422, "Invalid", "denied by a webhook")


def with_pods(*names: str, gpus: int, **annotations: str) -> Rig:
    """Pods of one GPU each that wait, and a node with this number of GPUs."""
    rig = Rig()
    rig.node("n", gpus)
    for name in names:
        rig.pod(name, 1, **annotations)
    return rig


def num_tries(rig: Rig, name: str, part: str, error: ClusterError, rounds: int) -> int:
    """How often a part of a pod is tried in some rounds while all writes fail."""
    tries = 0

    def fail(failing: str, where: str) -> ClusterError:
        nonlocal tries
        tries += (failing, where) == (name, part)
        return error

    rig.api.fail = fail
    for _ in range(rounds):
        rig.round(0.1)
    rig.api.fail = lambda name, part: None
    return tries


def test_writes_that_fail_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = with_pods("a", "b", gpus=2)
    rig.api.fail = lambda name, part: DENIED if part == "" else None
    rig.round()
    assert (rig.queue.counts.errors, rig.queue.counts.opened) == (2, 0)
    said = [message for message in caplog.messages if "release" in message]
    assert sorted(said) == [
        f"the queue could not release pod ns/{name}: 422 Invalid: denied by a webhook" for name in ("a", "b")
    ]
    rig.api.fail = lambda name, part: None
    rig.round(100.0)
    assert (rig.queue.counts.errors, rig.queue.counts.opened) == (2, 2)


def test_a_gate_that_could_not_be_left_to_kube_scheduler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.api.fail = lambda name, part: DENIED
    rig.round(10.0)
    assert caplog.messages[-1] == "the gate of pod ns/a was not opened: 422 Invalid: denied by a webhook"
    entry = rig.entry("a")
    assert entry.stage is Stage.GATED
    rig.api.fail, rig.api.deaf = lambda name, part: None, True
    rig.round(100.0)
    assert (entry.stage, entry.opened, entry.by_kerf) == (Stage.OPENED, rig.now, True)


def test_a_repeated_nomination_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = lost()
    rig.node("c", 1)
    rig.api.fail = lambda name, part: DENIED
    rig.round()
    assert caplog.messages[-1] == "the queue could not nominate pod ns/p again: 422 Invalid: denied by a webhook"
    assert (rig.entry("p").stage, rig.ledger.allocation("p")) == (Stage.LOST, None)


def test_an_unforeseen_error_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    rig = with_pods("a", "b", gpus=2)

    def breaks(name: str, part: str) -> ClusterError:
        raise ValueError(f"broken for {name}")

    async def run() -> None:
        await rig.queue.begin_round()
        await idle(20)

    rig.api.fail = breaks
    asyncio.run(run())
    assert rig.queue.counts.errors == 2
    records = [record for record in caplog.records if record.getMessage() == "a write of the queue failed"]
    assert {str(record.exc_info[1]) for record in records if record.exc_info} == {"broken for a", "broken for b"}


def test_cancelled_writes_are_no_failures(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Rig:
        _, rig = await nominating()
        caplog.clear()
        await rig.queue.dispatcher.stop()
        assert rig.entry("slow").stage is Stage.GATED, "it has ended when this returns"
        await asyncio.sleep(0)
        return rig

    rig = asyncio.run(run())
    assert (rig.queue.counts.errors, caplog.messages) == (0, [])


def test_a_pod_without_gpus_reserves_nothing_and_its_gang_is_released() -> None:
    rig = with_pods("worker", gpus=1, gang="g", gang_size="2")
    rig.pod("driver", 0, gang="g", gang_size="2")
    rig.round()
    assert sorted(rig.api.order) == ["driver", "worker"]
    assert (rig.ledger.is_reserved("worker", "n"), rig.ledger.allocation("driver")) == (True, None)


@pytest.mark.parametrize("policy", ["spread", "fgd"])
def test_what_is_reserved_is_decided_by_the_pods_policy_and_its_inputs(policy: str) -> None:
    rig = with_pods("a", gpus=2, policy=policy)
    rig.round()
    reserved, planned = rig.placer.reserved("a", "n"), rig.entry("a").planned
    assert reserved is not None
    assert planned is not None
    assert planned.gpus is not None
    assert (reserved.policy, planned.cpu_milli) == (policy, 1000)
    request = planned.gpus if policy == "spread" else replace(planned.gpus, cpu_milli=planned.cpu_milli)
    assert rig.placer.reserved_candidate("a", request, NodeNames(b'["n"]')) == "n"


def test_nothing_is_reserved_for_a_pod_that_is_another_by_now_or_does_not_wait_any_more() -> None:
    rig = with_pods("a", "b", gpus=1)
    rig.round()
    [written] = rig.placed()
    waiting = rig.entry("b" if written == "a" else "a")
    rig.node("m", 4)
    dispatcher = rig.queue.dispatcher
    assert not dispatcher.reserve([(Entry(waiting.pod, 0.0, 0.0), "m")])
    assert not dispatcher.reserve([(rig.entry(written), "m")])
    assert dispatcher.reserve([(waiting, "m")])


def test_a_pod_whose_nomination_stands_again_is_not_reserved_another_node() -> None:
    rig = lost()
    rig.round()
    rig.node("c", 1)
    rig.api.pods["p"]["status"]["nominatedNodeName"] = "b"
    rig.told("p")
    assert rig.entry("p").stage is Stage.LOST
    assert not rig.queue.dispatcher.reserve([(rig.entry("p"), "c")])


def test_after_a_success_the_next_failure_of_the_pod_or_its_namespace_is_the_first() -> None:
    rig = with_pods("a", gpus=4)
    assert num_tries(rig, "a", "status", UnreachableError("cut"), 40) >= 4
    rig.round(100.0)
    assert rig.api.order == ["a"]
    rig.pod("b", 1)
    assert num_tries(rig, "b", "status", UnreachableError("cut"), 40) >= 4
    rig = with_pods("a", gpus=1)
    assert num_tries(rig, "a", "status", DENIED, 10) >= 2
    for _ in range(4):
        assert num_tries(rig, "a", "status", DENIED, 10) <= 2
    rig.round(100.0)
    assert rig.api.order == ["a"]
    rig.remove_node("n")
    rig.refuse("a")
    rig.node("m", 1)
    assert num_tries(rig, "a", "status", DENIED, 10) >= 2


def test_pods_that_can_not_be_understood_back_off_each_on_its_own() -> None:
    rig = Rig(fail_open_s=5.0)
    for name in ("bad", "good"):
        rig.pod(name, 1, gpu_memory_each="much")
    rig.api.fail = lambda name, part: DENIED if name == "bad" else None
    for _ in range(3):
        rig.round(5.0)
    assert rig.entry("bad").planned is None
    rests = rig.queue.dispatcher.rests
    assert (rests(rig.entry("bad")) is None, rests(rig.entry("good"))) == (False, None)
    assert rig.api.order == ["good"]


def test_pods_of_a_gang_back_off_together_and_no_other_with_them() -> None:
    rig = with_pods("g0", "g1", gpus=4, gang="g", gang_size="2")
    rig.api.fail = lambda name, part: DENIED if (name, part) == ("g1", "status") else None
    for _ in range(30):
        rig.round(0.1)
    rests = rig.queue.dispatcher.rests
    assert all(rests(rig.entry(name)) is not None for name in ("g0", "g1"))
    rig.pod("alone", 1)
    assert rests(rig.entry("alone")) is None
    rig.round(0.1)
    assert rig.api.order == ["alone"]


def test_a_process_that_was_not_sure_to_lead_writes_nothing_and_does_not_back_off() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.election.sure = False
    for _ in range(10):
        rig.round()
        rig.settle()
    assert rig.api.pods["a"]["metadata"]["resourceVersion"] == "1"
    rig.election.sure = True
    rig.settle()
    rig.round()
    assert (rig.node_of("a"), rig.note("a", "nomination-lost")) == ("n", "")
