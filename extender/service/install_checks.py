"""What a cluster lacks for Kerf, each with the command that mends it. Only reads; asks as whoever runs it."""

import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import msgspec
import numpy as np
import yaml

from extender.cluster import objects
from extender.cluster.decoding import Decoder
from extender.cluster.ledger import Ledger
from extender.cluster.listings import Lister
from extender.cluster.mirrors import NODES_PATH, PODS_PATH, SLICES_PATH
from extender.cluster.transports import ApiError, ClusterError, Transport
from extender.service.rights import SERVING, Right, electing
from extender.telemetry.discovery import EXPORTER_APP_SELECTOR, EXPORTER_SELECTOR, find_prometheus

OLDEST_MINOR: Final = 29
TESTED_MINORS: Final = (34, 37)
_KERF: Final = "app.kubernetes.io/name=kerf"
_any: Final = Decoder(dict[str, Any])
_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_POLICY: Final = "manifests/admission-policy.yaml"
_POLICY_CHECK: Final = "admission policy"
_ASSIGNMENTS: Final = "-assignments"
"""How the name of that policy ends."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SIGNS_OF_NVIDIA: Final = ("feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present")
"""Labels that Node Feature Discovery and the GPU operator give to nodes with cards of NVIDIA."""
_NUM_NAMED: Final = 5

_HELM: Final = "helm upgrade --install"
_PLUGIN: Final = (
    f"{_HELM} nvidia-device-plugin nvidia-device-plugin --repo https://nvidia.github.io/k8s-device-plugin "
    "--namespace nvidia-device-plugin --create-namespace --set gfd.enabled=true"
)
_DCGM: Final = (
    f"{_HELM} dcgm-exporter dcgm-exporter --repo https://nvidia.github.io/dcgm-exporter/helm-charts "
    "--namespace monitoring --create-namespace"
)
_CREDENTIALS: Final = ("username", "password_file", "bearer_token_file", "cert_file", "key_file", "headers")
_PROMETHEUS: Final = (
    f"{_HELM} prometheus kube-prometheus-stack --repo https://prometheus-community.github.io/helm-charts "
    "--namespace monitoring --create-namespace"
)
_KERF_CHART: Final = "manifests/helm/kerf"


class Verdict(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Works, less well than it could; or could not be looked at."""
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    what: str
    verdict: Verdict
    told: str
    fix: str = ""
    """A command, or what to write where."""


@dataclass(frozen=True, slots=True)
class Installed:
    """A Kerf that the chart or install.yaml has put into the cluster."""

    name: str
    namespace: str
    account: str
    scheduler_image: str
    """"" where no kube-scheduler runs beside it."""
    ready: int
    settings: Mapping[str, Any]
    scheduler: Mapping[str, Any] | None

    @property
    def upgrade(self) -> str:
        """The command that installs the chart's objects again, with a change to be added."""
        return f"helm upgrade {self.name} {_KERF_CHART} --namespace {self.namespace} --reuse-values"


