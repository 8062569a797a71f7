"""Room, asked of a whole Kerf: the question goes to its process, and moves come back."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from extender.core.gauges import Gauge
from extender.explain.making_room import MakesRoom
from extender.parts.defrag.answers import RoomAnswers
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Clock, Kerf
from tests.api.services import running as kerf_on
from tests.parts.defrag.clusters import STARTED, Cluster, budget, running
from tests.telemetry.feeds import FakeFeed


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest) -> None:
    """Answers come from this process, but where another one's time is what is tested: such are slow."""
    if "slow" not in request.keywords:
        request.getfixturevalue("answered_here")


SCATTERED = [
    *(node(f"n-{number}", 4) for number in range(3)),
    running("a", "n-0"),
    running("b", "n-1"),
    running("c", "n-2", 3),
    pod("big", 4),
]
"""Each node has somebody, and a pod of four GPUs waits."""


@pytest.fixture(name="scattered", scope="module")
def scattered_fixture() -> Iterator[Kerf]:
    """For questions, which change nothing."""
    with kerf_on(Cluster(SCATTERED)) as kerf:
        yield kerf


def ask(kerf: Kerf, **question: Any) -> Any:
    answer = kerf.post("/defrag", json.dumps(question).encode())
    assert answer.status == 200, answer.content
    return answer.json()


def test_a_pod_that_waits_gets_a_node_by_the_cheapest_move(scattered: Kerf) -> None:
    told = ask(scattered, **{"for": "default/big"})
    assert told["fits"]
    [move] = told["moves"]
    assert (move["pod"], move["uid"], move["to"], move["gpus"]) == ("default/a", "uid-of-a", "n-2", [3])
    assert (move["from"], move["controller"], move["step"]) == ("n-0", "owner-of-a", 0)
    assert told["cost_gpu_s"] == move["cost_gpu_s"] > 60
    assert told["target"] == [{"pod": "default/big", "node": "n-0", "gpus": [0, 1, 2, 3], "uid": "uid-of-big"}]
    assert (told["before"], told["after"]) == (
        {"freeNodes": 0, "usableGpus": 0},
        {"freeNodes": 1, "usableGpus": 4},
    )
    assert told["impossible"] == []
    assert told["id"]


def test_who_takes_long_to_start_is_not_moved_where_another_one_would_do() -> None:
    slow, quick = running("a", "n-0"), running("b", "n-1")
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": STARTED}
    ready = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T06:10:00Z"}
    slow["status"]["conditions"] = [placed, ready]
    with kerf_on(Cluster([*SCATTERED[:3], slow, quick, *SCATTERED[5:]])) as kerf:
        [move] = ask(kerf, **{"for": "default/big"})["moves"]
    assert move["pod"] == "default/b"


def test_a_gang_with_a_pod_that_belongs_to_its_node_stays_as_the_mover_would_refuse_it() -> None:
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2", "kerf.dev/last-checkpoint": STARTED}
    of_node = running("d", "n-1", 0, owner="DaemonSet", annotations=dict(gang))
    first = running("a", "n-0", annotations=dict(gang))
    with kerf_on(Cluster([*SCATTERED[:3], first, of_node, *SCATTERED[4:]])) as kerf:
        [move] = ask(kerf, **{"for": "default/big"})["moves"]
    assert move["pod"] == "default/b"


def test_what_those_who_move_are_seen_to_use_is_none_of_a_stranger_s_then() -> None:
    feed = FakeFeed(Clock())
    telemetry = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}
    with kerf_on(Cluster(SCATTERED), feed=feed, decisions__policy="live", **telemetry) as kerf:
        feed.clock = kerf.clock
        feed.gauges = {"n-0": {Gauge.MEMORY_USED: [50_000.0, 400.0, 400.0, 400.0]}}
        assert kerf.service.observer is not None
        kerf.run(kerf.service.observer.round())
        told = ask(kerf, **{"for": "default/big"})
    assert [move["from"] for move in told["moves"]] == ["n-0"]
    assert (told["before"]["usableGpus"], told["after"]["usableGpus"]) == (0, 4)


