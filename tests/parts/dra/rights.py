"""What needs the rights to allocate devices: `rights.FLOWS` for manifests/dra."""

from typing import Any

import msgspec

from extender.dra.objects import ResourceClaim
from extender.kube.client import ApiServer, ClusterError
from extender.parts.dra.writer import ClaimWriter
from extender.settings.cluster import ClusterSettings
from tests.controlplane import dra
from tests.controlplane.kerf import DRA_RBAC
from tests.controlplane.objects import pod
from tests.install.queue_rights import GATED
from tests.install.rights import Flow
from tests.install.stages import CLAIMS, DRA, MERGE_PATCH, Rule, Stage

RULES = f"{DRA}/devicetaintrules"
CLASSES = f"{DRA}/deviceclasses"


async def allocates_devices(stage: Stage) -> bool:
    """A pod in the queue gets a device of a pool and class that exist at the start, another one of later ones."""
    _own(stage, "first")
    _ask(stage, "first")
    try:
        settings = {"queue__enabled": True, "queue__extender": False, "dra__allocate": True}
        async with stage.kerf(**settings) as kerf:
            if not (await stage.ready(kerf) and await _allocated(stage, "first")):
                return False
            _own(stage, "second")
            _ask(stage, "second")
            return await _allocated(stage, "second")
    finally:
        _clean(stage)


async def looks_at_a_claim_that_is_in_doubt(stage: Stage) -> bool:
    """The outcome of a write is unknown until the claim is read."""
    _claim(stage, "doubt")
    known = msgspec.convert(stage.plane.request("GET", f"{CLAIMS}/doubt"), ResourceClaim)
    cluster = ClusterSettings(kubeconfig=str(stage.plane.kubeconfig("kerf")))
    transport = ApiServer(kubeconfig=cluster.kubeconfig)
    await transport.start()
    try:
        return await ClaimWriter(transport).read(known) is not None
    except ClusterError as error:
        stage.say(str(error))
        return False
    finally:
        await transport.close()


_GROUP = "resource.k8s.io"

_ALLOCATES = {
    ("deviceclasses", "list"), ("deviceclasses", "watch"), ("devicetaintrules", "list"), ("devicetaintrules", "watch"),
    ("resourceclaims", "patch"), ("resourceclaims/status", "patch"), ("resourceclaims/binding", "patch"),
}  # fmt: skip
FLOWS: dict[Rule, Flow] = {
    **{Rule(_GROUP, resource, verb): allocates_devices for resource, verb in _ALLOCATES},
    Rule(_GROUP, "resourceclaims", "get"): looks_at_a_claim_that_is_in_doubt,
}
"""What needs each rule of manifests/dra."""
if not dra.HAS_RULES:
    FLOWS.clear()
FILES = (DRA_RBAC,) if dra.HAS_RULES else ()


def _own(stage: Stage, node: str) -> None:
    """A class of its own for a node's pool, and the rule by which that is Kerf's."""
    taint = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}
    _create(stage, RULES, "DeviceTaintRule", node, {"deviceSelector": {"pool": node}, "taint": taint})
    _create(stage, CLASSES, "DeviceClass", node, {})
    stage.publish(node)


def _claim(stage: Stage, name: str) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": name}}
    _create(stage, CLAIMS, "ResourceClaim", name, {"devices": {"requests": [request]}})


def _ask(stage: Stage, name: str) -> None:
    """A pod in the queue, for the node and the class of its name."""
    _claim(stage, name)
    claims = [{"name": "gpu", "resourceClaimName": name}]
    stage.create(pod(name, resourceClaims=claims, nodeSelector={"kubernetes.io/hostname": name}, **GATED))


def _create(stage: Stage, path: str, kind: str, name: str, spec: dict[str, Any]) -> None:
    manifest = {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    stage.plane.request("POST", path, manifest)


async def _allocated(stage: Stage, name: str) -> bool:
    async def allocated() -> bool:
        return "allocation" in stage.plane.request("GET", f"{CLAIMS}/{name}").get("status", {})

    return await stage.until(allocated)


def _clean(stage: Stage) -> None:
    """No controller is there to take the finalizer off."""
    for claim in stage.plane.request("GET", CLAIMS)["items"]:
        path = f"{CLAIMS}/{claim['metadata']['name']}"
        stage.plane.request("PATCH", path, {"metadata": {"finalizers": None}}, MERGE_PATCH)
    stage.plane.request("DELETE", RULES)
    stage.plane.request("DELETE", CLASSES)
