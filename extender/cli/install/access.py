"""Checks Kerf's permissions in a cluster, and the admission policy for pod authors."""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import msgspec

from extender.cli.consoles import names
from extender.cli.install.findings import ANY, KERF, Finding, Verdict, broken, listed, note, ok
from extender.cli.install.kerf import SERVICE_ACCOUNTS, CheckedCluster, Installed
from extender.kube.client import Transport
from extender.kube.rights import QUEUEING, Need, electing, manifest_of, serving
from extender.settings.tree import rights_of

POLICIES: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS: Final = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
_POLICY: Final = "manifests/admission-policy.yaml"
_ASSIGNMENTS: Final = "-assignments"
"""Suffix of that policy's name."""
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def rights(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check the permissions of Kerf's user."""
    installed = look.installed
    if not (look.account or installed.name):
        return
    user = f"{SERVICE_ACCOUNTS}{look.account.replace('/', ':')}" if look.account else installed.user
    if not user:
        text = "the static pod's user is unknown: its --kubeconfig is not kube-scheduler's"
        yield note(text, "kubectl auth can-i --list --as USER")
        return
    lacking = [
        (right, manifest, text)
        for right, manifest in _needed(installed)
        for text in await missing(look.transport, user, [right])
    ]
    for right, manifest, text in lacking:
        fix = installed.fix("rbac.create=true", manifest)
        verdict = Verdict.NOTE if right.of_some and installed.is_static else Verdict.BROKEN
        yield Finding("", verdict, text, fix)
    if not lacking:
        yield ok(f"{user} has all the rights it needs")


def _needed(installed: Installed) -> Iterator[tuple[Need, str]]:
    """The permissions that its mode and settings need, each with the manifest that grants it; if the mode and settings
    can't be read, the permissions that every Kerf needs."""
    yield from ((need, manifest_of(need)) for need in _needed_by_the_kernel(installed))
    for rights in rights_of(installed.settings):
        yield from ((need, rights.manifest) for need in rights.needs)


def _needed_by_the_kernel(installed: Installed) -> Iterator[Need]:
    settings, election = installed.settings, installed.settings.leader_election
    yield from serving(extender=installed.mode != "planner")
    if settings.queue.enabled:
        yield from QUEUEING
    yield from electing(election.mode, election.namespace, election.lease_name)


async def missing(transport: Transport, user: str, needed: Iterable[Need]) -> list[str]:
    """A sentence for each missing permission of a user. Raises ClusterError."""
    return [
        f"{user} may not {verb} {f'{right.resource} {right.name}'.rstrip()}: {right.without}"
        for right in needed
        for verb in right.verbs
        if not await _allowed(transport, user, right, verb)
    ]


async def _allowed(transport: Transport, user: str, right: Need, verb: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"group": right.group, "resource": resource, "subresource": subresource, "verb": verb}
    attributes |= {"name": right.name, "namespace": right.namespace}
    groups = ["system:authenticated"]
    if user.startswith(SERVICE_ACCOUNTS):
        namespace = user.removeprefix(SERVICE_ACCOUNTS).partition(":")[0]
        groups += ["system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
    spec = {"user": user, "groups": groups, "resourceAttributes": attributes}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
    answer = ANY.decode(await transport.post(_REVIEWS, msgspec.json.encode(review)))
    return bool(answer["status"]["allowed"])


async def policies_in_force(transport: Transport) -> dict[str, dict[str, Any]]:
    """Specs of Kerf's policies with a denying binding, by name. Raises ClusterError, msgspec.DecodeError."""
    policies = {item["metadata"]["name"]: item["spec"] for item in await listed(transport, POLICIES, KERF)}
    bindings = await listed(transport, BINDINGS, KERF)
    bound = {item["spec"].get("policyName") for item in bindings if "Deny" in item["spec"]["validationActions"]}
    return {name: spec for name, spec in policies.items() if name in bound}


async def admission_policy(look: CheckedCluster) -> AsyncIterator[Finding]:
    """Check that the admission policy keeps pod authors from writing Kerf's annotations, and exempts Kerf."""
    policies = await policies_in_force(look.transport)
    in_force = [name for name in policies if name.endswith(_ASSIGNMENTS)]  # without the marker's
    if not in_force:
        text = "is not installed: authors of pods can write what Kerf reads after a restart (SECURITY.md)"
        yield note(text, look.installed.fix("admissionPolicy.enabled=true", _POLICY))
        return
    user = look.installed.user
    for name in in_force:
        conditions = " ".join(item["expression"] for item in policies[name].get("matchConditions") or ())
        if user and f"'{user}'" not in conditions:
            text = f"{name} does not exempt {user}: no pod is bound"
            yield broken(text, f"add it to admissionPolicy.users of {name}")
            return
    yield ok(f"in force: {names(in_force)}")
