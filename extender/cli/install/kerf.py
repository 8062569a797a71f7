"""The Kerf that is in a cluster, by the chart, install.yaml or as a static pod, and the kube-scheduler beside it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from extender.cli.install.findings import ANY, KERF, Finding, Verdict, listed, names
from extender.cli.install.static_pods import StaticPods, find_static_pods, told_of
from extender.kube.client import Transport

_CHART: Final = "manifests/helm/kerf"


@dataclass(frozen=True, slots=True)
class Installed:
    """A Kerf in the cluster."""

    name: str
    namespace: str
    account: str
    """Of a service account, "" for a static pod, which has none."""
    scheduler_image: str
    """"" where no kube-scheduler runs beside it."""
    ready: int
    settings: Mapping[str, Any]
    scheduler: Mapping[str, Any] | None
    static: StaticPods | None = None
    """What runs as static pods, None for a Deployment."""

    @property
    def mode(self) -> str:
        """The chart's `mode`, or "static pod"."""
        if self.static is not None:
            return "static pod"
        if self.scheduler is not None:
            return "scheduler"
        queue = self.settings.get("queue") or {}
        return "service" if queue.get("extender", True) else "planner"

    @property
    def upgrade(self) -> str:
        """The command that installs the chart's objects again, with a change to be added."""
        return f"helm upgrade {self.name} {_CHART} --namespace {self.namespace} --reset-then-reuse-values"

    @property
    def service_account(self) -> str:
        """NAMESPACE/NAME, "" for a static pod."""
        return f"{self.namespace}/{self.account}" if self.account else ""

    @property
    def user(self) -> str:
        """As whom it speaks to the API server, "" where that can't be told."""
        if self.static is not None:
            return self.static.user
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    def fix(self, value: str, manifest: str) -> str:
        """The command that brings what a value of the chart brings; beside a static pod a manifest does."""
        return f"kubectl apply -f {manifest}" if self.static is not None else f"{self.upgrade} --set {value}"


async def find_kerf(transport: Transport) -> tuple[Installed | None, list[Finding]]:
    """The Kerf that is installed, and what is to be said of it: of a Deployment's where there are static pods too.

    Raises ClusterError, msgspec.DecodeError.
    """
    deployments = await listed(transport, "/apis/apps/v1/deployments", KERF)
    static = await find_static_pods(transport)
    told = list(told_of(static)) if static.kerf else []
    if not deployments:
        if static.kerf:
            ready = len(static.kerf)
            return Installed("kerf", "kube-system", "", "", ready, static.settings, None, static), told
        image = "--set image.repository=REGISTRY/kerf"
        command = f"helm install kerf {_CHART} --namespace kerf-system --create-namespace {image}"
        return None, [Finding("Kerf", Verdict.BROKEN, "neither a Deployment nor a static pod was found", command)]
    found = await _read(transport, deployments[0])
    others = [f"{item['metadata']['namespace']}/{item['metadata']['name']}" for item in deployments[1:]]
    more = f", and {names(others)}" if others else ""
    name = f"Deployment {found.namespace}/{found.name}{more}"
    if found.ready:
        return found, [Finding("Kerf", Verdict.OK, f"{name}: {found.ready} ready, mode {found.mode}"), *told]
    logs = f"kubectl -n {found.namespace} describe deployment {found.name}"
    return found, [Finding("Kerf", Verdict.BROKEN, f"{name}: no replica is ready", logs), *told]


async def _read(transport: Transport, deployment: Mapping[str, Any]) -> Installed:
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
        account=spec.get("serviceAccountName", "default"),
        scheduler_image=images[0] if images else "",
        ready=deployment.get("status", {}).get("readyReplicas", 0),
        settings=_mapping(files.get("kerf.yaml", "")),
        scheduler=_mapping(files["scheduler.yaml"]) if "scheduler.yaml" in files else None,
    )


def scheduling(installed: Installed, minor: int) -> list[Finding]:
    """The kube-scheduler beside Kerf: its version and its configuration."""
    if installed.static is not None:
        return []  # told with the static pods
    if installed.mode == "planner":
        told = "mode planner: pods of the queue are nominated, and any kube-scheduler binds them as it is"
        return [Finding("scheduler configuration", Verdict.OK, told)]
    if installed.scheduler is None:
        told = "mode service: your kube-scheduler's own configuration decides whether it calls Kerf (scheduler-config/)"
        return [Finding("scheduler configuration", Verdict.NOTE, told)]
    found = [_configured(installed)]
    tag = re.search(r":v?1\.(\d+)", installed.scheduler_image)
    if tag is None:
        told = f"kube-scheduler's version is not in the tag of its image, {installed.scheduler_image}"
        return [*found, Finding("version skew", Verdict.NOTE, told)]
    skew = int(tag[1]) - minor
    if skew > 0 or skew < -1:
        told = f"kube-scheduler 1.{tag[1]} on Kubernetes 1.{minor}: it must be the same minor version or one older"
        fix = f"{installed.upgrade} --set scheduler.tag=v1.{minor}.0"
        return [*found, Finding("version skew", Verdict.BROKEN, told, fix)]
    return [*found, Finding("version skew", Verdict.OK, f"kube-scheduler 1.{tag[1]} on Kubernetes 1.{minor}")]


def _configured(installed: Installed) -> Finding:
    """Whether the kube-scheduler beside Kerf calls it as it has to."""
    extenders = (installed.scheduler or {}).get("extenders") or [{}]
    extender = extenders[0]
    faults = [f"{verb} is missing" for verb in ("filterVerb", "bindVerb") if not extender.get(verb)]
    if not extender.get("nodeCacheCapable"):
        faults.append("nodeCacheCapable is not true: every request carries whole nodes")
    if extender.get("ignorable"):
        faults.append("ignorable is true: while Kerf is down, GPUs are given out twice")
    if faults:
        return Finding("scheduler configuration", Verdict.BROKEN, "; ".join(faults), installed.upgrade)
    if not (extender.get("managedResources") and any(entry.get("ignorable") for entry in extenders[1:])):
        told = "one entry for all pods: while Kerf is down, pods without GPUs are not scheduled either"
        return Finding("scheduler configuration", Verdict.NOTE, told, installed.upgrade)
    if (installed.scheduler or {}).get("percentageOfNodesToScore") != 100:
        fix = f"{installed.upgrade} --set scheduler.percentageOfNodesToScore=100"
        told = "percentageOfNodesToScore is not 100: the best nodes may not be offered to Kerf"
        return Finding("scheduler configuration", Verdict.NOTE, told, fix)
    names = [profile.get("schedulerName") for profile in (installed.scheduler or {}).get("profiles") or ()]
    return Finding(
        "scheduler configuration", Verdict.OK, f"pods choose it with schedulerName: {', '.join(map(str, names))}"
    )


def _mapping(text: str) -> Mapping[str, Any]:
    """A YAML file's mapping, empty where it is none."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}
