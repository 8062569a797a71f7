"""What pods ask for and hold, as the API server has it: read without any of Kerf's code."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]

GPU = "nvidia.com/gpu"
WHOLE_MILLI = 1000
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_FACTORS_MIB = {"": 1.0, "Mi": 1.0, "Gi": 1024.0}


@dataclass(frozen=True, slots=True)
class Besides:
    """What else a node has to have for a pod."""

    cpu_milli: int = 0
    resources: frozenset[str] = frozenset()
    """Those of which no node has enough, unless it has any."""
    ports: frozenset[int] = frozenset()
    """Of the host."""
    apart: frozenset[tuple[str, str]] = frozenset()
    """Labels that no pod there may have."""
    nowhere: bool = False
    """Whether its volume is on no node, or an extender refuses it on all."""


NOTHING_BESIDES = Besides()


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks for."""

    gpus: int
    milli: int = WHOLE_MILLI
    """Of each GPU's compute; less than 1000 is a share of one GPU."""
    memory_mib: int = 0
    """Of each GPU: that it must have, or, of a share, that is booked."""
    model: str = ""
    served: bool = True
    """Whether NVIDIA's plugin gives it its GPUs: not where it asks by annotation alone."""
    besides: Besides = field(default=NOTHING_BESIDES, repr=False)

    @property
    def shared(self) -> bool:
        """Whether other pods may hold the rest of the GPU."""
        return self.milli < WHOLE_MILLI