class Checks:
    """Looks at one cluster."""

    def __init__(self, transport: Transport, account: str = "") -> None:
        """`account` is NAMESPACE/NAME of Kerf's service account, "" for that of the Kerf which is found."""
        self._transport = transport
        self._account = account

    async def run(self) -> list[Finding]:
        """Everything that was looked at. Raises UnreachableError, CredentialsError."""
        minor = await self._minor()
        found = [_supported(minor)]
        try:
            installed, told = await self._installed()
            found.append(told)
        except (ClusterError, msgspec.DecodeError) as error:
            installed = None
            found.append(Finding("Kerf", Verdict.NOTE, f"what is installed can't be looked at: {error}"))
        if installed is not None:
            found += _scheduling(installed, minor)
        for part in (self._rights(installed), self._policy(installed), self._devices(), self._telemetry(installed)):
            found += [finding async for finding in part]
        return found

    async def _minor(self) -> int:
        answer = _any.decode(await self._transport.get("/version"))
        return int(re.sub(r"\D.*", "", str(answer.get("minor", ""))) or 0)

    async def _installed(self) -> tuple[Installed | None, Finding]:
        deployments = await self._list("/apis/apps/v1/deployments", _KERF)
        if not deployments:
            command = f"helm install kerf {_KERF_CHART} --namespace kerf-system --create-namespace"
            return None, Finding(
                "Kerf", Verdict.BROKEN, "no Deployment of it is there (nor is one needed for a static pod)", command
            )
        found = await self._read(deployments[0])
        more = f", and {len(deployments) - 1} more" if len(deployments) > 1 else ""
        name = f"Deployment {found.namespace}/{found.name}{more}"
        if found.ready:
            return found, Finding("Kerf", Verdict.OK, f"{name}: {found.ready} ready")
        logs = f"kubectl -n {found.namespace} describe deployment {found.name}"
        return found, Finding("Kerf", Verdict.BROKEN, f"{name}: no replica is ready", logs)

    async def _read(self, deployment: Mapping[str, Any]) -> Installed:
        metadata, spec = deployment["metadata"], deployment["spec"]["template"]["spec"]
        images = [item["image"] for item in spec["containers"] if item["name"] == "kube-scheduler"]
        files: Mapping[str, str] = {}
        for volume in spec.get("volumes", ()):
            if "configMap" in volume:
                path = f"/api/v1/namespaces/{metadata['namespace']}/configmaps/{volume['configMap']['name']}"
                files = {**files, **(_any.decode(await self._transport.get(path)).get("data") or {})}
        return Installed(
            name=metadata["name"],
            namespace=metadata["namespace"],
            account=spec.get("serviceAccountName", "default"),
            scheduler_image=images[0] if images else "",
            ready=deployment.get("status", {}).get("readyReplicas", 0),
            settings=_mapping(files.get("kerf.yaml", "")),
            scheduler=_mapping(files["scheduler.yaml"]) if "scheduler.yaml" in files else None,
        )

    async def _rights(self, installed: Installed | None) -> AsyncIterator[Finding]:
        """Every right of Kerf's account."""
        if self._account:
            namespace, _, name = self._account.rpartition("/")
        elif installed is not None:
            namespace, name = installed.namespace, installed.account
        else:
            return
        election = (installed.settings if installed else {}).get("leader_election") or {}
        rights = (
            *SERVING,
            *electing(str(election.get("mode", "off")), namespace, str(election.get("lease") or "kerf")),
        )
        user = f"system:serviceaccount:{namespace}:{name}"
        fix = f"{installed.upgrade} --set rbac.create=true" if installed else "kubectl apply -f manifests/rbac.yaml"
        lacking = 0
        for right in rights:
            for verb in right.verbs:
                try:
                    allowed = await self._allowed(user, right, verb)
                except ClusterError as error:
                    yield Finding(
                        "rights", Verdict.NOTE, f"can't be looked at: {error}", "run this as an administrator"
                    )
                    return
                if not allowed:
                    lacking += 1
                    of = f"{right.resource} {right.name}".rstrip()
                    told = f"{user} may not {verb} {of}: {right.without}"
                    yield Finding("rights", Verdict.BROKEN, told, fix)
        if not lacking:
            yield Finding("rights", Verdict.OK, f"{user} has all that it needs")

    async def _allowed(self, user: str, right: Right, verb: str) -> bool:
        resource, _, subresource = right.resource.partition("/")
        attributes = {
            "group": right.group,
            "resource": resource,
            "subresource": subresource,
            "verb": verb,
            "name": right.name,
            "namespace": right.namespace,
        }
        groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{user.split(':')[2]}"]
        spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = _any.decode(await self._transport.post(_REVIEWS, msgspec.json.encode(review)))
        return bool(answer["status"]["allowed"])

    async def _policy(self, installed: Installed | None) -> AsyncIterator[Finding]:
        """The admission policy that keeps authors of pods from writing what Kerf does, and whether Kerf still may."""
        fix = f"{installed.upgrade} --set admissionPolicy.enabled=true" if installed else f"kubectl apply -f {_POLICY}"
        try:
            found = {item["metadata"]["name"]: item["spec"] for item in await self._list(_POLICIES, _KERF)}
            policies = {
                name: spec for name, spec in found.items() if name.endswith(_ASSIGNMENTS)
            }  # and not the marker's
            bindings = [item["spec"] for item in await self._list(f"{_POLICIES.removesuffix('ies')}ybindings", _KERF)]
        except (ClusterError, msgspec.DecodeError) as error:
            yield Finding(_POLICY_CHECK, Verdict.NOTE, f"can't be looked at: {error}", "run this as an administrator")
            return
        in_force = [
            (name, spec)
            for name, spec in policies.items()
            if any(item.get("policyName") == name and "Deny" in item["validationActions"] for item in bindings)
        ]
        if not in_force:
            told = "is not there: authors of pods can write what Kerf reads back after a restart (SECURITY.md)"
            yield Finding(_POLICY_CHECK, Verdict.NOTE, told, fix)
            return
        user = f"system:serviceaccount:{installed.namespace}:{installed.account}" if installed else ""
        for name, spec in in_force:
            conditions = " ".join(item["expression"] for item in spec.get("matchConditions") or ())
            if user and f"'{user}'" not in conditions:
                told = f"{name} does not except {user}: no pod is bound"
                yield Finding(_POLICY_CHECK, Verdict.BROKEN, told, f"name it in admissionPolicy.users of {name}")
                return
        yield Finding(_POLICY_CHECK, Verdict.OK, f"in force: {_names([name for name, _ in in_force])}")

    async def _devices(self) -> AsyncIterator[Finding]:
        """Device plugins, or DRA drivers, and what the nodes' labels tell of GPUs."""
        try:
            ledger, unserved = await self._learn()
        except (ClusterError, msgspec.DecodeError) as error:
            yield Finding("device plugin", Verdict.NOTE, f"nodes can't be looked at: {error}")
            return
        cluster = ledger.snapshot(time.monotonic())
        rows: list[int] = np.flatnonzero((cluster.gpu_model >= 0).any(axis=1)).tolist()
        if unserved:
            told = f"cards of NVIDIA, but no GPUs are offered: {_names(unserved)}"
            yield Finding("device plugin", Verdict.BROKEN, told, _PLUGIN)
        if not rows:
            if not unserved:
                yield Finding("device plugin", Verdict.BROKEN, "no node offers GPUs", _PLUGIN)
            return
        yield Finding("device plugin", Verdict.OK, f"{len(rows)} nodes offer GPUs")
        installed = cluster.gpu_model >= 0
        nameless = [
            row for row in rows if not all(cluster.models[m].name for m in cluster.gpu_model[row][installed[row]])
        ]
        sizeless = [row for row in rows if not cluster.gpu_memory_mib[row][installed[row]].all()]
        if missing := sorted({*nameless, *sizeless}):
            told = (
                "model or memory of GPUs is not known, so pods that ask for either go elsewhere: "
                f"{_names([cluster.node_names[row] for row in missing])}"
            )
            yield Finding("GPU Feature Discovery", Verdict.BROKEN, told, _PLUGIN)
        else:
            yield Finding("GPU Feature Discovery", Verdict.OK, "model and memory of all GPUs are known")

    async def _learn(self) -> tuple[Ledger, list[str]]:
        """All nodes with what they offer, and the names of those that should offer GPUs and don't."""
        ledger = Ledger(reservation_ttl_s=0.0)
        unserved: list[str] = []
        try:
            for item in await self._list(SLICES_PATH):
                ledger.upsert_slice(msgspec.convert(item, objects.ResourceSlice))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
        for item in await self._list(NODES_PATH):
            node = msgspec.convert(item, objects.Node)
            ledger.upsert_node(node)
            labels = node.metadata.labels or {}
            if any(labels.get(sign) == "true" for sign in _SIGNS_OF_NVIDIA):
                unserved.append(node.metadata.name)
        cluster = ledger.snapshot(time.monotonic())
        offering = {cluster.node_names[row] for row in np.flatnonzero((cluster.gpu_model >= 0).any(axis=1))}
        return ledger, [name for name in unserved if name not in offering]

    async def _telemetry(self, installed: Installed | None) -> AsyncIterator[Finding]:
        """dcgm-exporter, and a Prometheus that has its metrics."""
        settings = (installed.settings if installed else {}).get("telemetry") or {}
        if settings.get("source") == "off":
            yield Finding("telemetry", Verdict.OK, "is off (telemetry.source)")
            return
        try:
            pods = {
                item["metadata"]["name"]: item["spec"].get("nodeName")
                for selector in (EXPORTER_SELECTOR, EXPORTER_APP_SELECTOR)
                for item in await self._list(PODS_PATH, selector)
            }
        except ClusterError as error:
            yield Finding("DCGM", Verdict.NOTE, f"pods can't be looked at: {error}")
            return
        if pods:
            yield Finding("DCGM", Verdict.OK, f"dcgm-exporter on {len(set(pods.values()) - {None})} nodes")
        else:
            told = "no pod of dcgm-exporter: what GPUs are doing is not known, policies that observe rank by bookings"
            yield Finding("DCGM", Verdict.NOTE, told, _DCGM)
        if address := settings.get("url") or settings.get("exporters"):
            yield Finding("Prometheus", Verdict.OK, f"configured: {address}; `kerf doctor` reads it")
            return
        addresses, fault = await find_prometheus(self._transport)
        if addresses and any(settings.get(name) for name in _CREDENTIALS):
            told = f"found: {addresses[0]}; telemetry's credentials and headers go only to an address that is set"
            yield Finding("Prometheus", Verdict.NOTE, told, f"set config.telemetry.url={addresses[0]}, if it is yours")
        elif addresses:
            yield Finding("Prometheus", Verdict.OK, f"found: {addresses[0]}; `kerf doctor` reads it")
        else:
            told = fault or "no Service looks like one"
            yield Finding("Prometheus", Verdict.NOTE, told, f"{_PROMETHEUS}    # or name one: config.telemetry.url")

    async def _list(self, path: str, selector: str = "") -> list[dict[str, Any]]:
        query = {"labelSelector": selector} if selector else {}
        return (await Lister(self._transport, path, dict[str, Any], query).all()).items


