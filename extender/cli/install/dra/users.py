"""Who has the devices of a driver, who waits for them, and who of those waits in the queue of Kerf."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from extender.core.annotations import GENIUS_PRIORITY
from extender.core.dra import owning
from extender.queueing.opt_in import DISABLED, ENABLED, QUEUE_LABEL
from extender.queueing.pods.objects import GATE

_IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""With a class's name behind it, an extended resource of that class."""

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that has devices of the driver, and the pods that it serves."""

    claim: str
    devices: tuple[str, ...]
    """`pool/device`."""
    pods: tuple[str, ...]
    outside: tuple[str, ...]
    """Those of them whose successors will not wait in Kerf's queue."""


def holders_of(
    claims: Iterable[Manifest],
    pods: Iterable[Manifest],
    opted_in: Collection[str],
    driver: str,
    pools: Collection[str],
) -> Iterator[Holder]:
    """The claims that have devices of some pools; who only looks (`adminAccess`) holds none."""
    of_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    for claim in claims:
        results = [item for item in results_of(claim) if item["driver"] == driver and item["pool"] in pools]
        if not results:
            continue
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        served = [of_uid[item["uid"]] for item in reserved if item.get("uid") in of_uid]
        yield Holder(
            key_of(claim),
            tuple(f"{item['pool']}/{item['device']}" for item in results),
            tuple(sorted(key_of(pod) for pod in served)),
            tuple(sorted(key_of(pod) for pod in served if not _waits_in_queue(pod, opted_in))),
        )


def twice_allocated(claims: Iterable[Manifest], driver: str) -> list[str]:
    """Devices that several claims have whole: `pool/device`."""
    seen: set[str] = set()
    twice: set[str] = set()
    for claim in claims:
        for item in results_of(claim):
            device = f"{item['pool']}/{item['device']}"
            if item["driver"] != driver or item.get("shareID"):
                continue
            (twice if device in seen else seen).add(device)
    return sorted(twice)


def _waits_in_queue(pod: Manifest, opted_in: Collection[str]) -> bool:
    """Whether a pod, or one like it, waits in Kerf's queue before it is scheduled."""
    labels = labels_of(pod)
    if any(gate.get("name") == GATE for gate in pod["spec"].get("schedulingGates") or ()):
        return True
    if labels.get(QUEUE_LABEL) in (ENABLED, DISABLED):
        return labels[QUEUE_LABEL] == ENABLED
    return pod["metadata"]["namespace"] in opted_in or bool(labels.get(GENIUS_PRIORITY, "").strip())


def waiting(
    claims: Iterable[Manifest],
    pods: Iterable[Manifest],
    opted_in: Collection[str],
    classes: Collection[str],
    resources: Collection[str],
) -> Iterator[str]:
    asked = {
        key_of(claim)
        for claim in claims
        if not (claim.get("status") or {}).get("allocation") and classes_of(claim["spec"]) & set(classes)
    }
    for pod in pods:
        if pod["spec"].get("nodeName") or _waits_in_queue(pod, opted_in):
            continue
        named = [*(pod["spec"].get("resourceClaims") or ()), *(pod["status"].get("resourceClaimStatuses") or ())]
        keys = {f"{pod['metadata']['namespace']}/{item.get('resourceClaimName')}" for item in named}
        if keys & asked or _requested(pod) & set(resources):
            yield key_of(pod)


def _requested(pod: Manifest) -> set[str]:
    """The resources that a pod's containers ask for."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    return {name for item in containers for name in (item.get("resources") or {}).get("limits") or ()}


def names_driver(device_class: Manifest, driver: str) -> bool:
    """Whether a class is for a driver's devices, as far as the text of its selectors tells; without any it is."""
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    texts = [(item.get("cel") or {}).get("expression", "") for item in selectors]
    return not texts or any(f"{quote}{driver}{quote}" in text for text in texts for quote in "'\"")


def resources_of(device_class: Manifest, name: str) -> tuple[str, str]:
    """The extended resources that stand for a class: its own name for it, "" for none, and the implicit one."""
    return str((device_class.get("spec") or {}).get("extendedResourceName") or ""), f"{_IMPLICIT_RESOURCE}{name}"


def classes_of(spec: Manifest) -> set[str]:
    """The device classes that a claim names."""
    requests = (spec.get("devices") or {}).get("requests") or ()
    asked = [each for item in requests for each in (item.get("exactly") or {}, *(item.get("firstAvailable") or ()))]
    return {item["deviceClassName"] for item in asked if item.get("deviceClassName")}


def results_of(claim: Manifest) -> list[Manifest]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [item for item in results if not item.get("adminAccess")]


def labels_of(item: Manifest) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def key_of(item: Manifest) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def tolerates(spec: Manifest) -> bool:
    """Whether a claim would be given devices that Kerf owns: what the policy refuses, of claims from before it."""
    requests = (spec.get("devices") or {}).get("requests") or ()
    exact = [item["exactly"] for item in requests if item.get("exactly") and not item["exactly"].get("adminAccess")]
    asked = [*exact, *(each for item in requests for each in item.get("firstAvailable") or ())]
    return any(
        each.get("key", "") == owning.KEY
        or (not each.get("key") and each.get("effect", "") not in ("NoExecute", "None"))
        for ask in asked
        for each in ask.get("tolerations") or ()
    )