def test_who_names_no_model_is_not_moved_to_another_one() -> None:
    objects = [node("n-0", 4, "a100"), node("n-1", 4, "a100"), node("t-0", 4, "t4")]
    both = [running("a", "n-0"), running("b", "n-1", 4), pod("big", 4, annotations={"kerf.dev/gpu-model": "a100"})]
    with kerf_on(Cluster([*objects, *both])) as kerf:
        told = ask(kerf, **{"for": "default/big"})
    assert not told["fits"]
    assert "no place elsewhere for default/b" in told["impossible"]
    choosy = running("a", "n-0", annotations={"kerf.dev/gpu-model": "a100|t4"})
    with kerf_on(Cluster([*objects, choosy, *both[1:]])) as kerf:
        [move] = ask(kerf, **{"for": "default/big"})["moves"]
    assert (move["pod"], move["to"]) == ("default/a", "t-0")


def test_nothing_is_left_of_it(scattered: Kerf) -> None:
    before = scattered.service.placer.snapshot().version
    ask(scattered, **{"for": "default/big"})
    assert scattered.service.placer.snapshot().version == before
    assert scattered.num_reservations == 0


def test_what_fits_as_it_is_moves_nobody() -> None:
    with kerf_on(Cluster([node("n-0", 4), pod("small", 1)])) as kerf:
        told = ask(kerf, **{"for": "default/small"})
    assert (told["fits"], told["moves"], told["id"]) == (True, [], "")


def test_a_gang_is_placed_whole() -> None:
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    waiting = [pod(f"g-{number}", 4, annotations=gang) for number in range(2)]
    nodes = [node("n-3", 4), *SCATTERED[:-1]]
    with kerf_on(Cluster([*nodes, *waiting])) as kerf:
        told = ask(kerf, **{"for": "default/g"})
        again = ask(kerf, **{"for": "default/g-1"})
    assert (told["target"], told["before"]) == (again["target"], again["before"]), "a member stands for all"
    assert {one["pod"] for one in told["target"]} == {"default/g-0", "default/g-1"}
    assert len({one["node"] for one in told["target"]}) == 2


def test_numbers_nodes_and_manifests(scattered: Kerf) -> None:
    told = ask(scattered, gpus=3, nodes=2)
    assert told["fits"]
    assert len({one["node"] for one in told["target"]}) == 2
    told = ask(scattered, freeNodes=1)
    assert (told["fits"], len(told["emptied"]), len(told["moves"])) == (True, 1, 1)
    told = ask(scattered, empty=["n-1"])
    assert [(move["pod"], told["emptied"]) for move in told["moves"]] == [("default/b", ["n-1"])]
    told = ask(scattered, pods=[pod("new", 4)])
    assert (told["fits"], told["target"][0]["pod"], told["target"][0]["uid"]) == (True, "default/new", "")


def job(name: str, pods: int, gpus: int, **labels: str) -> Manifest:
    template = {"metadata": {"labels": labels}, "spec": pod("x", gpus)["spec"]}
    return {"kind": "Job", "metadata": {"name": name}, "spec": {"parallelism": pods, "template": template}}


def test_room_is_made_for_the_pods_of_an_object_as_data_and_as_text(scattered: Kerf) -> None:
    told = ask(scattered, objects=[job("train", 1, 4)], namespace="team")
    assert (told["fits"], told["target"][0]["pod"]) == (True, "team/train-0")
    assert told["moves"]
    again = ask(scattered, manifest=json.dumps(job("train", 1, 4)), namespace="team")
    assert [move["pod"] for move in again["moves"]] == [move["pod"] for move in told["moves"]]


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        pytest.param({"manifest": "kind: Foo"}, "document 1, line 1 (Foo): kind: Foo is not known", id="kind"),
        pytest.param({"objects": [job("j", 2_000, 1)]}, "2,000 pods are more than 1,000", id="too many"),
        pytest.param({"objects": [{"kind": "Node"}]}, "no object creates pods", id="a node"),
        pytest.param({"objects": [job("j", 1, 1)], "gpus": 2}, "pods and gpus can't be combined", id="two"),
        pytest.param(
            {
                "objects": [
                    job("j", 1, 1, **{"scheduling.x-k8s.io/pod-group": "g"}),
                    {
                        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
                        "kind": "PodGroup",
                        "metadata": {"name": "g"},
                        "spec": {"minMember": 2},
                    },
                ]
            },
            "default/j-0: gang default/g waits for its pods: 1 of 2 exist",
            id="gang",
        ),
    ],
)
def test_objects_for_which_no_room_can_be_made_are_told(question: dict[str, Any], fault: str, scattered: Kerf) -> None:
    answer = scattered.post("/defrag", json.dumps(question).encode())
    assert (answer.status, fault in answer.json()["Error"]) == (400, True), answer.content


