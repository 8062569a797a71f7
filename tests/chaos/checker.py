"""The judge: reads what the API server holds, and knows nothing of Kerf's code.

Safety has to hold at every moment: no GPU over its compute or memory, no exclusive GPU held twice, no pod placed on
what it did not ask for. Liveness has to come true once the faults are over: no pod is lost, every pending pod has a
reason, none is pending that fits, and no gang runs in part.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = Mapping[str, Any]

GPU = "nvidia.com/gpu"
_GATE = "kerf.dev/queue"
_WHOLE_MILLI = 1000
_FACTORS_MIB = {"": 1.0, "Mi": 1.0, "Gi": 1024.0}


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept."""

    promise: str
    subject: str
    """Node, GPU or pod."""
    detail: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What a pod asks for."""

    gpus: int
    milli: int = _WHOLE_MILLI
    """Of each GPU's compute; less than 1000 is a share of one GPU."""
    memory_mib: int = 0
    """Of each GPU: that it must have, or, of a share, that is booked."""
    model: str = ""

    @property
    def shared(self) -> bool:
        """Whether other pods may hold the rest of the GPU."""
        return self.milli < _WHOLE_MILLI


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

    @property
    def held(self) -> int:
        """GPUs that somebody holds something of."""
        return len(self.exclusive.keys() | self.shares.keys()) + self.unknown

    @property
    def booked(self) -> float:
        """GPUs' compute that somebody holds."""
        shares = sum(milli for sharers in self.shares.values() for _, milli, _ in sharers)
        return len(self.exclusive) + self.unknown + shares / _WHOLE_MILLI

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
    gpus = sum(int(limit.get(GPU, 0)) for limit in limits) or int(annotations.get("kerf.dev/gpu-count", "0"))
    memory_mib = _mib(annotations.get("kerf.dev/gpu-memory-each", "0"))
    model = annotations.get("kerf.dev/gpu-model", "")
    if "kerf.dev/gpu-share" in annotations:
        return Asked(1, int(annotations["kerf.dev/gpu-share"]), memory_mib, model)
    return Asked(gpus, _WHOLE_MILLI, memory_mib, model) if gpus else None


