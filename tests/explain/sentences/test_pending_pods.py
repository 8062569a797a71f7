"""What keeps a pod pending, in one sentence, and what helps: against a running Kerf."""

import time
from datetime import UTC, datetime
from typing import Any

from extender.planning.wait_reasons import Code
from extender.queueing.pods.objects import GATE
from tests.api.bodies import SHARED_GPU, Manifest, node, pod
from tests.api.services import Kerf, running
from tests.explain.test_waiting_pods import made, told_once
from tests.ledger.builders import until

EIGHT = "0,1,2,3,4,5,6,7"


def explained(kerf: Kerf, name: str, namespace: str = "default", query: str = "") -> Any:
    """What /explain says of a pod."""
    answer = kerf.get(f"/explain/pod/{namespace}/{name}{query}")
    assert answer.status == 200, answer.content
    return answer.json()


def held(name: str, on: str, gpus: str, namespace: str = "default") -> Manifest:
    """A pod that runs and holds some GPUs."""
    manifest = pod(name, len(gpus.split(",")), node_name=on, annotations={"kerf.dev/assigned-gpus": gpus})
    manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-of-{namespace}-{name}"}
    return manifest


def gated(name: str, gpus: int, ago_s: float, gate: str = GATE, **options: Any) -> Manifest:
    return made(name, gpus, ago_s, schedulingGates=[{"name": gate}], **options)


def slices(name: str, number: int, **options: Any) -> Manifest:
    """A pod that asks for time slices."""
    manifest = pod(name, **options)
    manifest["spec"]["containers"][0]["resources"]["limits"] = {SHARED_GPU: str(number)}
    return manifest


def rows(kerf: Kerf) -> dict[str, Any]:
    """The lines of /pending, by the pods' names."""
    return {row["pod"].partition("/")[2]: row for row in kerf.get("/pending").json()["pods"]}


def kinds(told: Any) -> list[str]:
    return [remedy["kind"] for remedy in told["remedies"]]


def test_what_it_needs_the_nearest_node_what_is_free_there_and_who_holds_the_rest() -> None:
    with running([node("far", 8), node("near", 8), node("small", 4)]) as kerf:
        for one in (held("all", "far", EIGHT), held("job-a", "near", "0"), held("job-b", "near", "1", "team")):
            kerf.create(one)
        kerf.filter(kerf.create(made("asks", 8, 60)), ["far", "near", "small"])
        told, row = explained(kerf, "asks"), rows(kerf)["asks"]
    assert told["sentence"] == "needs 8 GPUs; near has 6 free, default/job-a and team/job-b hold 2"
    assert [(one["kind"], one["text"]) for one in told["remedies"] if one["kind"] in ("wait", "pod")] == [
        ("wait", "wait for default/job-a and team/job-b on near to end"),
        ("pod", "request 6 GPUs instead of 8: fits on near now"),
    ]
    assert (row["sentence"], row["remedy"]) == (told["sentence"], told["remedies"][0])
    assert (told["ahead"], told["verdict"]) == (None, "rejected")


def test_what_is_reserved_and_what_is_shared_is_told_apart() -> None:
    with running([node("n", 2), node("shares", 1), node("slices", shared=4)]) as kerf:
        kerf.filter(pod("first", 1), ["n"])
        kerf.filter(pod("asks", 2), ["n"])
        reserved = explained(kerf, "asks")
        share = kerf.create(pod("share", annotations={"kerf.dev/gpu-share": "800"}))
        kerf.filter(share, ["shares"])
        assert kerf.bind(share, "shares") == ""
        kerf.filter(pod("wants", annotations={"kerf.dev/gpu-share": "500"}), ["shares"])
        for name in ("a", "b"):
            kerf.create(slices(name, 1, node_name="slices"))
        kerf.filter(slices("many", 3), ["slices"])
        of_share, of_slices = explained(kerf, "wants"), explained(kerf, "many")
    assert reserved["sentence"].endswith("n has 1 free, 1 is reserved for a pod that is being placed")
    assert "wait" not in kinds(reserved)
    assert of_share["sentence"].endswith("free on one GPU, default/share holds parts of its GPUs")
    assert of_slices["sentence"].endswith("slices has 2 free, default/a and default/b hold 2")
    assert kinds(of_share)[0] == kinds(of_slices)[0] == "wait"


def test_room_that_kube_scheduler_keeps_it_from() -> None:
    """Which of several nodes it would be is the policy's to say: explain asks it, the list of pending pods does not."""
    why = "0/3 nodes are available: 3 node(s) had untolerated taint {a: b}"
    with running([node("big", 8), node("cpu"), node("some", 4), node("tight", 2)]) as kerf:
        kerf.create(made("asks", 2, 60, message=f"{why}. preemption: none."))
        told_once(kerf, 1)
        told, row = explained(kerf, "asks"), rows(kerf)["asks"]
    assert told["verdict"] == "unasked"
    assert told["sentence"] == f"needs 2 GPUs; there is room on tight, but kube-scheduler says: {why}"
    assert row["sentence"] == f"needs 2 GPUs; there is room on 3 nodes, but kube-scheduler says: {why}"
    assert row["nearest"] == "needs 2 GPUs; there is room now on 3 nodes"
    (remedy,) = told["remedies"]
    assert (remedy["kind"], remedy["command"]) == ("pod", "kubectl describe pod asks -n default")
    assert row["remedy"] == remedy


