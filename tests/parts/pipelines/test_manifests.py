"""Which pods pipelines and flows make, as questions about manifests read them."""

from pathlib import Path
from typing import Any

import pytest

from extender.explain.manifests.documents import DocumentError, given_documents, read_documents
from extender.explain.manifests.objects import Given, _read_objects
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.batches import gang_of

SAMPLES = Path(__file__).parent / "samples"


def of_sample(name: str) -> Given:
    return _read_objects(read_documents((SAMPLES / f"{name}.yaml").read_text()), 1)


@pytest.mark.parametrize(
    ("sample", "pods", "asked", "gangs"),
    [
        (
            "pipeline",
            ["research/nightly-prepare-fetch-0", "research/nightly-fit-train-0", "research/nightly-fit-train-1"],
            [0, 4, 4],
            [0, 2, 2],
        ),
        ("flow", ["team-a/flow-prepare-fetch-0"], [0], [0]),
    ],
)
def test_they_make_the_pods_of_the_stages_that_begin_at_once(
    sample: str, pods: list[str], asked: list[int], gangs: list[int]
) -> None:
    given = of_sample(sample)
    requests = [read_pod_request(pod).gpus for pod in given.pods]
    assert [pod.key for pod in given.pods] == pods
    assert [request.count if request else 0 for request in requests] == asked
    assert [gang_of(pod)[1] for pod in given.pods] == gangs


def test_that_others_follow_is_noted() -> None:
    (workload,) = of_sample("pipeline").workloads
    assert any(note == "the pods of its first stages (prepare, fit); others follow" for note in workload.notes)


@pytest.mark.parametrize(
    ("manifest", "fault"),
    [
        pytest.param({"kind": "MLFlow", "metadata": {"name": "f"}}, "spec.pipeline: stage1", id="no stages"),
        pytest.param(
            {"kind": "Pipeline", "spec": {"stages": [{"name": "a", "after": ["b"]}]}},
            "no stage is named 'b'",
            id="order",
        ),
        pytest.param(
            {"kind": "Pipeline", "spec": {"stages": [{"steps": [{"template": {"spec": {"schedulingGates": [1]}}}]}]}},
            r"stages\[0\].steps\[0\].template: is not a pod template",
            id="no template of a step",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(manifest: dict[str, Any], fault: str) -> None:
    with pytest.raises(DocumentError, match=fault):
        _read_objects(given_documents([manifest], "objects"), 1)
