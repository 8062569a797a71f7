"""Which pods pipelines and flows make, as questions about manifests read them."""

from pathlib import Path

import pytest

from extender.explain.manifests.documents import DocumentError, given_documents, read_documents
from extender.explain.manifests.objects import GivenObjects, _read_objects
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.batches import gang_of

SAMPLES = Path(__file__).parent / "samples"


def of_sample(name: str) -> GivenObjects:
    return _read_objects(read_documents((SAMPLES / f"{name}.yaml").read_text()), 1)


def test_they_make_the_pods_of_the_stages_that_begin_at_once() -> None:
    """Each with its GPUs and the size of its gang."""
    prefix = "research/nightly-"
    for sample, pods in (
        ("pipeline", [(f"{prefix}prepare-fetch-0", 0, 0), *((f"{prefix}fit-train-{n}", 4, 2) for n in (0, 1))]),
        ("flow", [("team-a/flow-prepare-fetch-0", 0, 0)]),
    ):
        found = []
        for pod in of_sample(sample).pods:
            request = read_pod_request(pod).gpus
            found.append((pod.key, request.count if request else 0, gang_of(pod)[1]))
        assert found == pods


def test_that_others_follow_is_noted() -> None:
    (workload,) = of_sample("pipeline").workloads
    assert any(note == "the pods of its first stages (prepare, fit); others follow" for note in workload.notes)


def test_what_is_wrong_is_told_with_its_place() -> None:
    gated = {"steps": [{"template": {"spec": {"schedulingGates": [1]}}}]}
    for manifest, fault in (
        ({"kind": "MLFlow", "metadata": {"name": "f"}}, "spec.pipeline: stage1"),
        ({"kind": "Pipeline", "spec": {"stages": [{"name": "a", "after": ["b"]}]}}, "no stage is named 'b'"),
        ({"kind": "Pipeline", "spec": {"stages": [gated]}}, r"stages\[0\].steps\[0\].template: is not a pod template"),
    ):
        with pytest.raises(DocumentError, match=fault):
            _read_objects(given_documents([manifest], "objects"), 1)
