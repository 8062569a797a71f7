"""The objects of a question: under which names their pods are planned, and what becomes of each object."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from extender.explain.manifests.objects import Given, Workload, renamed
from extender.explain.what_if.questions import PlacedObject
from extender.kube.objects import Pod
from extender.planning.plans import PlanPod
from extender.planning.reports import PlanReport


@dataclass(frozen=True, slots=True)
class Objects:
    """Those that make pods."""

    workloads: Sequence[Workload]
    pods_of: Sequence[Sequence[Pod]]
    """Of each workload, no two pods under one name."""
    copy_of: Mapping[str, int]
    """By UID of a pod, the number of the copy that it is of, 0 where there is one."""

    @classmethod
    def of(cls, given: Given, taken: Iterable[str]) -> "Objects":
        """The objects of a question whose other pods have these keys."""
        pods_of = renamed(given.workloads, taken)
        copies = {
            pod.metadata.uid: workload.copy
            for workload, pods in zip(given.workloads, pods_of, strict=True)
            for pod in pods
        }
        return cls(given.workloads, pods_of, copies)

    @property
    def pods(self) -> list[Pod]:
        """Of all of them, in their order."""
        return [pod for pods in self.pods_of for pod in pods]

    def copied(self, pod: Pod, planned: PlanPod) -> PlanPod:
        """A pod as planners take it: copies of an object are gangs of their own."""
        copy = self.copy_of[pod.metadata.uid]
        return replace(planned, gang=f"{planned.gang}, copy {copy}") if copy and planned.gang else planned

    def report(self, result: PlanReport, notes: Mapping[str, str]) -> list[PlacedObject]:
        """Of each object which pods go where, and why others go nowhere; `notes` are by the keys of pods."""
        node_of = {entry["pod"]: entry["node"] for entry in result["assignments"]}
        why = {entry["pod"]: entry["reason"] for entry in result["unassigned"]}
        return [
            _report(workload, [pod.key for pod in pods], node_of, why, notes)
            for workload, pods in zip(self.workloads, self.pods_of, strict=True)
        ]


def _report(
    workload: Workload,
    keys: Sequence[str],
    node_of: Mapping[str, str],
    why: Mapping[str, str],
    notes: Mapping[str, str],
) -> PlacedObject:
    nodes: dict[str, list[str]] = {}
    for key in keys:
        if key in node_of:
            nodes.setdefault(node_of[key], []).append(key)
    reasons = Counter(why[key] for key in keys if key in why)
    return {
        "object": workload.name,
        "place": workload.place,
        "pods": len(keys),
        "placed": sum(map(len, nodes.values())),
        "nodes": [{"node": node, "pods": pods} for node, pods in nodes.items()],
        "reasons": dict(reasons.most_common()),
        "notes": [*workload.notes, *(notes[key] for key in keys if key in notes)],
    }
