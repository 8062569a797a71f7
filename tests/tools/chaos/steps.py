"""The steps of a run: what happens to objects, and to the control plane, at planned times."""

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable

from tests.controlplane import ApiError, podgroups
from tests.tools.chaos import attacks, checker, faults, holdings
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.clusters import REFUSED, SCHEDULERS, Cluster
from tests.tools.chaos.faults import Fault, Kind
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.manifests import node_manifest, pod_manifest
from tests.tools.chaos.plans import NodePlan, Plan, PodPlan
from tests.tools.chaos.refusals import manifests as of_refusals
from tests.tools.chaos.schedules import Schedule, Step

_NODES = "/api/v1/nodes"
_PODS = "/api/v1/namespaces/default/pods"
_MERGE = "application/merge-patch+json"
_EDIT_WITHIN_S = 4.0
"""A pod that has no node so long after its edit was due is left alone."""
_WITHOUT_KERF_WITHIN_S = 20.0
"""How long kube-scheduler may take for pods without GPUs while Kerf is gone: machines are busy."""
_STRATEGIC = "application/strategic-merge-patch+json"
_NUM_FORGED_MARKS = 20
_NUM_CPU_PODS = 4


class Steps:
    """Those of one run."""

    def __init__(self, cluster: Cluster, plan: Plan, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._plan = plan
        self._clock = clock
        self.schedule = Schedule()
        self._nodes = {planned.name: planned for planned in plan.nodes}
        self._rng = random.Random(plan.seed)
        self.pods = {planned.name: planned for planned in (*plan.pods, *plan.late_pods)}
        """By name."""
        self.counts: Counter[Kind] = Counter()
        """Faults that took effect."""
        self.expected: set[str] = set()
        """Names of the pods that nobody has deleted."""
        self.violations: dict[Violation, None] = {}
        self.kerf_is_gone = False
        """Whether Kerf has to stay away."""
        self.missing_mirrors: set[str] = set()
        """Those deleted that their kubelet has yet to make again. Who starts meanwhile can't know of their pods, and
        does not promise to."""
        self.began = 0.0
        """When the storm began."""

    def creation(self, planned: PodPlan) -> Step:
        """The step that creates a pod."""

        def create() -> bool:
            try:
                self._create(planned)
            except ApiError as error:
                if error.status != 409:  # there already: the first try had come through
                    raise
            self.expected.add(planned.name)
            return True

        return create

    def manifest(self, planned: PodPlan) -> Manifest:
        """A pod as it is created."""
        return pod_manifest(planned, grouped=self._cluster.has_groups)

    def _create(self, planned: PodPlan) -> None:
        """Mirrors come from their kubelet with their node; what nobody's scheduler places is bound by hand."""
        plane, made = self._cluster.plane, self.manifest(planned)
        if planned.mirror:
            with contextlib.closing(plane.kubelet(planned.node)) as kubelet:
                kubelet.request("POST", _PODS, made)
            return
        plane.request("POST", _PODS, made)
        if planned.node:
            target = {"apiVersion": "v1", "kind": "Node", "name": planned.node}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": planned.name}, "target": target}
            plane.request("POST", f"{_PODS}/{planned.name}/binding", binding)

    def fault(self, fault: Fault) -> Step:
        """The step by which a fault takes effect."""
        if fault.kind in faults.RESTARTS:
            return lambda: self._restart(fault)
        if fault.kind in faults.EDITS and fault.kind is not Kind.EDIT_CPU_HOLDER:
            return lambda: self._edit(fault)
        if fault.kind in faults.HOSTILE and fault.kind is not Kind.MARKS_FORGED:
            return lambda: self._create_hostile(fault)
        if fault.kind in faults.LEFTOVERS:
            return lambda: self._leave_behind(fault)
        return {
            Kind.RESIZE_PENDING: lambda: self._resize(fault),
            Kind.EDIT_CPU_HOLDER: lambda: self._hold_by_words(fault),
            Kind.MARKS_FORGED: lambda: self._forge_marks(fault),
            Kind.MIRROR_DELETED: lambda: self._delete_mirror(fault),
            Kind.GANG_CYCLES: lambda: self._create_group(fault),
            Kind.KERF_GONE: lambda: self._take_kerf_away(fault),
            Kind.NODE_DELETED: lambda: self._delete_node(fault),
            Kind.NODE_SHRUNK: lambda: self._shrink_node(fault),
            Kind.POD_DELETED: lambda: self._delete_pod(fault),
            Kind.POD_RECREATED: lambda: self._recreate_pod(fault),
            Kind.POD_TERMINATING: lambda: self._terminate_pod(fault),
        }[fault.kind]

    def _restart(self, fault: Fault) -> bool:
        name = faults.RESTARTS[fault.kind]
        self._cluster.plane.kill(name)
        self.counts[fault.kind] += 1
        time.sleep(fault.for_s)
        self._cluster.plane.revive(name)
        return True

    def _delete_node(self, fault: Fault) -> bool:
        if not self.delete(f"{_NODES}/{fault.target}"):
            return True
        self.counts[fault.kind] += 1
        if fault.for_s:
            self.schedule.at(fault.at_s + fault.for_s, lambda: self._create_node(self._nodes[fault.target]))
        return True

    def _create_node(self, planned: NodePlan) -> bool:
        try:
            self._cluster.plane.request("POST", _NODES, node_manifest(planned))
        except ApiError as error:
            if error.status != 409:
                raise
        return True

    def _shrink_node(self, fault: Fault) -> bool:
        planned = self._nodes[fault.target]
        self._offer(planned, planned.gpus // 2)
        self.counts[fault.kind] += 1
        if fault.for_s:
            self.schedule.at(fault.at_s + fault.for_s, lambda: self._offer(planned, planned.gpus))
        return True

    def _offer(self, planned: NodePlan, gpus: int) -> bool:
        change = {"status": {"allocatable": {holdings.GPU: str(gpus)}}}
        self._cluster.plane.request("PATCH", f"{_NODES}/{planned.name}/status", change, _MERGE)
        return True

    def _delete_pod(self, fault: Fault) -> bool:
        self.expected.discard(fault.target)
        if self.delete(f"{_PODS}/{fault.target}?gracePeriodSeconds=0"):
            self.counts[fault.kind] += 1
        return True

    def _recreate_pod(self, fault: Fault) -> bool:
        if fault.target not in self.expected:
            return False  # it has yet to come
        if self._delete_this(fault.target):
            self.counts[fault.kind] += 1
        self.schedule.at(fault.at_s, self.creation(self.pods[fault.target]))
        return True

    def _terminate_pod(self, fault: Fault) -> bool:
        self.expected.discard(fault.target)
        if self.delete(f"{_PODS}/{fault.target}?gracePeriodSeconds=30"):
            self.counts[fault.kind] += 1
            end = f"{_PODS}/{fault.target}?gracePeriodSeconds=0"  # what its kubelet would do
            self.schedule.at(fault.at_s + fault.for_s, lambda: self.delete(end) or True)
        return True

    def delete(self, path: str) -> bool:
        """Whether there was something to delete."""
        try:
            self._cluster.plane.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def _delete_this(self, name: str) -> bool:
        """Delete the pod that has this name, and not the next one, should the request be carried out late."""
        path = f"{_PODS}/{name}"
        try:
            uid = self._cluster.plane.request("GET", path)["metadata"]["uid"]
            only = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self._cluster.plane.request("DELETE", path, only)
        except ApiError as error:
            if error.status != 404:
                raise  # whatever it was, that pod may still be there
            return False
        return True

    # Refusals

    def count_obstacles(self) -> None:
        """Their pods come by themselves: one took effect where the first of them is refused, or kept by Kerf."""
        for fault in self._plan.faults:
            found = self._found(fault.target) if fault.kind in faults.OBSTACLES else None
            if found is not None and not found["spec"].get("nodeName") and checker.reason_of(found):
                self.counts[fault.kind] += 1

    def _leave_behind(self, fault: Fault) -> bool:
        written, status = of_refusals.leftovers(fault.kind, self._nodes[fault.target])
        path = f"{_NODES}/{fault.target}"
        if written:
            self._cluster.plane.request("PATCH", path, written, _MERGE)
        if status:
            self._cluster.plane.request("PATCH", f"{path}/status", status, _MERGE)
        self.counts[fault.kind] += 1
        return True

    def _resize(self, fault: Fault) -> bool:
        """What is asked for is small at once, what it has when its kubelet says so."""
        path = f"{_PODS}/resized-{fault.target}"
        has = of_refusals.running(of_refusals.RESIZED_CPU)
        try:
            self._cluster.plane.request("PATCH", f"{path}/status", has, _STRATEGIC)
            self._cluster.plane.request("PATCH", f"{path}/resize", of_refusals.smaller(), _STRATEGIC)
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return self._now_s() > fault.at_s + _EDIT_WITHIN_S  # its node has gone: it may come back
        self.counts[fault.kind] += 1

        def end() -> bool:
            told = of_refusals.running(of_refusals.SMALL_CPU)
            self._cluster.plane.request("PATCH", f"{path}/status", told, _STRATEGIC)
            return True

        self.schedule.at(fault.at_s + fault.for_s, end)
        return True

    # Attacks

    def _edit(self, fault: Fault) -> bool:
        """As its author, once the pod has a node."""
        found = self._found(fault.target)
        node = found and self._nodes.get(found["spec"].get("nodeName", ""))
        if not found or not node:
            return self._now_s() > fault.at_s + _EDIT_WITHIN_S
        annotations = attacks.edit(fault.kind, found, node.gpus, self._rng)
        return self._attack(fault, "PATCH", f"{_PODS}/{fault.target}", {"metadata": {"annotations": annotations}})

    def _hold_by_words(self, fault: Fault) -> bool:
        made = attacks.cpu_holder(f"holder-{fault.target}", fault.target, self._nodes[fault.target].gpus)
        return self._attack(fault, "POST", _PODS, made)

    def _forge_marks(self, fault: Fault) -> bool:
        waiting = [found["metadata"]["name"] for found in self._seen() if not found["spec"].get("nodeName")]
        forged = self._rng.sample(waiting, min(_NUM_FORGED_MARKS, len(waiting)))
        for name in forged:
            body = {"metadata": {"annotations": attacks.marks(self._rng)}}
            self._as_author("PATCH", f"{_PODS}/{name}", body)
        self.counts[fault.kind] += bool(forged)
        return bool(forged) or self._now_s() > fault.at_s + _EDIT_WITHIN_S

    def _create_hostile(self, fault: Fault) -> bool:
        for path, body in attacks.objects(fault.kind, self._rng):
            self._as_author("POST", path, body)
        self.counts[fault.kind] += 1
        return True

    def _attack(self, fault: Fault, method: str, path: str, body: Manifest) -> bool:
        """It counts when it is written, and when the admission policy has refused it."""
        if self._as_author(method, path, body):
            self.counts[fault.kind] += 1
        return True

    def _as_author(self, method: str, path: str, body: Manifest | bytes) -> bool:
        """Whether the API server has done it, or has refused it; there may be nothing any more to do it to."""
        content_type = _MERGE if method == "PATCH" else "application/json"
        try:
            self._cluster.author.request(method, path, body, content_type)
        except RecursionError:  # in the answer: what was created is deeper than it can be read here
            pass
        except ApiError as error:
            if error.status in (404, 409):
                return False
            if error.status not in REFUSED:
                raise
        return True

    def _delete_mirror(self, fault: Fault) -> bool:
        """Its kubelet makes it again at its next look. Whoever runs has seen it before."""
        if not self._cluster.kerf_is_synced():
            return False
        if self.delete(f"{_PODS}/{fault.target}?gracePeriodSeconds=0"):
            self.counts[fault.kind] += 1
            self.missing_mirrors.add(fault.target)
            self.schedule.at(self._clock() - self.began + fault.for_s, lambda: self._recreate_mirror(fault.target))
        return True

    def _recreate_mirror(self, name: str) -> bool:
        self.creation(self.pods[name])()
        self.missing_mirrors.discard(name)
        return True

    def _create_group(self, fault: Fault) -> bool:
        if not self._cluster.has_groups:
            return True
        size = next(planned.gang_size for planned in self._plan.pods if planned.group == fault.target)
        try:
            made = podgroups.pod_group(fault.target, {"gang": {"minCount": size}})
            self._cluster.plane.request("POST", podgroups.path(), made)
        except ApiError as error:
            if error.status != 409:
                raise
        self.counts[fault.kind] += 1
        return True

    def _take_kerf_away(self, fault: Fault) -> bool:
        """Until pods without GPUs, which come meanwhile, have their nodes."""
        self.kerf_is_gone = True
        for replica in self._cluster.replicas:
            replica.kill()
        names = [f"cpu-{round(fault.at_s * 1000)}-{number}" for number in range(_NUM_CPU_PODS)]
        for number, name in enumerate(names):
            self.pods[name] = PodPlan(name, fault.at_s, number % len(SCHEDULERS), 0)
            self.creation(self.pods[name])()
        self.counts[fault.kind] += 1
        deadline = self._clock() + _WITHOUT_KERF_WITHIN_S
        self.schedule.at(self._now_s() + fault.for_s, lambda: self._bring_kerf_back(names, deadline))
        return True

    def _bring_kerf_back(self, names: list[str], deadline: float) -> bool:
        unscheduled = checker.unscheduled(names, self._seen())
        if unscheduled and self._clock() < deadline:
            return False
        self.violations |= dict.fromkeys(unscheduled)
        self.kerf_is_gone = False
        return True

    def _now_s(self) -> float:
        return self._clock() - self.began

    def _seen(self) -> list[Manifest]:
        """All pods, as they are."""
        seen = self._cluster.witness.seen
        return self._cluster.loop.call(lambda: list(seen.pods.values()))

    def _found(self, name: str) -> Manifest | None:
        return next((found for found in self._seen() if found["metadata"]["name"] == name), None)
