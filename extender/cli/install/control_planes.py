"""Who runs the cluster's kube-scheduler, and so by which way Kerf can place its pods."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from extender.cli.install.findings import ANY, Finding, Verdict, listed, names
from extender.cli.install.kerf import Installed
from extender.cli.install.static_pods import option
from extender.core.annotations import MARKER
from extender.kube.client import ClusterError, Transport
from extender.kube.paths import NODES_PATH, PODS_PATH

_WHAT: Final = "kube-scheduler"
_PODS: Final = "/api/v1/namespaces/kube-system/pods"
_SELECTOR: Final = "component=kube-scheduler"
"""kubeadm's, and that of whoever runs it as a static pod."""
_GUIDE: Final = "docs/guides/install.md#which-way-is-mine"
_UNPLACED: Final = "status.phase=Pending,spec.nodeName="
_UNCALLED: Final = f"Insufficient {MARKER}"
"""What a kube-scheduler without entries of Kerf says of pods with its marker, which it then counts itself."""


@dataclass(frozen=True, slots=True)
class _Vendor:
    """Somebody whose clusters have a kube-scheduler that is no pod of kube-system."""

    name: str
    version: str = ""
    """A part of the version that its API servers tell."""
    node_label: str = ""
    group: str = ""
    """An API group that no other cluster serves."""
    how: str = ""
    """How its kube-scheduler is told to call Kerf, "" where nobody can tell it."""


_VENDORS: Final = (
    _Vendor("EKS", version="-eks-"),
    _Vendor("GKE", version="-gke."),
    _Vendor("AKS", node_label="kubernetes.azure.com/cluster"),
    _Vendor("k3s", version="+k3s", how="`kube-scheduler-arg: [config=FILE]` in /etc/rancher/k3s/config.yaml"),
    _Vendor("RKE2", version="+rke2", how="`kube-scheduler-arg: [config=FILE]` in /etc/rancher/rke2/config.yaml"),
    _Vendor("OpenShift", group="config.openshift.io"),
)


async def control_plane(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """Whether the cluster's own kube-scheduler calls Kerf, or can be told to; mode `planner` does without."""
    try:
        pods = await listed(transport, _PODS, _SELECTOR)
        vendor = await _vendor_of(transport)
        refused = await _uncalled(transport)
    except (ClusterError, msgspec.DecodeError) as error:
        yield Finding(_WHAT, Verdict.NOTE, f"can't be read: {error}", "run this as an administrator")
        return
    if refused and (installed is None or installed.mode != "planner"):
        told = f"refuses pods by {_UNCALLED!r}, so it does not call Kerf: {names(refused)}"
        yield Finding(_WHAT, Verdict.BROKEN, told, f"both entries of scheduler-config/ in its configuration: {_GUIDE}")
        return
    if pods:
        yield _visible(pods, installed)
    else:
        yield _unseen(vendor, installed)


async def _vendor_of(transport: Transport) -> _Vendor | None:
    """Whose cluster it is, None for a plain one, or one that is not known. Raises ClusterError, msgspec.DecodeError."""
    version = str(ANY.decode(await transport.get("/version")).get("gitVersion", ""))
    for vendor in _VENDORS:
        if vendor.version and vendor.version in version:
            return vendor
    groups = {group.get("name") for group in ANY.decode(await transport.get("/apis")).get("groups") or ()}
    for vendor in _VENDORS:
        if vendor.group in groups or (vendor.node_label and await listed(transport, NODES_PATH, vendor.node_label)):
            return vendor
    return None


def _visible(pods: Sequence[Mapping[str, Any]], installed: Installed | None) -> Finding:
    """Of a kube-scheduler in kube-system, which can be configured."""
    there = f"{names([item['metadata']['name'] for item in pods])} in kube-system"
    configs = [option(item, "config") for item in pods]
    mode = installed.mode if installed is not None else ""
    if mode in ("service", "static pod") and all(configs):
        told = f"{there}: reads {names(sorted(set(configs)))}, which is on its host and is not looked at from here"
        return Finding(_WHAT, Verdict.OK, told)
    if mode == "service":
        told = f"{there}: has no --config, so it calls nobody: Kerf places the pods of schedulers that call it"
        return Finding(_WHAT, Verdict.NOTE, told, f"--config with both entries that helm's notes show: {_GUIDE}")
    if mode == "static pod":
        return Finding(_WHAT, Verdict.OK, there)  # what it lacks is told with the static pods
    if mode == "scheduler":
        return Finding(_WHAT, Verdict.OK, f"{there}: serves the pods that do not choose the scheduler beside Kerf")
    told = f"{there}: it can call Kerf (static pod, or mode service), and need not (mode planner)"
    return Finding(_WHAT, Verdict.OK, told)


def _unseen(vendor: _Vendor | None, installed: Installed | None) -> Finding:
    """Of a kube-scheduler that is no pod of kube-system."""
    without = "mode planner for its pods, mode scheduler for those of a second one"
    if vendor is None:
        told = (
            f"is no pod of kube-system, so it is not looked at: mode service where you can configure it, else {without}"
        )
        return Finding(_WHAT, Verdict.OK, told)
    if vendor.how:
        told = f"{vendor.name} has it call Kerf (mode service) by {vendor.how}; without that {without}"
        return Finding(_WHAT, Verdict.OK, told)
    told = f"{vendor.name} runs it, so nobody here configures it: {without}"
    if installed is not None and installed.mode == "service":
        fix = f"{installed.upgrade} --set mode=planner --set queue.enabled=true"
        return Finding(_WHAT, Verdict.NOTE, told, fix)
    return Finding(_WHAT, Verdict.OK, told)


async def _uncalled(transport: Transport) -> list[str]:
    """Pods with Kerf's marker that a kube-scheduler has refused by it, as NAMESPACE/NAME."""
    found = await listed(transport, PODS_PATH, fields=_UNPLACED)
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in found
        for condition in (item.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "PodScheduled" and _UNCALLED in str(condition.get("message", ""))
    ]
