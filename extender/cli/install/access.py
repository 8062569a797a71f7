"""What Kerf may do in a cluster, and what authors of pods may not."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final

import msgspec

from extender.cli.install.findings import ANY, KERF, Finding, Verdict, listed, names
from extender.cli.install.kerf import Installed
from extender.cli.install.rights import ALLOCATING, CREATING, QUEUEING, Right, electing, serving
from extender.kube.client import ClusterError, Transport

_POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
_POLICY: Final = "manifests/admission-policy.yaml"
_RIGHTS: Final = "manifests/rbac.yaml"
_QUEUE_RIGHTS: Final = "manifests/queue/rbac.yaml"
_POLICY_CHECK: Final = "admission policy"
_ASSIGNMENTS: Final = "-assignments"
"""How the name of that policy ends."""
_SERVICE_ACCOUNTS: Final = "system:serviceaccount:"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def rights(transport: Transport, installed: Installed | None, account: str) -> AsyncIterator[Finding]:
    """Every right of Kerf's account."""
    if account:
        namespace, _, name = account.rpartition("/")
        user = f"system:serviceaccount:{namespace}:{name}"
    elif installed is not None:
        namespace, user = installed.namespace, installed.user
    else:
        return
    if not user:
        told = "as whom the static pod speaks is not known: its --kubeconfig is not kube-scheduler's"
        yield Finding("rights", Verdict.NOTE, told, "kubectl auth can-i --list --as USER")
        return
    election = (installed.settings if installed else {}).get("leader_election") or {}
    mode = str(election.get("mode", "off"))
    lease = str(election.get("lease") or ("kube-scheduler" if mode == "scheduler" else "kerf"))
    own = electing(mode, str(election.get("namespace") or namespace), lease)
    try:
        lacking = [
            (right, told) for right in (*_needed(installed), *own) for told in await missing(transport, user, [right])
        ]
    except ClusterError as error:
        yield Finding("rights", Verdict.NOTE, f"can't be read: {error}", "run this as an administrator")
        return
    for right, told in lacking:
        manifest = _QUEUE_RIGHTS if right in QUEUEING else _RIGHTS
        fix = installed.fix("rbac.create=true", manifest) if installed else f"kubectl apply -f {manifest}"
        minor = right.of_some and installed is not None and installed.static is not None
        yield Finding("rights", Verdict.NOTE if minor else Verdict.BROKEN, told, fix)
    if not lacking:
        yield Finding("rights", Verdict.OK, f"{user} has all the rights it needs")


def _needed(installed: Installed | None) -> Iterator[Right]:
    """What its way of running and its settings take; where it can't be seen, what every Kerf takes."""
    settings = installed.settings if installed else {}
    yield from serving(extender=installed is None or installed.mode != "planner")
    if (settings.get("queue") or {}).get("enabled"):
        yield from QUEUEING
    if (settings.get("dra") or {}).get("allocate"):
        yield from ALLOCATING
        if settings["dra"].get("rewrite_extended_resources"):
            yield from CREATING


async def missing(transport: Transport, user: str, needed: Iterable[Right]) -> list[str]:
    """What a user may not of what is needed, a sentence for each. Raises ClusterError."""
    return [
        f"{user} may not {verb} {f'{right.resource} {right.name}'.rstrip()}: {right.without}"
        for right in needed
        for verb in right.verbs
        if not await _allowed(transport, user, right, verb)
    ]


async def _allowed(transport: Transport, user: str, right: Right, verb: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "verb": verb,
        "name": right.name,
        "namespace": right.namespace,
    }
    groups = ["system:authenticated"]
    if user.startswith(_SERVICE_ACCOUNTS):
        namespace = user.removeprefix(_SERVICE_ACCOUNTS).partition(":")[0]
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = ANY.decode(await transport.post(_REVIEWS, msgspec.json.encode(review)))
    return bool(answer["status"]["allowed"])


async def admission_policy(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """The admission policy that keeps authors of pods from writing what Kerf does, and whether Kerf still may."""
    fix = installed.fix("admissionPolicy.enabled=true", _POLICY) if installed else f"kubectl apply -f {_POLICY}"
    try:
        found = {item["metadata"]["name"]: item["spec"] for item in await listed(transport, _POLICIES, KERF)}
        policies = {name: spec for name, spec in found.items() if name.endswith(_ASSIGNMENTS)}  # and not the marker's
        bindings = [item["spec"] for item in await listed(transport, f"{_POLICIES.removesuffix('ies')}ybindings", KERF)]
    except (ClusterError, msgspec.DecodeError) as error:
        yield Finding(_POLICY_CHECK, Verdict.NOTE, f"can't be read: {error}", "run this as an administrator")
        return
    in_force = [
        (name, spec)
        for name, spec in policies.items()
        if any(item.get("policyName") == name and "Deny" in item["validationActions"] for item in bindings)
    ]
    if not in_force:
        told = "is not installed: authors of pods can write what Kerf reads after a restart (SECURITY.md)"
        yield Finding(_POLICY_CHECK, Verdict.NOTE, told, fix)
        return
    user = installed.user if installed else ""
    for name, spec in in_force:
        conditions = " ".join(item["expression"] for item in spec.get("matchConditions") or ())
        if user and f"'{user}'" not in conditions:
            told = f"{name} does not exempt {user}: no pod is bound"
            yield Finding(_POLICY_CHECK, Verdict.BROKEN, told, f"add it to admissionPolicy.users of {name}")
            return
    yield Finding(_POLICY_CHECK, Verdict.OK, f"in force: {names([name for name, _ in in_force])}")
