"""The switch from HAMi, gpushare and Genius, as in docs/guides/migrating.md; device plugins and exporters are played
after their sources."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3
import yaml

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, wait_until
from tests.docs.pages import DOCS, sections
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, Manifest, assigned_gpus
from tests.e2e.test_contracts import GPUSHARE_CONFIG, asking, gpushare_node, hami_booked, hami_node, kubelet_on, sharing
from tests.e2e.webhooks import gates_of
from tests.install.helm import CHART, Helm
from tests.install.policies import HAMI_PLUGIN, enforce
from tests.install.running import Release, lead_to, serve_webhook, start_installed
from tests.telemetry import exporters
from tests.telemetry.prometheuses import Job, prometheus
from tests.telemetry.servers import serving

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACE = "kerf-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kerf"
GPUSHARE_PLUGIN = "system:serviceaccount:kube-system:gpushare-device-plugin"
PAGE = sections((DOCS / "guides" / "migrating.md").read_text())
SERVICES, PROMETHEUS_IP = "127.77.1.0/24", "127.77.1.9"


@pytest.fixture
def plane(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ControlPlane]:
    """A control plane on which Kerf and its kube-scheduler have the chart's account, unless the test has others."""
    users = {"kerf": ACCOUNT, "scheduler": ACCOUNT, "webhook": f"{ACCOUNT}-webhook", "plugin": HAMI_PLUGIN}
    flags = (f"--service-cluster-ip-range={SERVICES}",)
    with ControlPlane(tmp_path / "plane", users=users | getattr(request, "param", {}), flags=flags) as running:
        running.grant("plugin", {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]})
        yield running


def run(helm: Helm, section: str, start: str) -> None:
    """Run a section's command that begins so."""
    (found,) = re.findall(rf"^ *({start}.*?[^\\])$", PAGE[section], re.MULTILINE | re.DOTALL)
    words = shlex.split(found.replace("\\\n", ""))[1:]
    helm(*(str(CHART) if word == "manifests/helm/kerf" else word for word in words))


def pods_of(plane: ControlPlane) -> list[Manifest]:
    """All pods."""
    found: list[Manifest] = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    return found


HAMI: dict[str, Any] = {"scheduler_name": "hami-scheduler"}
"""What HAMi's webhook writes into pods; it stays."""


