"""Questions to a whole Kerf, which its planning process answers."""

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
from tests.golden import Golden
from tests.parts.defrag.clusters import STARTED, Cluster, budget, running
from tests.parts.defrag.rigs import gang
from tests.telemetry.feeds import FakeFeed


@pytest.fixture(autouse=True)
def here(request: pytest.FixtureRequest) -> None:
    """Plan in this process, except in slow tests, which depend on the time of another one."""
    if "slow" not in request.keywords:
        request.getfixturevalue("answered_here")


NODES = [node(f"n-{number}", 4) for number in range(3)]
SCATTERED = [*NODES, running("a", "n-0"), running("b", "n-1"), running("c", "n-2", 3), pod("big", 4)]
"""A pod runs on each node, and one that needs four GPUs waits."""
BIG: dict[str, Any] = {"for": "default/big"}


@pytest.fixture(name="scattered", scope="module")
def scattered_fixture() -> Iterator[Kerf]:
    """A cluster for questions, which change nothing."""
    with kerf_on(Cluster(SCATTERED)) as kerf:
        yield kerf


def ask(kerf: Kerf, **question: Any) -> Any:
    answer = kerf.post("/defrag", json.dumps(question).encode())
    assert answer.status == 200, answer.content
    return answer.json()


def test_an_answer_has_all_that_a_plan_needs_and_changes_nothing(scattered: Kerf) -> None:
    before = scattered.service.placer.snapshot().version
    told = ask(scattered, **BIG)
    [move] = told["moves"]
    assert (move["pod"], move["uid"], move["to"], move["gpus"]) == ("default/a", "uid-of-a", "n-2", [3])
    assert (move["from"], move["controller"], move["step"]) == ("n-0", "owner-of-a", 0)
    assert told["cost_gpu_s"] == move["cost_gpu_s"] > 60
    assert told["target"] == [{"pod": "default/big", "node": "n-0", "gpus": [0, 1, 2, 3], "uid": "uid-of-big"}]
    assert told["id"]
    assert (scattered.service.placer.snapshot().version, scattered.num_reservations) == (before, 0)


def job(name: str, pods: int, gpus: int, **labels: str) -> Manifest:
    template = {"metadata": {"labels": labels}, "spec": pod("x", gpus)["spec"]}
    return {"kind": "Job", "metadata": {"name": name}, "spec": {"parallelism": pods, "template": template}}


def sick(name: str, *gpus: int) -> Manifest:
    """A node of four GPUs, some of which its plugin reports as unhealthy."""
    made = node(name, 4 - len(gpus))
    listed = [
        {"index": index, "model": "NVIDIA-A100-SXM4-80GB", "memory_mib": 81_920, "healthy": index not in gpus}
        for index in range(4)
    ]
    made["metadata"]["annotations"] = {"kerf.dev/gpus": json.dumps(listed)}
    return made


def said(answer: Any) -> str:
    """An answer in one line."""
    parts = [f"{move['pod']} from {move['from']} to {move['to']}" for move in answer["moves"]]
    parts += [f"{one['pod']} then on {one['node'] or 'no node'}" for one in answer["target"]]
    parts += [f"{one['pod']} left on {one['node']}: {one['why']}" for one in answer["left"]]
    lists = {key: sorted(answer[key]) for key in ("emptied", "open", "on_sick", "impossible") if answer[key]}
    parts += [f"{key}: {', '.join(words)}" for key, words in lists.items()]
    before, after = ((part["freeNodes"], part["usableGpus"]) for part in (answer["before"], answer["after"]))
    assert bool(answer["id"]) == (answer["fits"] and bool(answer["moves"]))
    fits = "yes" if answer["fits"] else "no"
    return f"{fits}, {answer['gpus']:g} GPUs, {before} -> {after}; {'; '.join(parts)}"


