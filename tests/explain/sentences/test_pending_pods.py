"""What keeps a pod pending, in one sentence, and what helps: against a running Kerf."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from extender.planning.wait_reasons import Code
from extender.queueing.pods.objects import GATE
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, running
from tests.explain.test_waiting_pods import made, told_once
from tests.ledger.builders import until

EIGHT = "0,1,2,3,4,5,6,7"


def explained(kerf: Kerf, name: str, namespace: str = "default") -> Any:
    answer = kerf.get(f"/explain/pod/{namespace}/{name}")
    assert answer.status == 200, answer.content
    return answer.json()


def held(name: str, on: str, gpus: str, namespace: str = "default") -> Manifest:
    """A pod that runs and holds some GPUs."""
    manifest = pod(name, len(gpus.split(",")), node_name=on, annotations={"kerf.dev/assigned-gpus": gpus})
    manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-of-{namespace}-{name}"}
    return manifest


def kinds(told: Any) -> list[str]:
    return [remedy["kind"] for remedy in told["remedies"]]


def texts(told: Any) -> str:
    return "; ".join(f"{remedy['text']} [{remedy['command']}]" for remedy in told["remedies"])


def test_what_it_needs_the_nearest_node_what_is_free_there_and_who_holds_the_rest() -> None:
    with running([node("far", 8), node("near", 8), node("small", 4)]) as kerf:
        for one in (held("all", "far", EIGHT), held("job-a", "near", "0"), held("job-b", "near", "1", "team")):
            kerf.create(one)
        kerf.filter(kerf.create(made("asks", 8, 60)), ["far", "near", "small"])
        told, (row,) = explained(kerf, "asks"), kerf.get("/pending").json()["pods"]
    assert told["sentence"] == "needs 8 GPUs; near has 6 free, default/job-a and team/job-b hold 2"
    assert [remedy for remedy in told["remedies"] if remedy["kind"] not in ("move", "nodes")] == [
        {"kind": "wait", "text": "wait for default/job-a and team/job-b on near to end", "command": None},
        {
            "kind": "pod",
            "text": "request 6 GPUs instead of 8: fits on near now",
            "command": None,
        },
    ]
    assert told["remedies"][-1]["text"] == "add a node like near"
    assert row["sentence"] == told["sentence"]
    assert row["remedy"] == told["remedies"][0]
    assert (told["ahead"], told["verdict"]) == (None, "rejected")


def test_of_many_holders_a_few_are_named() -> None:
    with running([node("n", 8)]) as kerf:
        for number in range(6):
            kerf.create(held(f"job-{number}", "n", str(number)))
        kerf.filter(pod("asks", 8), ["n"])
        told = explained(kerf, "asks")
    assert told["sentence"] == (
        "needs 8 GPUs; n has 2 free, default/job-0, default/job-1, default/job-2 and 3 more hold 6"
    )


def test_moves_are_no_remedy_where_too_little_is_free() -> None:
    with running([node("near", 8), node("other", 8)]) as kerf:
        kerf.create(held("a", "near", "0,1"))
        kerf.create(held("b", "other", "0,1,2,3,4,5,6"))
        kerf.filter(pod("asks", 8), ["near", "other"])
        told = explained(kerf, "asks")
    assert kinds(told) == ["wait", "pod", "nodes"]  # one is free elsewhere, and two are needed


def test_what_is_reserved_is_told_apart() -> None:
    with running([node("n", 2)]) as kerf:
        kerf.filter(pod("first", 1), ["n"])
        kerf.filter(pod("asks", 2), ["n"])
        told = explained(kerf, "asks")
    assert told["sentence"] == "needs 2 GPUs; n has 1 free, 1 is reserved for a pod that is being placed"
    assert "wait" not in kinds(told)


@pytest.mark.parametrize(
    ("annotations", "gpus", "holder", "sentence"),
    [
        pytest.param(
            {"kerf.dev/gpu-share": "500"}, None, {"kerf.dev/gpu-share": "800"},
            "needs 500 milli of a GPU; n has 200 of 500 milli free on one GPU, default/holder holds parts of its GPUs",
            id="compute of a share",
        ),
        pytest.param(
            {"kerf.dev/gpu-share": "100", "kerf.dev/gpu-memory-each": "60Gi"}, None,
            {"kerf.dev/gpu-share": "100", "kerf.dev/gpu-memory-each": "40Gi"},
            "needs 100 milli of a GPU with 60 GiB; n has 40 GiB of 60 GiB free on one GPU, "
            "default/holder holds parts of its GPUs",
            id="memory of a share",
        ),
    ],
)  # fmt: skip
def test_shares(annotations: Mapping[str, str], gpus: int | None, holder: Mapping[str, str], sentence: str) -> None:
    with running([node("n", 1)]) as kerf:
        first = pod("holder", None, annotations=holder)
        kerf.create(first)
        kerf.filter(first, ["n"])
        assert kerf.bind(first, "n") == ""
        kerf.filter(pod("asks", gpus, annotations=annotations), ["n"])
        told = explained(kerf, "asks")
    assert told["sentence"] == sentence
    assert kinds(told)[0] == "wait"


@pytest.mark.parametrize(
    ("gpus", "annotations", "sentence", "remedy"),
    [
        pytest.param(
            9, {}, "needs 9 GPUs; large is nearest with 8 installed",
            "add a node with 9 GPUs: no node it may run on has that", id="too many",
        ),
        pytest.param(
            1, {"kerf.dev/gpu-model": "h100"},
            "needs 1 GPU of model h100; none of 2 nodes offers it GPUs of that model",
            "request any model instead of model h100 (there is room on a100-sxm4-80gb): fits on small",
            id="another model",
        ),
    ],
)  # fmt: skip
def test_what_no_node_ever_has(gpus: int, annotations: Mapping[str, str], sentence: str, remedy: str) -> None:
    with running([node("large", 8), node("small", 2)]) as kerf:
        kerf.filter(pod("asks", gpus, annotations=annotations), ["large", "small"])
        told = explained(kerf, "asks")
    assert told["sentence"] == sentence
    assert remedy in texts(told)
    assert "wait" not in kinds(told)


def test_time_slices() -> None:
    with running([node("n", shared=4)]) as kerf:
        for name in ("a", "b"):
            manifest = pod(name, node_name="n")
            manifest["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu.shared": "1"}
            kerf.create(manifest)
        asks = pod("asks")
        asks["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu.shared": "3"}
        kerf.filter(asks, ["n"])
        told = explained(kerf, "asks")
    assert told["sentence"] == "needs 3 GPU replicas; n has 2 free, default/a and default/b hold 2"


def test_room_that_kube_scheduler_keeps_it_from() -> None:
    why = "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}. preemption: none."
    with running([node("n", 4)]) as kerf:
        kerf.create(made("asks", 2, 60, message=why))
        told_once(kerf, 1)
        told, (row,) = explained(kerf, "asks"), kerf.get("/pending").json()["pods"]
    assert told["verdict"] == "unasked"
    assert told["sentence"] == (
        "needs 2 GPUs; there is room on n, but kube-scheduler says: "
        "0/1 nodes are available: 1 node(s) had untolerated taint {a: b}"
    )
    remedy = {
        "kind": "pod",
        "text": "tolerate the taint, or remove it from the node",
        "command": "kubectl describe pod asks -n default",
    }
    assert told["remedies"] == [remedy]
    assert (row["sentence"], row["remedy"]) == (told["sentence"], remedy)


def test_a_gate_of_somebody_else() -> None:
    with running([node("n", 4)]) as kerf:
        kerf.create(made("asks", 2, 60, schedulingGates=[{"name": "example.com/billing"}]))
        told_once(kerf, 1)
        told = explained(kerf, "asks")
    assert told["sentence"] == "held by scheduling gate example.com/billing"
    assert texts(told) == "remove the gate, or have its controller remove it [None]"


def test_a_node_with_room_that_it_was_not_offered() -> None:
    with running([node("full", 2), node("free", 2)]) as kerf:
        kerf.create(held("holder", "full", "0,1"))
        kerf.filter(pod("asks", 2), ["full"])
        told = explained(kerf, "asks")
        kerf.create(held("other", "free", "0"))
        by_now = explained(kerf, "asks")
    assert "not offered" not in texts(by_now)
    assert told["sentence"] == "needs 2 GPUs; full has 0 free, default/holder holds 2"
    assert told["remedies"][0] == {
        "kind": "pod",
        "text": "free has room, but was not offered: its node selector, affinity, tolerations, CPU or memory keep it "
        "from there",
        "command": "kubectl describe pod asks -n default",
    }


def test_room_that_has_come_up_since() -> None:
    with running([node("n", 2)]) as kerf:
        holder = kerf.create(held("holder", "n", "0,1"))
        kerf.filter(kerf.create(made("asks", 2, 60)), ["n"])
        kerf.cluster.delete(holder)
        kerf.settle()
        told, (row,) = explained(kerf, "asks"), kerf.get("/pending").json()["pods"]
    assert told["sentence"] == "needs 2 GPUs; there is room now on n; kube-scheduler has not retried it yet"
    assert row["sentence"] == told["sentence"]
    assert kinds(told) == ["wait"]


def gated(name: str, gpus: int, ago_s: float, **options: Any) -> Manifest:
    return made(name, gpus, ago_s, schedulingGates=[{"name": GATE}], **options)


def test_a_gate_that_nobody_opens_says_so() -> None:
    """The queue is off, and its webhook or an author has given the pod the gate."""
    with running([node("n", 2)]) as kerf:
        kerf.create(gated("asks", 1, 60))
        kerf.create(made("other", 1, 60, schedulingGates=[{"name": "example.com/other"}]))
        told_once(kerf, 2)
        told, other = explained(kerf, "asks"), explained(kerf, "other")
        rows = {row["pod"]: row["sentence"] for row in kerf.get("/pending").json()["pods"]}
        assert kerf.metric("kerf_unattended_gates") == 1
    assert told["sentence"] == (
        "held by scheduling gate kerf.dev/queue, but the queue is off, so nothing removes that gate"
    )
    assert rows["default/asks"] == told["sentence"]
    assert kinds(told) == ["setting", "pod"]
    assert other["sentence"] == "held by scheduling gate example.com/other"


def test_a_pod_that_has_passed_the_queue_says_so() -> None:
    with running([node("n", 2)], queue__enabled=True) as kerf:
        kerf.create(made("asks", 4, 60, labels={"kerf.dev/queue": "enabled"}))
        told_once(kerf, 1)
        told = explained(kerf, "asks")
        assert kerf.metric("kerf_queue_passed_total") == 1
        events = [event["reason"] for event in kerf.events()]
    assert told["sentence"].endswith(
        "; it opted in to the queue by its label kerf.dev/queue: enabled, and came without its gate: the webhook was "
        "not asked in time"
    )
    assert "PassedQueue" in events


def test_why_the_queue_passes_it_over_and_how_many_come_first() -> None:
    with running([node("n", 2)], queue__enabled=True) as kerf:
        for manifest in (gated("older", 8, 600), gated("urgent", 8, 5, priority=9), gated("asks", 1, 60)):
            kerf.create(manifest)
        kerf.create(gated("younger", 1, 30))
        told_once(kerf, 4)
        unseen = explained(kerf, "asks")
        assert kerf.parts.queue is not None
        skips = kerf.parts.queue.backlog.entries["uid-of-asks"].skips
        skips.add(Code.GANG_INCOMPLETE.reason(gang="default/ring", here=1, size=3))
        told, rows = explained(kerf, "asks"), kerf.get("/pending").json()["pods"]
    assert unseen["sentence"] == "needs 1 GPU; there is room now on n; it waits for the queue's next round"
    assert told["sentence"] == "gang default/ring waits for its pods: 1 of 3 exist"
    assert texts(told) == "create the missing pods of gang default/ring [None]"
    assert told["ahead"] == unseen["ahead"] == 2  # the older one, and the one of higher priority
    row = next(row for row in rows if row["pod"] == "default/asks")
    assert (row["sentence"], row["remedy"]) == (told["sentence"], told["remedies"][0])


def test_how_long_those_in_the_way_are_expected_to_go_on() -> None:
    flags: dict[str, Any] = {"queue__enabled": True, "queue__order": "kerf"}
    with running([node("n", 2)], **flags) as kerf:
        assert kerf.parts.queue is not None
        pods, durations = kerf.parts.queue.running, kerf.parts.queue.durations
        started = datetime.fromtimestamp(time.time() - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        holder = kerf.create(held("holder", "n", "0,1") | {"status": {"phase": "Running", "startTime": started}})
        kerf.run(until(lambda: holder["metadata"]["uid"] in pods))
        kerf.filter(pod("asks", 2), ["n"])
        unknown = texts(explained(kerf, "asks"))
        for _ in range(100):
            durations.finished(("default/Pod/holder/2 GPUs", "default"), 7260)
        told = texts(explained(kerf, "asks"))
        for _ in range(1000):
            durations.finished(("default/Pod/holder/2 GPUs", "default"), 1)
        overdue = texts(explained(kerf, "asks"))
    assert "to end [None]" in unknown
    assert "wait for default/holder on n to end, expected in 2 h [None]" in told
    assert "to end [None]" in overdue