def finished(pod: Manifest) -> bool:
    """Whether its containers have ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def as_bound(bound: Manifest, now: Manifest) -> Manifest:
    """A pod as it was when it came to its node, and as far as it has ended, or is ending, as it is now."""
    if "deletionTimestamp" in now["metadata"]:
        ending = {"deletionTimestamp": now["metadata"]["deletionTimestamp"]}
        bound = {**bound, "metadata": {**bound["metadata"], **ending}}
    return {**bound, "status": now.get("status", {})}


def uses(nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> dict[str, NodeUse]:
    """Who holds what, by node; nodes that are gone but have pods are left out."""
    found = {node["metadata"]["name"]: _node_use(node) for node in nodes}
    for pod in pods:
        asked, use = asked_by(pod), found.get(pod["spec"].get("nodeName", ""))
        if asked is None or use is None or finished(pod):
            continue
        annotations = pod["metadata"].get("annotations") or {}
        indices = _indices(annotations)
        if indices is None:
            use.unknown += asked.gpus
            continue
        for gpu in indices:
            if "kerf.dev/assigned-share" in annotations:
                mib = int(annotations.get("kerf.dev/assigned-memory-mib", "0"))
                use.shares[gpu].append((_key(pod), int(annotations["kerf.dev/assigned-share"]), mib))
            else:
                use.exclusive[gpu].append(_key(pod))
    return found


def overbooked(nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> list[Violation]:
    """GPUs that are booked over what they have, whenever one looks."""
    found = []
    for use in uses(nodes, pods).values():
        for gpu in sorted(use.exclusive.keys() | use.shares.keys()):
            subject = f"{use.name} GPU {gpu}"
            holders = use.exclusive.get(gpu, [])
            sharers = [pod for pod, _, _ in use.shares.get(gpu, [])]
            if gpu >= len(use.memory_mib):
                found.append(Violation("only GPUs that exist", subject, f"held by {', '.join(holders + sharers)}"))
                continue
            if len(holders) + bool(sharers) > 1:
                found.append(Violation("one exclusive holder", subject, f"held by {', '.join(holders + sharers)}"))
            if use.milli(gpu) > _WHOLE_MILLI:
                found.append(Violation("compute <= capacity", subject, f"{use.milli(gpu)} of 1000 milli: {sharers}"))
            if use.mib(gpu) > use.memory_mib[gpu]:
                detail = f"{use.mib(gpu)} of {use.memory_mib[gpu]} MiB: {sharers}"
                found.append(Violation("memory <= capacity", subject, detail))
        if use.held > len(use.memory_mib):
            detail = f"{use.held} GPUs held, {use.unknown} of them of unknown index; {len(use.memory_mib)} installed"
            found.append(Violation("GPUs held <= GPUs installed", use.name, detail))
    return found


def misplaced(nodes: Iterable[Manifest], pods: Iterable[Manifest], schedulers: Collection[str]) -> list[Violation]:
    """Bound pods that got something else than they asked for, or nothing that is written down."""
    products = {node["metadata"]["name"]: _node_use(node) for node in nodes}
    found = []
    for pod in pods:
        asked, node = asked_by(pod), pod["spec"].get("nodeName")
        if asked is None or not node or pod["spec"].get("schedulerName") not in schedulers:
            continue
        annotations = pod["metadata"].get("annotations") or {}
        indices = _indices(annotations)
        written = annotations.get("kerf.dev/assigned-gpus")
        if written is None:
            found.append(Violation("no pod is placed blind", _key(pod), f"{asked.gpus} GPUs asked, none assigned"))
            continue
        if indices is None or len(indices) != asked.gpus:
            found.append(Violation("as many GPUs as asked", _key(pod), f"{asked.gpus} asked, assigned {written!r}"))
            continue
        if asked.shared and annotations.get("kerf.dev/assigned-share") != str(asked.milli):
            share = annotations.get("kerf.dev/assigned-share")
            found.append(Violation("the share asked", _key(pod), f"{asked.milli} milli asked, assigned {share!r}"))
        use = products.get(node)
        if use is None:
            continue
        if asked.model.lower() not in use.product.lower():
            found.append(Violation("the model asked", _key(pod), f"{asked.model!r} asked, {node} has {use.product}"))
        small = [gpu for gpu in indices if gpu < len(use.memory_mib) and use.memory_mib[gpu] < asked.memory_mib]
        if small:
            found.append(Violation("the memory asked", _key(pod), f"{asked.memory_mib} MiB asked, {node} GPUs {small}"))
    return found


def bound_beyond(before: Iterable[Manifest], nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> list[Violation]:
    """Pods bound since `before` was read to nodes that have more pods than they offer now (they shrank)."""
    bound_before = {pod["metadata"]["uid"] for pod in before if pod["spec"].get("nodeName")}
    over = {name for name, use in uses(nodes, pods).items() if use.held > use.allocatable}
    return [
        Violation("GPUs held <= GPUs offered", pod["spec"]["nodeName"], f"{_key(pod)} came although it is full")
        for pod in pods
        if pod["spec"].get("nodeName") in over and pod["metadata"]["uid"] not in bound_before and asked_by(pod)
    ]


def lost(expected: Collection[str], pods: Iterable[Manifest]) -> list[Violation]:
    """Pods that nobody deleted and that are gone, or going; `expected` are their names."""
    there = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    return [Violation("no pod is lost", name, "it is gone") for name in sorted(set(expected) - there)]


def unscheduled(names: Collection[str], pods: Iterable[Manifest]) -> list[Violation]:
    """Pods of these names, which ask for no GPU, that have no node."""
    placed = {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName")}
    return [
        Violation("placed without Kerf", name, "it asks for no GPU, and waits for Kerf")
        for name in names
        if name not in placed
    ]


def unexplained(pods: Iterable[Manifest]) -> list[Violation]:
    """Pods that are neither bound nor pending with a reason.

    Members of Kubernetes' own gangs may be: kube-scheduler says nothing of them before it has tried the whole gang.
    """
    return [
        Violation("bound, or pending with a reason", _key(pod), f"conditions {pod['status'].get('conditions', [])}")
        for pod in pods
        if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGroup") and not reason_of(pod)
    ]


def stranded(nodes: Iterable[Manifest], pods: Collection[Manifest]) -> list[Violation]:
    """Pods that are pending although they fit a node; behind the gate, gangs of which all that wait fit together."""
    used = uses(nodes, pods)
    found = _stranded_gangs(used, pods)
    for pod in pods:
        asked = asked_by(pod)
        if asked is None or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            continue
        if (_gated(pod) and _gang(pod)) or pod["spec"].get("schedulingGroup"):  # alone they may not run
            continue
        node = next((use.name for use in used.values() if fits(asked, use)), None)
        if node is not None:
            detail = f"it asks {asked} and fits {node}; its reason: {reason_of(pod)!r}"
            found.append(Violation("placed after the faults end", _key(pod), detail))
    return found


def _stranded_gangs(used: Mapping[str, NodeUse], pods: Iterable[Manifest]) -> list[Violation]:
    """Gangs of equal pods that ask for whole GPUs, which are complete and wait although all that wait have room."""
    found = []
    for gang, members in _gangs(pods).items():
        waiting = [pod for pod in members if _gated(pod)]
        asked = asked_by(waiting[0]) if waiting else None
        if asked is None or len(members) < _gang_size(members):
            continue
        room = sum((use.allocatable - use.held) // asked.gpus for use in used.values() if fits(asked, use))
        if room >= len(waiting):
            detail = f"{len(waiting)} pods wait, and {room} have room; their reason: {reason_of(waiting[0])!r}"
            found.append(Violation("placed after the faults end", gang, detail))
    return found


def kept_by_words(pods: Iterable[Manifest]) -> list[Violation]:
    """Pods behind the gate that are nominated all the same: kube-scheduler counts them as if they ran there."""
    return [
        Violation("no node is kept by a nomination alone", _key(pod), f"nominated to {node} behind the gate")
        for pod in pods
        if _gated(pod) and (node := pod["status"].get("nominatedNodeName"))
    ]


def in_part(pods: Iterable[Manifest]) -> list[Violation]:
    """Gangs of which some have a node and fewer than there have to be."""
    found = []
    for gang, members in _gangs(pods).items():
        size, bound = _gang_size(members), sum(bool(pod["spec"].get("nodeName")) for pod in members)
        if 0 < bound < size:
            found.append(Violation("gangs run whole", gang, f"{bound} of {size} have a node"))
    return found


def fits(asked: Asked, use: NodeUse) -> bool:
    """Whether a node has room for a request."""
    large = bool(use.memory_mib) and use.memory_mib[0] >= asked.memory_mib  # all of a node are of one size here
    if not use.schedulable or not large or asked.model.lower() not in use.product.lower():
        return False
    free = use.allocatable - use.held
    if not asked.shared:
        return free >= asked.gpus
    return free >= 1 or any(
        gpu not in use.exclusive
        and gpu < use.allocatable
        and use.milli(gpu) + asked.milli <= _WHOLE_MILLI
        and use.mib(gpu) + asked.memory_mib <= use.memory_mib[gpu]
        for gpu in use.shares
    )


def reason_of(pod: Manifest) -> str:
    """Why a pod is pending, "" when nobody has said; behind the gate, in Kerf's words."""
    if _gated(pod):
        return str((pod["metadata"].get("annotations") or {}).get("kerf.dev/skipped", ""))
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return ""


