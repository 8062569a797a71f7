"""Random histories of a cluster, and of the processes that hear of it."""

from collections.abc import Callable, Collection, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import permutations, product
from typing import Any, Final

from hypothesis import strategies as st

from extender.kube.transport import NAMESPACES_PATH, NODES_PATH, PODS_PATH
from extender.plugins.set_aside import Note, text_of
from tests.kube.consumers.servers import PATHS, UNREADABLE, ApiServer, End, Manifest, finished, is_unreadable

WALL: Final = 1_800_000_000.0
SLOTS: Final = {"blue/train-1": "one GPU", "blue/train-2": "GPU memory", "green/web": "two GPUs"}
"""Names of pods, and what they usually ask for."""
NODE_NAMES: Final = ("a", "b")
NAMESPACE_NAMES: Final = ("blue", "green")
ADDRESSES: Final = ("10.0.0.1", "10.0.0.2")
WHOSE: Final = "test.example/whose"
"""Annotation of pods: which of `OWNERS` they are of."""


def time_of(unix_s: float) -> str:
    return f"{datetime.fromtimestamp(int(unix_s), UTC):%Y-%m-%dT%H:%M:%SZ}"


# What pods are like when they are made


def _container(**requests: str) -> dict[str, Any]:
    return {"name": "main", "resources": {"requests": requests}}


_APART: Final = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}
SHAPES: Final[dict[str, tuple[dict[str, str], dict[str, Any]]]] = {
    "no GPU": ({}, {"containers": [_container(cpu="500m", memory="1Gi")]}),
    "one GPU": ({}, {"containers": [_container(cpu="2", **{"nvidia.com/gpu": "1"})]}),
    "two GPUs": ({}, {"containers": [_container(**{"nvidia.com/gpu": "2"})], "priority": 7}),
    "a share": ({"kerf.dev/gpu-share": "500"}, {"containers": [_container(cpu="1")]}),
    "GPU memory": ({"ALIYUN_COM_GPU_MEM_IDX": "1"}, {"containers": [_container(**{"aliyun.com/gpu-mem": "4"})]}),
    "a MIG device": ({}, {"containers": [_container(**{"nvidia.com/mig-1g.5gb": "1"})]}),
    "a claim": ({}, {"containers": [_container(cpu="1")], "resourceClaims": [{"name": "d", "resourceClaimName": "d"}]}),
    "wrong words": ({"kerf.dev/gpu-memory-each": "lots"}, {"containers": [_container(**{"nvidia.com/gpu": "1"})]}),
    "all else": (
        {},
        {
            "containers": [
                {**_container(**{"example.com/dongle": "2"}), "ports": [{"hostPort": 8080, "containerPort": 80}]}
            ],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [_APART]}},
        },
    ),
}
"""Annotations and spec."""


@dataclass(frozen=True)
class Owner:
    """The owner of pods, and what consumers call it."""

    kind: str = ""
    name: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    who: str = ""
    """Where GPU-hours are counted, {} for the pod's name without its number."""
    alike: str = ""
    """By whom pods are alike, likewise."""
    stem: str = ""
    """By whom runs are alike, likewise."""


