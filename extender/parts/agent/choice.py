"""Finds the pod for which the kubelet requests devices, and chooses its devices. Pure functions.

The kubelet says how many devices of which resource it wants, but not for which pod. It admits pods one by one and lists
a pod as soon as it starts to admit it, so the pod is one that is listed, requests that many devices and has none
(`HandlePodAdditions` of k8s.io/kubernetes/pkg/kubelet/kubelet.go, `List` of
pkg/kubelet/apis/podresources/server_v1.go). Several remain if the kubelet lists pods that it has refused, as before
1.34, or if devices are for init containers, which it does not list.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.parts.agent.kubelet import PREFIX, Devices, Listing
from extender.parts.agent.pods import Pod

REPLICA: Final = "::"
"""Separates a GPU's UUID from the replica's number in the plugin's device IDs."""
_DASHES: Final = 5
"""Dashes in a GPU's UUID with its prefix. HAMi's plugin adds one before the replica's number."""


@dataclass(frozen=True, slots=True)
class PreferenceRequest:
    """The kubelet's request to a plugin for the preferred devices of one container."""

    resource: str
    available: Sequence[str]
    """Allocatable devices, including `must_include`."""
    must_include: Sequence[str]
    size: int
    """Number of devices to allocate, including `must_include`."""


@dataclass(frozen=True, slots=True)
class CandidatePod:
    """A pod that may be the one for which the kubelet requests devices."""

    pod: Pod
    assigned: Sequence[str]
    """UUIDs of the GPUs that Kerf has assigned to it."""
    held: frozenset[str]
    """Devices that its containers already have."""
    lacking: bool
    """Whether a listed container lacks devices; unknown, and False, for init containers."""


@dataclass(slots=True)
class HandledPods:
    """UIDs of pods handled so far."""

    settled: Collection[str]
    """Pods that were seen with all their devices."""
    answered: Collection[str]
    """Pods for which a request was answered."""
    last: str
    """The pod of the last answer."""


def gpu_of(device: str) -> str:
    """UUID of a device's GPU; device IDs are `UUID`, `UUID::2` for a replica, or `UUID-2` with HAMi."""
    uuid = device.partition(REPLICA)[0]
    return uuid.rpartition("-")[0] if uuid.count("-") > _DASHES else uuid


def candidate_pods(
    known: Mapping[str, Pod], listing: Listing, call: PreferenceRequest, uuids: Mapping[int, str]
) -> list[CandidatePod]:
    """The listed pods that request this many devices and have none; `known` are the node's pods by name."""
    found = (_candidate(known[name], containers, call, uuids) for name, containers in listing.items() if name in known)
    return [asker for asker in found if asker is not None]


def _candidate(
    pod: Pod, containers: Mapping[str, Devices], call: PreferenceRequest, uuids: Mapping[int, str]
) -> CandidatePod | None:
    asking = [container for container in pod.lasting if container.asks(call.resource)]
    lacking = [container for container in asking if not containers.get(container.name, {}).get(call.resource)]
    if asking and not lacking:
        return None
    if all(container.asks(call.resource) != call.size for container in (*lacking, *pod.passing)):
        return None
    held = frozenset(device for devices in containers.values() for device in devices.get(call.resource, ()))
    return CandidatePod(pod, pod.assigned(uuids), held, bool(lacking))


def served(pod: Pod, containers: Mapping[str, Devices]) -> bool:
    """Whether a pod requests devices and all its containers have them, except init containers, which are not listed."""
    asking = [
        (container.name, resource)
        for container in pod.lasting
        for resource in (container.resources and container.resources.limits) or ()
        if resource.startswith(PREFIX) and container.asks(resource)
    ]
    return bool(asking) and all(containers.get(name, {}).get(resource) for name, resource in asking)


def certain(asker: CandidatePod, past: HandledPods) -> bool:
    """Whether the kubelet may be admitting the pod: not finished, not being deleted, not seen with devices."""
    metadata = asker.pod.metadata
    return not (asker.pod.finished or metadata.deletion_timestamp or metadata.uid in past.settled)


def likeliest(found: Iterable[CandidatePod], call: PreferenceRequest, past: HandledPods) -> CandidatePod | None:
    """The pod for which the kubelet most likely requests devices, None if there is no candidate."""

    def evidence(asker: CandidatePod) -> tuple[bool, bool, bool, bool, bool, str]:
        metadata = asker.pod.metadata
        within = {gpu_of(device) for device in (*call.available, *call.must_include, *asker.held)}
        return (
            bool(call.must_include) and metadata.uid == past.last,  # devices of its init containers
            certain(asker, past),
            asker.lacking,
            within.issuperset(asker.assigned),
            metadata.uid not in past.answered,  # a pod with an answer but without devices was refused
            metadata.creation_timestamp,  # pods are admitted in this order, so the newest is being admitted
        )

    return max(found, key=evidence, default=None)


def choose(asker: CandidatePod, call: PreferenceRequest) -> list[str]:
    """Devices for a pod: `must_include`, then devices of its assigned GPUs, spread evenly over these.

    Fewer than requested if not enough are available.
    """
    chosen = list(dict.fromkeys(call.must_include))
    free: dict[str, list[str]] = {}
    for device in sorted(set(call.available).difference(chosen), key=lambda device: (len(device), device)):
        free.setdefault(gpu_of(device), []).append(device)
    num_of = Counter(gpu_of(device) for device in (*asker.held, *chosen))
    while len(chosen) < call.size:
        gpus = [gpu for gpu in asker.assigned if free.get(gpu)]
        if not gpus:
            break
        gpu = min(gpus, key=num_of.__getitem__)
        chosen.append(free[gpu].pop(0))
        num_of[gpu] += 1
    return chosen


def promised(
    known: Iterable[Pod], listing: Listing, asker: CandidatePod | None, past: HandledPods, uuids: Mapping[int, str]
) -> set[str]:
    """GPUs that Kerf assigned to other pods and that the kubelet has not allocated to them yet."""
    return {
        gpu
        for pod in known
        if not (pod.finished or pod.metadata.uid in past.settled or (asker is not None and pod is asker.pod))
        if not any(devices for devices in listing.get(pod.key, {}).values())
        for gpu in pod.assigned(uuids)
    }


def spared(call: PreferenceRequest, chosen: Sequence[str], gpus: Collection[str]) -> list[str]:
    """Devices from which the rest may be picked; those of `gpus`, promised to other pods, only if necessary."""
    picked = {*call.must_include, *chosen}
    others = [device for device in call.available if device in picked or gpu_of(device) not in gpus]
    return others if len(others) >= call.size else list(call.available)
