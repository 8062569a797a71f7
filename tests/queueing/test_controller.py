"""The controller's rounds: what fails is tried again, races with other clients lose nothing, and nothing gets stuck."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.planning.plan_state import free_units
from extender.planning.plans import Plan
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_pod
from tests.queueing.rigs import Rig, SlowApi, idle, nominating

BROKEN = ApiError(500, "", "broken")


def free(rig: Rig) -> int:
    return int(free_units(rig.ledger.snapshot(rig.now)).sum())


def test_nominated_reserved_opened_and_done() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 1)
    rig.pod("b", 2)
    rig.round()
    assert (rig.placed(), free(rig)) == (["a"], 1)
    rig.bind("a")
    assert (rig.queue.counts.opened, rig.queue.counts.honoured, rig.queue.counts.errors) == (1, 1, 0)
    rig.round(2.0)
    assert rig.note("b") == "needs 2 GPUs, best node: 1 free"


def test_a_pod_that_requests_nonsense_delays_no_other() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("odd", 1, policy="tarot")
    rig.pod("bad", 1, gang="g", gang_size="none")
    rig.pod("good", 1)
    rig.round(2.0)
    assert rig.placed() == ["good"]
    assert "use one of" in rig.note("odd")
    assert "is not a gang size" in rig.note("bad")


def test_a_nomination_from_before_the_start_is_withdrawn_once() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.api.pods["a"]["status"]["nominatedNodeName"] = "n"
    rig.told("a")
    rig.api.deaf = True
    rig.round()
    rig.api.pods["a"]["status"]["nominatedNodeName"] = "written since"
    rig.round()
    assert rig.api.pods["a"]["status"]["nominatedNodeName"] == "written since"


def test_a_gate_that_another_client_opens_while_its_nomination_fails_stays_open_and_holds_nothing() -> None:
    async def story() -> None:
        api, rig = await nominating()
        api.pods["slow"]["spec"]["schedulingGates"] = []
        rig.told("slow")
        api.fail = lambda name, part: BROKEN
        api.may.set()
        await rig.queue.run_round()
        [entry] = rig.queue.backlog.opened()
        assert (entry.stage, entry.node, entry.by_kerf) == (Stage.OPENED, "", False)
        assert free(rig) == 1

    asyncio.run(story())


def test_a_gang_whose_writes_fail_in_part_is_completed() -> None:
    """All writes are awaited: one that is opened after another has failed would be opened without a reservation."""
    rig = Rig()
    rig.node("n", 4)
    for name in "abc":
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.api.fail = lambda name, part: BROKEN if name == "a" and not part else None
    rig.round()
    assert [rig.entry(name).stage for name in "abc"] == [Stage.GATED, Stage.OPENED, Stage.OPENED]
    assert [rig.ledger.is_reserved(name, "n") for name in "abc"] == [False, True, True]
    rig.api.fail = lambda name, part: None
    rig.round(6.0)
    assert rig.placed() == ["a", "b", "c"]


def test_a_pod_that_its_author_keeps_off_a_node_while_it_is_planned_is_planned_again() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    entry = rig.entry("a")
    planned = entry.planned
    assert planned is not None
    rig.api.pods["a"]["spec"]["nodeSelector"] = {"zone": "elsewhere"}
    rig.told("a")
    plan = Plan("greedy", 1, (planned,), (0,), ((),), {})
    asyncio.run(rig.queue.dispatcher.carry_out(plan, ("n",), [(entry, planned)]))
    assert (entry.stage, rig.queue.counts.outdated) == (Stage.GATED, 1)


def test_a_plan_that_is_outdated_when_it_is_carried_out_is_made_again() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    placed = rig.placer.place_on
    other = {
        "metadata": {"uid": "other"},
        "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]},
    }

    def taken_meanwhile(*args: Any) -> Any:
        rig.ledger.upsert_pod(decode_pod(other), rig.now)
        return placed(*args)

    rig.placer.place_on = taken_meanwhile  # type: ignore[assignment, method-assign]
    rig.round()
    assert (rig.queue.counts.outdated, rig.placed()) == (1, [])
    rig.ledger.remove_pod("other")
    rig.placer.place_on = placed  # type: ignore[method-assign]
    rig.round()
    assert rig.placed() == ["a"]


def test_the_next_round_does_not_wait_for_the_writes_of_the_last_one() -> None:
    async def story() -> None:
        api = SlowApi("slow")
        rig = Rig(api=api)
        rig.node("n", 8)
        rig.pod("slow", 2)
        await rig.queue.begin_round()
        rig.pod("next", 1)
        await rig.queue.begin_round()
        await idle(300)
        assert api.order == ["next"]
        assert len(rig.queue.backlog.on_their_way(rig.now)) == 2  # both count in `max_open`
        await rig.queue.begin_round()
        await idle(20)
        assert api.asked.count(("slow", "status")) == 1  # it is not released twice
        api.may.set()
        await rig.queue.run_round()
        assert (api.order, free(rig)) == (["next", "slow"], 5)

    asyncio.run(asyncio.wait_for(story(), 10.0))


def test_a_pod_that_is_nominated_is_opened_before_all_others_are_nominated() -> None:
    api = SlowApi("")
    rig = Rig(api=api)
    rig.node("n", 100)
    for number in range(60):
        rig.pod(f"p-{number}", 1)
    rig.round()
    assert len(api.order) == 60
    first_opened = api.asked.index(("p-0", ""))
    assert sum(part == "status" for _, part in api.asked[:first_opened]) < 30


def test_a_pod_that_is_gone_while_it_is_released_holds_nothing() -> None:
    async def story() -> None:
        api, rig = await nominating()
        assert free(rig) == 0
        rig.gone("slow")
        api.fail = lambda name, part: ApiError(404, "NotFound", name)
        api.may.set()
        await rig.queue.run_round()
        assert (free(rig), rig.queue.counts.opened, rig.queue.counts.honoured) == (1, 0, 0)

    asyncio.run(story())


@pytest.mark.parametrize("steps", range(4))
def test_it_stops_also_when_something_changes_at_the_same_time(steps: int) -> None:
    async def story() -> None:
        rig = Rig()
        rig.queue.start()
        await idle(20)  # until it waits
        rig.node("n", 1)
        await idle(steps)
        stopped, _ = await asyncio.wait([asyncio.create_task(rig.queue.stop())], timeout=30.0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # those that have not ended: without it a failure would never be reported
        assert stopped

    asyncio.run(story())
