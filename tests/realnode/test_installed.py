"""What `helm install` writes, started by a kubelet as containers of the image that the Dockerfile makes."""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from extender import __version__
from extender.cli.client import kubectl_plugin
from release import packages
from tests.controlplane import ControlPlane, objects, wait_until
from tests.controlplane.api import Object
from tests.controlplane.commands import WITH_SERVICE_ACCOUNTS
from tests.controlplane.objects import gpu_node
from tests.docs.kubectl import find_kubectl
from tests.install.helm import CHART, Helm
from tests.realnode import SERVER_FLAGS, Node, building, gpus, images, lacking

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.nightly(
        of=("manifests/helm/", "Dockerfile", "requirements/", "extender/parts/agent/", "tests/realnode/")
    ),
    pytest.mark.skipif(bool(lacking() or building.lacking_builder()), reason=lacking() or building.lacking_builder()),
]

NAMESPACE = "kerf-system"
SCHEDULER = "registry.k8s.io/kube-scheduler"
PLAIN = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles: [{schedulerName: default-scheduler}]
"""
CONTROLLERS = (
    *("deployment-controller", "replicaset-controller", "daemonset-controller", "endpointslice-controller"),
    *("serviceaccount-controller", "root-ca-certificate-publisher-controller", "garbage-collector-controller"),
)
"""Of kube-controller-manager: what makes pods of the chart's objects, and what pods find mounted."""
SETTINGS = (
    *(f"image.repository={building.REPOSITORY}", f"image.tag={building.TAG}", "webhook.replicas=1"),
    *("queue.enabled=true", "inject.enabled=true", "agent.enabled=true"),
)
ROLLED_OUT_WITHIN = "180s"
FOUR = gpus(4)
PENDING = 3
"""Exit status of `kerf explain`."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kerf's image."""
    return building.kerf_image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane as clusters have it: pods have service accounts, webhooks are called by their Services."""
    # Without kube-proxy a Service is reached by its endpoints.
    routing = ("--enable-aggregator-routing=true", "--kubelet-preferred-address-types=InternalIP")
    flags = (*SERVER_FLAGS, WITH_SERVICE_ACCOUNTS, *routing)
    with ControlPlane(tmp_path_factory.mktemp("installed"), flags=flags) as plane:
        plane.start_controller_manager(*CONTROLLERS)
        plane.start_scheduler(PLAIN)
        yield plane


@pytest.fixture(scope="module")
def node(plane: ControlPlane, image: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A GPU node that has the images of the chart's pods."""
    scheduler = tmp_path_factory.mktemp("scheduler") / "scheduler.tar"
    version = plane.request("GET", "/version")["gitVersion"]
    images.image_of_program(scheduler, f"{SCHEDULER}:{version}", plane.binaries.kube_scheduler)
    with Node(plane, "gpu-0", gpu_node("")["metadata"]["labels"]) as node:
        node.serve_api()
        node.load_image(scheduler)
        node.load_image(image)
        yield node


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, node: Node, tmp_path_factory: pytest.TempPathFactory) -> float:
    """The chart is installed, and all of its pods are ready: seconds that this took."""
    helm = Helm(tmp_path_factory.mktemp("helm"), plane.kubeconfig("admin"))
    began = time.monotonic()
    settings = [part for value in SETTINGS for part in ("--set", value)]
    where = ("--namespace", NAMESPACE, "--create-namespace")
    try:
        helm("install", "kerf", str(CHART), *where, *settings, "--wait", "--timeout", ROLLED_OUT_WITHIN)
    except Exception as error:
        error.add_note(described(plane, node))
        raise
    return time.monotonic() - began


def described(plane: ControlPlane, node: Node) -> str:
    """What the chart's pods say of themselves."""
    told = []
    for pod in plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]:
        logs = sorted((node.folder / "log" / "pods").glob(f"{NAMESPACE}_{pod['metadata']['name']}_*/*/*.log"))
        told += [json.dumps(pod["status"]), *(f"{log}:\n{log.read_text()[-3000:]}" for log in logs)]
    events = plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return "\n".join([*told, *(f"{event['reason']}: {event['message']}" for event in events)])


def test_the_image_says_what_it_is(image: Path) -> None:
    config = images.described(image)["config"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in config["Labels"].items()}
    assert (labels["title"], labels["version"], labels["licenses"]) == ("Kerf", __version__, "Apache-2.0")
    assert {"description", "revision", "created", "base.name"} <= labels.keys()
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["kerf"]


def test_what_is_released_as_its_sbom_is_what_the_image_has(image: Path, tmp_path: Path) -> None:
    """By name and version; where this Python is another than the image's, some versions are others."""
    packages.install_tools(tools := tmp_path / "tools")
    packages.build(tools, tmp_path)
    packages.write_sbom(tools, packages.wheel_in(tmp_path), sbom := tmp_path / "sbom.json")
    told = {normal(item["name"]): item["version"] for item in json.loads(sbom.read_text())["components"]}
    installed = re.compile(r"opt/kerf/lib/(python[\d.]+)/site-packages/([^/]+)-([^/-]+)\.dist-info/METADATA")
    found = [match.groups() for name in images.files_in(image) if (match := installed.fullmatch(name))]
    held = {normal(name): version for _, name, version in found}
    assert held.keys() - {"kerf"} == told.keys() - {"kerf"}
    assert held["kerf"] == __version__
    if {python for python, _, _ in found} == {f"python{sys.version_info[0]}.{sys.version_info[1]}"}:
        assert held.items() - {("kerf", __version__)} == told.items() - {("kerf", __version__)}


