"""Whether Kerf runs, and whether a kube-scheduler calls it as it has to: the one beside it, or the cluster's own."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import yaml

from extender.cli.consoles import names
from extender.cli.install.findings import ANY, Finding, broken, listed, note, ok
from extender.cli.install.kerf import CHART, Installed, Look, Pod, mapping_of, node_of, option, scheduler_pods
from extender.core.annotations import MARKER
from extender.kube.client import ClusterError, Transport
from extender.kube.transport import NODES_PATH, PODS_PATH

_OLDEST_MINOR: Final = 29
_TESTED_MINORS: Final = (33, 37)
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_KUBEADM: Final = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config"
_SCHEDULER_CONFIG: Final = "kerf-scheduler-config.yaml"
"""How docs/guides/kubeadm.md calls the file with both entries on the hosts; nobody can read it from here."""
_KUBEADM_GUIDE: Final = "docs/guides/kubeadm.md"
_REGENERATE: Final = (
    "kubeadm init phase control-plane scheduler --config kubeadm.yaml"
    f"    # there, with scheduler.extraArgs of {_KUBEADM_GUIDE}"
)
_GUIDE: Final = "docs/guides/install.md#which-way-is-mine"
_UNPLACED: Final = "status.phase=Pending,spec.nodeName="
_UNCALLED: Final = f"Insufficient {MARKER}"
"""What a kube-scheduler without entries of Kerf says of pods with its marker, which it then counts itself."""
_KIND: Final = "KubeSchedulerConfiguration"
_MAX_CHARS: Final = 256 * 1024


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


async def kubernetes(look: Look) -> AsyncIterator[Finding]:
    """Whether Kerf is for this version."""
    minor, (oldest, newest) = _minor(look), _TESTED_MINORS
    if minor < _OLDEST_MINOR:
        yield broken(f"1.{minor}: Kerf needs 1.{_OLDEST_MINOR} or newer", "upgrade the cluster")
    elif not oldest <= minor <= newest:
        yield note(f"1.{minor}: tested with 1.{oldest} to 1.{newest}")
    else:
        yield ok(f"1.{minor}")


def _minor(look: Look) -> int:
    return int(re.sub(r"\D.*", "", str(look.version.get("minor", ""))) or 0)


async def kerf(look: Look) -> AsyncIterator[Finding]:
    """What is installed, and whether it is ready."""
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
    """How Kerf as a static pod stands, and whether the kube-scheduler beside each calls it, as far as that shows."""
    nodes = {node_of(pod) for pod in kerf}
    configs = {node_of(pod): option(pod, "config") for pod in await scheduler_pods(transport)}
    named = {item["metadata"]["name"] for item in await listed(transport, NODES_PATH, _CONTROL_PLANE)}
    where = f"static pod on {len(nodes)} of {len((named | configs.keys() | nodes) - {''})} control plane nodes"
    if ill := sorted(pod["metadata"]["name"] for pod in kerf if _is_unready(pod)):
        yield broken(f"{where}, and not ready: {names(ill)}", f"kubectl -n kube-system describe pod {ill[0]}")
        return
    if mute := sorted(node for node, config in configs.items() if not config):
        told = f"{where}, and kube-scheduler has no --config, so it does not call Kerf, on {names(mute)}"
        yield broken(told, _REGENERATE)
        return
    if alone := sorted(configs.keys() - nodes):
        told = f"{where}: no GPU pod is placed while the kube-scheduler of one without it leads: {names(alone)}"
        yield broken(told, f"cp manifests/static-pod/kerf.yaml /etc/kubernetes/manifests/    # {_KUBEADM_GUIDE}")
        return
    files = sorted(set(configs.values()))
    if not files:
        yield ok(f"{where}; whether kube-scheduler calls it can't be seen: none of its pods is in kube-system")
    elif all(file.endswith(f"/{_SCHEDULER_CONFIG}") for file in files):
        yield ok(f"{where}, both entries in kube-scheduler's configuration")
    else:
        told = f"{names(files)} of kube-scheduler can't be read from here: it needs both entries of Kerf"
        yield ok(f"{where}; {told}")
    if files and not await _survives(transport):
        told = (
            "the next one takes --config out of kube-scheduler, unless it is given --patches: kubeadm-config lacks it"
        )
        fix = f"scheduler.extraArgs and extraVolumes in ClusterConfiguration: {_KUBEADM_GUIDE}"
        yield note(told, fix, what="kubeadm upgrade")


def _is_unready(pod: Pod) -> bool:
    """Whether its kubelet says that a pod is not ready; one that has said nothing yet is left alone."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "False" for one in conditions)


async def _survives(transport: Transport) -> bool:
    """Whether kubeadm writes `--config` into the manifest of kube-scheduler itself, or nothing can be read of it."""
    try:
        text = (ANY.decode(await transport.get(_KUBEADM)).get("data") or {}).get("ClusterConfiguration", "")
    except (ClusterError, msgspec.DecodeError):  # whoever may not read it is told of what else he may not
        return True
    kubeadm = mapping_of(text)
    scheduler = kubeadm.get("scheduler") if kubeadm is not None else None
    given = scheduler.get("extraArgs") if isinstance(scheduler, Mapping) else None
    if isinstance(given, Mapping):  # v1beta3
        return bool(given.get("config"))
    return kubeadm is None or any(isinstance(one, Mapping) and one.get("name") == "config" for one in given or ())


