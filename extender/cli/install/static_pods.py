"""Kerf as a static pod beside the kube-schedulers of control plane nodes, and what their mirrors tell of both."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import yaml

from extender.cli.install.findings import ANY, KERF, Finding, Verdict, listed, names
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.paths import NODES_PATH, PODS_PATH
from extender.ledger.static_pods import MIRROR
from extender.settings.tree import ENV_PREFIX, NESTED

_SCHEDULER_CONFIG: Final = "kerf-scheduler-config.yaml"
"""How docs/guides/kubeadm.md calls the file with both entries on the hosts; nobody can read it from here."""
_GUIDE: Final = "docs/guides/kubeadm.md"
_CONTROL_PLANE: Final = "node-role.kubernetes.io/control-plane"
_SCHEDULERS: Final = "component=kube-scheduler"
"""kubeadm's label, and that of whoever runs it as a static pod."""
_SCHEDULER_PODS: Final = "/api/v1/namespaces/kube-system/pods"
_KUBEADM: Final = "/api/v1/namespaces/kube-system/configmaps/kubeadm-config"
_KUBECONFIGS: Final = {"/etc/kubernetes/scheduler.conf": "system:kube-scheduler"}
"""As whom a static pod speaks, by the file that it is given."""
_NOT_FOUND: Final = 404
_REGENERATE: Final = (
    f"kubeadm init phase control-plane scheduler --config kubeadm.yaml    # there, with scheduler.extraArgs of {_GUIDE}"
)

Pod = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StaticPods:
    """The static pods of Kerf, and those of kube-scheduler."""

    kerf: Sequence[Pod]
    schedulers: Sequence[Pod]
    control_planes: frozenset[str]
    """Nodes that are called so, or run a kube-scheduler."""
    kubeadm: Mapping[str, Any] | None = field(default=None)
    """kubeadm's ClusterConfiguration, None where there is none to be read."""

    @property
    def user(self) -> str:
        """As whom Kerf speaks, "" where that can't be told."""
        return _KUBECONFIGS.get(option(self.kerf[0], "kubeconfig"), "") if self.kerf else ""

    @property
    def settings(self) -> dict[str, Any]:
        """What Kerf's arguments and variables set, by section; a file of settings on the host can't be read."""
        found: dict[str, Any] = {}
        for container in _containers(self.kerf[0]) if self.kerf else ():
            for variable in container.get("env") or ():
                name = str(variable.get("name", ""))
                if name.startswith(ENV_PREFIX) and "value" in variable:
                    _set(found, name.removeprefix(ENV_PREFIX).lower().split(NESTED), variable["value"])
            for assignment in _options(container, "set"):
                key, _, value = assignment.partition("=")
                _set(found, key.split("."), value)
        return found


async def find_static_pods(transport: Transport) -> StaticPods:
    """All there are. Raises ClusterError, msgspec.DecodeError."""
    kerf = [item for item in await listed(transport, PODS_PATH, KERF) if _is_static(item)]
    schedulers = await listed(transport, _SCHEDULER_PODS, _SCHEDULERS)
    named = {item["metadata"]["name"] for item in await listed(transport, NODES_PATH, _CONTROL_PLANE)} if kerf else ()
    kubeadm = await _kubeadm(transport) if kerf else None
    return StaticPods(kerf, schedulers, frozenset({*named, *map(_node_of, schedulers)} - {""}), kubeadm)


def _is_static(pod: Pod) -> bool:
    """Whether a pod is what a kubelet shows of a static one."""
    metadata, node = pod["metadata"], _node_of(pod)
    owners = [owner.get("kind") for owner in metadata.get("ownerReferences") or ()]
    named = bool(node) and metadata["name"].endswith(f"-{node}")
    return MIRROR in (metadata.get("annotations") or {}) or (owners == ["Node"] if owners else named)


def _node_of(pod: Pod) -> str:
    """The node that a pod is on, "" for none."""
    return str(pod["spec"].get("nodeName") or "")