def test_where_no_move_helps_it_says_why() -> None:
    objects: list[Manifest] = [node("n-0", 2), running("alone", "n-0", owner=""), pod("big", 2)]
    with kerf_on(Cluster(objects)) as kerf:
        told = ask(kerf, **{"for": "default/big"})
    assert (told["fits"], told["moves"], told["id"]) == (False, [], "")
    assert any("no controller" in sentence for sentence in told["impossible"]), told["impossible"]


def test_budgets_are_kept() -> None:
    only = [node("n-0", 4), node("n-1", 4), running("a", "n-0"), running("b", "n-1", 4), pod("big", 4)]
    objects = [*only, node("n-2", 1)]
    with kerf_on(Cluster(objects, [budget("all", 1)])) as kerf:
        assert ask(kerf, **{"for": "default/big"})["fits"]
    with kerf_on(Cluster(objects, [budget("all", 0)])) as kerf:
        told = ask(kerf, **{"for": "default/big"})
    assert not told["fits"]
    assert any("disruption budget default/all" in sentence for sentence in told["impossible"]), told["impossible"]


@pytest.mark.slow
def test_budgets_of_a_megabyte_hold_their_own_namespace_and_take_nobody_s_time() -> None:
    values = [f"v{number:05x}" for number in range(150_000)]
    budgets = [budget(f"b{number}", 0, namespace="evil") for number in range(12)]
    for made in budgets:
        made["spec"]["selector"] = {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": values}]}
    evil = [running(f"e{number}", "n-2", 0, "", namespace="evil") for number in range(250)]
    with kerf_on(Cluster([*SCATTERED, *evil], budgets), access__what_if_s=20.0) as kerf:
        assert ask(kerf, **{"for": "default/big"})["fits"]


def test_without_the_right_to_read_budgets_there_is_no_answer() -> None:
    with kerf_on(Cluster(SCATTERED, 403)) as kerf:
        answer = kerf.post("/defrag", b'{"for": "default/big"}')
    assert answer.status == 503
    assert "right to list poddisruptionbudgets" in answer.json()["Error"]


@pytest.mark.parametrize("jobs", [403, 404, []])
def test_pods_of_jobs_that_are_not_known_stay(jobs: list[Manifest] | int) -> None:
    objects = [*SCATTERED[:3], running("a", "n-0", owner="Job")]
    with kerf_on(Cluster(objects, jobs=jobs)) as kerf:
        told = ask(kerf, empty=["n-0"])
    assert not told["fits"]
    assert any("its Job can't be read" in sentence for sentence in told["impossible"]), told["impossible"]


def test_no_room_past_a_quota() -> None:
    with kerf_on(Cluster(SCATTERED), queue__enabled=True, queue__quotas={"default": 6}) as kerf:
        told = ask(kerf, **{"for": "default/big"})
    assert not told["fits"]
    assert "GPUs" in told["impossible"][0]


@pytest.mark.slow
def test_ten_thousand_that_wait_are_no_hindrance() -> None:
    crowd = [pod(f"crowd-{number}", 1, annotations={"kerf.dev/gpu-model": f"m{number}.*"}) for number in range(10_000)]
    with kerf_on(Cluster([*SCATTERED, *crowd])) as kerf:
        told = ask(kerf, **{"for": "default/big"})
        assert [move["pod"] for move in told["moves"]] == ["default/a"]


def room_of(kerf: Kerf) -> RoomAnswers:
    room = kerf.parts.capabilities.get(MakesRoom)
    assert isinstance(room, RoomAnswers)
    return room


def test_plans_are_kept_for_a_while_and_few_of_them() -> None:
    with kerf_on(Cluster(SCATTERED)) as kerf:
        answers = room_of(kerf)
        first = ask(kerf, **{"for": "default/big"})
        plan = answers.kept(first["id"])
        assert plan is not None
        assert [(move.pod, move.to_node) for move in plan.moves] == [("default/a", "n-2")]
        assert answers.kept("another") is None
        kerf.clock.now += 601
        assert answers.kept(first["id"]) is None


def test_a_drained_node_leaves_pods_without_gpus_that_kerf_does_not_move_to_kubectl() -> None:
    dns = running("dns", "n-1", 0, priority=2_000_000_000)
    dns["metadata"]["namespace"] = "kube-system"
    alone, web = running("alone", "n-1", 0, owner=""), running("web", "n-1", 0)
    cordoned = node("n-1", 4)
    cordoned["spec"] = {"unschedulable": True}
    with kerf_on(Cluster([node("n-0", 4), cordoned, running("b", "n-1"), dns, alone, web])) as kerf:
        told = ask(kerf, empty=["n-1", "n-0"])
        assert not told["fits"], "there is no third node"
        told = ask(kerf, empty=["n-1"])
        assert (told["fits"], told["emptied"], told["open"]) == (True, ["n-1"], [])
        assert {(move["pod"], move["to"]) for move in told["moves"]} == {("default/b", "n-0"), ("default/web", "n-0")}
        assert {(one["pod"], one["node"]): one["why"] for one in told["left"]} == {
            ("kube-system/dns", "n-1"): "it is left alone: namespace kube-system is exempt",
            ("default/alone", "n-1"): "it has no controller that would replace it",
        }
        assert ask(kerf, empty=["n-0"])["open"] == ["n-0"]


def test_a_pod_with_gpus_that_may_not_move_keeps_its_node_from_being_drained() -> None:
    with kerf_on(Cluster([node("n-0", 4), node("n-1", 4), running("alone", "n-1", owner="")])) as kerf:
        told = ask(kerf, empty=["n-1"])
    assert (told["fits"], told["left"]) == (False, [])
    assert "no controller" in told["impossible"][0]


def sick(name: str, *gpus: int) -> Manifest:
    """A node of four GPUs, some of which are unhealthy to their plugin."""
    made = node(name, 4 - len(gpus))
    listed = [
        {"index": index, "model": "NVIDIA-A100-SXM4-80GB", "memory_mib": 81_920, "healthy": index not in gpus}
        for index in range(4)
    ]
    made["metadata"]["annotations"] = {"kerf.dev/gpus": json.dumps(listed)}
    return made


def test_pods_leave_sick_gpus() -> None:
    objects = [
        *(sick("n-0", 0, 1), node("n-1", 4)),
        *(running("a", "n-0", 1, "0"), running("b", "n-0", 1, "1", owner=""), running("c", "n-0", 1, "2")),
    ]
    with kerf_on(Cluster(objects)) as kerf:
        told = ask(kerf, heal=True)
        assert (told["fits"], told["on_sick"]) == (True, ["default/a", "default/b"])
        assert [(move["pod"], move["to"]) for move in told["moves"]] == [("default/a", "n-1")]
        assert told["impossible"] == ["default/b stays on an unhealthy GPU: it has no controller that would replace it"]
        assert told["id"]


def test_where_no_gpu_is_sick_nobody_has_to_leave(scattered: Kerf) -> None:
    told = ask(scattered, heal=True)
    assert (told["fits"], told["moves"], told["on_sick"], told["id"]) == (True, [], [], "")


def test_who_has_started_lately_is_left_alone_where_that_is_asked_for(scattered: Kerf) -> None:
    room = room_of(scattered)
    answers: list[Any] = []

    async def asked(rest_s: float) -> None:
        answers.append(json.loads(await room.answer(b'{"for": "default/big"}', rest_s=rest_s)))

    scattered.run(asked(60.0))
    scattered.run(asked(1e9))
    assert answers[0]["fits"]
    assert not answers[1]["fits"]
    assert any("is left alone for 1e+09 s" in sentence for sentence in answers[1]["impossible"])


def test_what_a_plan_makes_usable_is_told_in_gpus(scattered: Kerf) -> None:
    assert ask(scattered, **{"for": "default/big"})["gpus"] == 4
    assert ask(scattered, freeNodes=1)["gpus"] == 4
