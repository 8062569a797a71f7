"""docs/guides/kubeadm.md, command by command: kubeadm's own by kubeadm, the cluster's on a real control plane.

What a kubelet makes of the static pods are processes here.
"""

import base64
import json
import os
import re
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.binaries import RELEASES, find_kubeadm, minor
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, free_port, wait_until
from tests.docs.pages import DOCS, Command, commands, sections
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess, assigned_gpus
from tests.e2e.webhooks import gates_of
from tests.install.helm import CHART
from tests.install.running import Release, lead_to, serve_webhook
from tests.telemetry.prometheuses import prometheus

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

Manifest = dict[str, Any]
GUIDE = (DOCS / "guides" / "kubeadm.md").read_text()
PARTS = sections(GUIDE)
CONFIG = "/etc/kubernetes/kerf-scheduler-config.yaml"
KUBE_SYSTEM = "/api/v1/namespaces/kube-system"
USERS = {
    "kerf": "system:kube-scheduler",
    "scheduler": "system:kube-scheduler",
    "webhook": "system:serviceaccount:kube-system:kerf-webhook",
}


def block(part: str, holding: str) -> Any:
    """The block of YAML in a part of the guide that holds a text."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PARTS[part], re.MULTILINE | re.DOTALL)
    (found,) = (text for text in blocks if holding in text)
    return yaml.safe_load(found)


def command(part: str, start: str) -> Command:
    """The command of a part that begins so."""
    return next(one for one in commands(PARTS[part]) if one.text.lstrip().startswith(start))


def on_host(text: str, host: Path, **environment: str) -> str:
    """What a command of the guide prints, on a host whose /etc/kubernetes is a folder."""
    script = text.replace("/etc/kubernetes/", f"{host}/")
    result = subprocess.run(
        ["bash", "-c", script], check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ | environment
    )
    assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}"
    return result.stdout


def kubeadm_file(folder: Path, release: str, cluster: Mapping[str, Any], patches: str = "") -> Path:
    """A file for kubeadm's `--config`: a ClusterConfiguration, and what it would else find out of this machine."""
    api = {"apiVersion": "kubeadm.k8s.io/v1beta4"}
    own = {"name": "cp1", "criSocket": "unix:///run/containerd/containerd.sock"}
    init = {**api, "kind": "InitConfiguration", "nodeRegistration": own}
    init |= {"localAPIEndpoint": {"advertiseAddress": "192.0.2.1"}}
    init |= {"patches": {"directory": patches}} if patches else {}
    path = folder / "kubeadm.yaml"
    whole = {**api, "kind": "ClusterConfiguration", "kubernetesVersion": f"v{release}", **cluster}
    path.write_text(yaml.safe_dump_all([init, whole]))
    return path


def written(kubeadm: Path, config: Path, folder: Path) -> Manifest:
    """The manifest of kube-scheduler that kubeadm writes by the guide's command."""
    text = command("Install", "kubeadm init phase control-plane scheduler").text
    return made(kubeadm, text.replace("kubeadm.yaml", str(config)), folder)


