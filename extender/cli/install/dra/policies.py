"""The admission policies that keep others from devices that Kerf owns, and the proof that the API server obeys them.

kube-scheduler decides on what it has seen, and writes some time later: a taint alone does not stop what it has decided
before. The policy does, in the API server, for each DeviceTaintRule with Kerf's taint. Nor does Kerf stop at once when
a pool is taken from it: while the taint's value is "held", the policy refuses everybody.
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from extender.cli.install.dra.facts import API, Rule
from extender.cli.install.findings import KERF, listed
from extender.kube.client import ApiError, ApiServer, Transport

TOLERATIONS, ALLOCATIONS = "-dra-tolerations", "-dra-allocations"
"""How the names of the two policies end."""
MANAGED_BY: Final = "kerf-install"
"""Label of those that this command has written."""
_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_POLICIES: Final = f"{_ADMISSION}/validatingadmissionpolicies"
_BINDINGS: Final = f"{_ADMISSION}/validatingadmissionpolicybindings"
_ACCOUNT: Final = "system:serviceaccount:kube-system:kerf"
"""Whom the file names."""
_NAMES: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_HELD: Final = "is on its way to or from Kerf"
"""What the policy says of a pool that is nobody's."""
_PROBE: Final = "kerf-probe"
_PROBE_S: Final = 0.25


class UnprovenError(Exception):
    """The API server does not refuse what the policies say it should."""


def user_of(account: str) -> str:
    """The user that a service account, NAMESPACE/NAME, is. Raises ValueError."""
    if not _NAMES.fullmatch(account):
        raise ValueError(f"{account!r} is no service account: write NAMESPACE/NAME")
    return f"system:serviceaccount:{account.replace('/', ':')}"


def policies(user: str) -> list[dict[str, Any]]:
    """The policies and their bindings, for a Kerf that is a user."""
    text = Path(__file__).with_name("policies.yaml").read_text()
    text = text.replace(_ACCOUNT, user).replace("managed-by: kubectl", f"managed-by: {MANAGED_BY}")
    return list(yaml.safe_load_all(text))


async def in_force(transport: Transport) -> dict[str, Mapping[str, Any]]:
    """Kerf's policies for DRA that are bound, by name, whoever has written them. Raises ClusterError, DecodeError."""
    bound = {
        item["spec"].get("policyName")
        for item in await listed(transport, _BINDINGS, KERF)
        if "Deny" in item["spec"]["validationActions"]
    }
    found = {item["metadata"]["name"]: item for item in await listed(transport, _POLICIES, KERF)}
    return {name: item for name, item in found.items() if name in bound and name.endswith((TOLERATIONS, ALLOCATIONS))}


def lacking(found: Mapping[str, Mapping[str, Any]], user: str) -> str:
    """What is wrong with the policies that are in force, "" for nothing."""
    for ending in (TOLERATIONS, ALLOCATIONS):
        if not any(name.endswith(ending) for name in found):
            return f"no admission policy kerf{ending} is in force"
    for name, item in found.items():
        conditions = " ".join(each["expression"] for each in item["spec"]["validations"])
        if name.endswith(ALLOCATIONS) and f"'{user}'" not in conditions:
            return f"{name} does not let {user} allocate"
    return ""


async def install(transport: Transport, user: str) -> None:
    """Write them. Raises ClusterError."""
    for document in policies(user):
        await transport.ensure(_path(document), msgspec.json.encode(document))


async def uninstall(api: ApiServer) -> list[str]:
    """Delete what this command has written; its names. Raises ClusterError, msgspec.DecodeError."""
    gone = []
    for path in (_BINDINGS, _POLICIES):
        for item in await listed(api, path, f"{KERF},app.kubernetes.io/managed-by={MANAGED_BY}"):
            await api.delete(f"{path}/{item['metadata']['name']}")
            gone.append(item["metadata"]["name"])
    return sorted({*gone})


async def prove(api: ApiServer, namespace: str, rule: Rule, within_s: float) -> None:
    """Return once the API server lets nobody allocate what a rule holds, by trying it without storing it.

    Raises UnprovenError, ClusterError.
    """
    path = f"{API}/namespaces/{namespace}/resourceclaims"
    request = {"name": "probe", "exactly": {"deviceClassName": _PROBE}}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": _PROBE},
        "spec": {"devices": {"requests": [request]}},
    }
    try:
        await api.post(path, msgspec.json.encode(claim))
    except ApiError as error:
        if error.status != 409:  # left by one that was killed
            raise
    result = {
        "request": "probe",
        "driver": rule.driver or f"{_PROBE}.kerf.dev",
        "pool": rule.pool or _PROBE,
        "device": rule.device or _PROBE,
    }
    allocation = {"status": {"allocation": {"devices": {"results": [result]}}}}
    try:
        deadline = asyncio.get_running_loop().time() + within_s
        while not await _refused(api, f"{path}/{_PROBE}/status", allocation):
            if asyncio.get_running_loop().time() > deadline:
                raise UnprovenError(
                    f"after {within_s:g} s the API server still allows allocations that {rule.name} holds"
                )
            await asyncio.sleep(_PROBE_S)
    finally:
        await api.delete(f"{path}/{_PROBE}")


async def _refused(api: ApiServer, path: str, allocation: Mapping[str, Any]) -> bool:
    try:
        await api.patch(f"{path}?dryRun=All", msgspec.json.encode(allocation))
    except ApiError as error:
        if _HELD in error.message:
            return True
        if ALLOCATIONS not in error.message:
            raise
        # Refused, but for another reason: it does not know the rules yet, or knows the one before the last change.
    return False


def _path(document: Mapping[str, Any]) -> str:
    path = _BINDINGS if document["kind"].endswith("Binding") else _POLICIES
    return f"{path}/{document['metadata']['name']}"
