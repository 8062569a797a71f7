"""The judge: reads what the API server holds, and knows nothing of Kerf's code.

Safety has to hold at every moment: no GPU over its compute or memory, no exclusive GPU held twice, no pod placed on
what it did not ask for. Liveness has to come true once the faults are over: no pod is lost, every pending pod has a
reason, none is pending that fits, and no gang runs in part.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from tests.tools.chaos.holdings import (
    WHOLE_MILLI,
    Asked,
    Manifest,
    NodeUse,
    asked_by,
    fits,
    indices_of,
    name_of,
    node_use,
    takes,
    uses,
)
from tests.tools.chaos.refusals.manifests import WORDS_BEHIND

_GATE = "kerf.dev/queue"
_UNSCHEDULABLE = ("PodScheduled", "False", "Unschedulable")
_REFUSED_FRAC = 0.05
"""Of all GPUs: more than that is not kept for pods that were refused, unless one of them, or a gang, asks for more."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One promise that was not kept."""

    promise: str
    subject: str
    """Node, GPU or pod."""
    detail: str


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
            if use.milli(gpu) > WHOLE_MILLI:
                found.append(Violation("compute <= capacity", subject, f"{use.milli(gpu)} of 1000 milli: {sharers}"))
            if use.mib(gpu) > use.memory_mib[gpu]:
                detail = f"{use.mib(gpu)} of {use.memory_mib[gpu]} MiB: {sharers}"
                found.append(Violation("memory <= capacity", subject, detail))
        if use.picks and use.served and use.unserved:
            detail = f"{', '.join(use.served)} served by the plugin beside {', '.join(use.unserved)}"
            found.append(Violation("kept apart where the plugin picks", use.name, detail))
        if use.held > len(use.memory_mib):
            detail = f"{use.held} GPUs held, {use.unknown} of them of unknown index; {len(use.memory_mib)} installed"
            found.append(Violation("GPUs held <= GPUs installed", use.name, detail))
    return found


def misplaced(
    nodes: Iterable[Manifest], pods: Iterable[Manifest], schedulers: Collection[str], *, blind: bool = False
) -> list[Violation]:
    """Bound pods that got something else than they asked for, or nothing that is written down.

    Where kube-scheduler may place pods `blind`, nothing is written on those that it placed by itself.
    """
    products = {node["metadata"]["name"]: node_use(node) for node in nodes}
    found = []
    for pod in pods:
        asked, node = asked_by(pod), pod["spec"].get("nodeName")
        if asked is None or not node or pod["spec"].get("schedulerName") not in schedulers:
            continue
        annotations = pod["metadata"].get("annotations") or {}
        indices = indices_of(annotations, node)
        written = annotations.get("kerf.dev/assigned-gpus")
        if blind and not indices:
            indices = []  # it went past the queue, or to another node
        elif written is None:
            found.append(Violation("no pod is placed blind", name_of(pod), f"{asked.gpus} GPUs asked, none assigned"))
            continue
        elif indices is None or len(indices) != asked.gpus:
            found.append(Violation("as many GPUs as asked", name_of(pod), f"{asked.gpus} asked, assigned {written!r}"))
            continue
        if asked.shared and annotations.get("kerf.dev/assigned-share") != str(asked.milli):
            share = annotations.get("kerf.dev/assigned-share")
            found.append(Violation("the share asked", name_of(pod), f"{asked.milli} milli asked, assigned {share!r}"))
        use = products.get(node)
        if use is None:
            continue
        if asked.model.lower() not in use.product.lower():
            found.append(Violation("the model asked", name_of(pod), f"{asked.model!r} asked, {node} has {use.product}"))
        on_node = indices or range(1)  # all of a node are of one size here
        small = [gpu for gpu in on_node if gpu < len(use.memory_mib) and use.memory_mib[gpu] < asked.memory_mib]
        if small:
            found.append(
                Violation("the memory asked", name_of(pod), f"{asked.memory_mib} MiB asked, {node} GPUs {small}")
            )
    return found


