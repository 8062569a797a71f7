"""manifests/marker-policy*.yaml on a real kube-apiserver: who is marked, and who is refused."""

from collections.abc import Iterator

import msgspec
import pytest

from extender.core.annotations import requests_by_metadata
from extender.kube.objects import Pod
from extender.plugins.pod_resources import is_managed
from tests.controlplane.api import ApiError
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, Manifest

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

PODS = "/api/v1/namespaces/default/pods"
POLICY = ROOT / "manifests" / "marker-policy.yaml"
ADDING = ROOT / "manifests" / "marker-policy-mutating.yaml"
MUTATING = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
ASKS = {"kerf.dev/gpu-count": "1"}
SENTENCE = 'add the limit kerf.dev/gpu: "1"'


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("marker")) as running:
        yield running


@pytest.fixture(scope="module")
def refusing(plane: ControlPlane) -> ControlPlane:
    """With the policy that refuses."""
    plane.apply(POLICY)
    probe = of_words(ASKS)
    wait_until(lambda: "refused" in tried(plane, probe), WITHIN_S, "the policy is in effect")
    return plane


@pytest.fixture(scope="module")
def adding(refusing: ControlPlane) -> ControlPlane:
    """And with the one that adds the marker before that."""
    if not refusing.exists(MUTATING):
        pytest.skip("MutatingAdmissionPolicy is served since 1.36")
    refusing.apply(ADDING)
    probe = of_words(ASKS)
    wait_until(lambda: "limits" in tried(refusing, probe), WITHIN_S, "the policy is in effect")
    return refusing


def tried(plane: ControlPlane, manifest: Manifest) -> Manifest:
    """The first container's resources as they would be stored; {"refused": why} where nothing would."""
    try:
        stored = plane.request("POST", f"{PODS}?dryRun=All", manifest)
    except ApiError as error:
        return {"refused": str(error)}
    resources: Manifest = stored["spec"]["containers"][0]["resources"]
    return resources


def limited(**limits: str) -> Manifest:
    manifest = pod("p", annotations=ASKS, marked=False)
    manifest["spec"]["containers"][0]["resources"]["limits"] = limits
    return manifest


def of_words(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> Manifest:
    return pod("p", annotations=annotations, labels=labels, marked=False)


def bare(resources: Manifest | None) -> Manifest:
    manifest = pod("p", annotations=ASKS, marked=False)
    del manifest["spec"]["containers"][0]["resources"]
    if resources is not None:
        manifest["spec"]["containers"][0]["resources"] = resources
    return manifest


def by_init(resource: str) -> Manifest:
    init = {"name": "i", "image": "i", "resources": {"limits": {resource: "1"}}}
    return pod("p", annotations=ASKS, marked=False, initContainers=[init])


CASES = [
    of_words(),
    pod("p", gpus=1),
    pod("p", gpus=1, annotations={"kerf.dev/gpu-model": "a100"}),
    of_words({"kerf.dev/gpu-count": "0"}),
    of_words({"kerf.dev/gpu-count": " ", "kerf.dev/policy": "spread", "a": "b"}),
    of_words({"kerf.dev/gpu-memory-total": "0"}),
    of_words(labels={"genius/priority": "3", "genius/gpu-memory-each": "0", "genius/gpu-model": ""}),
    *(
        of_words({f"kerf.dev/gpu-{key}": "1"})
        for key in ("count", "share", "memory-each", "memory-total", "model", "model-exclude", "uuid", "uuid-exclude")
    ),
    *(of_words(labels={f"genius/gpu-{key}": "1"}) for key in ("number", "memory-each", "memory-total", "model")),
    of_words({"kerf.dev/gpu-count": "zwölf"}),
    of_words({"kerf.dev/gpu-model": "0"}),
    limited(cpu="1"),
    limited(**{"kerf.dev/gpu": "1"}),
    limited(**{"nvidia.com/gpu.shared": "1"}),
    limited(**{"nvidia.com/mig-1g.5gb": "1"}),
    limited(**{"nvidia.com/gpumem": "40"}),
    limited(**{"aliyun.com/gpu-mem": "3"}),
    by_init("nvidia.com/gpu"),
    by_init("example.com/nic"),
    bare(None),
    bare({}),
    bare({"limits": {}}),
    bare({"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}}),
    pod("p", annotations=ASKS, marked=False, nodeName="node"),
]


def lacks_marker(manifest: Manifest) -> bool:
    """As Kerf's own webhook sees it."""
    found = msgspec.convert(manifest, Pod)
    metadata = found.metadata
    asks = requests_by_metadata(metadata.annotations or {}, metadata.labels or {})
    return asks and not is_managed(found.spec) and not found.spec.node_name


def test_exactly_those_without_a_marker_are_refused_with_what_to_add(refusing: ControlPlane) -> None:
    assert 10 < sum(map(lacks_marker, CASES)) < len(CASES) - 10
    for case in CASES:
        found = tried(refusing, case)
        assert (SENTENCE in found.get("refused", "")) == lacks_marker(case), (case, found)


def test_a_pod_does_not_begin_to_ask_later(refusing: ControlPlane) -> None:
    path = f"{PODS}/later"
    refusing.request("POST", PODS, of_words() | {"metadata": {"name": "later", "namespace": "default"}})
    patch = {"metadata": {"annotations": ASKS}}
    with pytest.raises(ApiError, match="add the limit"):
        refusing.request("PATCH", path, patch, "application/merge-patch+json")
    refusing.request("PATCH", path, {"metadata": {"annotations": {"a": "b"}}}, "application/merge-patch+json")
    refusing.request("DELETE", f"{path}?gracePeriodSeconds=0")


def test_exactly_those_without_a_marker_get_it(adding: ControlPlane) -> None:
    """And are refused by nobody then: the same file refuses what has none."""
    for case in CASES:
        found = tried(adding, case)
        assert "refused" not in found, (case, found)
        before = case["spec"]["containers"][0].get("resources", {})
        expected = {key: dict(before.get(key, {})) for key in ("limits", "requests")}
        if lacks_marker(case):
            expected["limits"]["kerf.dev/gpu"] = "1"
        expected["requests"] = expected["limits"] | expected["requests"]
        assert {key: found.get(key, {}) for key in expected} == expected, case
