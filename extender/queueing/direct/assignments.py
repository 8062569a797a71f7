"""What is written of an assignment where no Binding carries it, in Kerf's words and in those of the node's plugin."""

from collections.abc import Callable
from dataclasses import dataclass

from extender.core.decisions import decide_on
from extender.core.evaluations import Memo
from extender.kube.objects import Pod
from extender.ledger.ledger import Claim, Ledger
from extender.plugins.kerf import ASSIGNED_NODE
from extender.plugins.protocol import Handover
from extender.plugins.registry import assigned_gpus
from extender.scheduling.assignments import Assignment, assignment_of
from extender.scheduling.placer import Placer


@dataclass(eq=False)
class DirectAssignments:
    """Assignments of pods that kube-scheduler binds by itself."""

    ledger: Ledger
    placer: Placer
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def of(self, pod: Pod, node: str) -> dict[str, str]:
        """What is reserved for a pod on a node, as annotations; none for a pod that asks for no GPUs.

        Raises RequestError when the pod's containers can't be read.
        """
        assignment = self.placer.reserved(pod.metadata.uid, node)
        return {} if assignment is None else self.written(pod, assignment)

    def written(self, pod: Pod, assignment: Assignment) -> dict[str, str]:
        """An assignment as annotations. Raises RequestError when the pod's containers can't be read."""
        handed = self._handover(pod, assignment).annotations
        return {**handed, **assignment.annotations, ASSIGNED_NODE: assignment.node}

    def matters(self, claim: Claim) -> bool:
        """Whether somebody goes by which GPUs of its node a pod has: the node's plugin, or nobody but Kerf, where its
        kubelet knows nothing of them. The vendor's plugin chooses by itself."""
        return bool(claim.holding) and (claim.holding.unserved or self.ledger.rows.plugin_on(claim.node).told)

    def on_its_node(self, pod: Pod, claim: Claim) -> Assignment | None:
        """What a pod may get of the node that it is bound to, beside all others there; None where that is too little.

        Raises RequestError.
        """
        request = self.placer.read_request(pod)
        alone = self.ledger.without(claim.node, {claim.uid}, self.clock())
        if request.gpus is None or alone is None:
            return None
        policy, row = self.placer.policy_of(request), alone.row_of[claim.node]
        decision = decide_on(alone, request.gpus, policy, row, Memo())
        return assignment_of(alone, decision)

    def _handover(self, pod: Pod, assignment: Assignment) -> Handover:
        rows, node = self.ledger.rows, assignment.node
        plugin, manifest = rows.plugin_on(node), rows.manifest(node)
        gpus = assigned_gpus(rows.offer_of(node), assignment.holding)
        if manifest is None or not gpus:
            return Handover()
        return plugin.handover(pod, gpus, manifest, self.wall_clock())