def normal(name: str) -> str:
    """A package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def asking(name: str, num_gpus: int = 2, labels: Mapping[str, str] | None = None) -> Object:
    """A pod for Kerf's scheduler."""
    pod = objects.pod(name, gpus=num_gpus, scheduler_name="kerf-scheduler", labels=labels)
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    return pod


@contextlib.contextmanager
def plugin_behind_agent(node: Node) -> Iterator[None]:
    """The node's plugin registers where the agent of the DaemonSet listens; no pod that used it is left."""
    with node.device_plugin({"nvidia.com/gpu": FOUR}, kubelet_socket=node.plugin_folder / "kerf.sock") as plugin:
        node.wait_offered(plugin.resources)
        yield
        node.clean(namespace="default")


def test_a_pod_runs_with_the_very_gpus_that_kerf_chose(plane: ControlPlane, node: Node, installed: float) -> None:
    with plugin_behind_agent(node):
        plane.apply(asking("first"))
        visible = node.environments("first")["main"]["NVIDIA_VISIBLE_DEVICES"].split(",")
        found = plane.request("GET", "/api/v1/namespaces/default/pods/first")
        assert found["spec"]["nodeName"] == node.name
        assigned = found["metadata"]["annotations"]["kerf.dev/assigned-gpus"].split(",")
        assert set(visible) == {FOUR[int(index)].id for index in assigned}
        # Not by chance: the plugin prefers the last ones.
        assert set(visible) != {FOUR[2].id, FOUR[3].id}


def test_every_pod_is_ready_and_none_of_its_containers_has_restarted(
    plane: ControlPlane, node: Node, installed: float
) -> None:
    """Probes, service accounts, security contexts and volumes are such that a real kubelet is content."""
    pods = plane.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    statuses = {pod["metadata"]["labels"]["app.kubernetes.io/name"]: pod["status"] for pod in pods}
    assert set(statuses) == {"kerf", "kerf-agent", "kerf-webhook"}
    containers = [container for status in statuses.values() for container in status["containerStatuses"]]
    assert {container["name"] for container in containers} >= {"kerf", "kube-scheduler"}
    assert all(of["ready"] and of["restartCount"] == 0 for of in containers), described(plane, node)


def test_the_api_server_asks_the_webhook_in_its_container(plane: ControlPlane, node: Node, installed: float) -> None:
    """A pod that opts into the queue gets the gate, which Kerf takes off when it has room."""
    queued = asking("queued", labels={"kerf.dev/queue": "enabled"})
    admitted = plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", queued)
    assert admitted["spec"]["schedulingGates"]
    with plugin_behind_agent(node):
        plane.apply(queued)
        assert node.environments("queued")["main"]["NVIDIA_VISIBLE_DEVICES"]


def test_from_the_installation_to_an_explained_pod_and_a_report(
    plane: ControlPlane,
    node: Node,
    installed: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`kubectl kerf` through a real port-forward, which a real kubelet serves."""
    monkeypatch.setenv("PATH", f"{find_kubectl().parent}:{os.environ['PATH']}")

    def kerf(*arguments: str) -> str:
        flags = ("--kubeconfig", str(plane.kubeconfig("admin")))
        result = CliRunner().invoke(kubectl_plugin.app, [*arguments, *flags])
        assert result.exit_code == (PENDING if arguments[0] == "explain" else 0), result.output
        return result.output

    def booked() -> float:
        rows = {row["namespace"]: row for row in json.loads(kerf("usage", "-o", "json"))["rows"]}
        return float(rows.get("default", {}).get("bookedGpuHours", 0))

    with plugin_behind_agent(node):
        began = time.monotonic()
        plane.apply(asking("held"))
        assert node.environments("held")
        running_s = time.monotonic() - began
        plane.apply(asking("large", 4))
        wait_until(lambda: "needs 4 GPUs" in kerf("explain", "large"), 30.0, "Kerf says why the large one waits")
        explained_s = time.monotonic() - began
        wait_until(lambda: booked() > 0, 90.0, "the hours of the one that runs are counted")
        with capsys.disabled():
            print(
                f"\nhelm install --wait: {installed:.0f} s; then a pod runs after {running_s:.0f} s, another is"
                f" explained after {explained_s:.0f} s, GPU-hours are told after {time.monotonic() - began:.0f} s"
            )


def test_what_is_uninstalled_ends(plane: ControlPlane, node: Node, installed: float, tmp_path: Path) -> None:
    helm = Helm(tmp_path, plane.kubeconfig("admin"))
    helm("uninstall", "kerf", "--namespace", NAMESPACE)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    wait_until(lambda: not plane.request("GET", pods)["items"], 60.0, "its pods are gone")
