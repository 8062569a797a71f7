"""`kerf install check` on a control plane whose kubelets run Kerf and kube-scheduler as static pods."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.test_checks import MERGE_PATCH, check, verdicts

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

KUBE_SYSTEM = "/api/v1/namespaces/kube-system"
CONTROL_PLANES = ("cp1", "cp2", "cp3")


def mirror(name: str, node: str, labels: dict[str, str], *command: str) -> dict[str, Any]:
    """What a kubelet shows of a static pod."""
    annotations = {"kubernetes.io/config.mirror": "0a1b"}
    found = pod(f"{name}-{node}", namespace="kube-system", labels=labels, annotations=annotations, nodeName=node)
    found["spec"]["containers"][0]["command"] = list(command)
    return found


def kube_scheduler(node: str, *arguments: str) -> dict[str, Any]:
    return mirror("kube-scheduler", node, {"component": "kube-scheduler"}, "kube-scheduler", *arguments)


def static_kerf(node: str) -> dict[str, Any]:
    """The shipped manifest on a node, with the queue."""
    manifest = yaml.safe_load((ROOT / "manifests" / "static-pod" / "kerf.yaml").read_text())
    (container,) = manifest["spec"]["containers"]
    words = [*container["args"], "--set=queue.enabled=true"]
    return mirror("kerf", node, manifest["metadata"]["labels"], *words)


START = "static pod on 3 of 3 control plane nodes"
OPTION = "--config=/etc/kubernetes/kerf-scheduler-config.yaml"


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    """Three control plane nodes with a kube-scheduler each, and a node with GPUs."""
    with ControlPlane(tmp_path, users={"kerf": "system:kube-scheduler"}) as running:
        control = {"node-role.kubernetes.io/control-plane": ""}
        running.apply(*(cpu_node(name, labels=control) for name in CONTROL_PLANES), gpu_node("gpu", gpus=8))
        create(running, *map(kube_scheduler, CONTROL_PLANES))
        yield running


def create(plane: ControlPlane, *pods: dict[str, Any]) -> None:
    """Create pods, in place of those of their names."""
    for one in pods:
        remove(plane, one["metadata"]["name"])
        plane.request("POST", f"{KUBE_SYSTEM}/pods", one)


def remove(plane: ControlPlane, name: str) -> None:
    if plane.exists(f"{KUBE_SYSTEM}/pods/{name}"):
        plane.request("DELETE", f"{KUBE_SYSTEM}/pods/{name}?gracePeriodSeconds=0")


def keep(plane: ControlPlane, cluster: str) -> None:
    """What kubeadm keeps in the cluster."""
    head = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kubeadm-config", "namespace": "kube-system"}}
    plane.apply({**head, "data": {"ClusterConfiguration": cluster}})


def test_from_no_static_pod_to_a_sound_cluster(plane: ControlPlane) -> None:
    assert check(plane)[1]["Kerf"]["verdict"] == "broken"
    create(plane, *map(static_kerf, CONTROL_PLANES))
    status, found = check(plane)
    nobody = f"{START}, and kube-scheduler has no --config, so it does not call Kerf, on cp1, cp2, cp3"
    assert (status, found["Kerf"]["verdict"], found["Kerf"]["told"]) == (1, "broken", nobody)
    assert found["Kerf"]["fix"].startswith("kubeadm init phase control-plane scheduler")

    create(plane, *(kube_scheduler(name, OPTION) for name in CONTROL_PLANES))
    _, found = check(plane)
    sound = f"{START}, both entries in kube-scheduler's configuration"
    assert found["Kerf"] == {"what": "Kerf", "verdict": "ok", "told": sound, "fix": ""}
    assert "/etc/kubernetes/kerf-scheduler-config.yaml" in found["kube-scheduler"]["told"]
    rights = found["rights"]
    assert rights["told"].startswith("system:kube-scheduler may not ")
    assert (rights["verdict"], rights["fix"]) == ("broken", "kubectl apply -f manifests/queue/rbac.yaml")

    plane.apply(ROOT / "manifests" / "queue" / "rbac.yaml", ROOT / "manifests" / "admission-policy.yaml")
    wait_until(lambda: check(plane)[1]["rights"]["verdict"] == "note", 20.0, "the queue's rights are there")
    status, found = check(plane)
    assert status == 0  # what kube-scheduler's own role lacks is a note
    assert found["rights"]["fix"] == "kubectl apply -f manifests/rbac.yaml"
    plane.apply(ROOT / "manifests" / "rbac.yaml")
    wait_until(lambda: check(plane)[1]["rights"]["verdict"] == "ok", 20.0, "all rights are there")
    assert "broken" not in verdicts(check(plane)[1]).values()


def test_what_kubeadm_upgrade_would_take_away_is_told_before(plane: ControlPlane) -> None:
    create(plane, *map(static_kerf, CONTROL_PLANES), *(kube_scheduler(name, OPTION) for name in CONTROL_PLANES))
    assert "kubeadm upgrade" not in check(plane)[1]  # nothing is known of kubeadm
    keep(plane, "kind: ClusterConfiguration\nscheduler: {}\n")
    found = check(plane)[1]["kubeadm upgrade"]
    assert (found["verdict"], "removes --config from kube-scheduler" in found["told"]) == ("note", True)
    for given in ("[{name: config, value: /x}]", "{config: /x}"):  # v1beta4, v1beta3
        keep(plane, f"kind: ClusterConfiguration\nscheduler: {{extraArgs: {given}}}\n")
        assert "kubeadm upgrade" not in check(plane)[1]
    keep(plane, "scheduler: [")
    assert "kubeadm upgrade" not in check(plane)[1]


def test_one_node_that_is_not_as_the_others_is_named(plane: ControlPlane) -> None:
    """After an upgrade, with a file of another name, a forgotten node, and a pod that is not ready."""
    create(plane, *map(static_kerf, CONTROL_PLANES), *(kube_scheduler(name, OPTION) for name in CONTROL_PLANES))
    create(plane, kube_scheduler("cp2"))
    assert check(plane)[1]["Kerf"]["told"].endswith("so it does not call Kerf, on cp2")
    create(plane, kube_scheduler("cp2", "--config", "/etc/kubernetes/own.yaml"))
    found = check(plane)[1]["Kerf"]
    assert (found["verdict"], "/etc/kubernetes/own.yaml" in found["told"]) == ("ok", True)
    remove(plane, "kerf-cp3")
    told = check(plane)[1]["Kerf"]["told"]
    assert told.startswith("static pod on 2 of 3 control plane nodes: GPU pods are not placed while")
    create(plane, static_kerf("cp3"))
    ill = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    plane.request("PATCH", f"{KUBE_SYSTEM}/pods/kerf-cp1/status", ill, MERGE_PATCH)
    assert check(plane)[1]["Kerf"]["told"] == f"{START}, and not ready: kerf-cp1"


def test_pods_that_are_refused_for_want_of_the_marker_tell_that_kerf_is_not_called(plane: ControlPlane) -> None:
    create(plane, *map(static_kerf, CONTROL_PLANES), *(kube_scheduler(name, OPTION) for name in CONTROL_PLANES))
    pods = "/api/v1/namespaces/default/pods"
    plane.request("POST", pods, pod("shared", annotations={"kerf.dev/gpu-share": "500"}))
    assert check(plane)[1]["kube-scheduler"]["verdict"] == "ok"
    said = "0/4 nodes are available: 4 Insufficient kerf.dev/gpu."
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    plane.request("PATCH", f"{pods}/shared/status", {"status": {"conditions": [refused]}}, MERGE_PATCH)
    status, found = check(plane)
    assert (status, found["kube-scheduler"]["verdict"]) == (1, "broken")
    assert found["kube-scheduler"]["told"].endswith("so it does not call Kerf: default/shared")


def test_where_kube_scheduler_is_no_pod_nothing_is_claimed_of_it(plane: ControlPlane) -> None:
    for name in CONTROL_PLANES:
        remove(plane, f"kube-scheduler-{name}")
    create(plane, *map(static_kerf, CONTROL_PLANES))
    told = check(plane)[1]["Kerf"]["told"]
    assert told.startswith(f"{START}; whether kube-scheduler calls it can't be seen")