def _supported(minor: int) -> Finding:
    oldest, newest = TESTED_MINORS
    if minor < OLDEST_MINOR:
        told = f"1.{minor}: Kerf needs 1.{OLDEST_MINOR} or newer"
        return Finding("Kubernetes", Verdict.BROKEN, told, "upgrade the cluster")
    if not oldest <= minor <= newest:
        return Finding("Kubernetes", Verdict.NOTE, f"1.{minor}: tested is 1.{oldest} to 1.{newest}")
    return Finding("Kubernetes", Verdict.OK, f"1.{minor}")


def _scheduling(installed: Installed, minor: int) -> list[Finding]:
    """The kube-scheduler beside Kerf: its version and its configuration."""
    if installed.scheduler is None:
        told = "mode service: whether your kube-scheduler calls it, its own configuration says (scheduler-config/)"
        return [Finding("scheduler configuration", Verdict.NOTE, told)]
    found = [_configured(installed)]
    tag = re.search(r":v?1\.(\d+)", installed.scheduler_image)
    if tag is None:
        told = f"of kube-scheduler is not told by its image, {installed.scheduler_image}"
        return [*found, Finding("version skew", Verdict.NOTE, told)]
    skew = int(tag[1]) - minor
    if skew > 0 or skew < -1:
        told = f"kube-scheduler 1.{tag[1]} on Kubernetes 1.{minor}: it has to be as new, or one minor older"
        fix = f"{installed.upgrade} --set scheduler.tag=v1.{minor}.0"
        return [*found, Finding("version skew", Verdict.BROKEN, told, fix)]
    return [*found, Finding("version skew", Verdict.OK, f"kube-scheduler 1.{tag[1]} on Kubernetes 1.{minor}")]


