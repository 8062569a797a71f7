"""Which pods objects make: of each kind an example as its own project writes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.explain.manifests.documents import DocumentError, given_documents, read_documents
from extender.explain.manifests.objects import GivenObjects, _read_objects
from extender.plugins.pods import read_pod_request
from extender.queueing.gangs import Group
from extender.queueing.pods.batches import gang_of
from tests.golden import Golden

SAMPLES = Path(__file__).parent / "samples"
CONTAINERS = {"containers": [{"name": "c"}]}
TEMPLATE = {"template": {"spec": CONTAINERS}}


def of_text(text: str, copies: int = 1) -> GivenObjects:
    return _read_objects(read_documents(text), copies)


def of(*manifests: dict[str, Any], copies: int = 1) -> GivenObjects:
    return _read_objects(given_documents(manifests, "objects"), copies)


def deployment(replicas: object) -> dict[str, Any]:
    return {"kind": "Deployment", "spec": TEMPLATE | {"replicas": replicas}}


def names(given: GivenObjects) -> list[str]:
    return [pod.key for pod in given.pods]


def gpus_of(given: GivenObjects) -> list[int]:
    requests = [read_pod_request(pod).gpus for pod in given.pods]
    return [request.count if request else 0 for request in requests]


def told() -> Iterator[str]:
    """Of each sample the pods, the GPUs that each asks for, and what is noted or left out."""
    for path in sorted(SAMPLES.glob("*.yaml")):
        given = of_text(path.read_text())
        assert len({pod.metadata.uid for pod in given.pods}) == len(given.pods)
        pods = (f"{pod.key} ({gpus})" for pod, gpus in zip(given.pods, gpus_of(given), strict=True))
        yield f"{path.stem}: {', '.join(pods)}"
        yield from (f"  note: {note}" for workload in given.workloads for note in workload.notes)
        yield from (f"  skipped: {name}" for name in given.skipped)


def test_an_object_makes_the_pods_that_its_controller_would_make(golden: Golden) -> None:
    golden("explain/manifests.txt", told())


def test_what_goes_with_pods_is_taken() -> None:
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": CONTAINERS}
    node, claim = {"kind": "Node", "metadata": {"name": "n"}}, {"kind": "ResourceClaim", "metadata": {"name": "c"}}
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "other"}}
    given = _read_objects(given_documents([pod, node, claim, template], "objects"), namespace="team")
    assert (names(given), given.nodes) == (["team/p"], [node])
    assert [found["metadata"]["namespace"] for found in (*given.claims, *given.claim_templates)] == ["team", "other"]


def test_a_job_runs_as_many_pods_at_once_as_it_says() -> None:
    cases: list[tuple[dict[str, Any], int]] = [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"completions": 3}, 1),
        ({"parallelism": 3, "completions": 9, "completionMode": "Indexed"}, 3),
        ({"parallelism": 2, "suspend": True}, 2),
        ({"parallelism": None}, 1),
    ]
    for spec, count in cases:
        given = of({"kind": "Job", "metadata": {"name": "j"}, "spec": spec | TEMPLATE})
        assert len(given.pods) == count


def test_pod_groups_of_both_apis_say_how_many_start_together() -> None:
    pod = {"kind": "Pod", "spec": CONTAINERS}
    plugins = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": {"name": "g"}}
    native = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "g"}}
    policy = {"schedulingPolicy": {"gang": {"minCount": 2}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}}
    volcano = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "v"}}
    given = of(pod, plugins | {"spec": {"minMember": 4}}, native | {"spec": policy}, volcano)
    assert given.groups == {"default/g": Group(4), "default/g native": Group(2, "rack")}
    assert given.skipped == ["PodGroup v"]


def test_copies_are_objects_with_names_of_their_own() -> None:
    given = of_text((SAMPLES / "indexed-job.yaml").read_text(), 2)
    assert [workload.name for workload in given.workloads] == [f"Job research/indexed-job-{copy}" for copy in (0, 1)]
    assert names(given)[::3] == ["research/indexed-job-0-0", "research/indexed-job-1-0"]
    assert [workload.copy for workload in given.workloads] == [1, 2]
    assert {gang_of(pod) for pod in given.pods} == {("research/indexed", 3)}  # as the queue reads it on the pods


def test_the_priority_of_a_class_that_is_given_counts() -> None:
    named = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    given = of({"kind": "Pod", "spec": CONTAINERS | {"priorityClassName": "high"}}, named)
    assert [pod.spec.priority for pod in given.pods] == [1000]


def test_a_pod_that_runs_is_asked_about_as_a_new_one() -> None:
    status = {"phase": "Running", "resourceClaimStatuses": [{"name": "x", "resourceClaimName": "its-own"}]}
    given = of({"kind": "Pod", "metadata": {"uid": "u"}, "spec": CONTAINERS | {"nodeName": "n"}, "status": status})
    (pod,) = given.pods
    assert (pod.spec.node_name, pod.status.phase, pod.status.resource_claim_statuses) == (None, "", None)
    assert "spec.nodeName is ignored: the pod is placed again" in given.workloads[0].notes


def test_what_is_wrong_is_told_with_its_place() -> None:
    no_pods, of_pod = "neither it nor any other object here creates pods", {"kind": "Pod", "spec": CONTAINERS}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"kind": "Foo"}, r"objects\[0\] \(Foo\): kind: Foo is not supported; use Pod, Job"),
        ({"metadata": {}}, r"objects\[0\] \(no kind\): kind: is missing"),
        ({"kind": "Service", "metadata": {"name": "s"}}, rf"Service s\): {no_pods}"),
        ({"kind": "DaemonSet"}, "each of its pods belongs to one node"),
        ({"kind": "Job"}, "required field `spec`"),
        ({"kind": "Job", "spec": {}}, "spec: Object missing required field `template`"),
        ({"kind": "Job", "spec": {"template": {"spec": {}}}}, "spec.template.spec: a pod needs containers"),
        ({"kind": "Pod"}, "spec: a pod needs containers"),
        (of_pod | {"metadata": {"name": "A b"}}, "'A b' is not a valid name"),
        (deployment("3"), "spec.replicas: Expected `int"),
        (deployment(-1), ">= 0"),
        (deployment(10_001), "spec.template: 10,001 pods exceed the limit of 10,000"),
        (deployment(10**12), "<= 1000000000"),
        (deployment(0), no_pods),
        ({"kind": "Job", "spec": TEMPLATE | {"completionMode": "Indexed"}}, "spec.completions: an Indexed Job needs"),
        ({"kind": "PyTorchJob", "spec": {}}, "its replicas are missing"),
        ({"kind": "RayJob", "spec": {}}, "spec.rayClusterSpec: is missing"),
        ({"kind": "RayCluster", "spec": {}}, "required field `headGroupSpec`"),
        ({"kind": "TFJob", "spec": {"tfReplicaSpecs": {"x" * 500: TEMPLATE}}}, "would be too long"),
        ({"kind": "List", "items": [3]}, r"objects\[0\], items\[0\] \(a number\): expected an object"),
        ({"kind": "PodList", "items": 3}, "items: expected a list, not a number"),
    ]
    for manifest, fault in cases:
        with pytest.raises(DocumentError, match=fault):
            of(manifest)
    assert len(of(deployment(10_000)).pods) == 10_000
