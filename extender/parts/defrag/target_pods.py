"""Gives the target its nodes after all moves are done."""

from collections.abc import Mapping
from dataclasses import dataclass

from extender.kube.objects import Pod
from extender.parts.defrag.places import Places
from extender.parts.defrag.record import Phase
from extender.parts.defrag.steps import Limits, Run
from extender.queueing.controller import QueueController
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.entries import Stage as PodStage

_UNSEEN_S = 5.0
"""Seconds for which a bound pod may be missing from both watches."""


@dataclass(eq=False)
class TargetPlacer:
    """Releases the target's pods to their kept nodes, and follows them until they are bound."""

    queue: QueueController
    running: Mapping[str, Pod]
    """Pods with a node, by UID."""
    places: Places
    limits: Limits

    def nodes(self, run: Run) -> set[str]:
        """Nodes of the target's pods that are not bound yet."""
        return {pod.node for pod in run.record.plan.target if pod.uid and pod.uid not in self.running}

    def node_of(self, run: Run, pod: Pod) -> str | None:
        """The node kept for a pod of the target in phase PLACING, None for none."""
        target = run.record.plan.target if run.record.phase is Phase.PLACING else ()
        return next((target_pod.node for target_pod in target if target_pod.uid == pod.metadata.uid), None)

    def place(self, run: Run) -> str | None:
        """Release and follow the target's pods: None while under way, "" once all are bound, else why that failed."""
        target = [pod for pod in run.record.plan.target if pod.uid]
        units: dict[str, list[tuple[Entry, str]]] = {}
        missing = []
        for pod in target:
            entry, bound = self.queue.backlog.entries.get(pod.uid), self.running.get(pod.uid)
            if bound is not None:
                if bound.spec.node_name != pod.node:
                    return f"pod {pod.pod} went to node {bound.spec.node_name} instead of {pod.node}"
                continue
            missing.append(pod.pod)
            if entry is None:
                if run.age_s(pod.uid) > _UNSEEN_S:
                    return f"pod {pod.pod} is gone"
                continue
            run.reset_age(pod.uid)
            if entry.stage.waits and entry.planned is not None:
                if not self.queue.dispatcher.found_a_node(entry):
                    units.setdefault(entry.planned.gang or pod.uid, []).append((entry, pod.node))
            elif entry.stage is PodStage.OPENED and entry.node == pod.node:
                self.places.hold_for(entry.pod, entry.node)
        if not missing:
            return ""
        late = run.age_s(run.record.id) > self.limits.target_s
        for members in units.values():
            self.places.hand_over(members, (), run.planner)
        return f"pod {missing[0]} has no node after {self.limits.target_s:g} s" if late else None