def _gated(pod: Manifest) -> bool:
    return any(gate["name"] == _GATE for gate in pod["spec"].get("schedulingGates") or ())


def _gang(pod: Manifest) -> str:
    return str((pod["metadata"].get("annotations") or {}).get("kerf.dev/gang", ""))


def _gangs(pods: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Members by gang that are not being deleted."""
    found = defaultdict(list)
    for pod in pods:
        if (gang := _gang(pod)) and not pod["metadata"].get("deletionTimestamp"):
            found[gang].append(pod)
    return found


def _gang_size(members: Collection[Manifest]) -> int:
    return max(int(pod["metadata"]["annotations"]["kerf.dev/gang-size"]) for pod in members)


def _node_use(node: Manifest) -> NodeUse:
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
    )


def _indices(annotations: Mapping[str, str]) -> list[int] | None:
    """The GPUs written on a pod, None when there are none."""
    text = annotations.get("kerf.dev/assigned-gpus", "")
    return [int(index) for index in text.split(",")] if text else None


def _mib(quantity: str) -> int:
    match = re.fullmatch(r"(\d+)(|Mi|Gi)", quantity)
    if match is None:
        raise ValueError(f"the harness writes no such quantity: {quantity!r}")
    return round(int(match[1]) * _FACTORS_MIB[match[2]])


def _key(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])
