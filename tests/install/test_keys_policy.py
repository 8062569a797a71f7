"""The policy that warns, on a real API server: of keys that nobody reads, slips of values, and misplaced keys."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from extender.core.keys import _KEYS, _Kind, _names_on, _On
from tests.controlplane.api import Api, ApiError
from tests.controlplane.objects import pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.manifests import KEYS_FILE, MANIFESTS, render_keys
from tests.install.policies import POLICY

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

Manifest = dict[str, Any]
PODS = "/api/v1/namespaces/default/pods?dryRun=All"
JOBS = "/apis/batch/v1/namespaces/default/jobs?dryRun=All"
SCRATCH = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Of an author, with the policies as they are shipped and no Kerf anywhere."""
    with ControlPlane(tmp_path_factory.mktemp("keys"), users={"author": "alice"}) as plane:
        plane.apply(POLICY)
        plane.grant("author", {"apiGroups": ["", "apps", "batch"], "resources": ["*"], "verbs": ["*"]})
        author = plane.api("author")
        wait_until(lambda: told(author, {"kerf.dev/foo": "x"}), 20.0, "the policy is in force")
        yield author
        author.close()


def told(api: Api, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> list[str]:
    words = api.warnings(PODS, pod("p", 1, annotations=annotations, labels=labels))
    return [word.partition(": ")[2] if "kerf-keys" in word else word for word in words]


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({"kerf.dev/gpu-modle": "h100"}, "kerf.dev/gpu-modle: no such key; do you mean kerf.dev/gpu-model?"),
        ({"kerf.dev/gpumodel": "h100"}, "kerf.dev/gpumodel: no such key; do you mean kerf.dev/gpu-model?"),
        (
            {"kerf.dev/gpu-memmory-each": "40Gi"},
            "kerf.dev/gpu-memmory-each: no such key; do you mean kerf.dev/gpu-memory-each?",
        ),
        (
            {"kerf.dev/gpu-memory-totl": "40Gi"},
            "kerf.dev/gpu-memory-totl: no such key; do you mean kerf.dev/gpu-memory-total?",
        ),
        ({"kerf.dev/xyz": "1"}, "kerf.dev/xyz: no such key"),
        ({"kerf.dev/gpu-memory-each": "40"}, 'kerf.dev/gpu-memory-each: "40" is 40 MiB; do you mean 40Gi?'),
        (
            {"kerf.dev/gpu-memory-total": "40GB"},
            'kerf.dev/gpu-memory-total: "40GB" is not a size; write one such as 40Gi',
        ),
        (
            {"kerf.dev/gpu-share": "50%"},
            'kerf.dev/gpu-share: "50%": a share is in thousandths of a GPU; write 500 for half of one',
        ),
        (
            {"kerf.dev/gpu-share": "1"},
            'kerf.dev/gpu-share: "1": a share is in thousandths of a GPU; write 500 for half of one',
        ),
    ],
)
def test_a_pod_is_taken_with_a_warning(api: Api, annotations: dict[str, str], sentence: str) -> None:
    assert told(api, annotations) == [sentence]


def test_labels_resources_and_gates_are_looked_at_too(api: Api) -> None:
    assert told(api, labels={"kerf.dev/gpu-model": "h100"}) == [
        "kerf.dev/gpu-model: a key of another kind (annotation, label, resource or scheduling gate)"
    ]
    limited = pod("p", schedulingGates=[{"name": "kerf.dev/queu"}])
    limited["spec"]["containers"][0]["resources"]["limits"] = {"kerf.dev/gpus": "1"}
    (warning,) = api.warnings(PODS, limited)
    assert "kerf.dev/gpus: no such key" in warning
    assert "And 1 more" in warning


def test_of_all_keys_that_there_are_nothing_is_said(api: Api) -> None:
    values = {"kerf.dev/gpu-share": "500", "kerf.dev/gpu-memory-each": "16Gi", "kerf.dev/gpu-memory-total": "16384"}
    written = {key.name for key in _KEYS if key.written}
    annotations = {name: values.get(name, "x") for name in _names_on(_On.POD, _Kind.ANNOTATION) if name not in written}
    labels = dict.fromkeys(_names_on(_On.POD, _Kind.LABEL), "x")
    assert told(api, annotations, labels) == []
    assert told(api, {"example.com/gpu-modle": "x"}, {"app": "train"}) == []


@pytest.mark.parametrize(("kind", "group", "plural"), [
    ("Deployment", "apis/apps/v1", "deployments"),
    ("StatefulSet", "apis/apps/v1", "statefulsets"),
    ("DaemonSet", "apis/apps/v1", "daemonsets"),
    ("ReplicaSet", "apis/apps/v1", "replicasets"),
    ("Job", "apis/batch/v1", "jobs"),
    ("CronJob", "apis/batch/v1", "cronjobs"),
])  # fmt: skip
def test_what_makes_pods_is_looked_at_and_its_own_keys_are_misplaced(
    api: Api, kind: str, group: str, plural: str
) -> None:
    def made(own: dict[str, str], template: dict[str, str]) -> list[str]:
        spec: Manifest = {"template": {"metadata": {"labels": {"a": "b"}, "annotations": template}, "spec": SCRATCH}}
        if kind not in ("Job", "CronJob"):
            spec["selector"] = {"matchLabels": {"a": "b"}}
            spec["template"]["spec"] = {**SCRATCH, "restartPolicy": "Always"}
        if kind == "StatefulSet":
            spec["serviceName"] = "s"
        if kind == "CronJob":
            spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
        manifest = {
            "apiVersion": group.removeprefix("apis/"),
            "kind": kind,
            "metadata": {"name": "w", "annotations": own},
            "spec": spec,
        }
        words = api.warnings(f"/{group}/namespaces/default/{plural}?dryRun=All", manifest)
        return [word for word in words if "kerf-keys" in word]

    right = {"kerf.dev/gpu-model": "h100"}
    assert made({}, right) == made(right, right) == made({"example.com/a": "b"}, {}) == []
    (misplaced,) = made(right, {})
    assert misplaced.endswith(f"kerf.dev/gpu-model: only read in the pod template, not on the {kind} itself")
    (typo,) = made({}, {"kerf.dev/gpu-modle": "h100"})
    assert typo.endswith("kerf.dev/gpu-modle: no such key; do you mean kerf.dev/gpu-model?")


def test_what_a_controller_makes_is_not_looked_at(api: Api) -> None:
    owned = pod("p", annotations={"kerf.dev/foo": "x"})
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}
    ]
    assert api.warnings(PODS, owned) == []


def test_the_policies_type_check_and_stop_nobody(api: Api) -> None:
    manifest = pod("p", annotations={f"kerf.dev/foo-{number}": "x" for number in range(300)})
    (warning,) = api.warnings(PODS, manifest)
    assert "no such key And 299 more" in warning
    with pytest.raises(ApiError):  # a real fault is told as ever
        api.warnings(PODS, {**manifest, "spec": {}})


def test_the_chart_has_the_keys_of_the_table() -> None:
    assert KEYS_FILE.read_text() == render_keys()
    told_keys = yaml.safe_load(KEYS_FILE.read_text())
    assert set(told_keys["annotations"]) == set(_names_on(_On.POD, _Kind.ANNOTATION))
    for manifest in (MANIFESTS / "install.yaml", MANIFESTS / "admission-policy.yaml"):
        assert "kerf.dev/gpu-containers" in manifest.read_text()