OWNERS: Final = (
    Owner(who="Pod/{}", alike="Pod/{}", stem="Pod/{}"),
    Owner("Job", "night-3", who="Job/night-3", alike="Job/night", stem="Job/night"),
    Owner(
        *("ReplicaSet", "web-5d4f", {"pod-template-hash": "5d4f"}),
        who="Deployment/web",
        alike="ReplicaSet/web",
        stem="ReplicaSet/web-5d4f",
    ),
    Owner(
        *("DaemonSet", "kerf-agent", {"app.kubernetes.io/name": "kerf-agent"}),
        who="DaemonSet/kerf-agent",
        alike="DaemonSet/kerf-agent",
        stem="DaemonSet/kerf-agent",
    ),
)
GANGS: Final[dict[str, tuple[dict[str, str], dict[str, str]]]] = {
    "none": ({}, {}),
    "by annotation": ({"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}, {}),
    "by label": ({}, {"scheduling.x-k8s.io/pod-group": "h"}),
    "of no size": ({"kerf.dev/gang": "g", "kerf.dev/gang-size": "two"}, {}),
}
"""Annotations and labels."""
QUEUE: Final = "kerf.dev/queue"
"""The queue's gate."""
GATES: Final = ((), (QUEUE,), (QUEUE, "example.com/hold"), ("example.com/hold",))


# What becomes of them


Edit = Callable[[Manifest, float], object]
"""Changes an object, at a Unix time."""


def _annotated(annotations: dict[str, str | None]) -> Edit:
    """None removes an annotation."""

    def edit(item: Manifest, now: float) -> None:
        found = {**item["metadata"]["annotations"], **annotations}
        item["metadata"]["annotations"] = {key: value for key, value in found.items() if value is not None}

    return edit


def _labelled(labels: dict[str, str]) -> Edit:
    return lambda item, now: item["metadata"]["labels"].update(labels)


def _condition(kind: str, status: str, reason: str = "", message: str = "") -> Edit:
    """`{}` in the message is the time."""

    def edit(item: Manifest, now: float) -> None:
        others = [one for one in item["status"].get("conditions", ()) if one["type"] != kind]
        found = {"type": kind, "status": status, "reason": reason, "message": message.format(time_of(now))}
        item["status"]["conditions"] = [*others, found]

    return edit


def _status(fields: dict[str, Any]) -> Edit:
    return lambda item, now: item["status"].update(fields)


def _spec(fields: dict[str, Any]) -> Edit:
    return lambda item, now: item["spec"].update(fields)


def _start(pod: Manifest, now: float) -> None:
    pod["status"] |= {"phase": "Running", "startTime": pod["status"].get("startTime", time_of(now))}


def _open(pod: Manifest, now: float) -> None:
    pod["spec"]["schedulingGates"] = [gate for gate in pod["spec"]["schedulingGates"] if gate["name"] != QUEUE]


def _nominate(pod: Manifest, now: float) -> None:
    pod["metadata"]["annotations"]["kerf.dev/planned-node"] = pod["status"]["nominatedNodeName"] = "a"


def _taken_back(pod: Manifest, now: float) -> None:
    pod["status"].pop("nominatedNodeName", None)


_WAITING: Final = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError"}}}
_RESIZED: Final = {"name": "main", "allocatedResources": {"cpu": "4"}}
WORDS: Final[dict[str, Edit]] = {
    "asks in wrong words": _annotated({"kerf.dev/gpu-memory-total": "lots"}),
    "asks as before": _annotated({"kerf.dev/gpu-memory-total": None}),
}
POD_EDITS: Final[dict[str, Edit]] = {
    "starts": _start,
    "is unknown": _status({"phase": "Unknown"}),
    "is ready": _condition("Ready", "True"),
    "is not ready": _condition("Ready", "False"),
    "is refused": _condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available. No victims found."),
    "is refused no more": _condition("PodScheduled", "True"),
    "is nominated": _nominate,
    "is nominated no more": _taken_back,
    "was planned": _annotated({"kerf.dev/planned-node": "b", "kerf.dev/planned-by": "greedy"}),
    "is for autoscalers": _annotated({"kerf.dev/planned-by": "let go for autoscalers: no node has room"}),
    "is opened": _open,
    "was queued": _annotated({"kerf.dev/queued-by": "namespace"}),
    "is assigned GPU 0": _annotated({"kerf.dev/assigned-gpus": "0", "kerf.dev/assigned-share": None}),
    "is assigned a share": _annotated({"kerf.dev/assigned-gpus": "1", "kerf.dev/assigned-share": "500"}),
    "is assigned nonsense": _annotated({"kerf.dev/assigned-gpus": "zero"}),
    "is assigned on a": _annotated({"kerf.dev/assigned-node": "a"}),
    "is assigned anywhere": _annotated({"kerf.dev/assigned-node": ""}),
    "is of another gang": _annotated({"kerf.dev/gang": "other", "kerf.dev/gang-size": "3"}),
    "is labelled": _labelled({"app": "web"}),
    "opts in": _labelled({"kerf.dev/queue": "enabled"}),
    "opts out": _labelled({"kerf.dev/queue": "disabled"}),
    "can't start": _status({"containerStatuses": [_WAITING]}),
    "is resized": _status({"containerStatuses": [_RESIZED]}),
    "is preempted": _condition("DisruptionTarget", "True", "PreemptionByScheduler"),
    "is of a gang that was": _condition("kerf.dev/GangPreempted", "True", "", "{}: x was preempted on a"),
}


def _offers(quantities: dict[str, str]) -> Edit:
    found = {"cpu": "16", "memory": "64Gi", "pods": "2", **quantities}
    return _status({"allocatable": found, "capacity": found})


def _address(number: int) -> Edit:
    return _status({"addresses": [{"type": "InternalIP", "address": ADDRESSES[number]}]})


def _note(*, trial: bool) -> Edit:
    return _annotated({"kerf.dev/set-aside": text_of(Note(5, 3, int(WALL), int(WALL) + 3600, trial=trial))})


OFFERS: Final[dict[str, Edit]] = {
    "has no GPUs": _offers({}),
    "has 2 GPUs": _offers({"nvidia.com/gpu": "2"}),
    "has 4 GPUs": _offers({"nvidia.com/gpu": "4"}),
    "shares GPUs": _offers({"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}),
}
_NOT_READY: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
NODE_EDITS: Final[dict[str, Edit]] = {
    "is in zone x": _labelled({"zone": "x"}),
    "is in zone y": _labelled({"zone": "y"}),
    "is cordoned": _spec({"unschedulable": True, "taints": []}),
    "is out of use": _spec({"unschedulable": False, "taints": [_NOT_READY]}),
    "is open": _spec({"unschedulable": False, "taints": []}),
    "is ready": _condition("Ready", "True"),
    "is not ready": _condition("Ready", "False"),
    "has the first address": _address(0),
    "has the second address": _address(1),
    "is quarantined": _note(trial=False),
    "is on trial": _note(trial=True),
    "has a note that nobody reads": _annotated({"kerf.dev/set-aside": "{"}),
    "is quarantined no more": _annotated({"kerf.dev/set-aside": None}),
    "reports": _annotated({"kerf.dev/node-report": '{"version": 1}'}),
    "reports no more": _annotated({"kerf.dev/node-report": None}),
    "lives": lambda node, now: node["status"].update(phase=str(now)),
}


@dataclass
class Cluster:
    """An API server, and changes of its objects."""

    server: ApiServer
    now: float = WALL
    pods: list[str] = field(default_factory=list)
    """UIDs of all pods that ever were."""
    num_made: int = 0

    def make_pod(self, slot: str, shape: str, owner: int, gang: str, gates: Sequence[str], dated: bool) -> None:
        """Create a pod in place of the one of its name."""
        self.delete(PODS_PATH, slot)
        namespace, _, name = slot.partition("/")
        (annotations, spec), (of_gang, labels), of = SHAPES[shape], GANGS[gang], OWNERS[owner]
        metadata: dict[str, Any] = {
            **{"name": name, "namespace": namespace, "uid": self._uid(slot)},
            "annotations": {**annotations, **of_gang, WHOSE: str(owner)},
            "labels": {**labels, **of.labels},
            "creationTimestamp": time_of(self.now) if dated else "",
        }
        if of.kind:
            metadata["ownerReferences"] = [{"kind": of.kind, "name": of.name, "uid": "o", "controller": True}]
        gated = {"schedulingGates": [{"name": gate} for gate in gates], "schedulerName": "default-scheduler"}
        self.pods.append(metadata["uid"])
        self.server.put(PODS_PATH, {"metadata": metadata, "spec": {**spec, **gated}, "status": {"phase": "Pending"}})

    def edit_pod(self, slot: str, edit: str) -> None:
        """Change a pod, created if needed."""
        pod = self._pod(slot)
        if not finished(pod) and not is_unreadable(pod):
            (WORDS | POD_EDITS)[edit](pod, self.now)
            self.server.put(PODS_PATH, pod)

    def bind(self, slot: str, node: str) -> None:
        """Bind a pod, without its gates."""
        pod = self._pod(slot)
        if finished(pod) or pod["spec"].get("nodeName") or pod["metadata"].get("deletionTimestamp"):
            return
        if pod["spec"]["schedulingGates"]:
            pod["spec"]["schedulingGates"] = []
            self.server.put(PODS_PATH, pod)
            pod = self._pod(slot)
        pod["spec"]["nodeName"] = node
        self.server.put(PODS_PATH, pod)

    def run(self, slot: str, node: str) -> None:
        self.bind(slot, node)
        self.edit_pod(slot, "starts")

    def finish(self, slot: str, phase: str) -> None:
        """A pod ends, and still exists."""
        pod = self._pod(slot)
        if not finished(pod):
            times = {"startedAt": time_of(self.now), "finishedAt": time_of(self.now)}
            ended = {"exitCode": int(phase == "Failed"), **times}
            pod["status"] |= {"phase": phase, "containerStatuses": [{"state": {"terminated": ended}}]}
            self.server.put(PODS_PATH, pod)

    def begin_to_delete(self, slot: str) -> None:
        pod = self._pod(slot)
        pod["metadata"] |= {"deletionTimestamp": time_of(self.now + 30), "deletionGracePeriodSeconds": 30}
        self.server.put(PODS_PATH, pod)

    def delete(self, path: str, key: str) -> None:
        if key in self.server.objects[path]:
            self.server.delete(path, key)

    def delete_at_once(self, slot: str) -> None:
        """Delete a pod; only its last event has the deletion timestamp."""
        if slot in self.server.objects[PODS_PATH]:
            self.server.delete(PODS_PATH, slot, deletionTimestamp=time_of(self.now))

    def blur(self, path: str, key: str) -> None:
        """Make an object impossible to decode, or possible again."""
        found = self.server.objects[path].get(key)
        if found is not None:
            labels = found["metadata"]["hidden"] if is_unreadable(found) else UNREADABLE
            metadata = {**found["metadata"], "labels": labels, "hidden": found["metadata"]["labels"]}
            self.server.put(path, {**found, "metadata": metadata})

    def edit_node(self, name: str, edit: str) -> None:
        """Change a node, created if needed."""
        node = deepcopy(self.server.objects[NODES_PATH].get(f"/{name}"))
        if node is None:
            metadata = {"name": name, "uid": self._uid(name), "labels": {}, "annotations": {}}
            node = {"metadata": metadata, "spec": {}, "status": {}}
            OFFERS["has 2 GPUs"](node, self.now)
        if not is_unreadable(node):
            (OFFERS | NODE_EDITS)[edit](node, self.now)
            self.server.put(NODES_PATH, node)

    def edit_namespace(self, name: str, label: str) -> None:
        """Label a namespace, created if needed."""
        found = self.server.objects[NAMESPACES_PATH].get(f"/{name}")
        metadata = found["metadata"] if found else {"name": name, "uid": self._uid(name)}
        if found is None or not is_unreadable(found):
            labels = {"kerf.dev/queue": label}
            self.server.put(NAMESPACES_PATH, {"metadata": {**metadata, "labels": labels}})

    def _pod(self, slot: str) -> Manifest:
        if slot not in self.server.objects[PODS_PATH]:
            self.make_pod(slot, SLOTS[slot], 0, "none", (), True)
        return deepcopy(self.server.objects[PODS_PATH][slot])

    def _uid(self, name: str) -> str:
        self.num_made += 1
        return f"{name}-{self.num_made}"


# What happens, one after the other

Step = tuple[Any, ...]
"""What happens, and to what: a method of `Cluster`, or of who runs the history."""
_OTHER_OBJECTS: Final = (
    *((NODES_PATH, f"/{name}") for name in NODE_NAMES),
    *((NAMESPACES_PATH, f"/{name}") for name in NAMESPACE_NAMES),
)


_NUM_EDITS: Final = 5
_NUM_SHAPES: Final = 4
_NUM_STEPS: Final = 50


def _all(what: str, *arguments: Collection[Any]) -> list[Step]:
    return [(what, *chosen) for chosen in product(*arguments)]


_LOSING: Final = (End.FORGOTTEN, End.EXPIRED, End.GARBAGE)
_KINDS: Final[tuple[tuple[int, list[Step]], ...]] = (
    (4, _all("edit_pod", SLOTS, range(_NUM_EDITS))),
    (1, _all("edit_pod", SLOTS, list(WORDS))),
    (3, _all("make_pod", SLOTS, range(_NUM_SHAPES), range(len(OWNERS)), list(GANGS), GATES, (True, False))),
    (2, _all("run", SLOTS, NODE_NAMES)),
    (2, _all("bind", SLOTS, NODE_NAMES)),
    (2, _all("blur", (PODS_PATH,), SLOTS)),
    (1, _all("finish", SLOTS, ("Succeeded", "Failed"))),
    (1, _all("begin_to_delete", SLOTS)),
    (1, _all("delete", (PODS_PATH,), SLOTS)),
    (1, _all("delete_at_once", SLOTS)),
    (2, _all("edit_node", NODE_NAMES, range(_NUM_EDITS))),
    (2, _all("edit_node", NODE_NAMES, list(OFFERS))),
    (1, _all("edit_namespace", NAMESPACE_NAMES, ("enabled", "disabled"))),
    (1, [("blur", *found) for found in _OTHER_OBJECTS]),
    (1, [("delete", *found) for found in _OTHER_OBJECTS]),
    (1, _all("wait", (0.5, 40.0))),
    (1, _all("ask", SLOTS)),
    (2, _all("tell", PATHS, (1, 2))),
    (1, _all("end_watch", PATHS, list(End), (False, True))),
    (2, _all("end_watch", (PODS_PATH,), _LOSING, (False, True))),
    (1, _all("restore", (3, 8))),
    (1, _all("move", SLOTS, NODE_NAMES)),
    (1, _all("restart", list(permutations(PATHS)))),
)
"""How often, and what: `wait` so many seconds; `tell` of so many events; `restart` with these watches in this order."""
_NOTHING: Final[Step] = ("nothing",)
_STEPS: Final = st.one_of(st.just(_NOTHING), *(st.sampled_from(steps) for often, steps in _KINDS for _ in range(often)))


def _history(
    pod_edits: list[str], node_edits: list[str], shapes: list[str], steps: list[tuple[Step, bool]]
) -> list[tuple[Step, bool]]:
    """Replace numbers of edits and shapes by their names, and leave out steps that do nothing."""
    chosen = {"edit_pod": pod_edits, "edit_node": node_edits, "make_pod": shapes}
    found = list[tuple[Step, bool]]()
    for step, at_once in steps:
        if step[0] in chosen and isinstance(step[2], int):
            what, name, number, *more = step
            found.append(((what, name, chosen[what][number], *more), at_once))
        elif step != _NOTHING:
            found.append((step, at_once))
    return found


def _some(names: Iterable[str], num: int) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(list(names)), min_size=num, max_size=num, unique=True)


HISTORIES: Final = st.builds(
    _history,
    _some(POD_EDITS, _NUM_EDITS),
    _some(NODE_EDITS, _NUM_EDITS),
    _some(SHAPES, _NUM_SHAPES),
    st.lists(st.tuples(_STEPS, st.sampled_from((False, True, False))), min_size=_NUM_STEPS, max_size=_NUM_STEPS),
)
"""Steps, and of each whether all is told at once. Each history has a few kinds of changes alone, which therefore meet
each other; and what is as long as any other shrinks to one that is short."""
