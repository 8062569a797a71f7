"""What if: plans on a copy of the cluster as it is, without a trace in it."""

import asyncio
import json
from typing import Any

import pytest

from extender.core.gauges import Gauge
from extender.explain.processes import BusyError
from extender.explain.what_if import AnswersWhatIf
from tests.api.bodies import node, pod
from tests.api.services import Clock, Kerf, running
from tests.telemetry.feeds import FakeFeed


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest) -> None:
    """Answers come from this process, but where a test is of the other one: such are slow."""
    if "slow" not in request.keywords:
        request.getfixturevalue("answered_here")


def ask(kerf: Kerf, **question: Any) -> Any:
    answer = kerf.post("/what-if", json.dumps(question).encode())
    assert answer.status == 200, answer.content
    return answer.json()


def test_a_batch_goes_where_there_is_room_and_the_rest_has_reasons() -> None:
    with running([node("n-0", 4), node("n-1", 2), node("cpu-0")]) as kerf:
        told = ask(kerf, pods=[pod("train", 2)], replicas=4)
        assert (told["pods"], told["placed"]) == (4, 3)
        assert sorted(entry["node"] for entry in told["assignments"]) == ["n-0", "n-0", "n-1"]
        assert told["reasons"] == {"needs 2 GPUs, best node: 0 free": 1}
        assert told["unassigned"][0]["pod"] == "default/train-3"
        assert {line["node"]: line["gpusUsed"] for line in told["nodes"]} == {"n-0": 4, "n-1": 2}


def test_nothing_is_left_of_it() -> None:
    with running([node("n-0", 2)]) as kerf:
        before = kerf.service.placer.snapshot().version
        assert ask(kerf, pods=[pod("train", 2)], addNodes=[{"template": "n-0"}])["placed"] == 1
        assert kerf.service.placer.snapshot().version == before
        assert kerf.service.placer.snapshot().node_names == ("n-0",)
        assert kerf.num_reservations == 0
        assert kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]


def test_reservations_count() -> None:
    with running([node("n-0", 2)]) as kerf:
        kerf.filter(pod("first", 2), ["n-0"])
        assert ask(kerf, pods=[pod("train", 2)])["placed"] == 0


def test_more_nodes() -> None:
    with running([node("n-0", 2), pod("held", 2, node_name="n-0")]) as kerf:
        assert ask(kerf, pods=[pod("train", 2)], replicas=3)["placed"] == 0
        told = ask(kerf, pods=[pod("train", 2)], replicas=3, addNodes=[{"template": "n-0", "count": 2}])
        assert sorted(entry["node"] for entry in told["assignments"]) == ["n-0+1", "n-0+2"]
        told = ask(kerf, pods=[pod("train", 4)], addNodes=[{"manifest": node("new", 4)}])
        assert told["assignments"] == [{"pod": "default/train", "node": "new+1", "gpus": [0, 1, 2, 3]}]


def test_fragments_before_are_those_of_the_cluster_as_it_is() -> None:
    with running([node("n-0", 2), pod("held", 1, node_name="n-0")]) as kerf:
        for added in range(3):
            adds = [{"template": "n-0", "count": added}] if added else []
            assert ask(kerf, pods=[pod("train", 1)], addNodes=adds)["fragmentsBefore"] == 0.5


def test_a_drained_node_gives_its_pods_to_others_and_takes_none() -> None:
    objects = [node("n-0", 4), node("n-1", 4), pod("moved", 3, node_name="n-0"), pod("stays", 1, node_name="n-1")]
    daemon = pod("daemon", 1, node_name="n-0")
    daemon["metadata"]["ownerReferences"] = [{"kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}]
    with running([*objects, daemon]) as kerf:
        told = ask(kerf, pods=[pod("train", 1)], drain=["n-0"])
    assert told["moved"] == ["default/moved"]
    assert {entry["pod"]: entry["node"] for entry in told["assignments"]} == {"default/moved": "n-1"}
    assert [entry["pod"] for entry in told["unassigned"]] == ["default/train"]


def test_a_pod_that_asks_for_nonsense_is_named() -> None:
    with running([node("n-0", 4)]) as kerf:
        told = ask(kerf, pods=[pod("odd", annotations={"kerf.dev/gpu-count": "lots"})])
        assert "lots" in told["unassigned"][0]["reason"]
        assert told["unreadable"] == 1
        assert ask(kerf, pods=[pod("too-large", 99)])["unreadable"] == 0


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        pytest.param('{"drain": ["\xff"]}', "invalid request", id="as it is read"),
        pytest.param('{"drain": ["n-9"]}', "no node is named n-9", id="as it is answered"),
    ],
)
def test_invalid_requests(question: str, fault: str) -> None:
    with running([node("n-0", 4)]) as kerf:
        answer = kerf.post("/what-if", question.encode("latin-1"))
    assert answer.status == 400
    assert fault in answer.json()["Error"]


