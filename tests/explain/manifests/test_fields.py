"""Fields of a manifest that no API has: told, and never of a manifest that is right."""

from pathlib import Path
from typing import Any

from extender.explain.manifests.documents import given_documents, read_documents
from extender.explain.manifests.objects import _read_objects
from tests.golden import Golden

SAMPLES = Path(__file__).parent / "samples"
CONTAINER: dict[str, Any] = {"name": "c"}
POD = {"containers": [CONTAINER]}


def notes(manifest: dict[str, Any]) -> list[str]:
    (workload,) = _read_objects(given_documents([manifest], "objects")).workloads
    return [note for note in workload.notes if "no such field" in note]


def made(kind: str, spec: dict[str, Any], **template: Any) -> dict[str, Any]:
    inner = {"metadata": {"labels": {"a": "b"}}, "spec": {**POD, **template}}
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "w"}, "spec": {**spec, "template": inner}}


def test_a_field_that_no_api_has_is_told(golden: Golden) -> None:
    limits = {"resources": {"limit": {"nvidia.com/gpu": 1}}}
    cron = {"jobTemplate": {"spec": {"parallelisms": 2, "template": {"spec": POD}}}}
    jobs = {"replicatedJobs": [{"name": "w", "replica": 2, "template": {"spec": {"template": {"spec": POD}}}}]}
    manifests: list[dict[str, Any]] = [
        *(made("Job", {"parallelizm": 4}), made("Deployment", {"replica": 4}), made("Deployment", {"parallelism": 4})),
        *(made("Job", {}, nodeSelectr={"a": "b"}), made("Job", {}, tolerations=[{"key": "a", "efect": "NoSchedule"}])),
        *(made("Job", {}, containers=[CONTAINER | {"resource": {}}]), made("Job", {}, containers=[CONTAINER | limits])),
        {"kind": "Pod", "metadata": {"name": "p", "annotation": {}}, "spec": POD},
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": POD, "sepc": {}},
        {"kind": "CronJob", "metadata": {"name": "c"}, "spec": cron},
        {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "s"}, "spec": jobs},
    ]
    told = [f"{manifest['kind']}: {note}" for manifest in manifests for note in notes(manifest)]
    golden("explain/unknown-fields.txt", told)


def test_nothing_is_told_of_what_projects_write_themselves() -> None:
    for sample in SAMPLES.glob("*.yaml"):
        for workload in _read_objects(read_documents(sample.read_text())).workloads:
            assert not [note for note in workload.notes if "no such field" in note]


def test_a_few_of_many_are_told() -> None:
    assert len(notes(made("Job", {f"foo{number}": 1 for number in range(5000)}))) == 8