def test_answers(golden: Golden, scattered: Kerf) -> None:
    train = job("train", 1, 4)
    questions: list[tuple[str, dict[str, Any]]] = [
        ("a waiting pod", BIG),
        ("nodes with free GPUs", {"gpus": 3, "nodes": 2}),
        ("a free node", {"freeNodes": 1}),
        ("an emptied node", {"empty": ["n-1"]}),
        ("a pod that does not exist yet", {"pods": [pod("new", 4)]}),
        ("a Job as data", {"objects": [train], "namespace": "team"}),
        ("a Job as text", {"manifest": json.dumps(train), "namespace": "team"}),
        ("no unhealthy GPU", {"heal": True}),
    ]
    lines = [f"{what}: {said(ask(scattered, **question))}" for what, question in questions]

    slow = running("a", "n-0")
    times = {"PodScheduled": STARTED, "Ready": "2026-11-21T06:10:00Z"}
    slow["status"]["conditions"] = [{"type": at, "status": "True", "lastTransitionTime": times[at]} for at in times]
    in_gang: dict[str, Any] = {"annotations": gang(2) | {"kerf.dev/last-checkpoint": STARTED}}
    daemon = [running("a", "n-0", **in_gang), running("d", "n-1", 0, owner="DaemonSet", **in_gang)]
    models = [node("n-0", 4, "a100"), node("n-1", 4, "a100"), node("t-0", 4, "t4"), running("b", "n-1", 4)]
    models.append(pod("big", 4, annotations={"kerf.dev/gpu-model": "a100"}))
    choosy = running("a", "n-0", annotations={"kerf.dev/gpu-model": "a100|t4"})
    members = [pod(f"g-{number}", 4, annotations=gang(2)) for number in range(2)]
    covered = [
        node("n-0", 4),
        node("n-1", 4),
        running("a", "n-0"),
        running("b", "n-1", 4),
        pod("big", 4),
        node("n-2", 1),
    ]
    of_job = Cluster([*NODES, running("a", "n-0", owner="Job")], jobs=403)
    missing_job = Cluster([*NODES, running("a", "n-0", owner="Job")], jobs=[])
    dns = running("dns", "n-1", 0, priority=2_000_000_000)
    dns["metadata"]["namespace"] = "kube-system"
    cordoned = node("n-1", 4) | {"spec": {"unschedulable": True}}
    drained = [node("n-0", 4), cordoned, running("b", "n-1"), dns]
    drained += [running("alone", "n-1", 0, owner=""), running("web", "n-1", 0)]
    unhealthy = [sick("n-0", 0, 1), node("n-1", 4), running("a", "n-0", 1, "0"), running("b", "n-0", 1, "1", owner="")]
    cases: list[tuple[str, Cluster, dict[str, Any]]] = [
        ("an owner that starts slowly", Cluster([*NODES, slow, *SCATTERED[4:]]), BIG),
        ("a gang with a DaemonSet pod", Cluster([*NODES, *daemon, *SCATTERED[4:]]), BIG),
        ("a pod without a model", Cluster([*models, running("a", "n-0")]), BIG),
        ("a pod with two models", Cluster([*models, choosy]), BIG),
        ("room as it is", Cluster([node("n-0", 4), pod("small", 1)]), {"for": "default/small"}),
        ("a gang", Cluster([node("n-3", 4), *SCATTERED[:-1], *members]), {"for": "default/g"}),
        ("a gang by a member", Cluster([node("n-3", 4), *SCATTERED[:-1], *members]), {"for": "default/g-1"}),
        ("a budget of one", Cluster(covered, [budget("all", 1)]), BIG),
        ("a budget of none", Cluster(covered, [budget("all", 0)]), BIG),
        ("no right to read Jobs", of_job, {"empty": ["n-0"]}),
        ("a Job that is missing", missing_job, {"empty": ["n-0"]}),
        ("drain both", Cluster(drained), {"empty": ["n-1", "n-0"]}),
        ("drain the cordoned node", Cluster(drained), {"empty": ["n-1"]}),
        ("drain the other node", Cluster(drained), {"empty": ["n-0"]}),
        ("drain GPUs", Cluster([*NODES, running("alone", "n-1", owner="")]), {"empty": ["n-1"]}),
        ("unhealthy GPUs", Cluster([*unhealthy, running("c", "n-0", 1, "2")]), {"heal": True}),
    ]
    for what, cluster, question in cases:
        with kerf_on(cluster) as kerf:
            lines.append(f"{what}: {said(ask(kerf, **question))}")
    with kerf_on(Cluster(SCATTERED), queue__enabled=True, queue__quotas={"default": 6}) as kerf:
        lines.append(f"beyond a quota: {said(ask(kerf, **BIG))}")
    golden("defrag/answers.txt", lines)


