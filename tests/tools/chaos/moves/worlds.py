"""What there is at each moment of a run, from all that the API server has told: read without any of Kerf's code."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.tools.chaos import holdings
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Event
from tests.tools.chaos.moves.manifests import OWNER

_PLANNED_BY: Final = "kerf.dev/planned-by"
_ACTIVE: Final = ("moving", "placing")


@dataclass(frozen=True, slots=True)
class Record:
    """What Kerf has written down of a plan."""

    told: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.told["id"])

    @property
    def active(self) -> bool:
        """Whether something of it is under way, or to come."""
        return self.told["phase"] in _ACTIVE

    @property
    def moves(self) -> dict[str, Mapping[str, Any]]:
        """By the pod's UID."""
        return {move["uid"]: move for move in self.told["plan"]["moves"]}

    def stage(self, uid: str) -> str:
        """How far a move is, "" where there is no such move."""
        found = (one for one in self.told["progress"] if one["uid"] == uid)
        return next((str(one.get("stage", "planned")) for one in found), "")

    @property
    def target(self) -> dict[str, str]:
        """Nodes of the pods that room is made for, by UID."""
        return {pod["uid"]: pod["node"] for pod in self.told["plan"]["target"] if pod.get("uid")}


@dataclass
class World:
    """The objects of a moment."""

    pods: dict[str, Manifest] = field(default_factory=dict)
    """By UID."""
    nodes: dict[str, Manifest] = field(default_factory=dict)
    """By name."""
    budgets: dict[str, Manifest] = field(default_factory=dict)
    """By name."""
    record: Record | None = None

    def enter(self, event: Event) -> Manifest | None:
        """Something has happened; returns the object as it was before."""
        manifest, name = event.manifest, event.manifest["metadata"]["name"]
        if event.kind == "maps":
            text = (manifest.get("data") or {}).get("plan.json")
            self.record = None if event.gone or not text else Record(json.loads(text))
            return None
        table, key = {
            "pods": (self.pods, event.uid),
            "nodes": (self.nodes, name),
            "budgets": (self.budgets, name),
        }[event.kind]
        before = table.get(key)
        if event.gone:
            table.pop(key, None)
        else:
            table[key] = manifest
        return before

    def free(self, name: str) -> int | None:
        """GPUs of a node that nobody holds, None where it is not there."""
        if (node := self.nodes.get(name)) is None:
            return None
        there = [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == name]
        use = holdings.uses([node], there)[name]
        return use.allocatable - use.held

    def of_owner(self, name: str) -> Iterator[Manifest]:
        """Pods of a controller."""
        return (pod for pod in self.pods.values() if owner_of(pod) == name)


def owner_of(pod: Manifest) -> str:
    """The name of a pod's controller, "" for none."""
    return str((pod["metadata"].get("labels") or {}).get(OWNER, ""))


def controller_of(pod: Manifest) -> str:
    """UID of what makes a pod anew, "" for none."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")


def planned_by(pod: Manifest) -> str:
    """Who has let a pod go, as is written on it."""
    return str((pod["metadata"].get("annotations") or {}).get(_PLANNED_BY, ""))


def ending(pod: Manifest | None) -> bool:
    """Whether a pod is being deleted."""
    return pod is not None and "deletionTimestamp" in pod["metadata"]


def ready(pod: Manifest | None) -> bool:
    """Whether a pod runs, is ready, and is not being deleted."""
    return pod is not None and not ending(pod) and _condition(pod, "Ready").get("status") == "True"


def evicted(pod: Manifest) -> bool:
    """Whether a pod is being deleted by the Eviction API."""
    return ending(pod) and _condition(pod, "DisruptionTarget").get("reason") == "EvictionByEvictionAPI"


def gpus_of(pod: Manifest) -> int:
    """GPUs that a pod asks for."""
    asked = holdings.asked_by(pod)
    return asked.gpus if asked is not None else 0


def _condition(pod: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = pod.get("status", {}).get("conditions") or ()
    return next((item for item in conditions if item["type"] == kind), {})