def test_a_node_with_room_that_it_was_not_offered() -> None:
    with running([node("full", 2), node("free", 2)]) as kerf:
        kerf.create(held("holder", "full", "0,1"))
        kerf.filter(pod("asks", 2), ["full"])
        told = explained(kerf, "asks")
    assert told["sentence"] == "needs 2 GPUs; full has 0 free, default/holder holds 2"
    first = told["remedies"][0]
    assert (first["kind"], first["command"]) == ("pod", "kubectl describe pod asks -n default")
    assert first["text"].startswith("free has room, but was not offered: ")


def test_room_that_has_come_up_since() -> None:
    with running([node("n", 2)]) as kerf:
        holder = kerf.create(held("holder", "n", "0,1"))
        kerf.filter(kerf.create(made("asks", 2, 60)), ["n"])
        assert [entry["change"] for entry in explained(kerf, "asks")["wouldFit"]] == ["room"]
        kerf.cluster.delete(holder)
        kerf.settle()
        told, row = explained(kerf, "asks"), rows(kerf)["asks"]
    assert told["sentence"].endswith("there is room now on n; kube-scheduler has not retried it yet")
    assert row["sentence"] == told["sentence"]
    assert (told["verdict"], told["wouldFit"], told["now"]["bestNode"]) == ("rejected", [], "n")
    assert kinds(told) == ["wait"]


def test_a_gate_that_nobody_opens_says_so() -> None:
    """The queue is off, and its webhook or an author has given the pod the gate."""
    with running([node("n", 2)]) as kerf:
        kerf.create(gated("asks", 1, 60))
        kerf.create(gated("other", 1, 60, "example.com/other"))
        told_once(kerf, 2)
        told, other = explained(kerf, "asks"), explained(kerf, "other")
        row = rows(kerf)["asks"]
        assert kerf.metric("kerf_unattended_gates") == 1
    assert told["sentence"].startswith("held by scheduling gate kerf.dev/queue, but the queue is off")
    assert row["sentence"] == told["sentence"]
    assert kinds(told) == ["setting", "pod"]
    assert (other["sentence"], kinds(other)) == ("held by scheduling gate example.com/other", ["pod"])


def test_a_pod_that_has_passed_the_queue_says_so() -> None:
    with running([node("n", 2)], queue__enabled=True) as kerf:
        kerf.create(made("asks", 4, 60, labels={"kerf.dev/queue": "enabled"}))
        told_once(kerf, 1)
        told = explained(kerf, "asks")
        assert kerf.metric("kerf_queue_passed_total") == 1
        assert "PassedQueue" in [event["reason"] for event in kerf.events()]
    assert told["sentence"].endswith(
        "; it opted in to the queue by its label kerf.dev/queue: enabled, and came without its gate: the webhook was "
        "not asked in time"
    )


def test_why_the_queue_passes_it_over_and_how_many_come_first() -> None:
    with running([node("n", 2)], queue__enabled=True) as kerf:
        for manifest in (gated("older", 8, 600), gated("urgent", 8, 5, priority=9), gated("asks", 1, 60)):
            kerf.create(manifest)
        kerf.create(gated("younger", 1, 30))
        kerf.create(made("outside", 8, 60, message="0/1 nodes are available"))
        told_once(kerf, 5)
        unseen = explained(kerf, "asks")
        assert kerf.parts.queue is not None
        why = Code.GANG_INCOMPLETE.reason(gang="default/ring", here=1, size=3)
        kerf.parts.queue.backlog.entries["uid-of-asks"].skips.add(why)
        told, row, outside = explained(kerf, "asks"), rows(kerf)["asks"], rows(kerf)["outside"]
    assert unseen["sentence"].endswith("there is room now on n; it waits for the queue's next round")
    assert (told["sentence"], kinds(told)) == (str(why), ["pod"])
    assert told["ahead"] == unseen["ahead"] == 2  # the older one, and the one of higher priority
    assert (row["sentence"], row["remedy"]) == (told["sentence"], told["remedies"][0])
    assert (row["where"], outside["where"]) == ("queue", "scheduler")


def test_how_long_those_in_the_way_are_expected_to_go_on() -> None:
    with running([node("n", 2)], queue__enabled=True, queue__order="kerf") as kerf:
        assert kerf.parts.queue is not None
        pods, durations = kerf.parts.queue.running, kerf.parts.queue.durations
        started = datetime.fromtimestamp(time.time() - 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        holder = kerf.create(held("holder", "n", "0,1") | {"status": {"phase": "Running", "startTime": started}})
        kerf.run(until(lambda: holder["metadata"]["uid"] in pods))
        kerf.filter(pod("asks", 2), ["n"])

        def expected(finished: int, duration_s: float) -> str:
            for _ in range(finished):
                durations.finished(("default/Pod/holder/2 GPUs", "default"), duration_s)
            return str(explained(kerf, "asks")["remedies"][0]["text"])

        unknown, told, overdue = expected(0, 0), expected(100, 7260), expected(1000, 1)
    assert told == "wait for default/holder on n to end, expected in 2 h"
    assert unknown == overdue == "wait for default/holder on n to end"
