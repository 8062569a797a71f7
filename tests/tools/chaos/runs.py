"""One run: an empty cluster, a storm of pods and faults, calm, and the judgement of the checker."""

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import urllib3

from tests.controlplane import ApiError, ProcessError, wait_until
from tests.controlplane.objects import cpu_node
from tests.tools.chaos import checker, evidence, faults, holdings
from tests.tools.chaos.besides import Beside
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.clusters import SCHEDULERS, Cluster, HarnessError, create_all
from tests.tools.chaos.devices.rounds import Allocating
from tests.tools.chaos.faults import Kind
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.manifests import node_manifest
from tests.tools.chaos.modes import TTL_S
from tests.tools.chaos.moves.rounds import Making
from tests.tools.chaos.plans import Plan
from tests.tools.chaos.schedules import done
from tests.tools.chaos.steps import Steps

_NODES = "/api/v1/nodes"
_PODS = "/api/v1/namespaces/default/pods"
_SAMPLE_S = 0.5
_TICK_S = 0.01
_LINGER_S = 15.0
_STORM_WITHIN_S = 240.0
_READY_WITHIN_S = 60.0
_READY_AGAIN_S = 0.02
_LOOK_S = 0.1
_HEARD_WITHIN_S = 30.0
_LAST_NODE = cpu_node("last") | {"spec": {"unschedulable": True}}
_WOKEN_WITHIN_S = 60.0
"""A pod that kube-scheduler has lost, for it has taken the place of one of its name, is woken after 45 s. Without an
extender it holds until then what is written on it."""
_SETTLE_S = 15.0
"""So long after the last fault others have what was kept for pods that were refused."""
_WATCHED_S = 35.0
"""How long it is watched from then on whether anything is kept for them again: retries come in every half a minute."""
_CALM_WITHIN_S = 90.0
"""How long after the last fault pods may take to find their place: kube-scheduler's own watches come back slowly
after a restart of the API server, and machines are busy. The wait ends as soon as all is well."""


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
        self._beside = _beside(cluster, plan, clock)
        self._steps = self._beside.steps
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
            nodes, pods = self._seen()
        except (ApiError, ProcessError, TimeoutError, OSError, urllib3.exceptions.HTTPError) as error:
            raise HarnessError(f"seed {self._plan.seed}: {error}") from error
        finally:
            self._beside.close()
        uses = holdings.uses(nodes, pods).values()
        return Outcome(
            seed=self._plan.seed,
            violations=list(self._violations | self._steps.violations),
            faults=self._steps.counts + self._cluster.loop.call(lambda: Counter(self._cluster.board.counts)),
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
        cluster.loop.call(cluster.witness.seen.violations.clear)  # of the run before, its end included
        if any(fault.kind in (*faults.EDITS, *faults.HOSTILE) for fault in plan.faults):
            cluster.guard(plan.policy)
        create_all(cluster.plane, _NODES, [node_manifest(planned) for planned in plan.nodes])
        self._beside.prepare()
        for planned in plan.pods:
            if planned.node:
                self._steps.creation(planned)()
        for left in plan.faults:
            if left.kind in faults.LEFTOVERS:
                self._steps.fault(left)()
        cluster.start_kerf(plan.replicas, elects=plan.elects, stoppable=plan.stops_clocks)
        if fault := self._unready():
            raise HarnessError(f"seed {plan.seed}: Kerf does not get ready: {fault}")
        self._beside.fill()

    def _storm(self) -> None:
        """Pods and faults as planned; the steps of this thread are objects and restarts, the hops do the rest."""
        plan, board, loop, steps = self._plan, self._cluster.board, self._cluster.loop, self._steps
        for planned in plan.pods:
            if not planned.node:
                steps.schedule.at(planned.at_s, steps.creation(planned))
        for fault in plan.faults:
            if fault.kind in faults.LEFTOVERS:
                continue  # before Kerf has started
            if fault.kind in faults.OBJECTS or fault.kind in faults.RESTARTS:
                steps.schedule.at(fault.at_s, steps.fault(fault))
        loop.call(board.begin, plan.faults)
        self._beside.begin()
        began = sampled = steps.began = self._clock()
        while self._storming(self._clock() - began):
            now = self._clock()
            steps.schedule.take_due(now - began)
            if now - sampled >= _SAMPLE_S:
                sampled = now
                done(self._sample)
            self._revive()
            time.sleep(_TICK_S)
        loop.call(board.end)
        self._beside.end()
        deadline = self._clock() + 30.0
        while loop.call(lambda: board.num_pending) and self._clock() < deadline:
            self._revive()
            time.sleep(_TICK_S)

    def _storming(self, now_s: float) -> bool:
        """Whether something is still to come: also faults that wait for a Binding, while pods wait to be bound."""
        if len(self._steps.schedule) or now_s < self._plan.ends_s:
            if now_s > _STORM_WITHIN_S:
                raise HarnessError(f"seed {self._plan.seed}: the storm does not end")
            return True
        return self._busy and now_s < self._plan.ends_s + _LINGER_S and self._cluster.board.num_waiting > 0

    def _calm(self) -> None:
        """No more faults: everything has to come right by itself."""
        cluster, plan, loop = self._cluster, self._plan, self._cluster.loop
        if fault := self._unready():
            self._violations[Violation("Kerf is ready again", "readyz", fault[:500])] = None
            return
        began = self._clock()
        # A node's events come in order: whoever knows of this one knows what all nodes offer.
        create_all(cluster.plane, _NODES, [_LAST_NODE])
        self._wait_for_none(self._unheard, _HEARD_WITHIN_S)
        before = cluster.items("pods")
        for planned in plan.late_pods:
            self._steps.creation(planned)()
        self._wait_for_none(self._unsettled, _CALM_WITHIN_S)
        self._wait_for_none(self._leaked, 2 * TTL_S + (0.0 if cluster.extender else _WOKEN_WITHIN_S))
        self._sample()
        self._wait_for_none(self._unsettled, _CALM_WITHIN_S)  # gangs that were given up meanwhile are made anew
        self._watch_refused(began)
        self._steps.count_obstacles()
        wait_until(self._all_is_seen, 30.0, "the witness has seen all")
        nodes, held = self._seen()
        self._violations |= loop.call(lambda: dict(cluster.witness.seen.violations))
        self._violations |= dict.fromkeys(checker.bound_beyond(before, nodes, held))
        if found := self._beside.judged():
            self._violations |= dict.fromkeys(found)
            self._keep_evidence(found)

    def _watch_refused(self, began: float) -> None:
        """At no moment much is kept for pods that no node takes: whoever is refused is tried again, and again."""
        if all(planned.obstacle is None for planned in self._plan.pods):
            return
        began = max(began + _SETTLE_S, self._clock())
        while (now := self._clock()) < began + _WATCHED_S:
            if now >= began and (found := self._kept_for_refused()):
                self._violations |= dict.fromkeys(found)
                self._keep_evidence(found)
                return
            self._revive()
            self._sample()
            time.sleep(_LOOK_S)

    def _kept_for_refused(self) -> list[Violation]:
        told = [json.loads(text) for text in self._cluster.kerf_answers("/nodes")]
        reserved = max((float(of["totals"]["gpusReserved"]) for of in told), default=0.0)
        return checker.kept_for_refused(*self._seen(), reserved=reserved)

    def _wait_for_none(self, judge: Callable[[], list[Violation]], within_s: float) -> None:
        """What is not well after that time is a violation."""
        deadline = self._clock() + within_s
        while found := judge():
            if self._clock() > deadline:
                self._violations |= dict.fromkeys(found)
                self._keep_evidence(found)
                return
            self._revive()
            self._sample()
            time.sleep(_LOOK_S)

    def _keep_evidence(self, found: list[Violation]) -> None:
        evidence.keep(self._cluster, f"seed-{self._plan.seed}-{len(self._violations)}", found, self._beside.told())

    def _unheard(self) -> list[Violation]:
        """That Kerf, each of its processes, does not know of the last node."""
        name = _LAST_NODE["metadata"]["name"]
        answers = self._cluster.kerf_answers(f"/nodes/{name}")
        ignorant = [text for text in answers if f'"node":"{name}"' not in text]
        return [Violation("Kerf hears of nodes", name, text[:500]) for text in ignorant]

    def _unready(self) -> str:
        """Why no replica gets ready in time, "" when one does."""
        deadline = self._clock() + _READY_WITHIN_S
        while fault := self._cluster.kerf_fault():
            if self._clock() > deadline:
                return fault
            self._revive()
            time.sleep(_READY_AGAIN_S)
        return ""

    def _revive(self) -> None:
        """What their supervisor does for processes that have ended; Kerf has none while it is gone.

        kube-scheduler ends itself when it has missed that a pod was deleted and made again while it assumed it placed
        ("Scheduler cache is corrupted", up to 1.37).
        """
        self._cluster.plane.revive_ended()
        if self._steps.kerf_is_gone or self._steps.missing_mirrors:
            return
        for ended in self._cluster.revive_kerf():
            self._violations[Violation("Kerf does not end by itself", ended.log.name, ended.last_words()[:500])] = None

    # Judgement

    def _seen(self) -> tuple[list[Manifest], list[Manifest]]:
        """Nodes and pods as the witness has seen them, the pods with what their Bindings wrote."""
        seen = self._cluster.witness.seen
        return self._cluster.loop.call(lambda: (list(seen.nodes.values()), seen.holding()))

    def _all_is_seen(self) -> bool:
        """Whether the witness knows of all pods where they are."""
        there, seen = (
            {found["metadata"]["uid"]: found["spec"].get("nodeName") for found in pods}
            for pods in (self._cluster.items("pods"), self._seen()[1])
        )
        return there == seen

    def _sample(self) -> bool:
        """What has to hold at every moment; that no GPU has two holders the witness judges."""
        nodes, pods = self._seen()
        if new := [found for found in self._misplaced(nodes, pods) if found not in self._violations]:
            self._violations |= dict.fromkeys(new)
            self._keep_evidence(new)
        self._busy = bool(checker.stranded(nodes, pods))
        self._replace_evicted(pods)
        return True

    def _misplaced(self, nodes: list[Manifest], pods: list[Manifest]) -> list[Violation]:
        return checker.misplaced(nodes, pods, SCHEDULERS, blind=not self._cluster.extender)

    def _replace_evicted(self, pods: list[Manifest]) -> None:
        """What their kubelet and controller would do for members of gangs that Kerf has given up."""
        there = {found["metadata"]["name"]: found for found in pods}
        for name in sorted(self._steps.expected):
            planned = self._steps.pods[name]
            if not planned.gang and not planned.group:
                continue
            if name not in there:
                self._steps.creation(planned)()
            elif there[name]["metadata"].get("deletionTimestamp"):
                self._steps.delete(f"{_PODS}/{name}?gracePeriodSeconds=0")

    def _unsettled(self) -> list[Violation]:
        nodes, pods = self._seen()
        found = checker.unexplained(pods) + checker.stranded(nodes, pods) + checker.in_part(pods)
        found += checker.kept_by_words(pods)
        if not self._cluster.extender:
            found += checker.astray(self._cluster.items("pods"))
        found += self._beside.unsettled(nodes)
        return found + checker.lost(self._steps.expected, pods)  # members of gangs are made anew

    def _leaked(self) -> list[Violation]:
        names = ("kerf_reservations", "kerf_bindings_under_way")
        values = {name: self._cluster.metric(name) for name in names}
        # How many GPUs may be kept for those is judged apart.
        refused = [found for found in checker.hopeless(*self._seen()) if not checker.gated(found)]
        return [
            Violation("no reservation left after its TTL", name, f"{value:g}")
            for name, value in values.items()
            if value > len(refused)
        ]


def _beside(cluster: Cluster, plan: Plan, clock: Callable[[], float]) -> Beside:
    """What there is to do beside the usual."""
    if plan.moves.owners:
        return Making(cluster, plan, clock)
    return Allocating(cluster, plan, clock) if plan.devices.pools else Beside(cluster, Steps(cluster, plan, clock))