def bound_beyond(before: Iterable[Manifest], nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> list[Violation]:
    """Pods bound since `before` was read to nodes that have more pods than they offer now (they shrank)."""
    bound_before = {pod["metadata"]["uid"] for pod in before if pod["spec"].get("nodeName")}
    over = {name for name, use in uses(nodes, pods).items() if use.held > use.allocatable}
    return [
        Violation("GPUs held <= GPUs offered", pod["spec"]["nodeName"], f"{name_of(pod)} came although it is full")
        for pod in pods
        if pod["spec"].get("nodeName") in over and pod["metadata"]["uid"] not in bound_before and asked_by(pod)
    ]


def astray(pods: Iterable[Manifest]) -> list[Violation]:
    """Pods on which GPUs of another node are written than they have."""
    return [
        Violation("what is written follows the pod", name_of(pod), f"on {node}, written for {written}")
        for pod in pods
        if (node := pod["spec"].get("nodeName"))
        and (written := (pod["metadata"].get("annotations") or {}).get("kerf.dev/assigned-node"))
        not in (None, "", node)
    ]


def lost(expected: Collection[str], pods: Iterable[Manifest]) -> list[Violation]:
    """Pods that nobody deleted and that are gone, or going; `expected` are their names."""
    there = {pod["metadata"]["name"] for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    return [Violation("no pod is lost", name, "it is gone") for name in sorted(set(expected) - there)]


def unscheduled(names: Collection[str], pods: Iterable[Manifest]) -> list[Violation]:
    """Pods of these names, which ask for no GPU, that have no node; but not those whom another extender refused."""
    placed = {name_of(pod) for pod in pods if pod["spec"].get("nodeName") or WORDS_BEHIND in reason_of(pod)}
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
        Violation("bound, or pending with a reason", name_of(pod), f"conditions {pod['status'].get('conditions', [])}")
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
        if (gated(pod) and gang_of(pod)) or pod["spec"].get("schedulingGroup"):  # alone they may not run
            continue
        node = next((use.name for use in used.values() if fits(asked, use)), None)
        if node is not None:
            detail = f"it asks {asked} and fits {node}; its reason: {reason_of(pod)!r}"
            found.append(Violation("placed after the faults end", name_of(pod), detail))
    return found


def _stranded_gangs(used: Mapping[str, NodeUse], pods: Iterable[Manifest]) -> list[Violation]:
    """Gangs of equal pods that ask for whole GPUs, which are complete and wait although all that wait have room."""
    found = []
    for gang, members in _gangs(pods).items():
        waiting = [pod for pod in members if gated(pod)]
        asked = asked_by(waiting[0]) if waiting else None
        if asked is None or len(members) < gang_size(members):
            continue
        room = sum(_room(asked, use) for use in used.values() if fits(asked, use))
        if room >= len(waiting):
            detail = f"{len(waiting)} pods wait, and {room} have room; their reason: {reason_of(waiting[0])!r}"
            found.append(Violation("placed after the faults end", gang, detail))
    return found


def _room(asked: Asked, use: NodeUse) -> int:
    """How many such pods a node takes that takes one."""
    cpu = asked.besides.cpu_milli
    most = (use.allocatable - use.held) // asked.gpus
    return min(most, (use.cpu_milli - use.cpu_taken) // cpu) if cpu else most


def refused(pod: Manifest) -> bool:
    """Whether kube-scheduler has found no node for it."""
    conditions = pod.get("status", {}).get("conditions") or ()
    return any((of["type"], of["status"], of.get("reason")) == _UNSCHEDULABLE for of in conditions)


def hopeless(nodes: Iterable[Manifest], pods: Iterable[Manifest]) -> list[Manifest]:
    """Pods without a node that none takes, however many of its GPUs are free: for something that is no GPU."""
    used = list(uses(nodes, [pod for pod in pods if pod["spec"].get("nodeName")]).values())

    def taken(pod: Manifest) -> bool:
        asked = asked_by(pod)
        return asked is None or any(takes(use, asked.besides) for use in used if use.allocatable)

    return [pod for pod in pods if not pod["spec"].get("nodeName") and not taken(pod)]


def kept_for_refused(nodes: Collection[Manifest], pods: Collection[Manifest], *, reserved: float) -> list[Violation]:
    """GPUs kept for pods that were refused and that no node takes, beyond what may be: by nomination, or by Kerf, which
    says that it has `reserved` so many, when nobody else can have what is free. Of all GPUs that there are, whether or
    not the device plugin offers them now. One pod or gang of them may have all that it asks for, and while it is tried
    again nothing on it says that it was refused. Who has lost one node alone may have lost it to others, and is refused
    only now: until then what it has is an ordinary pod's.
    """
    taken_by_none = [(pod, asked) for pod in hopeless(nodes, pods) if (asked := asked_by(pod))]
    waiting = [(pod, asked) for pod, asked in taken_by_none if refused(pod)]
    together: dict[str, float] = defaultdict(float)
    lost = defaultdict[str, list[int]](list)
    for pod, asked in taken_by_none:
        unit = gang_of(pod) or name_of(pod)
        together[unit] += asked.gpus * asked.milli / WHOLE_MILLI
        lost[unit].append(0 if refused(pod) else _nodes_lost(pod))
    once = sum(gpus for unit, gpus in together.items() if set(lost[unit]) == {1})
    gpus = sum(len(node_use(node).memory_mib) for node in nodes)
    most = max(_REFUSED_FRAC * gpus, *together.values(), 0.0)
    nominated = {name_of(pod): asked.gpus for pod, asked in waiting if pod["status"].get("nominatedNodeName")}
    found = []
    if sum(nominated.values()) > most:
        detail = f"{sum(nominated.values())} of {gpus} GPUs, {most:g} at most: {nominated}"
        found.append(Violation("little is kept for pods that were refused", "nominations", detail))
    most += once
    if reserved > most:
        detail = f"{reserved:g} of {gpus} GPUs reserved, {most:g} at most: {len(waiting)} such pods"
        found.append(Violation("little is kept for pods that were refused", "reservations", detail))
    return found


def _nodes_lost(pod: Manifest) -> int:
    """How many nodes it has lost that a plan gave it, as Kerf has written; 0 where its author has written something."""
    number = str((pod["metadata"].get("annotations") or {}).get("kerf.dev/nomination-lost", "")).partition(". ")[0]
    return int(number) if number.isdecimal() else 0


def kept_by_words(pods: Iterable[Manifest]) -> list[Violation]:
    """Pods behind the gate that are nominated all the same: kube-scheduler counts them as if they ran there."""
    return [
        Violation("no node is kept by a nomination alone", name_of(pod), f"nominated to {node} behind the gate")
        for pod in pods
        if gated(pod) and (node := pod["status"].get("nominatedNodeName"))
    ]


def in_part(pods: Iterable[Manifest]) -> list[Violation]:
    """Gangs of which some have a node and fewer than there have to be."""
    found = []
    for gang, members in _gangs(pods).items():
        size, bound = gang_size(members), sum(bool(pod["spec"].get("nodeName")) for pod in members)
        if 0 < bound < size:
            found.append(Violation("gangs run whole", gang, f"{bound} of {size} have a node"))
    return found


def reason_of(pod: Manifest) -> str:
    """Why a pod is pending, "" when nobody has said; behind the gate, and while one is tried again, in Kerf's words."""
    annotations = pod["metadata"].get("annotations") or {}
    if gated(pod):
        return str(annotations.get("kerf.dev/skipped", ""))
    for condition in pod.get("status", {}).get("conditions", []):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", ""))
    return str(annotations.get("kerf.dev/nomination-lost", ""))


def gated(pod: Manifest) -> bool:
    return any(gate["name"] == _GATE for gate in pod["spec"].get("schedulingGates") or ())


def gang_of(pod: Manifest) -> str:
    return str((pod["metadata"].get("annotations") or {}).get("kerf.dev/gang", ""))


def _gangs(pods: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Members by gang that are not being deleted."""
    found = defaultdict(list)
    for pod in pods:
        if (gang := gang_of(pod)) and not pod["metadata"].get("deletionTimestamp"):
            found[gang].append(pod)
    return found


def gang_size(members: Collection[Manifest]) -> int:
    return max(int(pod["metadata"]["annotations"]["kerf.dev/gang-size"]) for pod in members)