def test_observed_memory_of_moved_pods_is_not_counted_as_unmanaged_afterwards() -> None:
    feed = FakeFeed(Clock())
    telemetry = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}
    with kerf_on(Cluster(SCATTERED), feed=feed, decisions__policy="live", **telemetry) as kerf:
        feed.clock = kerf.clock
        feed.gauges = {"n-0": {Gauge.MEMORY_USED: [50_000.0, 400.0, 400.0, 400.0]}}
        assert kerf.service.observer is not None
        kerf.run(kerf.service.observer.round())
        told = ask(kerf, **BIG)
    assert [move["from"] for move in told["moves"]] == ["n-0"]
    assert (told["before"]["usableGpus"], told["after"]["usableGpus"]) == (0, 4)


def test_objects_for_which_no_room_can_be_made_are_refused(scattered: Kerf) -> None:
    part = job("j", 1, 1, **{"scheduling.x-k8s.io/pod-group": "g"})
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"manifest": "kind: Foo"}, "document 1, line 1 (Foo): kind: Foo is not"),
        ({"objects": [job("j", 2_000, 1)]}, "2,000 pods are more than 1,000"),
        ({"objects": [{"kind": "Node"}]}, "no object creates pods"),
        ({"objects": [job("j", 1, 1)], "gpus": 2}, "pods and gpus can't be combined"),
        ({"objects": [part, group | {"spec": {"minMember": 2}}]}, "gang default/g waits for its pods: 1 of 2 exist"),
    ]
    for question, fault in cases:
        answer = scattered.post("/defrag", json.dumps(question).encode())
        assert (answer.status, fault in answer.json()["Error"]) == (400, True), answer.content


@pytest.mark.slow
def test_budgets_of_a_megabyte_hold_their_own_namespace_and_slow_down_no_others() -> None:
    values = [f"v{number:05x}" for number in range(150_000)]
    budgets = [budget(f"b{number}", 0, namespace="evil") for number in range(12)]
    for made in budgets:
        made["spec"]["selector"] = {"matchExpressions": [{"key": "k", "operator": "NotIn", "values": values}]}
    evil = [running(f"e{number}", "n-2", 0, "", namespace="evil") for number in range(250)]
    with kerf_on(Cluster([*SCATTERED, *evil], budgets), access__what_if_s=20.0) as kerf:
        assert ask(kerf, **BIG)["fits"]


def test_without_the_right_to_read_budgets_there_is_no_answer() -> None:
    with kerf_on(Cluster(SCATTERED, 403)) as kerf:
        answer = kerf.post("/defrag", b'{"for": "default/big"}')
    assert answer.status == 503
    assert "right to list poddisruptionbudgets" in answer.json()["Error"]


@pytest.mark.slow
def test_ten_thousand_waiting_pods_are_no_hindrance() -> None:
    crowd = [pod(f"crowd-{number}", 1, annotations={"kerf.dev/gpu-model": f"m{number}.*"}) for number in range(10_000)]
    with kerf_on(Cluster([*SCATTERED, *crowd])) as kerf:
        assert [move["pod"] for move in ask(kerf, **BIG)["moves"]] == ["default/a"]


def room_of(kerf: Kerf) -> RoomAnswers:
    room = kerf.parts.capabilities.get(MakesRoom)
    assert isinstance(room, RoomAnswers)
    return room


def test_plans_are_kept_for_a_while() -> None:
    with kerf_on(Cluster(SCATTERED)) as kerf:
        answers = room_of(kerf)
        first = ask(kerf, **BIG)
        plan = answers.kept(first["id"])
        assert plan is not None
        assert [(move.pod, move.to_node) for move in plan.moves] == [("default/a", "n-2")]
        assert answers.kept("another") is None
        kerf.clock.now += 601
        assert answers.kept(first["id"]) is None


def test_pods_that_have_started_lately_stay_with_rest_s(scattered: Kerf) -> None:
    room, answers = room_of(scattered), list[Any]()

    async def asked(rest_s: float) -> None:
        answers.append(json.loads(await room.answer(json.dumps(BIG).encode(), rest_s=rest_s)))

    scattered.run(asked(60.0))
    scattered.run(asked(1e9))
    assert [answer["fits"] for answer in answers] == [True, False]
    assert any("is left alone for 1e+09 s" in sentence for sentence in answers[1]["impossible"])
