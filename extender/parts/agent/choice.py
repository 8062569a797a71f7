"""Which pod asks for devices, and which it gets. Pure.

The kubelet says how many of which it wants, not for whom. But it admits one pod after the other, and lists a pod from
the moment on at which it turns to it: what is listed, asks for that many and has none is the one. (`HandlePodAdditions`
of k8s.io/kubernetes/pkg/kubelet/kubelet.go, `List` of pkg/kubelet/apis/podresources/server_v1.go.) More than one are
left where the kubelet lists pods that it has refused, as it did before 1.34, or where devices are of init containers,
which it does not list.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.parts.agent.kubelet import PREFIX, Devices, Listing
from extender.parts.agent.pods import Pod

REPLICA: Final = "::"
"""Between the UUID of a GPU and the number of its replica, in the plugin's device IDs."""
_DASHES: Final = 5
"""In the UUID of a GPU. HAMi's plugin has one more before the number of a replica."""


@dataclass(frozen=True, slots=True)
class Call:
    """What the kubelet asks of a plugin for one container."""

    resource: str
    available: Sequence[str]
    """Devices that may be given, those that it must include among them."""
    must_include: Sequence[str]
    size: int
    """How many all together."""


@dataclass(frozen=True, slots=True)
class Asker:
    """A pod that may be the one for which the kubelet asks."""

    pod: Pod
    assigned: Sequence[str]
    """UUIDs of the GPUs that Kerf has assigned to it."""
    held: frozenset[str]
    """Devices that its containers have already."""
    lacking: bool
    """Whether a container is known to lack devices; of init containers nobody knows."""


@dataclass(slots=True)
class Past:
    """What is remembered of pods, by UID."""

    settled: Collection[str]
    """Those that have been seen with devices: the kubelet is done with them."""
    answered: Collection[str]
    """Those for which there was an answer."""
    last: str
    """The one of the last answer."""


def gpu_of(device: str) -> str:
    """The GPU's UUID of a device: a replica of a shared GPU is `UUID::2`, HAMi's `UUID-2`."""
    uuid = device.partition(REPLICA)[0]
    return uuid.rpartition("-")[0] if uuid.count("-") > _DASHES else uuid


def askers(known: Mapping[str, Pod], listing: Listing, call: Call, uuids: Mapping[int, str]) -> list[Asker]:
    """The pods that are listed, ask for so many devices, and have none; `known` are those of the node by name."""
    found = (_asker(known[name], containers, call, uuids) for name, containers in listing.items() if name in known)
    return [asker for asker in found if asker is not None]


def _asker(pod: Pod, containers: Mapping[str, Devices], call: Call, uuids: Mapping[int, str]) -> Asker | None:
    asking = [container for container in pod.lasting if container.asks(call.resource)]
    lacking = [container for container in asking if not containers.get(container.name, {}).get(call.resource)]
    if asking and not lacking:
        return None
    if all(container.asks(call.resource) != call.size for container in (*lacking, *pod.passing)):
        return None
    held = frozenset(device for devices in containers.values() for device in devices.get(call.resource, ()))
    return Asker(pod, pod.assigned(uuids), held, bool(lacking))


def served(pod: Pod, containers: Mapping[str, Devices]) -> bool:
    """Whether a pod asks for devices and all its containers have them; init containers' are not listed."""
    asking = [
        (container.name, resource)
        for container in pod.lasting
        for resource in (container.resources and container.resources.limits) or ()
        if resource.startswith(PREFIX) and container.asks(resource)
    ]
    return bool(asking) and all(containers.get(name, {}).get(resource) for name, resource in asking)


def certain(asker: Asker, past: Past) -> bool:
    """Whether nothing speaks against a pod: it is as new to the kubelet as one must be for which it asks."""
    metadata = asker.pod.metadata
    return not (asker.pod.finished or metadata.deletion_timestamp or metadata.uid in past.settled)


def likeliest(found: Iterable[Asker], call: Call, past: Past) -> Asker | None:
    """The one for which the kubelet asks, as far as can be told."""

    def evidence(asker: Asker) -> tuple[bool, bool, bool, bool, bool, str]:
        metadata = asker.pod.metadata
        within = {gpu_of(device) for device in (*call.available, *call.must_include, *asker.held)}
        return (
            bool(call.must_include) and metadata.uid == past.last,  # devices of its init containers
            certain(asker, past),
            asker.lacking,
            within.issuperset(asker.assigned),
            metadata.uid not in past.answered,  # whoever has had an answer and no devices was refused
            metadata.creation_timestamp,  # pods are admitted in this order: what is listed is the newest
        )

    return max(found, key=evidence, default=None)


def choose(asker: Asker, call: Call) -> list[str]:
    """Its devices: what must be among them, then those of the GPUs assigned to it, in turn and in order.

    Fewer than asked for where not all of those are available.
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
    known: Iterable[Pod], listing: Listing, asker: Asker | None, past: Past, uuids: Mapping[int, str]
) -> set[str]:
    """GPUs that Kerf has assigned to other pods which the kubelet has yet to give them to."""
    return {
        gpu
        for pod in known
        if not (pod.finished or pod.metadata.uid in past.settled or (asker is not None and pod is asker.pod))
        if not any(devices for devices in listing.get(pod.key, {}).values())
        for gpu in pod.assigned(uuids)
    }


def spared(call: Call, chosen: Sequence[str], gpus: Collection[str]) -> list[str]:
    """The devices from which the rest may be picked: those of promised GPUs only where there are no others."""
    picked = {*call.must_include, *chosen}
    others = [device for device in call.available if device in picked or gpu_of(device) not in gpus]
    return others if len(others) >= call.size else list(call.available)
