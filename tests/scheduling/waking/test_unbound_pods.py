"""Every pod without a node that asks for GPUs, in few words, however many there are and whatever they say."""

from typing import Any

import msgspec
import pytest

from extender.kube import objects
from extender.plugins.pods import read_pod_request
from extender.scheduling.unbound_pods import UnboundPods
from tests.ledger.builders import pod_manifest

WALL = 1_800_000_000.0
CREATED = "2026-11-21T08:00:00Z"
CREATED_AT = 1_795_248_000.0


def pods_of(most: int = 100) -> UnboundPods:
    return UnboundPods(read_pod_request, lambda: WALL, most)


def waiting(
    name: str,
    gpus: int | str = 1,
    *,
    message: str = "",
    created: str = CREATED,
    namespace: str = "default",
    **options: Any,
) -> objects.Pod:
    manifest = pod_manifest(name, gpus, **options)
    manifest["metadata"]["namespace"] = namespace
    if created:
        manifest["metadata"]["creationTimestamp"] = created
    if message:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        manifest["status"]["conditions"] = [condition]
    return msgspec.convert(manifest, objects.Pod)


def test_a_pod_that_the_schedulers_own_plugins_reject_is_told_with_its_age_and_why() -> None:
    pods = pods_of()
    reasons = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"
    message = f"{reasons}. no new claims to deallocate, preemption: 0/2 nodes are available: 2 No ..."
    pods.changed(None, waiting("asking", 4, message=message))
    (told,) = pods.all()
    assert (told.key, told.request, told.created) == ("default/asking", "4 GPUs", CREATED_AT)
    assert told.why == reasons


def test_who_is_not_looked_at_says_what_keeps_it() -> None:
    pods = pods_of()
    gated = waiting("gated")
    gated.spec = msgspec.convert(
        {**msgspec.to_builtins(gated.spec), "schedulingGates": [{"name": "a/b"}]}, type(gated.spec)
    )
    unseen = waiting("unseen")
    unseen.spec.scheduler_name = "kerf-scheduler"
    for pod in (gated, unseen, waiting("unclear", annotations={"kerf.dev/gpu-memory-each": "lots"})):
        pods.changed(None, pod)
    why = {pod.key: pod.why for pod in pods.all()}
    assert why["default/gated"] == "held by scheduling gate a/b"
    assert why["default/unseen"] == "no status yet from its scheduler kerf-scheduler"
    assert why["default/unclear"].startswith("kerf.dev/gpu-memory-each: ")


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(waiting("cpu", 0), id="asks for no GPUs"),
        pytest.param(waiting("leaving", terminating=True), id="is being deleted"),
    ],
)
def test_others_are_not_among_them(pod: objects.Pod) -> None:
    pods = pods_of()
    pods.changed(None, pod)
    assert not pods.all()


def test_whoever_gets_a_node_or_is_gone_has_left() -> None:
    pods = pods_of()
    for name in ("bound", "deleted", "unlisted", "stays"):
        pods.changed(None, waiting(name))
    pods.changed(waiting("bound"), None)
    pods.changed(waiting("deleted"), None)
    pods.changed(waiting("unlisted"), None)
    assert [pod.key for pod in pods.all()] == ["default/stays"]


def test_without_a_time_stamp_age_counts_from_the_first_sight() -> None:
    now = WALL
    pods = UnboundPods(read_pod_request, lambda: now)
    pods.changed(None, waiting("p", created=""))
    now += 60
    pods.changed(None, waiting("p", created="", message="why"))
    assert [(pod.created, pod.why) for pod in pods.all()] == [(WALL, "why")]


def test_number_and_size_are_bounded_whoever_writes_the_pods() -> None:
    pods = pods_of(most=50)
    long = "x" * 100_000
    for number in range(200):
        annotations = {"kerf.dev/gpu-model": "a" * 200, "more": long}
        pods.changed(None, waiting(f"p{number}", message=long, annotations=annotations))
    assert (len(pods), pods.full) == (50, True)
    assert all(len(pod.why) + len(pod.request) <= 1000 for pod in pods.all())
    pods.changed(waiting("p0"), None)
    pods.changed(None, waiting("p199"))
    assert len(pods) == 50
    assert "default/p199" in {pod.key for pod in pods.all()}


def test_who_has_thousands_of_pods_waiting_hides_nobody_elses() -> None:
    pods = pods_of(most=50)
    pods.changed(None, waiting("early", namespace="good"))
    for number in range(200):
        pods.changed(None, waiting(f"p{number}", namespace="hostile"))
    pods.changed(None, waiting("late", namespace="good"))
    assert {pod.key for pod in pods.all() if pod.key.startswith("good/")} == {"good/early", "good/late"}
    assert (len(pods), pods.full) == (50, True)
