"""Carrying a plan out: what is reserved, what is written, and what is counted and said where that fails."""

import asyncio
from dataclasses import replace

import pytest

from extender.api.wire import NodeNames
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.queueing.pods.entries import Entry, Stage
from tests.queueing.direct.rigs import DirectRig
from tests.queueing.rigs import Rig, lost, nominating

DENIED = ApiError(422, "Invalid", "denied by a webhook")


def entry_of(rig: Rig, name: str) -> Entry:
    return rig.queue.backlog.entries[name]


def let_go(*names: str, gpus: int, **options: str) -> Rig:
    """Pods of one GPU each, on a node that has so many."""
    rig = Rig()
    rig.node("n", gpus)
    for name in names:
        rig.pod(name, 1, **options)
    rig.round()
    return rig


def test_all_that_are_let_go_are_counted() -> None:
    rig = let_go("a", "b", "c", gpus=3)
    assert (rig.queue.counts.opened, rig.queue.counts.errors) == (3, 0)


def test_writes_that_fail_are_counted_and_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.node("n", 2)
    for name in ("a", "b"):
        rig.pod(name, 1)
    rig.api.fail = lambda name, part: DENIED if part == "" else None
    rig.round()
    assert rig.queue.counts.errors == 2
    said = [message for message in caplog.messages if "release" in message]
    assert sorted(said) == [
        f"the queue could not release pod ns/{name}: 422 Invalid: denied by a webhook" for name in ("a", "b")
    ]


def test_a_gate_that_can_not_be_left_to_kube_scheduler_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(fail_open_s=5.0)
    rig.pod("a", 1)
    rig.api.fail = lambda name, part: DENIED
    rig.round(10.0)
    assert caplog.messages[-1] == "the gate of pod ns/a was not opened: 422 Invalid: denied by a webhook"
    assert entry_of(rig, "a").stage is Stage.GATED
    rig.api.fail, rig.api.deaf = lambda name, part: None, True
    rig.round(100.0)
    entry = entry_of(rig, "a")
    assert (entry.stage, entry.opened, entry.by_kerf) == (Stage.OPENED, rig.now, True)


def test_a_pod_that_its_author_takes_out_of_the_queue_was_not_let_go_by_kerf() -> None:
    rig = Rig()
    rig.api.deaf = True
    rig.pod("a", 1)
    rig.api.pods["a"]["metadata"]["labels"] = {"kerf.dev/queue": "disabled"}
    rig.told("a")
    rig.round()
    entry = entry_of(rig, "a")
    assert (entry.stage, entry.by_kerf) == (Stage.OPENED, False)


def test_a_nomination_anew_that_fails_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = lost()
    rig.node("c", 1)
    rig.api.fail = lambda name, part: DENIED
    rig.round()
    assert caplog.messages[-1] == "the queue could not nominate pod ns/p again: 422 Invalid: denied by a webhook"
    assert (entry_of(rig, "p").stage, rig.ledger.claim("p")) == (Stage.LOST, None)


def test_what_nobody_has_foreseen_is_counted_and_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.node("n", 2)
    for name in ("a", "b"):
        rig.pod(name, 1)

    def breaks(name: str, part: str) -> ClusterError:
        raise ValueError(f"broken for {name}")

    async def run() -> None:
        await rig.queue.begin_round()
        for _ in range(20):
            await asyncio.sleep(0)

    rig.api.fail = breaks
    asyncio.run(run())
    assert rig.queue.counts.errors == 2
    records = [record for record in caplog.records if record.getMessage() == "a write of the queue failed"]
    assert {str(record.exc_info[1]) for record in records if record.exc_info} == {"broken for a", "broken for b"}


