"""The cluster to check, and the Kerf installed in it: by the chart, by install.yaml or as static pods."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from extender.cli.install.findings import ANY, KERF, listed
from extender.kube.client import ClusterError, Transport
from extender.kube.rights import BY_CHART
from extender.kube.transport import PODS_PATH
from extender.ledger.ledger import MIRROR
from extender.settings.load import settings_elsewhere
from extender.settings.tree import Settings

CHART: Final = "manifests/helm/kerf"
DEPLOYMENTS: Final = "/apis/apps/v1/deployments"
SERVICE_ACCOUNTS: Final = "system:serviceaccount:"
_SCHEDULERS: Final = "component=kube-scheduler"
"""The label of kube-scheduler's static pods, set by kubeadm."""
_SCHEDULER_PODS: Final = "/api/v1/namespaces/kube-system/pods"
_KUBECONFIGS: Final = {"/etc/kubernetes/scheduler.conf": "system:kube-scheduler"}
"""User of a static pod, by its kubeconfig file."""

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Installed:
    """The Kerf in the cluster; without a name, none is installed."""

    name: str = ""
    namespace: str = ""
    user: str = ""
    """Its user at the API server, "" if unknown."""
    scheduler_image: str = ""
    """Image of the kube-scheduler in its pod, "" if there is none."""
    ready: int = 0
    settings: Settings = field(default_factory=Settings.model_construct)
    scheduler: Mapping[str, Any] | None = None
    others: Sequence[str] = ()
    """Other Deployments of Kerf, as NAMESPACE/NAME."""
    static: Sequence[Pod] = ()
    """Kerf's static pods, with or without a Deployment."""
    is_static: bool = False
    """Whether there are static pods and no Deployment."""

    @property
    def mode(self) -> str:
        """The chart's `mode`, or "static pod"; "" if none is installed."""
        if self.is_static or not self.name:
            return "static pod" if self.is_static else ""
        if self.scheduler is not None:
            return "scheduler"
        return "service" if self.settings.queue.extender else "planner"

    @property
    def upgrade(self) -> str:
        """The command that upgrades the chart, to which changes can be appended."""
        return f"helm upgrade {self.name} {CHART} --namespace {self.namespace} --reset-then-reuse-values"

    @property
    def service_account(self) -> str:
        """NAMESPACE/NAME, "" for a static pod, which has none."""
        return "" if self.is_static else self.user.removeprefix(SERVICE_ACCOUNTS).replace(":", "/")

    def fix(self, value: str, manifest: str) -> str:
        """How to apply a value of the chart, or the manifest with the same effect."""
        if self.name and not self.is_static:
            return f"{self.upgrade} --set {value}"
        if manifest == BY_CHART:
            return f"grant it with a role of your own, as in {manifest}"
        return f"kubectl apply -f {manifest}"


@dataclass(frozen=True, slots=True)
class CheckedCluster:
    """A cluster, accessed as administrator."""

    transport: Transport
    version: Mapping[str, Any]
    """The answer of the API server's /version."""
    installed: Installed = field(default_factory=Installed)
    account: str = ""
    """NAMESPACE/NAME of the service account to check, "" for the installed Kerf's."""
    fault: str = ""
    """Why the installation can't be read, "" if it can."""


async def look_at(transport: Transport, account: str = "") -> CheckedCluster:
    """Read a cluster's version and the installed Kerf. Raises ClusterError if the API server fails."""
    version = ANY.decode(await transport.get("/version"))
    try:
        return CheckedCluster(transport, version, await find_kerf(transport), account)
    except (ClusterError, msgspec.DecodeError) as error:
        return CheckedCluster(transport, version, account=account, fault=str(error))


async def find_kerf(transport: Transport) -> Installed:
    """The installed Kerf; a Deployment takes precedence over static pods. Raises ClusterError, msgspec.DecodeError."""
    deployments = await listed(transport, DEPLOYMENTS, KERF)
    static = [item for item in await listed(transport, PODS_PATH, KERF) if _is_static(item)]
    if deployments:
        return await _deployed(transport, deployments, static)
    if not static:
        return Installed()
    user = _KUBECONFIGS.get(option(static[0], "kubeconfig"), "")
    settings = _settings_of(static[0])
    return Installed("kerf", "kube-system", user, ready=len(static), settings=settings, static=static, is_static=True)


async def _deployed(transport: Transport, deployments: Sequence[Mapping[str, Any]], static: Sequence[Pod]) -> Installed:
    deployment = deployments[0]
    metadata, spec = deployment["metadata"], deployment["spec"]["template"]["spec"]
    images = [item["image"] for item in spec["containers"] if item["name"] == "kube-scheduler"]
    files: Mapping[str, str] = {}
    for volume in spec.get("volumes", ()):
        if "configMap" in volume:
            path = f"/api/v1/namespaces/{metadata['namespace']}/configmaps/{volume['configMap']['name']}"
            files = {**files, **(ANY.decode(await transport.get(path)).get("data") or {})}
    return Installed(
        name=metadata["name"],
        namespace=metadata["namespace"],
        user=f"{SERVICE_ACCOUNTS}{metadata['namespace']}:{spec.get('serviceAccountName', 'default')}",
        scheduler_image=images[0] if images else "",
        ready=deployment.get("status", {}).get("readyReplicas", 0),
        settings=settings_elsewhere(files.get("kerf.yaml", "")),
        scheduler=(mapping_of(files["scheduler.yaml"]) or {}) if "scheduler.yaml" in files else None,
        others=[f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in deployments[1:]],
        static=static,
    )


async def scheduler_pods(transport: Transport) -> list[dict[str, Any]]:
    """kube-scheduler's pods in kube-system. Raises ClusterError, msgspec.DecodeError."""
    return await listed(transport, _SCHEDULER_PODS, _SCHEDULERS)


def _is_static(pod: Pod) -> bool:
    """Whether a pod is the mirror pod of a static pod."""
    metadata, node = pod["metadata"], node_of(pod)
    owners = [owner.get("kind") for owner in metadata.get("ownerReferences") or ()]
    named = bool(node) and metadata["name"].endswith(f"-{node}")
    return MIRROR in (metadata.get("annotations") or {}) or (owners == ["Node"] if owners else named)


def node_of(pod: Pod) -> str:
    """The node that a pod is on, "" for none."""
    return str(pod["spec"].get("nodeName") or "")


def option(pod: Pod, name: str) -> str:
    """The value of `--name` on the command lines of a pod, "" if it is not set."""
    return next((value for container in _containers(pod) for value in _options(container, name)), "")


def _settings_of(pod: Pod) -> Settings:
    """Settings from a pod's variables and arguments; a settings file on its host can't be read."""
    containers = _containers(pod)
    variables = [one for container in containers for one in container.get("env") or () if "value" in one]
    assignments = [assignment for container in containers for assignment in _options(container, "set")]
    return settings_elsewhere("", {str(one.get("name")): one["value"] for one in variables}, assignments)


def _containers(pod: Pod) -> Sequence[Mapping[str, Any]]:
    return pod["spec"].get("containers") or ()


def _options(container: Mapping[str, Any], name: str) -> Iterator[str]:
    """The values of `--name=VALUE` or `--name VALUE` on a container's command line."""
    given = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    for position, word in enumerate(given):
        if word.startswith(f"--{name}="):
            yield word.partition("=")[2]
        elif word == f"--{name}" and position + 1 < len(given):
            yield given[position + 1]


def mapping_of(text: str) -> Mapping[str, Any] | None:
    """The mapping of a YAML text, None if it is not a mapping."""
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        return None
    return content if isinstance(content, dict) else None