async def configuration(look: Look) -> AsyncIterator[Finding]:
    """Whether the kube-scheduler beside Kerf calls it as it has to; that of a static pod is told with it."""
    installed, scheduler = look.installed, look.installed.scheduler
    if installed.mode == "planner":
        yield ok("mode planner: pods of the queue are nominated, and any kube-scheduler binds them as it is")
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
        faults.append("ignorable is true: while Kerf is down, GPUs are given out twice")
    if faults:
        yield broken("; ".join(faults), installed.upgrade)
    elif not (extender.get("managedResources") and any(entry.get("ignorable") for entry in others)):
        told = "one entry for all pods: while Kerf is down, pods without GPUs are not scheduled either"
        yield note(told, installed.upgrade)
    elif scheduler.get("percentageOfNodesToScore") != 100:
        fix = f"{installed.upgrade} --set scheduler.percentageOfNodesToScore=100"
        yield note("percentageOfNodesToScore is not 100: the best nodes may not be offered to Kerf", fix)
    else:
        profiles = [str(profile.get("schedulerName")) for profile in scheduler.get("profiles") or ()]
        yield ok(f"pods choose it with schedulerName: {', '.join(profiles)}")


async def version_skew(look: Look) -> AsyncIterator[Finding]:
    """Whether the kube-scheduler beside Kerf is for this API server."""
    installed, minor = look.installed, _minor(look)
    if installed.scheduler is None:
        return
    tag = re.search(r":v?1\.(\d+)", installed.scheduler_image)
    if tag is None:
        yield note(f"kube-scheduler's version is not in the tag of its image, {installed.scheduler_image}")
        return
    told = f"kube-scheduler 1.{tag[1]} on Kubernetes 1.{minor}"
    if -1 <= int(tag[1]) - minor <= 0:
        yield ok(told)
    else:
        fix = f"{installed.upgrade} --set scheduler.tag=v1.{minor}.0"
        yield broken(f"{told}: it must be the same minor version or one older", fix)


async def control_plane(look: Look) -> AsyncIterator[Finding]:
    """Whether the cluster's own kube-scheduler calls Kerf, or can be told to; mode `planner` does without."""
    pods = await scheduler_pods(look.transport)
    vendor = await _vendor_of(look)
    refused = await _uncalled(look.transport)
    if refused and look.installed.mode != "planner":
        told = f"refuses pods by {_UNCALLED!r}, so it does not call Kerf: {names(refused)}"
        yield broken(told, f"both entries of scheduler-config/ in its configuration: {_GUIDE}")
    else:
        yield _visible(pods, look.installed) if pods else _unseen(vendor, look.installed)


async def _vendor_of(look: Look) -> _Vendor | None:
    """Whose cluster it is, None for a plain one, or one that is not known. Raises ClusterError, msgspec.DecodeError."""
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
    """Of a kube-scheduler in kube-system, which can be configured."""
    there = f"{names([item['metadata']['name'] for item in pods])} in kube-system"
    configs = [option(item, "config") for item in pods]
    if installed.mode in ("service", "static pod") and all(configs):
        return ok(f"{there}: reads {names(sorted(set(configs)))}, which is on its host and is not looked at from here")
    match installed.mode:
        case "service":
            told = f"{there}: has no --config, so it calls nobody: Kerf places the pods of schedulers that call it"
            return note(told, f"--config with both entries that helm's notes show: {_GUIDE}")
        case "static pod":
            return ok(there)  # what it lacks is told with the static pods
        case "scheduler":
            return ok(f"{there}: serves the pods that do not choose the scheduler beside Kerf")
    return ok(f"{there}: it can call Kerf (static pod, or mode service), and need not (mode planner)")


def _unseen(vendor: _Vendor | None, installed: Installed) -> Finding:
    """Of a kube-scheduler that is no pod of kube-system."""
    without = "mode planner for its pods, mode scheduler for those of a second one"
    if vendor is None:
        where = "mode service where you can configure it"
        return ok(f"is no pod of kube-system, so it is not looked at: {where}, else {without}")
    if vendor.how:
        return ok(f"{vendor.name} has it call Kerf (mode service) by {vendor.how}; without that {without}")
    told = f"{vendor.name} runs it, so nobody here configures it: {without}"
    if installed.mode == "service":
        return note(told, f"{installed.upgrade} --set mode=planner --set queue.enabled=true")
    return ok(told)


async def _uncalled(transport: Transport) -> list[str]:
    """Pods with Kerf's marker that a kube-scheduler has refused by it, as NAMESPACE/NAME."""
    found = await listed(transport, PODS_PATH, fields=_UNPLACED)
    return [
        f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        for item in found
        for condition in (item.get("status") or {}).get("conditions") or ()
        if condition.get("type") == "PodScheduled" and _UNCALLED in str(condition.get("message", ""))
    ]


async def extender_order(look: Look) -> AsyncIterator[Finding]:
    """What rejects nodes after Kerf has chosen one; nothing is said of a configuration that is in no ConfigMap."""
    namespaces = dict.fromkeys(["kube-system", look.installed.namespace or "kube-system"])
    paths = [f"/api/v1/namespaces/{namespace}/configmaps" for namespace in namespaces]
    for item in [item for path in paths for item in await listed(look.transport, path)]:
        for key, text in (item.get("data") or {}).items():
            if later := list(_after_kerf(text)):
                where = f"ConfigMap {item['metadata']['namespace']}/{item['metadata']['name']}, {key}"
                rejects = "filters after Kerf, and may reject the one node that Kerf has chosen"
                fix = "put the two entries of Kerf last under `extenders`"
                yield note(f"{where}: {', '.join(later)} {rejects}", fix)


def _after_kerf(text: Any) -> Iterator[str]:
    """The addresses of extenders that filter after Kerf in kube-scheduler's configuration; none of any other text."""
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