def test_writes_that_are_given_up_are_no_failures(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> Rig:
        _, rig = await nominating()
        caplog.clear()
        await rig.queue.dispatcher.stop()
        assert entry_of(rig, "slow").stage is Stage.GATED, "it has ended when this returns"
        await asyncio.sleep(0)
        return rig

    rig = asyncio.run(run())
    assert (rig.queue.counts.errors, caplog.messages) == (0, [])


def test_a_pod_without_gpus_reserves_nothing_and_keeps_those_of_its_gang_from_nothing() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("driver", 0, gang="g", gang_size="2")
    rig.pod("worker", 1, gang="g", gang_size="2")
    rig.round()
    assert sorted(rig.api.order) == ["driver", "worker"]
    claim = rig.ledger.claim("worker")
    assert claim is not None
    assert (claim.node, rig.ledger.claim("driver")) == ("n", None)


@pytest.mark.parametrize("policy", ["spread", "fgd"])
def test_what_is_reserved_is_decided_by_the_pods_policy_and_what_that_weighs(policy: str) -> None:
    rig = let_go("a", gpus=2, policy=policy)
    reserved = rig.placer.reserved("a", "n")
    planned = entry_of(rig, "a").planned
    assert reserved is not None
    assert planned is not None
    assert planned.gpus is not None
    assert (reserved.policy, planned.cpu_milli) == (policy, 1000)
    asked = planned.gpus if policy == "spread" else replace(planned.gpus, cpu_milli=planned.cpu_milli)
    assert rig.placer.keeps("a", asked, NodeNames(b'["n"]')) == "n"


def test_nothing_is_reserved_for_a_pod_that_is_another_by_now_or_waits_no_more() -> None:
    rig = let_go("a", "b", gpus=1)
    waiting = next(entry_of(rig, name) for name in ("a", "b") if not rig.node_of(name))
    written = next(entry_of(rig, name) for name in ("a", "b") if rig.node_of(name))
    rig.node("m", 4)
    dispatcher = rig.queue.dispatcher
    assert not dispatcher.reserve([(Entry(waiting.pod, 0.0, 0.0), "m")])
    assert not dispatcher.reserve([(written, "m")])
    assert dispatcher.reserve([(waiting, "m")])


def test_a_pod_that_kube_scheduler_has_found_a_node_meanwhile_is_not_reserved_another() -> None:
    rig = lost()
    rig.round()
    rig.node("c", 1)
    entry, dispatcher = entry_of(rig, "p"), rig.queue.dispatcher
    assert entry.stage is Stage.LOST
    assert dispatcher.reserve([(entry, "c")])
    assert not dispatcher.reserve([(entry, "c")]), "it has something reserved"
    dispatcher.release(entry)
    rig.api.pods["p"]["status"]["nominatedNodeName"] = "b"
    rig.told("p")
    assert not dispatcher.reserve([(entry_of(rig, "p"), "c")]), "that nomination stands again"


def test_once_pods_are_let_go_again_a_failure_is_the_first() -> None:
    def num_tries(name: str) -> int:
        tries = 0

        def fail(failing: str, part: str) -> ClusterError | None:
            nonlocal tries
            tries += failing == name and part == "status"
            return UnreachableError("cut")

        rig.api.fail = fail
        for _ in range(40):
            rig.round(0.1)
        return tries

    rig = Rig()
    rig.node("n", 4)
    rig.pod("a", 1)
    assert num_tries("a") >= 4
    rig.api.fail = lambda name, part: None
    until = rig.now + 10.0
    while not rig.api.order and rig.now < until:
        rig.round(0.1)
    assert rig.api.order == ["a"]
    rig.pod("b", 1)
    assert num_tries("b") >= 4


def test_pods_that_can_not_be_understood_rest_each_on_its_own() -> None:
    rig = Rig(fail_open_s=5.0)
    for name in ("bad", "good"):
        rig.pod(name, 1, gpu_memory_each="much")
    rig.api.fail = lambda name, part: DENIED if name == "bad" else None
    for _ in range(3):
        rig.round(5.0)
    assert entry_of(rig, "bad").planned is None
    rests = rig.queue.dispatcher.rests
    assert (rests(entry_of(rig, "bad")) is None, rests(entry_of(rig, "good"))) == (False, None)
    assert rig.api.order == ["good"]


def test_a_pod_that_was_let_go_after_all_rests_for_no_failure_of_before() -> None:
    def num_tries() -> int:
        tries = list[str]()

        def fail(name: str, part: str) -> ClusterError:
            tries.append(part)
            return DENIED

        rig.api.fail = fail
        for _ in range(10):
            rig.round(0.1)
        return len(tries)

    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    assert num_tries() >= 2
    for _ in range(4):
        assert num_tries() <= 2
    rig.api.fail = lambda name, part: None
    rig.round(100.0)
    assert rig.api.order == ["a"]
    rig.remove_node("n")
    rig.refuse("a")
    rig.node("m", 1)
    assert num_tries() >= 2, "at once, and soon again"


def test_pods_of_one_gang_rest_together_and_no_other_with_them() -> None:
    rig = Rig()
    rig.node("n", 4)
    for name in ("g0", "g1"):
        rig.pod(name, 1, gang="g", gang_size="2")
    rig.api.fail = lambda name, part: DENIED if (name, part) == ("g1", "status") else None
    for _ in range(30):
        rig.round(0.1)
    dispatcher = rig.queue.dispatcher
    assert all(dispatcher.rests(entry_of(rig, name)) is not None for name in ("g0", "g1"))
    rig.pod("alone", 1)
    assert dispatcher.rests(entry_of(rig, "alone")) is None
    rig.round(0.1)
    assert rig.api.order == ["alone"]


def test_who_was_not_sure_to_lead_does_not_rest_once_it_is() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.election.sure = False
    for _ in range(10):
        rig.round()
        rig.settle()
    rig.election.sure = True
    rig.settle()
    rig.round()
    assert rig.node_of("a") == "n"
    assert rig.note("a", "nomination-lost") == ""


def test_who_is_not_sure_to_lead_nominates_nobody_anew() -> None:
    rig = DirectRig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.round()
    rig.refuse("a")
    rig.round()
    rig.settle()
    rig.remove_node("n")
    rig.node("m", 1)
    rig.election.sure = False
    rig.round()
    assert rig.written("a") == ("", "")
    assert entry_of(rig, "a").stage in (Stage.UNSETTLED, Stage.LOST)