def test_not_before_the_cluster_is_known() -> None:
    with running([node("n-0", 4)]) as kerf:
        kerf.stop_mirror()
        kerf.clock.now += 3600
        assert kerf.post("/what-if", b"{}").status == 503


@pytest.mark.slow
def test_a_large_question_is_worked_out_elsewhere(compiled: list[str]) -> None:
    asked = [pod(f"p{number}", annotations={"kerf.dev/gpu-model": f"elsewhere-{number}.*"}) for number in range(200)]
    with running([node("n-0", 4)]) as kerf:
        told = ask(kerf, pods=asked)
        assert told["placed"] == 0
        assert not compiled, "in this process"
        assert kerf.filter(pod("train", 2), ["n-0"])["NodeNames"] == ["n-0"]


@pytest.mark.slow
def test_one_that_takes_too_long_is_given_up() -> None:
    with running([node("n-0", 4)], access__what_if_s=0.01) as kerf:
        answer = kerf.post("/what-if", b"{}")
    assert answer.status == 503
    assert "access.what_if_s" in answer.json()["Error"]


def test_no_more_than_a_few_wait_for_their_turn() -> None:
    with running([node("n-0", 4)]) as kerf:

        async def ask_many() -> None:
            what_if = kerf.parts.capabilities.get(AnswersWhatIf)
            assert what_if is not None
            body = json.dumps({"pods": [pod("train", 1)]}).encode()
            found = await asyncio.gather(*(what_if.answer(body) for _ in range(8)), return_exceptions=True)
            refused = [answer for answer in found if isinstance(answer, BusyError)]
            assert len(refused) == 4
            assert all(json.loads(answer)["placed"] == 1 for answer in found if isinstance(answer, bytes))

        kerf.run(ask_many())


@pytest.mark.parametrize("policy", ["live", "kerf"])
def test_what_is_in_use_by_nobodys_processes_counts_as_it_does_in_a_live_decision(policy: str) -> None:
    feed = FakeFeed(Clock())
    telemetry = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}
    with running([node("n", 4)], feed=feed, decisions__policy=policy, **telemetry) as kerf:
        feed.clock = kerf.clock
        feed.gauges = {"n": {Gauge.MEMORY_USED: [50_000.0, 400.0, 400.0, 400.0]}}
        assert kerf.service.observer is not None
        kerf.run(kerf.service.observer.round())
        told = ask(kerf, pods=[pod("train", 1)], replicas=4)
        placed = [kerf.filter(kerf.create(pod(f"live-{number}", 1)), ["n"])["NodeNames"] for number in range(4)]
    assert told["placed"] == sum(bool(names) for names in placed) == 3


def test_policies_of_plans_are_those_of_the_settings() -> None:
    expected = [{"cpu_milli": 1000, "gpus": 1, "gpu_milli": 500, "count": 1}]
    with running([node("n", 4)], decisions__typical_pods=expected, telemetry__faulty="avoid") as kerf:
        own = kerf.service.placer.policies
        apart = kerf.service.placer.policies_apart()
    assert apart.keys() == own.keys()
    for name, policy in own.items():
        assert apart[name].rules == policy.rules, name
    assert vars(apart["fgd"].score)["_expected"] == vars(own["fgd"].score)["_expected"]
    assert own["live"].rules is not None
    assert not own["live"].rules.excludes_faulty
