"""Admission policies that protect devices owned by Kerf, and checks that the API server enforces them.

A taint does not stop what kube-scheduler has already decided and writes later. A policy in the API server does: the
fence, one per DeviceTaintRule of Kerf's and of the same name. While a pool is held, it rejects Kerf's writes as well.

Driver and pool are literals in the fence rather than policy parameters: for parameters of a built-in kind, the API
server stops watching when the policy is deleted and does not restart when it is recreated (`policy_source.go` in
apiserver 0.37).
"""

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from extender.cli.install.access import BINDINGS, POLICIES
from extender.cli.install.findings import listed
from extender.kube.client import ApiError, ApiServer, Transport
from extender.parts.dra.facts import API, Rule

TOLERATIONS: Final = "-dra-tolerations"
"""Suffix of the name of the policy that forbids claims to tolerate the taint."""
LABELS: Final = {"app.kubernetes.io/name": "kerf", "app.kubernetes.io/managed-by": "kerf-install"}
"""Labels of objects that this command writes."""
HELD: Final = "is being handed over to or from Kerf and cannot be allocated now"
KERFS: Final = "is allocated only by Kerf"
"""Messages of a fence, without apostrophes: they are CEL strings."""
_NAMES: Final = re.compile(r"[a-z0-9]([a-z0-9./-]*[a-z0-9])?")
"""Names of drivers and pools; excludes characters that would end a CEL string."""
_ACCOUNT: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_PROBE: Final = "kerf-probe"
_PROBE_S: Final = 0.25


class UnprovenError(Exception):
    """The API server does not enforce a fence."""


def user_of(account: str) -> str:
    """The user name of a service account, NAMESPACE/NAME. Raises ValueError."""
    if not _ACCOUNT.fullmatch(account):
        raise ValueError(f"{account!r} is not a service account: write NAMESPACE/NAME")
    return f"system:serviceaccount:{account.replace('/', ':')}"


def checked(name: str) -> str:
    """Return a valid driver or pool name. Raises ValueError."""
    if not _NAMES.fullmatch(name):
        raise ValueError(f"{name!r} is not a valid driver or pool name")
    return name


def tolerations() -> list[dict[str, Any]]:
    """The policy that forbids claims to tolerate Kerf's taint, with its binding."""
    documents = list(yaml.safe_load_all(Path(__file__).with_name("policies.yaml").read_text()))
    for document in documents:
        document["metadata"]["labels"] = LABELS
    return documents


def fence(name: str, driver: str, pool: str | None, user: str) -> list[dict[str, Any]]:
    """A policy that lets only `user` allocate the devices of a driver or one of its pools; "" lets no one.

    Anyone may reserve and deallocate existing allocations, and allocate with admin access. Raises ValueError.
    """
    of_pool = "" if pool is None else f" && new.pool == '{checked(pool)}'"
    old = "old.driver == new.driver && old.pool == new.pool && old.device == new.device && old.?shareID == new.?shareID"
    of_driver = f"new.driver == '{checked(driver)}'{of_pool} && !new.?adminAccess.orValue(false)"
    free = f" || request.userInfo.username == '{user}'" if user else ""
    results = "status.?allocation.?devices.?results.orValue([])"
    message = (
        f"variables.taken[0].device + ' of pool ' + variables.taken[0].pool + ' {KERFS if user else HELD} ({name})'"
    )
    rule = {
        "apiGroups": ["resource.k8s.io"],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["resourceclaims/status"],
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "allocates", "expression": f"object.?{results}.size() > 0"}],
        "variables": [
            {"name": "old", "expression": f"oldObject.?{results}"},
            {
                "name": "taken",
                "expression": f"object.?{results}.filter(new, {of_driver} && !variables.old.exists(old, {old}))",
            },
        ],
        "validations": [
            {
                "expression": f"variables.taken.size() == 0{free}",
                "messageExpression": message,
                "reason": "Forbidden",
            }
        ],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name, "labels": LABELS}}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"kind": "ValidatingAdmissionPolicy", **head, "spec": spec},
        {"kind": "ValidatingAdmissionPolicyBinding", **head, "spec": binding},
    ]


async def write(transport: Transport, *documents: Mapping[str, Any]) -> None:
    """Create or update policies and bindings. Raises ClusterError."""
    for document in documents:
        await transport.ensure(_path(document), msgspec.json.encode(document))


async def delete(api: ApiServer, *names: str) -> None:
    """Delete policies with their bindings. Raises ClusterError."""
    for name in names:
        for path in (BINDINGS, POLICIES):
            await api.delete(f"{path}/{name}")


async def written(transport: Transport) -> list[str]:
    """Names of the policies that this command has written. Raises ClusterError, msgspec.DecodeError."""
    selector = ",".join(f"{key}={value}" for key, value in LABELS.items())
    return [item["metadata"]["name"] for item in await listed(transport, POLICIES, selector)]


async def prove(api: ApiServer, namespace: str, rule: Rule, says: str, within_s: float) -> None:
    """Wait until a dry-run allocation of a rule's devices is rejected with the message `says`.

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
    result = {"request": "probe", "driver": rule.driver, "pool": rule.pool or _PROBE, "device": _PROBE}
    allocation = {"status": {"allocation": {"devices": {"results": [result]}}}}
    await api.delete(f"{path}/{_PROBE}")  # left by an interrupted run
    await api.post(path, msgspec.json.encode(claim))
    try:
        deadline = asyncio.get_running_loop().time() + within_s
        while f"{says} ({rule.name})" not in await _refusal(api, f"{path}/{_PROBE}/status", allocation):
            if asyncio.get_running_loop().time() > deadline:
                raise UnprovenError(f"the API server does not enforce policy {rule.name} after {within_s:g} s")
            await asyncio.sleep(_PROBE_S)
    finally:
        await api.delete(f"{path}/{_PROBE}")


async def _refusal(api: ApiServer, path: str, allocation: Mapping[str, Any]) -> str:
    """The policy's message if it rejects an allocation, else ""."""
    try:
        await api.patch(f"{path}?dryRun=All", msgspec.json.encode(allocation))
    except ApiError as error:
        if "ValidatingAdmissionPolicy" not in error.message:
            raise
        return error.message
    return ""


def _path(document: Mapping[str, Any]) -> str:
    path = BINDINGS if document["kind"].endswith("Binding") else POLICIES
    return f"{path}/{document['metadata']['name']}"