def option(pod: Pod, name: str) -> str:
    """What a pod's programs are given as `--name`, "" for nothing."""
    return next((value for container in _containers(pod) for value in _options(container, name)), "")


def told_of(found: StaticPods) -> Iterator[Finding]:
    """How Kerf as a static pod stands, and whether the kube-scheduler beside each calls it, as far as that shows."""
    nodes = {_node_of(pod) for pod in found.kerf}
    where = f"static pod on {len(nodes)} of {len(found.control_planes | nodes)} control plane nodes"
    configs = {_node_of(pod): option(pod, "config") for pod in found.schedulers}
    ill = sorted(pod["metadata"]["name"] for pod in found.kerf if _is_unready(pod))
    if ill:
        fix = f"kubectl -n kube-system describe pod {ill[0]}"
        yield Finding("Kerf", Verdict.BROKEN, f"{where}, and not ready: {names(ill)}", fix)
        return
    if mute := sorted(node for node, config in configs.items() if not config):
        told = f"{where}, and kube-scheduler has no --config, so it does not call Kerf, on {names(mute)}"
        yield Finding("Kerf", Verdict.BROKEN, told, _REGENERATE)
        return
    if alone := sorted(configs.keys() - nodes):
        told = f"{where}: no GPU pod is placed while the kube-scheduler of one without it leads: {names(alone)}"
        yield Finding(
            "Kerf", Verdict.BROKEN, told, f"cp manifests/static-pod/kerf.yaml /etc/kubernetes/manifests/    # {_GUIDE}"
        )
        return
    files = sorted({config for config in configs.values() if config})
    if not files:
        told = f"{where}; whether kube-scheduler calls it can't be seen: none of its pods is in kube-system"
    elif all(file.endswith(f"/{_SCHEDULER_CONFIG}") for file in files):
        told = f"{where}, both entries in kube-scheduler's configuration"
    else:
        told = f"{where}; {names(files)} of kube-scheduler can't be read from here: it needs both entries of Kerf"
    yield Finding("Kerf", Verdict.OK, told)
    if files and found.kubeadm is not None and not _survives(found.kubeadm):
        told = (
            "the next one takes --config out of kube-scheduler, unless it is given --patches: kubeadm-config lacks it"
        )
        yield Finding(
            "kubeadm upgrade",
            Verdict.NOTE,
            told,
            f"scheduler.extraArgs and extraVolumes in ClusterConfiguration: {_GUIDE}",
        )


def _survives(kubeadm: Mapping[str, Any]) -> bool:
    """Whether kubeadm writes `--config` into the manifest of kube-scheduler itself."""
    scheduler = kubeadm.get("scheduler")
    given = scheduler.get("extraArgs") if isinstance(scheduler, Mapping) else None
    if isinstance(given, Mapping):  # v1beta3
        return bool(given.get("config"))
    return any(isinstance(one, Mapping) and one.get("name") == "config" for one in given or ())


async def _kubeadm(transport: Transport) -> Mapping[str, Any] | None:
    try:
        text = (ANY.decode(await transport.get(_KUBEADM)).get("data") or {}).get("ClusterConfiguration", "")
        found = yaml.safe_load(text)
    except ApiError as error:
        if error.status == _NOT_FOUND:
            return None
        return None  # whoever may not read it is told of what else he may not
    except (ClusterError, msgspec.DecodeError, yaml.YAMLError):
        return None
    return found if isinstance(found, Mapping) else None


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


def _set(settings: dict[str, Any], at: Sequence[str], text: str) -> None:
    """One setting, written as YAML, at its place in the sections."""
    *sections, name = at
    for section in sections:
        inner = settings.setdefault(section, {})
        if not isinstance(inner, dict):
            return
        settings = inner
    try:
        settings[name] = yaml.safe_load(text)
    except yaml.YAMLError:
        settings[name] = text


def _is_unready(pod: Pod) -> bool:
    """Whether its kubelet says that a pod is not ready; one that has said nothing yet is left alone."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(one.get("type") == "Ready" and one.get("status") == "False" for one in conditions)
