"""The node agent as the chart renders it."""

import inspect
import shlex
from pathlib import Path
from typing import Any

import pytest

from extender.parts.agent.command import node_agent
from tests.install.helm import Helm, HelmError, only


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


def pod_of(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The spec of the agent's pods."""
    spec: dict[str, Any] = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def test_it_is_opt_in(helm: Helm) -> None:
    assert not [item for item in helm.render() if "agent" in item["metadata"]["name"]]


@pytest.mark.parametrize("steer", [True, False])
def test_it_sees_no_more_of_the_node_than_it_needs(helm: Helm, steer: bool) -> None:
    objects = helm.render("agent.enabled=true", f"agent.steer={str(steer).lower()}", "agent.kubeletDir=/data/kubelet")
    spec = pod_of(objects)
    (container,) = spec["containers"]
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"]}
    folders = {"pod-resources": "/data/kubelet/pod-resources", "device-plugins": "/data/kubelet/device-plugins"}
    assert paths == folders if steer else paths == {"pod-resources": folders["pod-resources"]}
    writable = {mount["name"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert writable == ({"device-plugins"} if steer else set())
    security = container["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    # Where the agent looks for them by itself.
    defaults = {name: parameter.default for name, parameter in inspect.signature(node_agent).parameters.items()}
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert mounted["pod-resources"] == defaults["pod_resources"].parent
    assert not steer or mounted["device-plugins"] == defaults["device_plugins"]
    (port,) = container["ports"]
    assert port["containerPort"] == defaults["health_port"]
    assert container["args"] == (["node-agent", "--steer"] if steer else ["node-agent"])


def test_where_it_runs(helm: Helm) -> None:
    spec = pod_of(
        helm.render("agent.enabled=true", "agent.runtimeClassName=nvidia", "agent.extraArgs={--log-level=debug}")
    )
    assert spec["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert shlex.join(spec["containers"][0]["args"]) == "node-agent --steer --log-level=debug"


def test_it_is_none_of_kerf_s_own_pods(helm: Helm) -> None:
    """Neither Deployments nor Services take it for theirs."""
    objects = helm.render("agent.enabled=true", "mode=service")
    labels = only(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"].items()
    for item in objects:
        selector = item.get("spec", {}).get("selector") or {}
        selector = selector.get("matchLabels", selector)
        assert item["kind"] == "DaemonSet" or not selector or not labels >= selector.items(), item["metadata"]["name"]


@pytest.mark.parametrize("value", ["agent.enable=true", "agent.kubeletDir=kubelet", "agent.steer=perhaps"])
def test_bad_values_are_refused(helm: Helm, value: str) -> None:
    with pytest.raises(HelmError, match="agent"):
        helm.render(value)