@dataclass(slots=True)
class NodeUse:
    """Who holds what on a node."""

    name: str
    memory_mib: list[int]
    """Of each GPU installed."""
    allocatable: int
    product: str
    schedulable: bool
    exclusive: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    shares: dict[int, list[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(list))
    """By GPU: pod, milli, MiB."""
    unknown: int = 0
    """Whole GPUs held of which nobody wrote the index."""
    picks: bool = False
    """Whether NVIDIA's plugin is there, which picks GPUs by itself."""
    served: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    """Pods that Kerf placed, by whether that plugin knows of them."""
    num_served: int = 0
    num_unserved: int = 0
    """Those of others too."""
    cpu_milli: int = 0
    """Allocatable."""
    cpu_taken: int = 0
    """By all pods: the greater of what they ask for and what they have."""
    resources: frozenset[str] = frozenset()
    ports: set[int] = field(default_factory=set)
    labels: set[tuple[str, str]] = field(default_factory=set)
    """Of the pods there."""

    @property
    def held(self) -> int:
        """GPUs that somebody holds something of."""
        return len(self.exclusive.keys() | self.shares.keys()) + self.unknown

    @property
    def booked(self) -> float:
        """GPUs' compute that somebody holds."""
        shares = sum(milli for sharers in self.shares.values() for _, milli, _ in sharers)
        return len(self.exclusive) + self.unknown + shares / WHOLE_MILLI

    def milli(self, gpu: int) -> int:
        """Compute booked on a GPU."""
        return sum(milli for _, milli, _ in self.shares[gpu]) if gpu in self.shares else 0

    def mib(self, gpu: int) -> int:
        """Memory booked on a GPU by shares."""
        return sum(mib for _, _, mib in self.shares[gpu]) if gpu in self.shares else 0


def asked_by(pod: Manifest) -> Asked | None:
    """What a pod asks for, None when that is no GPU."""
    annotations = pod["metadata"].get("annotations") or {}
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    requested = sum(int(limit.get(GPU, 0)) for limit in limits)
    gpus = requested or int(annotations.get("kerf.dev/gpu-count", "0"))
    memory_mib = _mib(annotations.get("kerf.dev/gpu-memory-each", "0"))
    model = annotations.get("kerf.dev/gpu-model", "")
    if "kerf.dev/gpu-share" in annotations:
        return Asked(1, int(annotations["kerf.dev/gpu-share"]), memory_mib, model, bool(requested), _besides(pod))
    return Asked(gpus, WHOLE_MILLI, memory_mib, model, bool(requested), _besides(pod)) if gpus else None


def _besides(pod: Manifest) -> Besides:
    """As far as the harness makes it."""
    spec, labels = pod["spec"], pod["metadata"].get("labels") or {}
    rules = ((spec.get("affinity") or {}).get("podAntiAffinity") or {}).get(_REQUIRED) or ()
    limits = [container.get("resources", {}).get("limits", {}) for container in spec["containers"]]
    volumes = [volume for volume in spec.get("volumes") or () if "persistentVolumeClaim" in volume]
    return Besides(
        cpu_milli=_cpu_asked(pod),
        resources=frozenset(name for limit in limits for name in limit if name.startswith("example.com/")),
        ports=frozenset(_ports(pod)),
        apart=frozenset(item for rule in rules for item in rule["labelSelector"]["matchLabels"].items()),
        nowhere=bool(volumes) or labels.get("chaos.example.com/refused") == "true",
    )


def _ports(pod: Manifest) -> list[int]:
    ports = [port for container in pod["spec"]["containers"] for port in container.get("ports") or ()]
    return [port["hostPort"] for port in ports if port.get("hostPort")]


def _cpu_asked(pod: Manifest) -> int:
    return sum(_milli(of.get("resources", {}).get("requests", {}).get("cpu", "0")) for of in pod["spec"]["containers"])


def _cpu_taken(pod: Manifest) -> int:
    """The greater of what each container asks for, was given, and has."""
    given = {}
    for container in pod.get("status", {}).get("containerStatuses") or ():
        has = (container.get("resources") or {}).get("requests") or {}
        given[container["name"]] = max(
            _milli(of.get("cpu", "0")) for of in (has, container.get("allocatedResources") or {})
        )
    return sum(
        max(_milli(of.get("resources", {}).get("requests", {}).get("cpu", "0")), given.get(of.get("name"), 0))
        for of in pod["spec"]["containers"]
    )


def finished(pod: Manifest) -> bool:
    """Whether its containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def as_bound(bound: Manifest, now: Manifest) -> Manifest:
    """A pod as it was when it came to its node, and as far as it was resized, has ended, or is ending, as it is now."""
    if "deletionTimestamp" in now["metadata"]:
        ending = {"deletionTimestamp": now["metadata"]["deletionTimestamp"]}
        bound = {**bound, "metadata": {**bound["metadata"], **ending}}
    return {**bound, "spec": now["spec"], "status": now.get("status", {})}


def uses(nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> dict[str, NodeUse]:
    """Who holds what, by node; nodes that are gone but have pods are left out."""
    found = {node["metadata"]["name"]: node_use(node) for node in nodes}
    for pod in pods:
        asked, use = asked_by(pod), found.get(pod["spec"].get("nodeName", ""))
        if use is None or finished(pod):
            continue
        use.cpu_taken += _cpu_taken(pod)
        use.ports |= set(_ports(pod))
        use.labels |= (pod["metadata"].get("labels") or {}).items()
        if asked is None:
            continue
        annotations = pod["metadata"].get("annotations") or {}
        use.num_served += asked.served
        use.num_unserved += not asked.served
        if "kerf.dev/assigned-by" in annotations:
            (use.served if asked.served else use.unserved).append(name_of(pod))
        indices = indices_of(annotations, use.name)
        if indices is None:
            use.unknown += asked.gpus
            continue
        for gpu in indices:
            if "kerf.dev/assigned-share" in annotations:
                mib = int(annotations.get("kerf.dev/assigned-memory-mib", "0"))
                use.shares[gpu].append((name_of(pod), int(annotations["kerf.dev/assigned-share"]), mib))
            else:
                use.exclusive[gpu].append(name_of(pod))
    return found


def fits(asked: Asked, use: NodeUse) -> bool:
    """Whether a node has room for a request."""
    large = bool(use.memory_mib) and use.memory_mib[0] >= asked.memory_mib  # all of a node are of one size here
    if not use.schedulable or not large or asked.model.lower() not in use.product.lower():
        return False
    if not takes(use, asked.besides):
        return False
    if use.picks and (use.num_unserved if asked.served else use.num_served):
        return False
    free = use.allocatable - use.held
    if not asked.shared:
        return free >= asked.gpus
    if free < 0:
        return False  # of GPUs of unknown index any may be one that is shared
    return free >= 1 or any(
        gpu not in use.exclusive
        and gpu < use.allocatable
        and use.milli(gpu) + asked.milli <= WHOLE_MILLI
        and use.mib(gpu) + asked.memory_mib <= use.memory_mib[gpu]
        for gpu in use.shares
    )


def takes(use: NodeUse, besides: Besides) -> bool:
    """Whether a node has all that is asked for besides GPUs."""
    return (
        use.cpu_taken + besides.cpu_milli <= use.cpu_milli
        and besides.resources <= use.resources
        and not besides.ports & use.ports
        and not besides.apart & use.labels
        and not besides.nowhere
    )


def node_use(node: Manifest) -> NodeUse:
    """A node of which nobody holds anything."""
    metadata, status = node["metadata"], node["status"]
    labels = metadata.get("labels") or {}
    own = (metadata.get("annotations") or {}).get("kerf.dev/gpus")
    installed = int(status["capacity"].get(GPU, "0"))
    if own:
        memory_mib = [int(gpu["memory_mib"]) for gpu in json.loads(own)]
    else:
        memory_mib = [int(labels.get("nvidia.com/gpu.memory", "0"))] * installed
    schedulable = not metadata.get("deletionTimestamp") and not node.get("spec", {}).get("unschedulable", False)
    return NodeUse(
        name=metadata["name"],
        memory_mib=memory_mib,
        allocatable=int(status["allocatable"].get(GPU, "0")) if not own else len(memory_mib),
        product=labels.get("nvidia.com/gpu.product", ""),
        schedulable=schedulable,
        picks=GPU in status["allocatable"],
        cpu_milli=_milli(status["allocatable"].get("cpu", "0")),
        resources=frozenset(status["allocatable"]),
    )


def indices_of(annotations: Mapping[str, str], node: str) -> list[int] | None:
    """The GPUs of its node that are written on a pod, None when there are none, or when they are those of another."""
    if annotations.get("kerf.dev/assigned-node") not in (None, "", node):
        return None
    text = annotations.get("kerf.dev/assigned-gpus", "")
    return [int(index) for index in text.split(",")] if text else None


def _milli(quantity: str) -> int:
    return int(quantity.removesuffix("m")) if quantity.endswith("m") else 1000 * int(quantity)


def _mib(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)(|Mi|Gi)", quantity)
    if match is None:
        raise ValueError(f"the harness writes no such quantity: {quantity!r}")
    return round(int(match[1]) * _FACTORS_MIB[match[2]])


def name_of(pod: Manifest) -> str:
    """A pod's name: all of a run are in one namespace."""
    return str(pod["metadata"]["name"])
