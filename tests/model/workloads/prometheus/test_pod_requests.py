"""Requests of pods, from resources, labels and annotations."""

from typing import Any

from extender.core.resources.gpu_models import describe_model
from model.workloads.prometheus.kube_state import _label_of
from model.workloads.prometheus.pod_requests import Asked, asked, gang_name

MODELS = [describe_model(product, {}) for product in ("NVIDIA-A100-SXM4-80GB", "Tesla-T4", "NVIDIA-H100-80GB-HBM3")]
REQUESTS = {"cpu": 0.1 + 0.2, "memory": 2.0**30 + 1, "nvidia_com_gpu": 2.0}


def of(requests: dict[str, float] | None = None, **said: Any) -> Asked:
    told = {"labels": {}, "annotations": {}, "product": "", "priority_class": "", "models": MODELS, **said}
    return asked(REQUESTS if requests is None else requests, most_memory_mib=81920, **told)


def test_resources() -> None:
    assert of() == Asked(2, 1000, 0, "", 300, 1025, 0)
    assert of({}) == Asked(0, 0, 0, "", 0, 0, 0)


def test_annotations() -> None:
    none: dict[str, float] = {}
    four, two_models = {"nvidia_com_gpu": 4.0}, "a100-sxm4-80gb|h100-80gb-hbm3"
    for requests, name, value, row in (
        (none, "gpu-share", "300", (1, 300, 0, "")),
        (none, "gpu-memory-each", "16Gi", (1, 1000, 16384, "")),
        (none, "gpu-memory-total", "200Gi", (3, 1000, 0, "")),  # of 80 GiB each
        (four, "gpu-model", "a100|h100", (4, 1000, 0, two_models)),
        (four, "gpu-model-exclude", "t4", (4, 1000, 0, two_models)),
        (four, "gpu-model", ".", (4, 1000, 0, "")),
        (four, "gpu-model", "b200", (4, 1000, 0, "b200")),  # no node has it
        (four, "gpu-model", "(", (4, 1000, 0, "")),  # can't be read
        (four, "gpu-count", "2", (4, 1000, 0, "")),  # disagrees with the resources
    ):
        found = of(requests, annotations={f"kerf.dev/{name}": value})
        assert (found.gpus, found.gpu_milli, found.gpu_memory_mib, found.gpu_models) == row


def test_products_and_priorities() -> None:
    assert of(product="Tesla-T4").gpu_models == "t4"
    assert of(product="Tesla-T4", models=[]).gpu_models == ""
    assert of(priority_class="system-node-critical").priority == 2_000_001_000
    assert of(priority_class="ours").priority == 0
    assert of(priority_class="ours", labels={"genius/priority": "7"}).priority == 7


def test_gangs() -> None:
    assert gang_name({"training.kubeflow.org/job-name": "t"}, {}) == "t"
    assert gang_name({"scheduling.x-k8s.io/pod-group": "g", "training.kubeflow.org/job-name": "t"}, {}) == "g"
    assert gang_name({"scheduling.x-k8s.io/pod-group": "g"}, {"kerf.dev/gang": "k"}) == "k"
    assert gang_name({}, {"scheduling.k8s.io/group-name": "v"}) == "v"
    assert gang_name({}, {}) == ""


def test_names_of_labels() -> None:
    assert _label_of("label", "scheduling.x-k8s.io/pod-group") == "label_scheduling_x_k8s_io_pod_group"