def _configured(installed: Installed) -> Finding:
    """Whether the kube-scheduler beside Kerf calls it as it has to."""
    extenders = (installed.scheduler or {}).get("extenders") or [{}]
    extender = extenders[0]
    faults = [f"{verb} is missing" for verb in ("filterVerb", "bindVerb") if not extender.get(verb)]
    if not extender.get("nodeCacheCapable"):
        faults.append("nodeCacheCapable is not true: whole nodes travel in each call")
    if extender.get("ignorable"):
        faults.append("ignorable is true: without Kerf the same GPUs are given away twice")
    if faults:
        return Finding("scheduler configuration", Verdict.BROKEN, "; ".join(faults), installed.upgrade)
    if not (extender.get("managedResources") and any(entry.get("ignorable") for entry in extenders[1:])):
        told = "one entry for all pods: while Kerf is gone not even pods without GPUs are scheduled"
        return Finding("scheduler configuration", Verdict.NOTE, told, installed.upgrade)
    if (installed.scheduler or {}).get("percentageOfNodesToScore") != 100:
        fix = f"{installed.upgrade} --set scheduler.percentageOfNodesToScore=100"
        told = "percentageOfNodesToScore is not 100: the best nodes may not be offered to Kerf"
        return Finding("scheduler configuration", Verdict.NOTE, told, fix)
    names = [profile.get("schedulerName") for profile in (installed.scheduler or {}).get("profiles") or ()]
    return Finding(
        "scheduler configuration", Verdict.OK, f"pods choose it by schedulerName: {', '.join(map(str, names))}"
    )


def _mapping(text: str) -> Mapping[str, Any]:
    """A YAML file's mapping, empty where it is none."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _names(names: list[str]) -> str:
    more = f" and {len(names) - _NUM_NAMED} more" if len(names) > _NUM_NAMED else ""
    return ", ".join(names[:_NUM_NAMED]) + more
