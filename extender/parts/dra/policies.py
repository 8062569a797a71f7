"""The admission policies that keep others from devices that Kerf owns, and the proof that the API server obeys them.

kube-scheduler decides on what it has seen, and writes some time later: a taint alone does not stop what it has decided
before. A policy does, in the API server: the fence, one for each of Kerf's DeviceTaintRules, of the same name. Nor does
Kerf stop at once when a pool is taken from it: while the pool is held, the fence refuses everybody.

Driver and pool stand in the fence's text: of policies with parameters of a built-in kind, the API server stops watching
these when the policy is deleted, and does not begin again when it comes back (`policy_source.go` in apiserver 0.37).
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
"""How the name of the policy ends that keeps claims from tolerating the taint."""
LABELS: Final = {"app.kubernetes.io/name": "kerf", "app.kubernetes.io/managed-by": "kerf-install"}
"""Of what this command has written."""
HELD: Final = "is on its way to or from Kerf: nobody allocates it now"
KERFS: Final = "is allocated by Kerf alone"
"""What a fence says."""
_NAMES: Final = re.compile(r"[a-z0-9]([a-z0-9./-]*[a-z0-9])?")
"""Of drivers and pools, as the API server has them; nothing that ends a text in CEL."""
_ACCOUNT: Final = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_PROBE: Final = "kerf-probe"
_PROBE_S: Final = 0.25


class UnprovenError(Exception):
    """The API server does not refuse what a fence says it should."""


def user_of(account: str) -> str:
    """The user that a service account, NAMESPACE/NAME, is. Raises ValueError."""
    if not _ACCOUNT.fullmatch(account):
        raise ValueError(f"{account!r} is no service account: write NAMESPACE/NAME")
    return f"system:serviceaccount:{account.replace('/', ':')}"


def checked(name: str) -> str:
    """A driver's or a pool's name. Raises ValueError."""
    if not _NAMES.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a driver or a pool")
    return name


def tolerations() -> list[dict[str, Any]]:
    """The policy by which claims don't tolerate Kerf's taint, and its binding."""
    documents = list(yaml.safe_load_all(Path(__file__).with_name("policies.yaml").read_text()))
    for document in documents:
        document["metadata"]["labels"] = LABELS
    return documents


def fence(name: str, driver: str, pool: str | None, user: str) -> list[dict[str, Any]]:
    """A policy by which a user alone allocates the devices of a driver, or of one of its pools; "" for nobody.

    What is allocated already may be reserved, and given back, by anybody; who only looks (`adminAccess`) takes nothing.
    Raises ValueError.
    """
    of_pool = "" if pool is None else f" && new.pool == '{checked(pool)}'"
    old = "old.driver == new.driver && old.pool == new.pool && old.device == new.device && old.?shareID == new.?shareID"
    mine = f"new.driver == '{checked(driver)}'{of_pool} && !new.?adminAccess.orValue(false)"
    free = f" || request.userInfo.username == '{user}'" if user else ""
    results = "status.?allocation.?devices.?results.orValue([])"
    told = f"variables.taken[0].device + ' of pool ' + variables.taken[0].pool + ' {KERFS if user else HELD} ({name})'"
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
                "expression": f"object.?{results}.filter(new, {mine} && !variables.old.exists(old, {old}))",
            },
        ],
        "validations": [
            {
                "expression": f"variables.taken.size() == 0{free}",
                "messageExpression": told,
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
    """Write policies and bindings, or change them. Raises ClusterError."""
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
    """Return once the API server refuses to allocate what a rule taints, in these words; nothing is stored.

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
    await api.delete(f"{path}/{_PROBE}")  # left by one that was killed
    await api.post(path, msgspec.json.encode(claim))
    try:
        deadline = asyncio.get_running_loop().time() + within_s
        while f"{says} ({rule.name})" not in await _refusal(api, f"{path}/{_PROBE}/status", allocation):
            if asyncio.get_running_loop().time() > deadline:
                raise UnprovenError(f"after {within_s:g} s the API server does not obey the policy {rule.name}")
            await asyncio.sleep(_PROBE_S)
    finally:
        await api.delete(f"{path}/{_PROBE}")


async def _refusal(api: ApiServer, path: str, allocation: Mapping[str, Any]) -> str:
    """Why an allocation is refused by a policy, "" if it is not."""
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
