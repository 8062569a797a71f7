"""Every pod without a node that asks for GPUs, in few words, however many there are and whatever they say."""

from typing import Any

from extender.kube import objects
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.unbound_pods import UnboundPods
from tests.ledger.builders import Clock, pod_manifest

CREATED, CREATED_AT = "2026-11-21T08:00:00Z", 1_795_248_000.0


def pods_of(*pods: objects.Pod, clock: Clock | None = None, most: int = 100) -> UnboundPods:
    known = UnboundPods(read_pod_request, clock or Clock(1_800_000_000.0), most)
    for pod in pods:
        known.changed(None, pod)
    return known


def waiting(
    name: str,
    gpus: int | str = 1,
    *,
    message: str = "",
    created: str = CREATED,
    namespace: str = "default",
    spec: dict[str, Any] | None = None,
    **options: Any,
) -> objects.Pod:
    manifest = pod_manifest(name, gpus, **options)
    manifest["metadata"] |= {"namespace": namespace, "creationTimestamp": created or None}
    manifest["spec"] |= spec or {}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    manifest["status"]["conditions"] = [condition] if message else []
    return decode_pod(manifest)


def test_each_pod_is_known_with_its_age_and_what_keeps_it() -> None:
    reasons = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu"
    message = f"{reasons}. no new claims to deallocate, preemption: 0/2 nodes are available: 2 No ..."
    pods = pods_of(
        waiting("asking", 4, message=message),
        waiting("gated", spec={"schedulingGates": [{"name": "a/b"}]}),
        waiting("unseen", spec={"schedulerName": "kerf-scheduler"}),
        waiting("unclear", annotations={"kerf.dev/gpu-memory-each": "lots"}),
        waiting("cpu", 0),
        waiting("leaving", terminating=True),
    )
    asking, gated, unseen, unclear = pods.all()
    assert (asking.key, asking.request, asking.created, asking.why) == ("default/asking", "4 GPUs", CREATED_AT, reasons)
    assert (gated.why, gated.gated) == ("held by scheduling gate a/b", True)
    assert unseen.why == "no status yet from its scheduler kerf-scheduler"
    assert unclear.why.startswith("kerf.dev/gpu-memory-each: ")


def test_a_pod_that_gets_a_node_or_is_gone_is_forgotten() -> None:
    pods = pods_of(*map(waiting, ("gone", "stays")))
    pods.changed(waiting("gone"), None)
    assert [pod.key for pod in pods.all()] == ["default/stays"]


def test_without_a_time_stamp_age_counts_from_the_first_sight() -> None:
    clock = Clock(1_800_000_000.0)
    pods = pods_of(waiting("p", created=""), clock=clock)
    clock.now += 60
    pods.changed(None, waiting("p", created="", message="why"))
    assert [(pod.created, pod.why) for pod in pods.all()] == [(1_800_000_000.0, "why")]


def test_number_and_size_are_bounded_and_a_namespace_hides_no_other() -> None:
    long = "x" * 100_000
    annotations = {"kerf.dev/gpu-model": "a" * 200, "more": long}
    many = [waiting(f"p{number}", namespace="hostile", message=long, annotations=annotations) for number in range(200)]
    pods = pods_of(waiting("early", namespace="good"), *many, waiting("late", namespace="good"), most=50)
    assert (len(pods), pods.full) == (50, True)
    assert {pod.key for pod in pods.all() if pod.namespace == "good"} == {"good/early", "good/late"}
    assert all(len(pod.why) + len(pod.request) <= 1000 for pod in pods.all())
