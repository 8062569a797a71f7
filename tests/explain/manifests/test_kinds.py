"""Which pods objects make: of each kind an example as its own project writes it."""

from pathlib import Path
from typing import Any

import pytest

from extender.explain.manifests.documents import DocumentError, given_documents, read_documents
from extender.explain.manifests.objects import Given, _read_objects
from extender.plugins.pods import read_pod_request
from extender.queueing.gangs import Group
from extender.queueing.pods.batches import gang_of

SAMPLES = Path(__file__).parent / "samples"
CONTAINERS = {"containers": [{"name": "c"}]}


def of_text(text: str, copies: int = 1) -> Given:
    return _read_objects(read_documents(text), copies)


def of(*manifests: dict[str, Any], copies: int = 1) -> Given:
    return _read_objects(given_documents(manifests, "objects"), copies)


def names(given: Given) -> list[str]:
    return [pod.key for pod in given.pods]


def gpus(given: Given) -> list[int]:
    requests = [read_pod_request(pod).gpus for pod in given.pods]
    return [request.count if request else 0 for request in requests]


CASES: list[tuple[str, list[str], list[int]]] = [
    ("job", ["default/pi-0"], [0]),
    ("indexed-job", ["research/indexed-job-0", "research/indexed-job-1", "research/indexed-job-2"], [2, 2, 2]),
    ("deployment", ["default/web-0", "default/web-1", "default/web-2"], [0, 0, 0]),
    ("stateful-set", ["default/web-0", "default/web-1"], [0, 0]),
    ("cron-job", ["default/hello-0"], [0]),
    (
        "job-set",
        ["default/pytorch-driver-0-0", *(f"default/pytorch-workers-{j}-{p}" for j in (0, 1) for p in (0, 1))],
        [0, 4, 4, 4, 4],
    ),
    (
        "leader-worker-set",
        [f"default/vllm-{group}" for group in (0, 1)] + [f"default/vllm-{g}-{w}" for g in (0, 1) for w in (1, 2)],
        [8, 8, 4, 4, 4, 4],
    ),
    ("pytorch-job", ["kubeflow/mnist-master-0", "kubeflow/mnist-worker-0", "kubeflow/mnist-worker-1"], [1, 1, 1]),
    ("mpi-job", ["default/nccl-launcher-0", "default/nccl-worker-0", "default/nccl-worker-1"], [0, 8, 8]),
    (
        "volcano-job",
        ["default/tensorflow-ps-0", "default/tensorflow-worker-0", "default/tensorflow-worker-1"],
        [0, 1, 1],
    ),
    (
        "ray-cluster",  # the least is two replicas, of two hosts each
        ["default/raycluster-head", *(f"default/raycluster-gpus-{number}" for number in range(4))],
        [0, 1, 1, 1, 1],
    ),
    ("ray-job", ["default/rayjob-head"], [0]),
]
"""Of each sample the pods, and the GPUs that each asks for."""


@pytest.mark.parametrize(("sample", "pods", "asked"), CASES)
def test_an_object_makes_the_pods_that_its_controller_would_make(
    sample: str, pods: list[str], asked: list[int]
) -> None:
    given = of_text((SAMPLES / f"{sample}.yaml").read_text())
    assert names(given) == pods
    assert gpus(given) == asked
    assert len({pod.metadata.uid for pod in given.pods}) == len(pods)


def test_every_sample_is_asked_about() -> None:
    found = {path.stem for path in SAMPLES.glob("*.yaml")}
    assert found == {sample for sample, _, _ in CASES}


def test_what_goes_with_pods_is_taken_or_told_as_left_out() -> None:
    given = of_text((SAMPLES / "stateful-set.yaml").read_text())
    assert given.skipped == ["Service nginx"]
    pod = {"kind": "Pod", "metadata": {"name": "p"}, "spec": CONTAINERS}
    node, claim = {"kind": "Node", "metadata": {"name": "n"}}, {"kind": "ResourceClaim", "metadata": {"name": "c"}}
    template = {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "other"}}
    given = _read_objects(given_documents([pod, node, claim, template], "objects"), namespace="team")
    assert (names(given), given.nodes) == (["team/p"], [node])
    assert [found["metadata"]["namespace"] for found in (*given.claims, *given.claim_templates)] == ["team", "other"]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({}, 1),
        ({"parallelism": 4}, 4),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"completions": 3}, 1),
        ({"parallelism": 3, "completions": 9, "completionMode": "Indexed"}, 3),
        ({"parallelism": 2, "suspend": True}, 2),
        ({"parallelism": None}, 1),
    ],
)
def test_a_job_runs_as_many_pods_at_once_as_it_says(spec: dict[str, Any], count: int) -> None:
    given = of({"kind": "Job", "metadata": {"name": "j"}, "spec": spec | {"template": {"spec": CONTAINERS}}})
    assert len(given.pods) == count


