"""One run: an empty cluster, a storm of pods and faults, calm, and the judgement of the checker."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import urllib3

from tests.chaos import checker, plans
from tests.chaos.checker import Violation
from tests.chaos.clusters import SCHEDULERS, TTL_S, Cluster, HarnessError, create_all
from tests.chaos.plans import Fault, Kind, NodePlan, Plan, PodPlan
from tests.controlplane import ApiError, ProcessError
from tests.controlplane.objects import gpu_node, pod

_NODES = "/api/v1/nodes"
_PODS = "/api/v1/namespaces/default/pods"
_MERGE = "application/merge-patch+json"
_SAMPLE_S = 0.5
_TICK_S = 0.01
_LINGER_S = 15.0
_STORM_WITHIN_S = 240.0
_READY_WITHIN_S = 180.0
_CALM_WITHIN_S = 90.0
"""How long after the last fault pods may take to find their place: kube-scheduler's own watches come back slowly
after a restart of the API server, and machines are busy. The wait ends as soon as all is well."""

Manifest = dict[str, Any]


@dataclass
class Outcome:
    """What a run has shown."""

    seed: int
    violations: list[Violation]
    faults: Counter[Kind]
    pods: int
    pods_bound: int
    """Pods that have their node at the end."""
    load_frac: float
    """Compute booked over compute installed at the end."""
    seconds: float
    notes: list[str] = field(default_factory=list)


class Run:
    """One plan on one cluster."""

    def __init__(self, cluster: Cluster, plan: Plan, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._plan = plan
        self._clock = clock
        self._pods = {planned.name: planned for planned in (*plan.pods, *plan.late_pods)}
        self._nodes = {planned.name: planned for planned in plan.nodes}
        self._steps: list[tuple[float, Callable[[], bool]]] = []
        self._counts: Counter[Kind] = Counter()
        self._expected: set[str] = set()
        self._busy = True
        self.phases_s: list[float] = []
        """When each phase was over: the empty cluster, the storm, the calm."""
        self._violations: dict[Violation, None] = {}  # in the order in which they were seen

    def execute(self) -> Outcome:
        """Carry the run out. Raises HarnessError when that can't be done."""
        began = self._clock()
        try:
            for phase in (self._prepare, self._storm, self._calm):
                phase()
                self.phases_s.append(round(self._clock() - began, 1))
            nodes, pods = self._cluster.items("nodes"), self._cluster.items("pods")
        except (ApiError, ProcessError, TimeoutError, OSError, urllib3.exceptions.HTTPError) as error:
            raise HarnessError(f"seed {self._plan.seed}: {error}") from error
        uses = checker.uses(nodes, pods).values()
        return Outcome(
            seed=self._plan.seed,
            violations=list(self._violations),
            faults=self._counts + self._cluster.loop.call(lambda: Counter(self._cluster.board.counts)),
            pods=len(pods),
            pods_bound=sum(bool(found["spec"].get("nodeName")) for found in pods),
            load_frac=sum(use.booked for use in uses) / sum(node.gpus for node in self._plan.nodes),
            seconds=round(self._clock() - began, 1),
        )

    # The phases

    def _prepare(self) -> None:
        cluster, plan = self._cluster, self._plan
        cluster.end_kerf()
        cluster.clean()
        create_all(cluster.plane, _NODES, [_node(planned) for planned in plan.nodes])
        foreign = [planned for planned in plan.pods if planned.node]
        create_all(cluster.plane, _PODS, [_pod(planned) for planned in foreign])
        self._expected |= {planned.name for planned in foreign}
        cluster.start_kerf(plan.replicas)
        self._wait_ready()

    def _storm(self) -> None:
        """Pods and faults as planned; the steps of this thread are objects and restarts, the hops do the rest."""
        plan, board, loop = self._plan, self._cluster.board, self._cluster.loop
        for planned in plan.pods:
            if not planned.node:
                self._at(planned.at_s, self._creation(planned))
        for fault in plan.faults:
            if fault.kind in plans.OBJECTS or fault.kind in plans.RESTARTS:
                self._at(fault.at_s, self._object_fault(fault))
        loop.call(board.begin, plan.faults)
        began = sampled = self._clock()
        while self._storming(self._clock() - began):
            now = self._clock()
            while self._steps and self._steps[0][0] <= now - began:
                at_s, step = self._steps.pop(0)
                if not self._done(step):
                    self._at(max(at_s, now - began) + 0.1, step)
            if now - sampled >= _SAMPLE_S:
                sampled = now
                self._done(self._sample)
            self._cluster.revive_kerf()
            time.sleep(_TICK_S)
        loop.call(board.end)
        deadline = self._clock() + 30.0
        while loop.call(lambda: board.num_pending) and self._clock() < deadline:
            self._cluster.revive_kerf()
            time.sleep(_TICK_S)

    def _storming(self, now_s: float) -> bool:
        """Whether something is still to come: also faults that wait for a Binding, while pods wait to be bound."""
        if self._steps or now_s < self._plan.ends_s:
            if now_s > _STORM_WITHIN_S:
                raise HarnessError(f"seed {self._plan.seed}: the storm does not end")
            return True
        return self._busy and now_s < self._plan.ends_s + _LINGER_S and self._cluster.board.num_waiting > 0

    def _calm(self) -> None:
        """No more faults: everything has to come right by itself."""
        cluster, plan = self._cluster, self._plan
        self._wait_ready()
        before = cluster.items("pods")
        for planned in plan.late_pods:
            self._creation(planned)()
        deadline = self._clock() + _CALM_WITHIN_S
        while unsettled := self._unsettled():
            if self._clock() > deadline:
                self._violations |= dict.fromkeys(unsettled)
                break
            self._sample()
            time.sleep(0.2)
        deadline = self._clock() + 2 * TTL_S
        while leaked := self._leaked():
            if self._clock() > deadline:
                self._violations |= dict.fromkeys(leaked)
                break
            time.sleep(0.2)
        self._sample()
        nodes, pods = cluster.items("nodes"), cluster.items("pods")
        self._violations |= dict.fromkeys(checker.bound_beyond(before, nodes, pods))
        self._violations |= dict.fromkeys(checker.lost(self._expected, pods))

    def _wait_ready(self) -> None:
        deadline = self._clock() + _READY_WITHIN_S
        while fault := self._cluster.kerf_fault():
            if self._clock() > deadline:
                raise HarnessError(f"seed {self._plan.seed}: Kerf does not get ready: {fault}")
            self._cluster.revive_kerf()
            time.sleep(0.05)

    # Judgement

    def _sample(self) -> bool:
        """What has to hold at every moment."""
        nodes, pods = self._cluster.items("nodes"), self._cluster.items("pods")
        found = checker.overbooked(nodes, pods) + checker.misplaced(nodes, pods, SCHEDULERS)
        self._violations |= dict.fromkeys(found)
        self._busy = bool(checker.stranded(nodes, pods))
        self._replace_evicted(pods)
        return True

    def _replace_evicted(self, pods: list[Manifest]) -> None:
        """What their kubelet and controller would do for members of gangs that Kerf has given up."""
        there = {found["metadata"]["name"]: found for found in pods}
        for name in sorted(self._expected):
            if self._pods[name].gang and name not in there:
                self._creation(self._pods[name])()
            elif self._pods[name].gang and there[name]["metadata"].get("deletionTimestamp"):
                self._delete(f"{_PODS}/{name}?gracePeriodSeconds=0")

    def _unsettled(self) -> list[Violation]:
        nodes, pods = self._cluster.items("nodes"), self._cluster.items("pods")
        found = checker.unexplained(pods) + checker.stranded(nodes, pods) + checker.in_part(pods)
        return found + checker.lost(self._expected, pods)  # members of gangs are made anew

    def _leaked(self) -> list[Violation]:
        names = ("kerf_reservations", "kerf_bindings_under_way")
        values = {name: self._cluster.metric(name) for name in names}
        return [
            Violation("no reservation left after its TTL", name, f"{value:g}")
            for name, value in values.items()
            if value
        ]

    # Steps

    def _at(self, at_s: float, step: Callable[[], bool]) -> None:
        self._steps.append((at_s, step))
        self._steps.sort(key=lambda entry: entry[0])

    def _done(self, step: Callable[[], bool]) -> bool:
        """Take a step; False when the API server would not have it now."""
        try:
            return step()
        except ApiError as error:
            if error.status not in (409, 429) and error.status < 500:
                raise
            return False
        except (urllib3.exceptions.HTTPError, OSError):
            return False

    def _creation(self, planned: PodPlan) -> Callable[[], bool]:
        def create() -> bool:
            try:
                self._cluster.plane.request("POST", _PODS, _pod(planned))
            except ApiError as error:
                if error.status != 409:  # there already: the first try had come through
                    raise
            self._expected.add(planned.name)
            return True

        return create

    def _object_fault(self, fault: Fault) -> Callable[[], bool]:
        if fault.kind in plans.RESTARTS:
            return lambda: self._restart(fault)
        return {
            Kind.NODE_DELETED: lambda: self._delete_node(fault),
            Kind.NODE_SHRUNK: lambda: self._shrink_node(fault),
            Kind.POD_DELETED: lambda: self._delete_pod(fault),
            Kind.POD_RECREATED: lambda: self._recreate_pod(fault),
            Kind.POD_TERMINATING: lambda: self._terminate_pod(fault),
        }[fault.kind]

    def _restart(self, fault: Fault) -> bool:
        name = plans.RESTARTS[fault.kind]
        self._cluster.plane.kill(name)
        self._counts[fault.kind] += 1
        time.sleep(fault.for_s)
        self._cluster.plane.revive(name)
        return True

    def _delete_node(self, fault: Fault) -> bool:
        if not self._delete(f"{_NODES}/{fault.target}"):
            return True
        self._counts[fault.kind] += 1
        if fault.for_s:
            self._at(fault.at_s + fault.for_s, lambda: self._create_node(self._nodes[fault.target]))
        return True

    def _create_node(self, planned: NodePlan) -> bool:
        try:
            self._cluster.plane.request("POST", _NODES, _node(planned))
        except ApiError as error:
            if error.status != 409:
                raise
        return True

    def _shrink_node(self, fault: Fault) -> bool:
        planned = self._nodes[fault.target]
        self._offer(planned, planned.gpus // 2)
        self._counts[fault.kind] += 1
        if fault.for_s:
            self._at(fault.at_s + fault.for_s, lambda: self._offer(planned, planned.gpus))
        return True

    def _offer(self, planned: NodePlan, gpus: int) -> bool:
        change = {"status": {"allocatable": {checker.GPU: str(gpus)}}}
        self._cluster.plane.request("PATCH", f"{_NODES}/{planned.name}/status", change, _MERGE)
        return True

    def _delete_pod(self, fault: Fault) -> bool:
        self._expected.discard(fault.target)
        if self._delete(f"{_PODS}/{fault.target}?gracePeriodSeconds=0"):
            self._counts[fault.kind] += 1
        return True

    def _recreate_pod(self, fault: Fault) -> bool:
        if fault.target not in self._expected:
            return False  # it has yet to come
        if self._delete(f"{_PODS}/{fault.target}?gracePeriodSeconds=0"):
            self._counts[fault.kind] += 1
        self._at(fault.at_s, self._creation(self._pods[fault.target]))
        return True

    def _terminate_pod(self, fault: Fault) -> bool:
        self._expected.discard(fault.target)
        if self._delete(f"{_PODS}/{fault.target}?gracePeriodSeconds=30"):
            self._counts[fault.kind] += 1
            end = f"{_PODS}/{fault.target}?gracePeriodSeconds=0"  # what its kubelet would do
            self._at(fault.at_s + fault.for_s, lambda: self._delete(end) or True)
        return True

    def _delete(self, path: str) -> bool:
        """Whether there was something to delete."""
        try:
            self._cluster.plane.request("DELETE", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True


def _node(planned: NodePlan) -> Manifest:
    return gpu_node(planned.name, planned.gpus, planned.product, planned.memory_mib)


def _pod(planned: PodPlan) -> Manifest:
    annotations = {}
    if planned.milli:
        annotations["kerf.dev/gpu-share"] = str(planned.milli)
    elif not planned.by_resource:
        annotations["kerf.dev/gpu-count"] = str(planned.gpus)
    if planned.memory_mib:
        annotations["kerf.dev/gpu-memory-each"] = f"{planned.memory_mib}Mi"
    if planned.model:
        annotations["kerf.dev/gpu-model"] = planned.model
    if planned.gang:
        annotations |= {"kerf.dev/gang": planned.gang, "kerf.dev/gang-size": str(planned.gang_size)}
    where: dict[str, Any] = {"nodeName": planned.node} if planned.node else {}
    if planned.gated:
        where["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    return pod(
        planned.name,
        gpus=planned.gpus if planned.by_resource else 0,
        annotations=annotations,
        scheduler_name="nobody" if planned.node else SCHEDULERS[planned.scheduler],
        cpu="50m",
        **where,
    )