def made(kubeadm: Path, text: str, folder: Path) -> Manifest:
    """The manifest of kube-scheduler that a command of kubeadm's writes into a folder."""
    words = [str(kubeadm), *text.split()[1:], "--dry-run"]
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"KUBEADM_INIT_DRYRUN_DIR": str(folder)}
    result = subprocess.run(words, check=False, capture_output=True, text=True, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
    (path,) = folder.rglob("kube-scheduler.yaml")
    found: Manifest = yaml.safe_load(path.read_text())
    return found


def calls_kerf(manifest: Manifest) -> bool:
    """Whether a manifest has kube-scheduler read the file with Kerf's entries, and can."""
    (container,) = manifest["spec"]["containers"]
    volumes = {one["name"]: one["hostPath"] for one in manifest["spec"]["volumes"]}
    mounts = {one["mountPath"]: one for one in container["volumeMounts"]}
    if f"--config={CONFIG}" not in container["command"] or CONFIG not in mounts:
        return False
    mount = mounts[CONFIG]
    return bool(mount["readOnly"]) and volumes[mount["name"]] == {"path": CONFIG, "type": "File"}


@pytest.fixture(scope="module")
def kubeadm() -> Path:
    return find_kubeadm()


def test_kubeadm_keeps_the_entries_by_its_configuration_whatever_it_upgrades_to(kubeadm: Path, tmp_path: Path) -> None:
    """`kubeadm upgrade` writes the manifest from the ClusterConfiguration as `init phase control-plane` does."""
    part = block("Install", "extraArgs")
    older = f"{RELEASES[minor()].split('.')[0]}.{int(minor().split('.')[1]) - 1}.0"
    for release in (older, RELEASES[minor()]):
        found = written(kubeadm, kubeadm_file(tmp_path, release, part), tmp_path / release)
        assert calls_kerf(found)
        assert found["spec"]["containers"][0]["image"].endswith(f":v{release}")
        assert not calls_kerf(written(kubeadm, kubeadm_file(tmp_path, release, {}), tmp_path / f"{release}-plain"))


def test_kubeadm_keeps_the_entries_by_a_patch(kubeadm: Path, tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    for one in commands(PARTS["Upgrade Kubernetes"]):
        on_host(one.text, host)
    patches = host / "patches"
    (patch,) = patches.iterdir()
    patch.write_text(patch.read_text().replace(f"{host}/", "/etc/kubernetes/"))
    config = kubeadm_file(tmp_path, RELEASES[minor()], {}, patches=str(patches))
    assert calls_kerf(written(kubeadm, config, tmp_path / "by-file"))
    option = f"kubeadm init phase control-plane scheduler --kubernetes-version v{RELEASES[minor()]} --patches {patches}"
    assert calls_kerf(made(kubeadm, option, tmp_path / "by-option"))


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("kubeadm"), users=USERS) as running:
        yield running


def test_kubeadm_keeps_its_configuration_in_the_cluster_for_the_next_upgrade(
    kubeadm: Path, plane: ControlPlane, tmp_path: Path
) -> None:
    """Uploaded, read back as the guide reads it, and what is written by that; and taken out again."""
    release = RELEASES[minor()]
    for part, called in ((block("Install", "extraArgs"), True), ({}, False)):
        text = command("Install", "kubeadm init phase upload-config").text
        words = text.replace("kubeadm.yaml", str(kubeadm_file(tmp_path, release, part))).split()[1:]
        known = ["--kubeconfig", str(plane.kubeconfig("admin"))]
        result = subprocess.run([str(kubeadm), *words, *known], check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        kept = plane.request("GET", f"{KUBE_SYSTEM}/configmaps/kubeadm-config")["data"]["ClusterConfiguration"]
        read_back = kubeadm_file(tmp_path, release, yaml.safe_load(kept))
        assert calls_kerf(written(kubeadm, read_back, tmp_path / str(called))) == called


@pytest.fixture
def own_plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """One whose nodes are nobody else's."""
    with ControlPlane(tmp_path / "plane") as running:
        yield running


@pytest.mark.skipif(os.geteuid() != 0, reason="kubeadm changes its root directory, which takes root")
def test_kubeadm_upgrade_itself_writes_the_entries(kubeadm: Path, own_plane: ControlPlane, tmp_path: Path) -> None:
    """`kubeadm upgrade node` on a host of its own, as far as it goes without a kubelet: `--dry-run`."""
    root = control_plane_host(own_plane, tmp_path)
    patches = root / "etc" / "kubernetes" / "patches"
    patches.mkdir()
    patch = re.findall(r"<<'END'\n(.*?)^END", PARTS["Upgrade Kubernetes"], re.MULTILINE | re.DOTALL)[0]
    (patches / "kube-scheduler+json.yaml").write_text(patch)
    upgrade = [str(kubeadm), "upgrade", "node", "phase", "control-plane", "--dry-run", "--rootfs", str(root)]
    for part, options, called in (
        (block("Install", "extraArgs"), [], True),
        ({}, [], False),
        ({}, ["--patches=/etc/kubernetes/patches"], True),
    ):
        config = kubeadm_file(tmp_path, RELEASES[minor()], part)
        upload = ["init", "phase", "upload-config", "kubeadm", f"--config={config}"]
        admin = f"--kubeconfig={own_plane.kubeconfig('admin')}"
        subprocess.run([str(kubeadm), *upload, admin], check=True, capture_output=True)
        result = subprocess.run([*upgrade, *options], check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout[-2000:] + result.stderr
        name = "/etc/kubernetes/manifests/kube-scheduler.yaml"
        told = result.stdout.partition(f'Would write file "{name}" with content:\n')[2].partition("\n[")[0]
        assert calls_kerf(yaml.safe_load(told)) == called, options


def control_plane_host(plane: ControlPlane, folder: Path) -> Path:
    """The root directory of a host that kubeadm takes for a control plane node of a cluster that it has made."""
    name = socket.gethostname().lower()
    node = cpu_node(name, labels={"node-role.kubernetes.io/control-plane": ""})
    node["metadata"]["annotations"] = {
        "kubeadm.alpha.kubernetes.io/cri-socket": "unix:///run/containerd/containerd.sock"
    }
    endpoint = {"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint": "192.0.2.1:6443"}
    labels = {"component": "kube-apiserver", "tier": "control-plane"}
    server = pod(f"kube-apiserver-{name}", namespace="kube-system", labels=labels, annotations=endpoint, nodeName=name)
    plane.apply(node)
    plane.request("POST", f"{KUBE_SYSTEM}/pods", server)
    for kept, key, kind, api in (
        ("kubelet-config", "kubelet", "KubeletConfiguration", "kubelet.config.k8s.io/v1beta1"),
        ("kube-proxy", "config.conf", "KubeProxyConfiguration", "kubeproxy.config.k8s.io/v1alpha1"),
    ):
        head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": kept, "namespace": "kube-system"}}
        plane.apply({**head, "data": {key: yaml.safe_dump({"apiVersion": api, "kind": kind})}})
    kubernetes = folder / "root" / "etc" / "kubernetes"
    (kubernetes / "manifests").mkdir(parents=True)
    (kubernetes / "manifests" / "kube-apiserver.yaml").write_text(yaml.safe_dump(server))
    access = json.loads(plane.kubeconfig("admin").read_text())
    cluster = access["clusters"][0]["cluster"]
    authority = Path(cluster.pop("certificate-authority")).read_bytes()
    cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
    for file in ("admin.conf", "kubelet.conf"):
        (kubernetes / file).write_text(json.dumps(access))
    return folder / "root"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """/etc/kubernetes of a control plane node after the guide's commands."""
    folder = tmp_path / "kubernetes"
    (folder / "manifests").mkdir(parents=True)
    for start in ("cp scheduler-config/", "sed -e"):
        on_host(command("Install", start).text, folder)
    return folder


def applied(plane: ControlPlane, part: str) -> None:
    """Apply what the guide applies in a part."""
    for one in commands(PARTS[part]):
        if "kubectl apply" in one.text:
            for name in re.findall(r"manifests/\S+\.yaml", one.text):
                plane.apply(ROOT / name)


class StaticPod:
    """What a kubelet makes of the guide's manifest: its program with its arguments and variables."""

    def __init__(self, plane: ControlPlane, host: Path, running: ExitStack) -> None:
        self.manifest: Manifest = yaml.safe_load((host / "manifests" / "kerf.yaml").read_text())
        (container,) = self.manifest["spec"]["containers"]
        assert container["image"] == "REGISTRY/kerf:0.1.0"
        # What a second process on this machine can't share: the port, the place of a file, the node's address.
        given = [word for word in container["args"][1:] if not word.startswith(("--kubeconfig=", "--port="))]
        assert "--set=queue.enabled=true" in given
        self.metrics_port = free_port()
        env = {one["name"]: one.get("value", "127.0.0.1") for one in container["env"]}
        env |= {"KERF_SERVER__METRICS_PORT": str(self.metrics_port)}
        options = [*given, *(f"--set={_setting(name)}={value}" for name, value in env.items())]
        self.kerf = KerfProcess(plane, "kerf", *options, ready_path="/syncz")
        running.callback(self.kerf.stop)
        lease = {"resourceName": "kube-scheduler", "resourceNamespace": "kube-system"}
        config = host / "kerf-scheduler-config.yaml"
        running.callback(plane.start_scheduler(config, extender_url=self.kerf.url, leader_election=lease).stop)


def _setting(variable: str) -> str:
    return variable.removeprefix("KERF_").lower().replace("__", ".")


def test_from_nothing_to_a_placed_pod_and_back(plane: ControlPlane, host: Path, tmp_path: Path) -> None:
    applied(plane, "Install")
    release = Release(plane, "kube-system")
    with ExitStack() as running:
        volume = tmp_path / "volume"
        volume.mkdir()
        running.callback(lead_to(release, serve_webhook(release, running, volume), "kerf-queue"))
        started = StaticPod(plane, host, running)
        plane.request("POST", f"{KUBE_SYSTEM}/pods?dryRun=All&fieldValidation=Strict", started.manifest)
        cluster = KerfCluster(plane, started.kerf)
        cluster.add_nodes(gpu_node("node", gpus=1))
        labels = {"metadata": {"labels": {"kerf.dev/queue": "enabled"}}}
        plane.request("PATCH", "/api/v1/namespaces/default", labels, "application/merge-patch+json")
        first = yaml.safe_load(re.findall(r"<<'END'\n(.*?)^END", PARTS["The first pod"], re.MULTILINE | re.DOTALL)[0])
        probe = "/api/v1/namespaces/default/pods?dryRun=All"
        wait_until(lambda: gates_of(plane.request("POST", probe, first)), WITHIN_S, "the webhook gives it the gate")
        cluster.create(first)
        assert assigned_gpus(cluster.bound("first")) == [0]
        assert cluster.pod("first")["metadata"]["annotations"]["kerf.dev/planned-node"] == "node"
        second = {**first, "metadata": {**first["metadata"], "name": "second"}}
        cluster.create(second)  # no room: it waits behind the gate, and nothing is lacking
        wait_until(lambda: "kerf.dev/skipped" in cluster.pod("second")["metadata"]["annotations"], WITHIN_S, "it waits")
        assert started.kerf.get("/readyz") == {"status": "ok"}
        # Removal: the namespace opts out, and Kerf opens the gates of those that wait.
        label_off: Manifest = {"metadata": {"labels": {"kerf.dev/queue": None}}}
        plane.request("PATCH", "/api/v1/namespaces/default", label_off, "application/merge-patch+json")
        wait_until(lambda: not gates_of(cluster.pod("second")), WITHIN_S, "the gate is opened")
    for one in commands(PARTS["Remove"]):
        for name in re.findall(r"manifests/\S+\.yaml", one.text):
            assert (ROOT / name).is_file()


def test_alerts_can_fire_and_the_one_that_kerf_is_down_does_not(
    plane: ControlPlane, host: Path, tmp_path: Path
) -> None:
    """The guide's scrape configuration and the chart's rules, in a Prometheus that asks the API server for the pods."""
    config = block("Metrics and alerts", "scrape_configs")
    assert [CHART / name for name in config["rule_files"]] == [CHART / "alerts.yaml"]
    with ExitStack() as running:
        started = StaticPod(plane, host, running)
        manifest = started.manifest
        (container,) = manifest["spec"]["containers"]
        container["ports"][0] |= {"containerPort": started.metrics_port, "hostPort": started.metrics_port}
        manifest["metadata"]["name"] = "kerf-cp1"
        manifest["spec"] |= {"nodeName": "cp1", "priorityClassName": ""}
        plane.request("POST", f"{KUBE_SYSTEM}/pods", manifest)
        running.callback(lambda: plane.request("DELETE", f"{KUBE_SYSTEM}/pods/kerf-cp1?gracePeriodSeconds=0"))
        status = {"status": {"phase": "Running", "podIP": "127.0.0.1", "podIPs": [{"ip": "127.0.0.1"}]}}
        plane.request("PATCH", f"{KUBE_SYSTEM}/pods/kerf-cp1/status", status, "application/merge-patch+json")
        assert answers(f"http://127.0.0.1:{started.metrics_port}/syncz")
        (scrape,) = config["scrape_configs"]
        access = {"api_server": plane.url, "authorization": {"credentials": plane.token("admin")}}
        access["tls_config"] = {"ca_file": str(plane.certificate)}
        for discovery in scrape["kubernetes_sd_configs"]:
            discovery.update(access)
        server = running.enter_context(prometheus(tmp_path, [], rules=[CHART / "alerts.yaml"], written=[scrape]))

        def asked(query: str) -> list[Any]:
            address = f"{server.url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
            with urllib.request.urlopen(address, timeout=10) as response:
                return list(json.loads(response.read())["data"]["result"])

        wait_until(lambda: asked("kerf_nodes"), WITHIN_S, "Prometheus has found and scraped the static pod")
        wait_until(lambda: not asked('ALERTS{alertname="KerfDown"}'), WITHIN_S, "KerfDown is not even pending")
        started.kerf.stop()
        wait_until(lambda: asked('up{job="kerf"} == 0'), WITHIN_S, "Prometheus sees that it is gone")


def test_the_manifests_of_the_static_pod_choose_it() -> None:
    """The Service of its metrics selects the labels that it has, by the name of the port that it has."""
    static = yaml.safe_load((ROOT / "manifests" / "static-pod" / "kerf.yaml").read_text())
    documents = list(yaml.safe_load_all((ROOT / "manifests" / "static-pod" / "monitoring.yaml").read_text()))
    (service,) = (one for one in documents if one["kind"] == "Service")
    assert service["spec"]["selector"].items() <= static["metadata"]["labels"].items()
    (port,) = static["spec"]["containers"][0]["ports"]
    assert service["spec"]["ports"][0]["targetPort"] == port["name"]
    assert service["metadata"]["namespace"] == static["metadata"]["namespace"]
    (container,) = static["spec"]["containers"]
    env = {one["name"]: one for one in container["env"]}
    assert env["KERF_SERVER__METRICS_PORT"]["value"] == str(port["containerPort"]) == str(port["hostPort"])
    assert env["KERF_SERVER__METRICS_HOST"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert {one["kind"] for one in documents} == {"Service", "ServiceMonitor", "PrometheusRule"}