@pytest.mark.parametrize(
    ("sample", "note"),
    [
        ("indexed-job", "3 of its 5 pods run at once"),
        ("cron-job", "one run of it"),
        ("pytorch-job", "runPolicy.schedulingPolicy is ignored by Kerf's queue"),
        ("volcano-job", "minAvailable is ignored by Kerf's queue"),
        ("ray-job", "its submitter pod is not counted"),
    ],
)
def test_what_an_answer_leaves_out_is_noted(sample: str, note: str) -> None:
    (workload,) = of_text((SAMPLES / f"{sample}.yaml").read_text()).workloads
    assert any(found.startswith(note) for found in workload.notes), workload.notes


def test_a_gang_is_what_the_queue_reads_on_the_pods() -> None:
    given = of_text((SAMPLES / "indexed-job.yaml").read_text())
    assert {gang_of(pod) for pod in given.pods} == {("research/indexed", 3)}


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
    assert [workload.name for workload in given.workloads] == [
        "Job research/indexed-job-0",
        "Job research/indexed-job-1",
    ]
    assert names(given)[::3] == ["research/indexed-job-0-0", "research/indexed-job-1-0"]
    assert [workload.copy for workload in given.workloads] == [1, 2]


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


TEMPLATE = {"template": {"spec": CONTAINERS}}


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        pytest.param({"kind": "Foo"}, r"objects\[0\] \(Foo\): kind: Foo is not supported; use Pod, Job", id="kind"),
        pytest.param({"metadata": {}}, r"objects\[0\] \(no kind\): kind: is missing", id="no kind"),
        pytest.param(
            {"kind": "Service", "metadata": {"name": "s"}},
            "Service s.: neither it nor any other object here creates pods",
            id="no pods",
        ),
        pytest.param({"kind": "DaemonSet"}, "each of its pods belongs to one node", id="daemons"),
        pytest.param({"kind": "TrainJob"}, "write the JobSet", id="runtime"),
        pytest.param({"kind": "Job"}, "required field `spec`", id="no spec"),
        pytest.param({"kind": "Job", "spec": {}}, "spec: Object missing required field `template`", id="no template"),
        pytest.param(
            {"kind": "Job", "spec": {"template": {"spec": {}}}},
            "spec.template.spec: a pod needs containers",
            id="no containers",
        ),
        pytest.param({"kind": "Pod"}, "spec: a pod needs containers", id="empty pod"),
        pytest.param(
            {"kind": "Pod", "spec": CONTAINERS, "metadata": {"name": "A b"}}, "'A b' is not a valid name", id="name"
        ),
        pytest.param(
            {"kind": "Deployment", "spec": TEMPLATE | {"replicas": "3"}}, "spec.replicas: Expected `int", id="text"
        ),
        pytest.param({"kind": "Deployment", "spec": TEMPLATE | {"replicas": -1}}, ">= 0", id="negative"),
        pytest.param(
            {"kind": "Deployment", "spec": TEMPLATE | {"replicas": 100_000}},
            "spec.template: 100,000 pods exceed the limit of 10,000",
            id="many",
        ),
        pytest.param({"kind": "Deployment", "spec": TEMPLATE | {"replicas": 10**12}}, "<= 1000000000", id="very many"),
        pytest.param(
            {"kind": "Deployment", "spec": TEMPLATE | {"replicas": 0}},
            "neither it nor any other object here creates pods",
            id="none",
        ),
        pytest.param(
            {"kind": "Job", "spec": TEMPLATE | {"completionMode": "Indexed"}},
            "spec.completions: an Indexed Job needs this field",
            id="indexed",
        ),
        pytest.param({"kind": "PyTorchJob", "spec": {}}, "its replicas are missing", id="no roles"),
        pytest.param({"kind": "RayJob", "spec": {}}, "spec.rayClusterSpec: is missing", id="no cluster"),
        pytest.param({"kind": "RayCluster", "spec": {}}, "required field `headGroupSpec`", id="no head"),
        pytest.param(
            {"kind": "TFJob", "spec": {"tfReplicaSpecs": {"x" * 500: TEMPLATE}}}, "would be too long", id="long names"
        ),
        pytest.param({"kind": "List", "items": [3]}, r"objects\[0\], items\[0\] \(a number\): an object", id="item"),
        pytest.param({"kind": "PodList", "items": 3}, "items: expected a list, not a number", id="no list"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(manifest: dict[str, Any], fault: str) -> None:
    with pytest.raises(DocumentError, match=fault):
        of(manifest)
