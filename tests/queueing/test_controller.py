"""The controller's rounds against an API server of a test's own: what fails is tried again, and nothing is stuck."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.watches import PODS
from extender.planning.plan_state import free_units
from extender.planning.plans import Plan
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_pod
from tests.queueing.rigs import GATES, Rig, SlowApi, lost, nominating


def test_nominated_reserved_opened_and_done() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 1)
    rig.pod("b", 2)
    rig.round()
    assert (rig.node_of("a"), rig.node_of("b")) == ("n", "")
    assert rig.ledger.snapshot(rig.now).gpu_idle.sum() == 1  # held for a
    rig.bind("a")
    assert rig.queue.counts.honoured == 1
    rig.round(2.0)
    assert rig.note("b") == "needs 2 GPUs, best node: 1 free"


def test_a_pod_that_asks_for_nonsense_holds_up_nobody() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("odd", 1, policy="tarot")
    rig.pod("bad", 1, gang="g", gang_size="none")
    rig.pod("good", 1)
    rig.round(2.0)
    assert rig.node_of("good") == "n"
    assert "use one of" in rig.note("odd")
    assert "is not a gang size" in rig.note("bad")


@pytest.mark.parametrize("part", ["status", ""])
@pytest.mark.parametrize(
    "error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(409, "Conflict", "too much at once")]
)
def test_writes_that_fail_are_done_again(part: str, error: ClusterError) -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: error if where == part else None
    rig.round()
    rig.api.fail = lambda name, where: None
    rig.round()
    assert rig.node_of("a") == "n"
    assert not rig.queue.backlog.waiting()


@pytest.mark.parametrize(
    "error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(409, "Conflict", "too much at once")]
)
def test_why_a_pod_waits_is_told_again_when_that_failed(error: ClusterError) -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.api.fail = lambda name, where: error
    rig.round(2.0)
    rig.api.fail = lambda name, where: None
    rig.round(31.0)
    assert rig.note("a") == "needs 2 GPUs, best node: 1 installed"


def test_a_pod_that_can_not_be_told_why_it_waits_keeps_it_from_nobody() -> None:
    rig = Rig()
    full = ApiError(422, "Invalid", "annotations: must have at most 262144 bytes")
    for name in "abc":
        rig.pod(name, 1)
    rig.api.fail = lambda name, where: full if name == "a" else None
    rig.round(2.0)
    assert [bool(rig.note(name)) for name in "abc"] == [False, True, True]


@pytest.mark.parametrize("error", [ApiError(500, "", "broken"), UnreachableError("cut")])
def test_a_nomination_of_a_pod_that_stays_behind_the_gate_is_taken_back(error: ClusterError) -> None:
    """Else kube-scheduler keeps its node from all others."""
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    rig.api.fail = lambda name, where: None if where == "status" else error
    rig.round()
    assert (rig.node_of("a"), rig.api.pods["a"]["status"]["nominatedNodeName"]) == ("", "n")
    rig.pod("other", 1)
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["other"]))  # it goes past the queue, and takes what a needs
    rig.api.pods["other"]["status"]["nominatedNodeName"] = "n"
    rig.bind("other")
    rig.api.fail = lambda name, where: error
    rig.round()
    rig.api.fail = lambda name, where: None
    rig.round()
    assert "nominatedNodeName" not in rig.api.pods["a"]["status"]
    rig.ledger.remove_pod("other")
    rig.round()
    assert rig.node_of("a") == "n"


def test_a_nomination_from_before_the_start_is_taken_back() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.api.pods["a"]["status"]["nominatedNodeName"] = "n"
    rig.hub.cache(PODS).upsert(decode_pod(rig.api.pods["a"]))
    rig.api.deaf = True
    rig.round()
    rig.api.pods["a"]["status"]["nominatedNodeName"] = "written since"
    rig.round()
    assert rig.api.pods["a"]["status"]["nominatedNodeName"] == "written since", "once is enough"


def test_a_pod_that_another_gate_holds_is_not_let_go_before_that_is_open() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.pods["a"]["spec"]["schedulingGates"] = [*GATES, {"name": "example.com/quota"}]
    rig.hub.cache(PODS).upsert(decode_pod(rig.api.pods["a"]))
    rig.round(2.0)
    assert not rig.api.pods["a"]["status"].get("nominatedNodeName")
    assert rig.note("a") == "held by another scheduling gate: example.com/quota"
    rig.api.pods["a"]["spec"]["schedulingGates"] = GATES
    rig.hub.cache(PODS).upsert(decode_pod(rig.api.pods["a"]))
    rig.round()
    assert rig.node_of("a") == "n"


def test_a_gate_of_which_nobody_tells_that_it_is_open_is_opened_again() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.round()
    rig.round(1.0)
    assert rig.api.order == ["a"]
    rig.round(20.0)
    assert rig.api.order == ["a", "a"]


def test_a_gate_that_somebody_else_opens_while_its_nomination_fails_stays_open_and_holds_nothing() -> None:
    async def story() -> None:
        api, rig = await nominating()
        api.pods["slow"]["spec"]["schedulingGates"] = []
        rig.told("slow")
        api.fail = lambda name, part: ApiError(500, "", "broken")
        api.may.set()
        await rig.queue.run_round()
        [entry] = rig.queue.backlog.opened()
        assert (entry.stage, entry.node, entry.by_kerf) == (Stage.OPENED, "", False)
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [1]

    asyncio.run(story())


def test_of_a_gang_whose_writes_fail_in_part_all_are_heard_to_the_end() -> None:
    """Else one that is opened later than another has failed would be opened without a reservation."""
    rig = Rig()
    rig.node("n", 4)
    for name in "abc":
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.api.fail = lambda name, part: ApiError(500, "", "") if name == "a" and not part else None
    rig.round()
    assert [rig.queue.backlog.entries[name].stage for name in "abc"] == [Stage.GATED, Stage.OPENED, Stage.OPENED]
    assert [rig.ledger.is_reserved(name, "n") for name in "abc"] == [False, True, True]


def test_who_opts_out_after_it_was_let_go_is_kube_schedulers() -> None:
    rig = lost()
    rig.api.pods["p"]["metadata"]["labels"] = {"kerf.dev/queue": "disabled"}
    rig.refuse("p")
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert not rig.queue.will_nominate("p")
    assert rig.queue.counts.nominated_anew == 0


def test_a_pod_that_its_author_keeps_off_a_node_while_it_is_planned_is_planned_again() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    entry = rig.queue.backlog.entries["a"]
    planned = entry.planned
    assert planned is not None
    rig.api.pods["a"]["spec"]["nodeSelector"] = {"zone": "elsewhere"}
    rig.told("a")
    plan = Plan("greedy", 1, (planned,), (0,), ((),), {})
    asyncio.run(rig.queue.dispatcher.carry_out(plan, ("n",), [(entry, planned)]))
    assert entry.stage is Stage.GATED
    assert rig.queue.counts.outdated == 1


def test_a_plan_of_a_version_that_has_gone_by_is_made_again() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    placed = rig.placer.place_on

    def taken_meanwhile(*args: Any) -> Any:
        rig.ledger.upsert_pod(
            decode_pod(
                {
                    "metadata": {"uid": "other"},
                    "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]},
                }
            ),
            rig.now,
        )
        return placed(*args)

    rig.placer.place_on = taken_meanwhile  # type: ignore[assignment, method-assign]
    rig.round()
    assert rig.queue.counts.outdated == 1
    assert not rig.node_of("a")
    rig.ledger.remove_pod("other")
    rig.placer.place_on = placed  # type: ignore[method-assign]
    rig.round()
    assert rig.node_of("a") == "n"


def test_a_gang_of_which_one_write_fails_is_completed() -> None:
    rig = Rig()
    rig.node("n", 4)
    for name in "abc":
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.api.fail = lambda name, part: ApiError(500, "", "") if name == "b" and not part else None
    rig.round()
    assert [rig.node_of(name) for name in "abc"] == ["n", "", "n"]
    rig.api.fail = lambda name, part: None
    rig.round(6.0)
    assert rig.node_of("b") == "n"


def test_a_gang_may_be_called_as_a_pod_is() -> None:
    rig = Rig()
    rig.node("n", 4)
    rig.pod("g", 1)
    rig.pod("a", 1, gang="g", gang_size="1")
    rig.round()
    assert (rig.node_of("g"), rig.node_of("a")) == ("n", "n")


def test_a_standby_writes_nothing_and_fail_open_needs_no_plan() -> None:
    rig = Rig(fail_open_s=60.0)
    rig.pod("a", 1)
    rig.standby = "another one leads"
    rig.round(61.0)
    assert rig.api.pods["a"]["spec"]["schedulingGates"]
    rig.standby = ""
    rig.round()
    assert not rig.api.pods["a"]["spec"]["schedulingGates"]
    assert rig.queue.counts.failed_open == 1


def test_a_gate_that_somebody_else_opens_meanwhile_does_not_end_the_round() -> None:
    rig = Rig(fail_open_s=60.0)
    rig.pod("a", 1)
    rig.pod("b", 1)

    def opened_meanwhile(name: str, part: str) -> None:
        rig.api.pods["b"]["spec"]["schedulingGates"] = []
        rig.told("b")

    rig.api.fail = opened_meanwhile
    rig.round(61.0)
    assert rig.api.order == ["a"]
    assert [entry.by_kerf for entry in rig.queue.backlog.opened()] == [True, False]


def test_other_planners_are_followed_where_they_place_more() -> None:
    rig = Rig(planner="genetic")
    for name in ("m", "n"):
        rig.node(name, 4)
    for name, gpus in (("a", 1), ("b", 1), ("c", 3), ("d", 3)):
        rig.pod(name, gpus)
    rig.round()
    assert all(rig.node_of(name) for name in "abcd")  # greedy in that order leaves one out


@pytest.mark.parametrize("num_pods", [520, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_gated_pods_at_once_are_all_let_go_in_order(num_pods: int) -> None:
    rig = Rig()
    for number in range(num_pods // 8):
        rig.node(f"n{number:04}", 8)
    for number in range(num_pods):
        rig.pod(f"p{number:05}", 1)
    let_go: list[int] = []
    while rig.queue.backlog.entries:
        before = len(rig.api.order)
        rig.round()
        for name in rig.api.order[before:]:
            rig.bind(name)
        let_go.append(len(rig.api.order) - before)
    assert let_go == [min(256, num_pods - before) for before in range(0, num_pods, 256)]
    assert len(set(rig.api.order)) == num_pods
    assert not free_units(rig.ledger.snapshot(rig.now)).any()


def test_the_next_round_does_not_wait_for_the_writes_of_the_last_one() -> None:
    async def story() -> None:
        api = SlowApi("slow")
        rig = Rig(api=api)
        rig.node("n", 8)
        rig.pod("slow", 2)
        await rig.queue.begin_round()
        rig.pod("next", 1)
        await rig.queue.begin_round()
        for _ in range(300):
            await asyncio.sleep(0)
        assert api.order == ["next"]
        assert len(rig.queue.backlog.on_their_way(rig.now)) == 2  # both count among those that may be
        await rig.queue.begin_round()
        for _ in range(20):
            await asyncio.sleep(0)
        assert api.asked.count(("slow", "status")) == 1  # it is not let go twice
        api.may.set()
        await rig.queue.run_round()
        assert api.order == ["next", "slow"]
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [5]

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


def test_gone_while_it_is_let_go_it_holds_nothing() -> None:
    async def story() -> None:
        api, rig = await nominating()
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [0]
        rig.hub.cache(PODS).remove(decode_pod(api.pods["slow"]))
        api.fail = lambda name, part: ApiError(404, "NotFound", name)
        api.may.set()
        await rig.queue.run_round()
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [1]
        assert (rig.queue.counts.opened, rig.queue.counts.honoured) == (0, 0)

    asyncio.run(story())


@pytest.mark.parametrize("steps", range(4))
def test_it_ends_also_when_something_moves_as_it_is_told_to(steps: int) -> None:
    async def story() -> None:
        rig = Rig()
        rig.queue.start()
        for _ in range(20):  # until it waits
            await asyncio.sleep(0)
        rig.node("n", 1)
        for _ in range(steps):
            await asyncio.sleep(0)
        stopped, _ = await asyncio.wait([asyncio.create_task(rig.queue.stop())], timeout=30.0)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # those that have not ended: without it a failure would never be told
        assert stopped

    asyncio.run(story())
