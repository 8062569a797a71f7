"""The steps of a run that happen to controllers, to their pods, and to what room is made for."""

from collections.abc import Callable
from typing import Final

import msgspec

from tests.controlplane import ApiError
from tests.controlplane.api import Object
from tests.tools.chaos import holdings
from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.modes import RECORD
from tests.tools.chaos.moves import manifests
from tests.tools.chaos.moves.kubelets import Kubelets
from tests.tools.chaos.moves.plans import OwnerPlan
from tests.tools.chaos.plans import Plan
from tests.tools.chaos.schedules import Step
from tests.tools.chaos.steps import Steps

_NODES: Final = "/api/v1/nodes"
_PODS: Final = "/api/v1/namespaces/default/pods"
_MERGE: Final = "application/merge-patch+json"
_NUM_FORGED: Final = 4


class MoveSteps(Steps):
    """Those of one run in which pods are moved."""

    def __init__(
        self, cluster: Cluster, plan: Plan, clock: Callable[[], float], kubelets: Kubelets, stop: Callable[[], bool]
    ) -> None:
        """`stop` has what is under way stopped by hand; whether anybody heard of it."""
        super().__init__(cluster, plan, clock)
        self._kubelets = kubelets
        self._stop = stop
        self.owners = {owner.name: owner for owner in plan.moves.owners}
        """By name."""
        self._members: dict[str, list[str]] = {}
        for pod in plan.pods:
            self._members.setdefault(pod.gang or pod.name, []).append(pod.name)

    def create(self, owner: OwnerPlan) -> None:
        """A controller, and its budget."""
        self._cluster.plane.request("POST", manifests.PATHS[owner.kind], manifests.owner(owner))
        if owner.keeps is not None:
            self._cluster.plane.request("POST", manifests.BUDGETS, manifests.budget(owner.name, owner.keeps))

    def scale(self, owner: OwnerPlan, replicas: int) -> None:
        """Have a controller have so many pods."""
        path = f"{manifests.PATHS[owner.kind]}/{owner.name}"
        self._cluster.plane.request("PATCH", path, manifests.scale(owner.kind, replicas), _MERGE)

    def fault(self, fault: Fault) -> Step:
        """The step by which a fault takes effect."""
        of_moves = {
            Kind.OWNER_SCALED: self._scale,
            Kind.OWNER_POD_DELETED: self._delete_one,
            Kind.TARGET_DELETED: self._delete_target,
            Kind.BUDGET_RAISED: self._raise_budget,
            Kind.MADE_UNMOVABLE: self._annotate,
            Kind.NEVER_READY: lambda fault: self._while(fault, self._kubelets.unready),
            Kind.SLOW_END: lambda fault: self._while(fault, self._kubelets.slow),
            Kind.PLAN_STOPPED: self._stop_plan,
            Kind.REPLACEMENT_FORGED: self._forge,
            Kind.NODE_CORDONED: self._cordon,
        }
        return (lambda: of_moves[fault.kind](fault)) if fault.kind in of_moves else super().fault(fault)

    def end(self) -> None:
        """What others do is over: all pods get ready, and all that are to go do."""
        self._kubelets.unready.clear()
        self._kubelets.slow.clear()

    def _scale(self, fault: Fault) -> bool:
        if owner := self.owners.get(fault.target):
            self.scale(owner, max(owner.replicas + self._rng.choice((-1, 1, 1)), 0))
            self.counts[fault.kind] += 1
        return True

    def _delete_one(self, fault: Fault) -> bool:
        names = [pod["metadata"]["name"] for pod in self._pods_of(fault.target)]
        if names and self.delete(f"{_PODS}/{self._rng.choice(names)}"):
            self.counts[fault.kind] += 1
        return True

    def _delete_target(self, fault: Fault) -> bool:
        """All of it, or one that comes again."""
        names = [name for name in self._members.get(fault.target, []) if name in self.expected]
        if not names:
            return self._now_s() > fault.at_s + 4.0
        if len(names) > 1 and self._rng.random() < 0.5:
            name = self._rng.choice(names)
            self._delete_this(name)
            self.schedule.at(self._now_s(), self.creation(self.pods[name]))
        else:
            for name in names:
                self.expected.discard(name)
                self.delete(f"{_PODS}/{name}?gracePeriodSeconds=0")
        self.counts[fault.kind] += 1
        return True

    def _raise_budget(self, fault: Fault) -> bool:
        owner = self.owners.get(fault.target)
        if owner is None:
            return True
        made = manifests.budget(owner.name, owner.replicas)
        try:
            self._cluster.plane.request("POST", manifests.BUDGETS, made)
        except ApiError as error:
            if error.status != 409:
                raise
            change = {"spec": {"minAvailable": owner.replicas}}
            self._cluster.plane.request("PATCH", f"{manifests.BUDGETS}/{owner.name}", change, _MERGE)
        self.counts[fault.kind] += 1
        return True

    def _annotate(self, fault: Fault) -> bool:
        for pod in self._pods_of(fault.target):
            body = {"metadata": {"annotations": {"kerf.dev/movable": "false"}}}
            if self._as_author("PATCH", f"{_PODS}/{pod['metadata']['name']}", body):
                self.counts[fault.kind] = max(self.counts[fault.kind], 1)
        return True

    def _while(self, fault: Fault, owners: set[str]) -> bool:
        """Pods of a controller are so for a time."""
        owners.add(fault.target)
        self.counts[fault.kind] += 1
        self.schedule.at(self._now_s() + fault.for_s, lambda: self._no_longer(fault, owners))
        return True

    @staticmethod
    def _no_longer(fault: Fault, owners: set[str]) -> bool:
        owners.discard(fault.target)
        return True

    def _stop_plan(self, fault: Fault) -> bool:
        self.counts[fault.kind] += self._stop()
        return True

    def _forge(self, fault: Fault) -> bool:
        """In the words of the plan that is under way, whoever is waiting."""
        text = self._cluster.plane.request("GET", f"{manifests.MAPS}/{RECORD}").get("data", {}).get("plan.json")
        record = msgspec.json.decode(text) if text else None
        if record is None or not record["plan"]["moves"]:
            return self._now_s() > fault.at_s + 4.0
        node = self._rng.choice(record["plan"]["moves"])["to"]
        forged = {"kerf.dev/planned-by": f"defrag {record['id']}", "kerf.dev/planned-node": node}
        waiting = [pod for pod in self._seen() if not pod["spec"].get("nodeName")]
        for pod in self._rng.sample(waiting, min(_NUM_FORGED, len(waiting))):
            if self._as_author("PATCH", f"{_PODS}/{pod['metadata']['name']}", {"metadata": {"annotations": forged}}):
                self.counts[fault.kind] = max(self.counts[fault.kind], 1)
        return True

    def _cordon(self, fault: Fault) -> bool:
        path = f"{_NODES}/{fault.target}"
        self._change(path, {"spec": {"unschedulable": True}})
        self.counts[fault.kind] += 1
        back = {"spec": {"unschedulable": None}}
        self.schedule.at(self._now_s() + fault.for_s, lambda: self._change(path, back))
        return True

    def _change(self, path: str, change: Object) -> bool:
        try:
            self._cluster.plane.request("PATCH", path, change, _MERGE)
        except ApiError as error:
            if error.status != 404:
                raise
        return True

    def _pods_of(self, owner: str) -> list[Manifest]:
        """Pods of a controller that run and are not being deleted."""
        return [
            pod
            for pod in self._seen()
            if (pod["metadata"].get("labels") or {}).get(manifests.OWNER) == owner
            and pod["spec"].get("nodeName")
            and "deletionTimestamp" not in pod["metadata"]
            and not holdings.finished(pod)
        ]
