"""Checks that Kerf runs, and that a kube-scheduler calls it: the one in its pod, or the cluster's own."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import yaml

from extender.cli.consoles import names
from extender.cli.install.findings import ANY, Finding, broken, listed, note, ok
from extender.cli.install.kerf import CHART, CheckedCluster, Installed, Pod, mapping_of, node_of, option, scheduler_pods
from extender.core.annotations import MARKER
from extender.kube.client import ClusterError, Transport
from extender.kube.transport import NODES_PATH, PODS_PATH

_OLDEST_MINOR: Final = 29
_TESTED_MINORS: Final = (33, 37)
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_KUBEADM: Final = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config"
_SCHEDULER_CONFIG: Final = "kerf-scheduler-config.yaml"
"""File name in docs/guides/kubeadm.md of the configuration with both entries, on the hosts and so unreadable here."""
_KUBEADM_GUIDE: Final = "docs/guides/kubeadm.md"
_REGENERATE: Final = (
    "kubeadm init phase control-plane scheduler --config kubeadm.yaml"
    f"    # there, with scheduler.extraArgs of {_KUBEADM_GUIDE}"
)
_GUIDE: Final = "docs/guides/install.md#which-way-is-mine"
_UNPLACED: Final = "status.phase=Pending,spec.nodeName="
_UNCALLED: Final = f"Insufficient {MARKER}"
"""kube-scheduler's message for pods with Kerf's marker if its configuration lacks Kerf's entries."""
_KIND: Final = "KubeSchedulerConfiguration"
_MAX_CHARS: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A vendor whose clusters run kube-scheduler outside kube-system's pods."""

    name: str
    version: str = ""
    """Substring of its API servers' version."""
    node_label: str = ""
    group: str = ""
    """An API group that only its clusters serve."""
    how: str = ""
    """How to configure its kube-scheduler, "" if that is not possible."""


_VENDORS: Final = (
    _Vendor("EKS", version="-eks-"),
    _Vendor("GKE", version="-gke."),
    _Vendor("AKS", node_label="kubernetes.azure.com/cluster"),
    _Vendor("k3s", version="+k3s", how="`kube-scheduler-arg: [config=FILE]` in /etc/rancher/k3s/config.yaml"),
    _Vendor("RKE2", version="+rke2", how="`kube-scheduler-arg: [config=FILE]` in /etc/rancher/rke2/config.yaml"),
    _Vendor("OpenShift", group="config.openshift.io"),
)


