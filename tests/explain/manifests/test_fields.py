"""Fields of a manifest that no API has: told, and never of a manifest that is right."""

from pathlib import Path
from typing import Any

import pytest

from extender.explain.manifests.documents import given_documents, read_documents
from extender.explain.manifests.objects import _read_objects

SAMPLES = Path(__file__).parent / "samples"
POD = {"containers": [{"name": "c"}]}


def notes(manifest: dict[str, Any]) -> list[str]:
    (workload,) = _read_objects(given_documents([manifest], "objects")).workloads
    return [note for note in workload.notes if "no such field" in note]


def made(kind: str, spec: dict[str, Any], **template: Any) -> dict[str, Any]:
    inner = {"metadata": {"labels": {"a": "b"}}, "spec": {**POD, **template}}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "w"}, "spec": {**spec, "template": inner}}


@pytest.mark.parametrize(
    ("manifest", "told"),
    [
        (made("Job", {"parallelizm": 4}), "spec.parallelizm: no such field; do you mean parallelism?"),
        (made("Deployment", {"replica": 4}), "spec.replica: no such field; do you mean replicas?"),
        (made("Deployment", {"parallelism": 4}), "spec.parallelism: no such field"),
        (made("Job", {"foo": 4}), "spec.foo: no such field"),
        (
            made("Job", {}, nodeSelectr={"a": "b"}),
            "spec.template.spec.nodeSelectr: no such field; do you mean nodeSelector?",
        ),
        (
            made("Job", {}, containers=[{"name": "c", "resource": {}}]),
            "spec.template.spec.containers[0].resource: no such field; do you mean resources?",
        ),
        (
            made("Job", {}, containers=[{"name": "c", "resources": {"limit": {"nvidia.com/gpu": 1}}}]),
            "spec.template.spec.containers[0].resources.limit: no such field; do you mean limits?",
        ),
        (
            made("Job", {}, tolerations=[{"key": "a", "efect": "NoSchedule"}]),
            "spec.template.spec.tolerations[0].efect: no such field; do you mean effect?",
        ),
        (
            {"kind": "Pod", "metadata": {"name": "p", "annotation": {}}, "spec": POD},
            "metadata.annotation: no such field; do you mean annotations?",
        ),
        ({"kind": "Pod", "metadata": {"name": "p"}, "spec": POD, "sepc": {}}, "sepc: no such field; do you mean spec?"),
        (
            {
                "kind": "CronJob",
                "metadata": {"name": "c"},
                "spec": {"schedule": "", "jobTemplate": {"spec": {"parallelisms": 2, "template": {"spec": POD}}}},
            },
            "spec.jobTemplate.spec.parallelisms: no such field; do you mean parallelism?",
        ),
        (
            {
                "apiVersion": "jobset.x-k8s.io/v1alpha2",
                "kind": "JobSet",
                "metadata": {"name": "s"},
                "spec": {
                    "replicatedJobs": [{"name": "w", "replica": 2, "template": {"spec": {"template": {"spec": POD}}}}]
                },
            },
            "spec.replicatedJobs[0].replica: no such field; do you mean replicas?",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_field_that_no_api_has_is_told(manifest: dict[str, Any], told: str) -> None:
    assert notes(manifest) == [told]


@pytest.mark.parametrize("sample", sorted(path.stem for path in SAMPLES.glob("*.yaml")))
def test_nothing_is_told_of_what_projects_write_themselves(sample: str) -> None:
    for workload in _read_objects(read_documents((SAMPLES / f"{sample}.yaml").read_text())).workloads:
        assert not [note for note in workload.notes if "no such field" in note]


def test_a_few_of_many_are_told() -> None:
    assert len(notes(made("Job", {f"foo{number}": 1 for number in range(5000)}))) == 8
