"""Everything that the chart renders is what a real API server takes: fields, types, and its pods as restricted ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.plane import ControlPlane
from tests.install.helm import CHART, MATRIX, Helm, only
from tests.install.operators import install_definitions

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACE = "kerf-schemas"
MORE = [
    ("inject.enabled=true", "queue.enabled=true", "queue.pipelines=true"),
    ("mode=service", "tls.secretName=a", "access.tokensSecret=b", "imagePullSecrets[0].name=c"),
    ("webhook.tls.issuer.name=ca", "webhook.tls.issuer.kind=ClusterIssuer", "inject.enabled=true"),
    ("tolerations[0].operator=Exists", "podLabels.a=b", "podAnnotations.c=d", "replicas=3", "dashboard.enabled=true"),
]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("schemas")) as running:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        running.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        install_definitions(running)
        yield running


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


@pytest.mark.parametrize("values", [*MATRIX, *MORE], ids=" ".join)
def test_every_object_is_valid(plane: ControlPlane, helm: Helm, values: tuple[str, ...]) -> None:
    objects = helm.render(*values, namespace=NAMESPACE)
    assert len(objects) > 3
    for item in objects:
        plane.validate(item)
    for deployment in (item for item in objects if item["kind"] == "Deployment"):
        plane.validate(pod_of(deployment))


@pytest.mark.parametrize("values", [*MATRIX, *MORE], ids=" ".join)
def test_every_variant_is_installed_on_a_live_api_server(
    plane: ControlPlane, tmp_path: Path, values: tuple[str, ...]
) -> None:
    """What Helm makes of a live server's version and kinds, in a namespace for restricted pods; and away again."""
    helm = Helm(tmp_path, plane.kubeconfig("admin"))
    settings = [part for value in values for part in ("--set", value)]
    notes = helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, *settings)
    try:
        assert "kubectl kerf explain NAMESPACE/POD" in notes
        for item in plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]:
            plane.validate(pod_of(item))
    finally:
        helm("uninstall", "kerf", "--namespace", NAMESPACE)
    assert not plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]


def test_an_object_that_is_not_is_refused(plane: ControlPlane, helm: Helm) -> None:
    """The checks above can fail: on a field that nobody knows, a value of an operator's kind, a pod that may more."""
    (deployment,) = (item for item in helm.render(namespace=NAMESPACE) if item["kind"] == "Deployment")
    unknown = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(ApiError, match="replica"):
        plane.validate(unknown)
    rule = only(
        helm.render("prometheusRule.enabled=true", "serviceMonitor.enabled=true", namespace=NAMESPACE), "PrometheusRule"
    )
    rule["spec"]["groups"][0]["rules"][0]["for"] = "5 minutes"
    with pytest.raises(ApiError, match=r"rules\[0\]\.for"):
        plane.validate(rule)
    loose = pod_of(deployment)
    loose["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    with pytest.raises(ApiError, match="violates PodSecurity"):
        plane.validate(loose)


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    """A pod as the Deployment's controllers make it."""
    template = deployment["spec"]["template"]
    metadata = {**template["metadata"], "name": "probe", "namespace": NAMESPACE}
    spec = template["spec"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