async def kubernetes(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check that Kerf supports this Kubernetes version."""
    minor, (oldest, newest) = _minor(look), _TESTED_MINORS
    if minor < _OLDEST_MINOR:
        yield broken(f"1.{minor}: Kerf needs 1.{_OLDEST_MINOR} or newer", "upgrade the cluster")
    elif not oldest <= minor <= newest:
        yield note(f"1.{minor}: tested with 1.{oldest} to 1.{newest}")
    else:
        yield ok(f"1.{minor}")


def _minor(look: CheckedCluster) -> int:
    return int(re.sub(r"\D.*", "", str(look.version.get("minor", ""))) or 0)


async def kerf(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check that Kerf is installed and ready."""
    installed = look.installed
    if look.fault:
        yield note(f"what is installed can't be read: {look.fault}")
    elif not installed.name:
        image = "--set image.repository=REGISTRY/kerf"
        fix = f"helm install kerf {CHART} --namespace kerf-system --create-namespace {image}"
        yield broken("neither a Deployment nor a static pod was found", fix)
    elif not installed.is_static:
        more = f", and {names(installed.others)}" if installed.others else ""
        name = f"Deployment {installed.namespace}/{installed.name}{more}"
        if installed.ready:
            yield ok(f"{name}: {installed.ready} ready, mode {installed.mode}")
        else:
            fix = f"kubectl -n {installed.namespace} describe deployment {installed.name}"
            yield broken(f"{name}: no replica is ready", fix)
    if installed.static:
        async for finding in _as_static_pod(look.transport, installed.static):
            yield finding


async def _as_static_pod(transport: Transport, kerf: Sequence[Pod]) -> AsyncIterator[Finding]:
    """Check Kerf's static pods, and as far as visible, that kube-scheduler on their nodes calls them."""
    nodes = {node_of(pod) for pod in kerf}
    configs = {node_of(pod): option(pod, "config") for pod in await scheduler_pods(transport)}
    named = {item["metadata"]["name"] for item in await listed(transport, NODES_PATH, _CONTROL_PLANE)}
    where = f"static pod on {len(nodes)} of {len((named | configs.keys() | nodes) - {''})} control plane nodes"
    if unready := sorted(pod["metadata"]["name"] for pod in kerf if _is_unready(pod)):
        yield broken(f"{where}, and not ready: {names(unready)}", f"kubectl -n kube-system describe pod {unready[0]}")
        return
    if unconfigured := sorted(node for node, config in configs.items() if not config):
        text = f"{where}, and kube-scheduler has no --config, so it does not call Kerf, on {names(unconfigured)}"
        yield broken(text, _REGENERATE)
        return
    if alone := sorted(configs.keys() - nodes):
        text = f"{where}: GPU pods are not placed while kube-scheduler leads on a node without Kerf: {names(alone)}"
        yield broken(text, f"cp manifests/static-pod/kerf.yaml /etc/kubernetes/manifests/    # {_KUBEADM_GUIDE}")
        return
    files = sorted(set(configs.values()))
    if not files:
        yield ok(f"{where}; whether kube-scheduler calls it can't be seen: none of its pods is in kube-system")
    elif all(file.endswith(f"/{_SCHEDULER_CONFIG}") for file in files):
        yield ok(f"{where}, both entries in kube-scheduler's configuration")
    else:
        text = f"{names(files)} of kube-scheduler can't be read from here: it needs both of Kerf's entries"
        yield ok(f"{where}; {text}")
    if files and not await _survives(transport):
        text = "the next one removes --config from kube-scheduler, unless run with --patches: kubeadm-config lacks it"
        fix = f"scheduler.extraArgs and extraVolumes in ClusterConfiguration: {_KUBEADM_GUIDE}"
        yield note(text, fix, what="kubeadm upgrade")


def _is_unready(pod: Pod) -> bool:
    """Whether a pod's Ready condition is False; a missing condition does not count."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "False" for one in conditions)


async def _survives(transport: Transport) -> bool:
    """Whether kubeadm itself writes `--config` into kube-scheduler's manifest, or its configuration can't be read."""
    try:
        text = (ANY.decode(await transport.get(_KUBEADM)).get("data") or {}).get("ClusterConfiguration", "")
    except (ClusterError, msgspec.DecodeError):  # other checks report missing permissions
        return True
    kubeadm = mapping_of(text)
    scheduler = kubeadm.get("scheduler") if kubeadm is not None else None
    given = scheduler.get("extraArgs") if isinstance(scheduler, Mapping) else None
    if isinstance(given, Mapping):  # v1beta3
        return bool(given.get("config"))
    return kubeadm is None or any(isinstance(one, Mapping) and one.get("name") == "config" for one in given or ())


async def configuration(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check the configuration of the kube-scheduler in Kerf's pod; static pods are checked by `kerf`."""
    installed, scheduler = look.installed, look.installed.scheduler
    if installed.mode == "planner":
        yield ok("mode planner: queued pods are nominated, and any unmodified kube-scheduler binds them")
    elif installed.mode == "service":
        calls = "your kube-scheduler's own configuration decides whether it calls Kerf (scheduler-config/)"
        yield note(f"mode service: {calls}")
    if scheduler is None:
        return
    extender, *others = scheduler.get("extenders") or [{}]
    faults = [f"{verb} is missing" for verb in ("filterVerb", "bindVerb") if not extender.get(verb)]
    if not extender.get("nodeCacheCapable"):
        faults.append("nodeCacheCapable is not true: every request carries whole nodes")
    if extender.get("ignorable"):
        faults.append("ignorable is true: while Kerf is down, GPUs are allocated twice")
    if faults:
        yield broken("; ".join(faults), installed.upgrade)
    elif not (extender.get("managedResources") and any(entry.get("ignorable") for entry in others)):
        text = "one entry for all pods: while Kerf is down, pods without GPUs are not scheduled either"
        yield note(text, installed.upgrade)
    elif scheduler.get("percentageOfNodesToScore") != 100:
        fix = f"{installed.upgrade} --set scheduler.percentageOfNodesToScore=100"
        yield note("percentageOfNodesToScore is not 100: the best nodes may not be offered to Kerf", fix)
    else:
        profiles = [str(profile.get("schedulerName")) for profile in scheduler.get("profiles") or ()]
        yield ok(f"pods choose it with schedulerName: {', '.join(profiles)}")


async def version_skew(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check that the kube-scheduler in Kerf's pod fits this API server's version."""
    installed, minor = look.installed, _minor(look)
    if installed.scheduler is None:
        return
    tag = re.search(r":v?1\.(\d+)", installed.scheduler_image)
    if tag is None:
        yield note(f"kube-scheduler's version is not in the tag of its image, {installed.scheduler_image}")
        return
    text = f"kube-scheduler 1.{tag[1]} on Kubernetes 1.{minor}"
    if -1 <= int(tag[1]) - minor <= 0:
        yield ok(text)
    else:
        fix = f"{installed.upgrade} --set scheduler.tag=v1.{minor}.0"
        yield broken(f"{text}: it must be the same minor version or one older", fix)


async def control_plane(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check whether the cluster's own kube-scheduler calls Kerf, or can; mode `planner` does not need it."""
    pods = await scheduler_pods(look.transport)
    vendor = await _vendor_of(look)
    refused = await _uncalled(look.transport)
    if refused and look.installed.mode != "planner":
        text = f"rejects pods with {_UNCALLED!r}, so it does not call Kerf: {names(refused)}"
        yield broken(text, f"both entries of scheduler-config/ in its configuration: {_GUIDE}")
    else:
        yield _visible(pods, look.installed) if pods else _unseen(vendor, look.installed)


async def _vendor_of(look: CheckedCluster) -> _Vendor | None:
    """The cluster's vendor, None if there is none or it is unknown. Raises ClusterError, msgspec.DecodeError."""
    version = str(look.version.get("gitVersion", ""))
    for vendor in _VENDORS:
        if vendor.version and vendor.version in version:
            return vendor
    groups = {group.get("name") for group in ANY.decode(await look.transport.get("/apis")).get("groups") or ()}
    for vendor in _VENDORS:
        label = vendor.node_label
        if vendor.group in groups or (label and await listed(look.transport, NODES_PATH, label)):
            return vendor
    return None


def _visible(pods: Sequence[Mapping[str, Any]], installed: Installed) -> Finding:
    """The finding for a kube-scheduler in kube-system, which can be configured."""
    scheduler = f"{names([item['metadata']['name'] for item in pods])} in kube-system"
    configs = [option(item, "config") for item in pods]
    if installed.mode in ("service", "static pod") and all(configs):
        return ok(
            f"{scheduler}: reads {names(sorted(set(configs)))}, which is on its host and can't be checked from here"
        )
    match installed.mode:
        case "service":
            text = (
                f"{scheduler}: has no --config, so it does not call Kerf: Kerf only places pods of schedulers that do"
            )
            return note(text, f"--config with both entries that helm's notes show: {_GUIDE}")
        case "static pod":
            return ok(scheduler)  # `kerf` reports what it lacks
        case "scheduler":
            return ok(f"{scheduler}: serves pods that don't use Kerf's own scheduler")
    return ok(f"{scheduler}: it can call Kerf (static pod or mode service), but need not (mode planner)")


def _unseen(vendor: _Vendor | None, installed: Installed) -> Finding:
    """The finding for a kube-scheduler outside kube-system's pods."""
    without = "mode planner for its pods, mode scheduler for those of a second one"
    if vendor is None:
        where = "mode service where you can configure it"
        return ok(f"is not a pod in kube-system, so it is not checked: {where}, else {without}")
    if vendor.how:
        return ok(f"{vendor.name} lets it call Kerf (mode service) with {vendor.how}; otherwise {without}")
    text = f"{vendor.name} runs it, so it can't be configured here: {without}"
    if installed.mode == "service":
        return note(text, f"{installed.upgrade} --set mode=planner --set queue.enabled=true")
    return ok(text)


async def _uncalled(transport: Transport) -> list[str]:
    """Pods that a kube-scheduler has rejected for Kerf's marker, as NAMESPACE/NAME."""
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in await listed(transport, PODS_PATH, fields=_UNPLACED)
        for condition in (item.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "PodScheduled" and _UNCALLED in str(condition.get("message", ""))
    ]


async def extender_order(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check that no extender filters after Kerf; configurations outside ConfigMaps are not checked."""
    namespaces = dict.fromkeys(["kube-system", look.installed.namespace or "kube-system"])
    paths = [f"/api/v1/namespaces/{namespace}/configmaps" for namespace in namespaces]
    for item in [item for path in paths for item in await listed(look.transport, path)]:
        for key, text in (item.get("data") or {}).items():
            if later := list(_after_kerf(text)):
                where = f"ConfigMap {item['metadata']['namespace']}/{item['metadata']['name']}, {key}"
                rejects = "filters after Kerf, and may reject the one node that Kerf has chosen"
                fix = "put Kerf's two entries last under `extenders`"
                yield note(f"{where}: {', '.join(later)} {rejects}", fix)


def _after_kerf(text: Any) -> Iterator[str]:
    """Addresses of extenders that filter after Kerf in a kube-scheduler configuration; none for any other text."""
    if not isinstance(text, str) or _KIND not in text or len(text) > _MAX_CHARS:
        return
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, RecursionError, ValueError):
        return
    for document in documents:
        entries = document.get("extenders") if isinstance(document, dict) and document.get("kind") == _KIND else None
        kerf: set[str] = set()
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, Mapping):
                continue
            address = str(entry.get("urlPrefix") or "")
            if _is_kerfs(entry):
                kerf.add(_server(address))
            elif kerf and entry.get("filterVerb") and _server(address) not in kerf:
                yield address


def _is_kerfs(entry: Mapping[str, Any]) -> bool:
    resources = entry.get("managedResources")
    return isinstance(resources, list) and any(
        isinstance(item, Mapping) and item.get("name") == MARKER for item in resources
    )


def _server(address: str) -> str:
    try:
        return urlsplit(address).netloc
    except ValueError:
        return address