def test_from_hami_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    helm = Helm(tmp_path, plane.kubeconfig("admin"))
    gpus = {f"GPU-{index}": 15360 for index in range(4)}
    plane.apply(hami_node("node", gpus))
    by_hami = {"hami.io/vgpu-node": "node", "hami.io/bind-phase": "success", "hami.io/bind-time": "1795241852"}
    by_hami |= {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,10000,40:;", "hami.io/vgpu-devices-to-allocate": ";"}
    plane.apply(sharing("runs", 10000, 40, nodeName="node", annotations=by_hami, **HAMI))
    plane.apply(sharing("waits", 5000, 30, **HAMI))  # created while nobody schedules

    run(helm, "From HAMi", "helm install kerf")
    with ExitStack() as running:
        cluster = start_installed(Release(plane, NAMESPACE), tmp_path, running)
        cluster.set_phase("runs", "Running")
        kubelet = running.enter_context(kubelet_on(cluster, "node"))
        assert assigned_gpus(cluster.bound("waits")) == [0]  # what HAMi's pod has left
        half = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
        cluster.create(asking("by-uuid", half, annotations={"nvidia.com/use-gpuuuid": "GPU-3"}, **HAMI))
        assert assigned_gpus(cluster.bound("by-uuid")) == [3]
        cluster.create(asking("whole", {"nvidia.com/gpu": "2"}, **HAMI))
        assert assigned_gpus(cluster.bound("whole")) == [1, 2]
        cluster.create(sharing("no-t4", 1000, annotations={"nvidia.com/nouse-gputype": "T4"}, **HAMI))
        cluster.pending("no-t4", "model")
        assert cluster.event("waits", "GPUsAssigned")
        wait_until(lambda: len(kubelet.served) == 3, WITHIN_S, "HAMi's plugin has served all that are bound")
    booked = hami_booked(pods_of(plane))
    assert booked.keys() == gpus.keys()
    assert (booked["GPU-0"], booked["GPU-3"][0]) == ((15000, 70), 7680)

    run(helm, "From HAMi", "helm uninstall kerf")
    assert not plane.exists(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf")
    assert hami_booked(pods_of(plane)) == booked  # what HAMi's scheduler counts when it starts again


def gpushare_booked(pods: list[Manifest]) -> Counter[str]:
    """GiB of each GPU, as gpushare's extender builds its cache from the pods' annotations (`buildCache`, c0b6141)."""
    booked: Counter[str] = Counter()
    for found in pods:
        annotations = found["metadata"].get("annotations", {})
        if found["spec"].get("nodeName") and "ALIYUN_COM_GPU_MEM_IDX" in annotations:
            booked[annotations["ALIYUN_COM_GPU_MEM_IDX"]] += int(annotations["ALIYUN_COM_GPU_MEM_POD"])
    return booked


@pytest.mark.parametrize(
    "plane",
    [{"kerf": "system:kube-scheduler", "scheduler": "system:kube-scheduler", "plugin": GPUSHARE_PLUGIN}],
    indirect=True,
)
def test_from_gpushare_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    """On the control plane: the file of gpushare's guide with the entries of decisive.yaml, the static pod's rights."""
    plane.apply(gpushare_node("node", 2, 15))
    by_gpushare = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_POD": "10", "ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}
    by_gpushare |= {"ALIYUN_COM_GPU_MEM_DEV": "15", "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1795241852000000000"}
    plane.apply(asking("runs", {"aliyun.com/gpu-mem": "10"}, nodeName="node", annotations=by_gpushare))
    plane.apply(asking("waits", {"aliyun.com/gpu-mem": "3"}))  # created while nobody schedules
    enforce(plane)

    decisive = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text())
    config = tmp_path / "scheduler-policy-config.yaml"
    config.write_text(yaml.safe_dump({**GPUSHARE_CONFIG, "extenders": decisive["extenders"]}))
    with ExitStack() as running:
        kerf = KerfProcess(plane, "kerf", "--host=127.0.0.1")
        running.callback(kerf.stop)
        running.callback(plane.start_scheduler(config, extender_url=kerf.url).stop)
        cluster = KerfCluster(plane, kerf)
        cluster.set_phase("runs", "Running")
        kubelet = running.enter_context(kubelet_on(cluster, "node"))
        assert assigned_gpus(cluster.bound("waits")) == [1]  # what gpushare's pod has left
        cluster.create(asking("too-much", {"aliyun.com/gpu-mem": "16"}))
        cluster.pending("too-much", "best here")  # of the 17 GiB that the node has left no GPU has 16
        cluster.create(asking("large", {"aliyun.com/gpu-mem": "15"}))
        assert assigned_gpus(cluster.bound("large")) == [0]
        wait_until(lambda: len(kubelet.served) == 2, WITHIN_S, "gpushare's plugin has served all that are bound")
        for name, index in (("waits", "1"), ("large", "0")):
            found = cluster.pod(name)["metadata"]["annotations"]
            assert found["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
            assert kubelet.served[name]["ALIYUN_COM_GPU_MEM_IDX"] == index
    assert gpushare_booked(pods_of(plane)) == {"0": 15, "1": 13}  # what its extender counts when it is put back


GENIUS = "genius-scheduler"
EXAMPLE = """
apiVersion: v1
kind: Pod
metadata:
  name: example-pod
  labels:
    genius/gpu-number: "1"
    genius/gpu-model: "1070.Ti"
spec:
  restartPolicy: OnFailure
  schedulerName: genius-scheduler
  containers:
    - name: cuda-vector-add
      image: "nvidia/samples:vectoradd-cuda11.1"
      imagePullPolicy: IfNotPresent
"""
"""example/example-pod.yaml of jiangxiaosheng/Genius 6207927."""
MODELS = {"ti": "NVIDIA GeForce GTX 1070 Ti", "less": "NVIDIA Prototype A", "more": "NVIDIA Prototype B"}
"""Of the latter two the table of products knows nothing."""


def observerward(node: str) -> bytes:
    """What Genius' exporter says of a node: of the two prototypes one has more of everything."""
    multiprocessors, decoders, encoders = (80, 4, 2) if node == "more" else (20, 1, 1)
    gpus = [
        exporters.Gpu(
            number,
            total_mib=8192,
            reserved_mib=0,
            multiprocessors=multiprocessors,
            decoders=decoders,
            encoders=encoders,
            model=MODELS[node],
            uuid=f"GPU-{node}-{number}",
        )
        for number in range(2 if node == "ti" else 1)
    ]
    return exporters.observerward_page(exporters.Node(node, gpus)).encode()


def genius_pod(name: str, **labels: str) -> Manifest:
    """A pod with Genius' labels, and nothing of Kerf's."""
    return pod(name, labels={f"genius/{key.replace('_', '-')}": value for key, value in labels.items()},
               scheduler_name=GENIUS, marked=False)  # fmt: skip


def test_from_genius_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    """Its own example and labels, its exporter's series in a Prometheus that is found."""
    helm = Helm(tmp_path, plane.kubeconfig("admin"))
    nodes = {
        name: gpu_node(name, 2 if name == "ti" else 1, model.replace(" ", "-"), 8192) for name, model in MODELS.items()
    }
    plane.apply(*nodes.values())
    plane.apply(genius_pod("runs", gpu_number="1"))
    bind(plane, "runs", "ti")
    plane.apply(genius_pod("pending-before", gpu_number="1", gpu_model="1070.Ti"))
    with ExitStack() as running:
        found = running.enter_context(scraped(tmp_path))
        plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}}, service(found))
        run(helm, "From Genius", "helm install kerf")
        release, volume = Release(plane, NAMESPACE), tmp_path / "volume"
        volume.mkdir()
        lead_to(release, serve_webhook(release, running, volume), "kerf-queue")
        cluster = start_installed(release, tmp_path, running)
        cluster.set_phase("runs", "Running")
        wait_until(partial(takes_the_example, plane), WITHIN_S, "the API server marks the example")
        wait_until(lambda: cluster.kerf.get("/telemetry")["state"] == "ok", WITHIN_S, "ObserverWard's series are read")
        assert cluster.kerf.get("/telemetry")["gpusMatched"] == 4
        assert "kerf.dev/gpu" in cluster.pending("pending-before", "kerf.dev/gpu")  # to be created again

        cluster.create(yaml.safe_load(EXAMPLE))
        assert cluster.node_of("example-pod") == "ti"
        assert cluster.event("example-pod", "GPUsAssigned")
        cluster.create(genius_pod("another", gpu_number="1", gpu_model="1070.Ti"))
        cluster.pending("another", "free")  # one of two has the pod that Genius placed
        cluster.create(genius_pod("best", gpu_number="1", gpu_model="prototype"))
        assert cluster.node_of("best") == "more"  # by what the exporter says that it has

        for name, priority in (("low", "1"), ("high", "10")):
            cluster.create(genius_pod(name, gpu_number="1", gpu_model="prototype.b", priority=priority))
            wait_until(partial(waits, cluster, name), WITHIN_S, f"{name} waits in the queue")
        cluster.delete_pod("best")
        assert cluster.node_of("high") == "more"
        assert gates_of(cluster.pod("low"))
    run(helm, "From Genius", "helm uninstall kerf")
    assert not plane.exists(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf")
    # Nobody keeps Genius from its pods: what it looks at are labels and nodes.
    plane.request(
        "POST", "/api/v1/namespaces/default/pods?dryRun=All", {**yaml.safe_load(EXAMPLE), "metadata": {"name": "x"}}
    )


def bind(plane: ControlPlane, name: str, node: str) -> None:
    """As Genius binds, without a word of which GPU."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    plane.request("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body)


@contextmanager
def scraped(folder: Path) -> Iterator[Process]:
    """A Prometheus, at an address of Services, that has ObserverWard's series of all nodes."""
    with serving(lambda path, *_: (200, observerward(path.strip("/")))) as exporter:
        address = exporter.url.removeprefix("http://")
        jobs = [Job(name, f"{address}/{name}") for name in MODELS]
        with prometheus(folder, jobs, host=PROMETHEUS_IP) as found:
            query = quote("count(observerward_static_gpu_multiprocessor_count)")

            def complete() -> bool:
                answer = urllib3.request("GET", f"{found.url}/api/v1/query?query={query}")
                result = json.loads(answer.data)["data"]["result"]
                return bool(result and result[0]["value"][1] == "4")

            wait_until(complete, 60.0, "all exporters are scraped")
            yield found


def service(found: Process) -> Manifest:
    """By which Prometheus is found."""
    metadata = {"name": "prometheus", "namespace": "monitoring", "labels": {"app.kubernetes.io/name": "prometheus"}}
    ports = [{"name": "http-web", "port": int(found.url.rpartition(":")[2])}]
    spec = {"clusterIP": PROMETHEUS_IP, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


def takes_the_example(plane: ControlPlane) -> bool:
    """Whether the API server adds the marker to Genius' own example, and does not refuse it."""
    try:
        made = plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", yaml.safe_load(EXAMPLE))
    except ApiError:
        return False
    return "kerf.dev/gpu" in made["spec"]["containers"][0].get("resources", {}).get("limits", {})


def waits(cluster: KerfCluster, name: str) -> bool:
    """Whether Kerf has looked at a pod of the queue and found no room."""
    return "kerf.dev/skipped" in cluster.pod(name)["metadata"].get("annotations", {})
