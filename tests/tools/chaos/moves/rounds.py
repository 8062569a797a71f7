"""What a run does and judges beside the usual where pods are moved: room is made all through the storm."""

import sys
from collections.abc import Callable, Collection
from typing import Final

from tests.controlplane import wait_until
from tests.controlplane.kerf import SERVICE_ACCOUNT
from tests.tools.chaos import audits
from tests.tools.chaos.besides import Noted
from tests.tools.chaos.checker import Violation, gated, reason_of
from tests.tools.chaos.clusters import Cluster
from tests.tools.chaos.faults import Kind
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.modes import RECORD
from tests.tools.chaos.moves import checker, manifests, worlds
from tests.tools.chaos.moves.kubelets import Kubelets
from tests.tools.chaos.moves.operators import Operator
from tests.tools.chaos.moves.plans import Owner
from tests.tools.chaos.moves.steps import MoveSteps
from tests.tools.chaos.plans import Plan

_FULL_WITHIN_S: Final = 120.0
_DEFRAG: Final = "/defrag"


class Making(Noted):
    """Of one run."""

    def __init__(self, cluster: Cluster, plan: Plan, clock: Callable[[], float]) -> None:
        self._plan = plan
        nodes = [node.name for node in plan.nodes]
        self._operator = Operator(self._urls, plan.moves.targets, nodes, plan.seed)
        self._kubelets = Kubelets(cluster.plane.api("admin"), self._pods)
        self._moves = MoveSteps(cluster, plan, clock, self._kubelets, self._operator.stop_plan)
        super().__init__(cluster, self._moves)
        self._audited_from = 0

    def prepare(self) -> None:
        """The record of moves has to be there before Kerf starts."""
        super().prepare()
        self._cluster.plane.request("POST", manifests.MAPS, {"metadata": {"name": RECORD}})
        self._audited_from = audits.size(self._cluster.audit)
        self._kubelets.start()

    def fill(self) -> None:
        """Fill the nodes, then have half of the controllers leave."""
        owners = self._plan.moves.owners
        for owner in owners:
            self._moves.create(owner)
        wanted = sum(owner.replicas for owner in owners)
        wait_until(lambda: self._are_placed(wanted), _FULL_WITHIN_S, "the nodes are full")
        for owner in owners:
            if owner.leaves:
                self._moves.scale(owner, 0)
        leave = {owner.name for owner in owners if owner.leaves}
        gone = lambda: not any(worlds.owner_of(pod) in leave for pod in self._pods())  # noqa: E731
        wait_until(gone, _FULL_WITHIN_S, "half of them have left")
        for planned in self._plan.pods:
            if not planned.at_s:
                self._moves.creation(planned)()
        first = {pod.name for pod in self._plan.pods if not pod.at_s}
        wait_until(lambda: self._are_known(first), _FULL_WITHIN_S, "the first target waits, or has its nodes")
        self._operator.ask_for(2)
        self._cluster.loop.call(self.journal.begin)

    def begin(self) -> None:
        """The storm begins."""
        self._operator.start()

    def end(self) -> None:
        """The storm is over: no plan begins any more, and pods come and go as they should."""
        self._operator.stop()
        self._moves.end()
        self.steps.counts[Kind.PLAN_BEGUN] += self._operator.num_begun
        print(f"seed {self._plan.seed}: {self._operator.told()}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """The run is over."""
        self._operator.stop()
        self._kubelets.stop()

    def unsettled(self, nodes: Collection[Manifest]) -> list[Violation]:
        """What is not well (yet)."""
        plane, pods = self._cluster.plane, self._cluster.items("pods")
        found = checker.left_under_way(plane.request("GET", f"{manifests.MAPS}/{RECORD}"))
        for kind in Owner:
            found += checker.short_of_pods(kind, plane.request("GET", manifests.PATHS[kind])["items"], pods)
        for text in self._cluster.kerf_answers(_DEFRAG):
            if '"kept":[]' not in text:
                found.append(Violation("no node is left kept", _DEFRAG, text[:300]))
        return found

    def judged(self) -> list[Violation]:
        """What was wrong at any moment."""
        journal, lines = self.told(), audits.lines(self._cluster.audit, self._audited_from)
        self.steps.counts[Kind.POD_MOVED] += checker.num_moved(journal)
        return checker.replay(journal) + checker.ended_otherwise(lines, SERVICE_ACCOUNT)

    def _urls(self) -> list[str]:
        """Of Kerf's processes, the one that leads first."""
        urls, leader = [process.url for process in self._cluster.replicas], self._cluster.board.leader
        return urls[leader : leader + 1] + urls[:leader] + urls[leader + 1 :]

    def _pods(self) -> list[Manifest]:
        seen = self._cluster.witness.seen
        return self._cluster.loop.call(lambda: list(seen.pods.values()))

    def _are_known(self, names: Collection[str]) -> bool:
        """Whether Kerf has seen pods of these names: it has said why they wait, or has let them go."""
        pods = [pod for pod in self._pods() if pod["metadata"]["name"] in names]
        return len(pods) == len(names) and all(reason_of(pod) or not gated(pod) for pod in pods)

    def _are_placed(self, num_pods: int) -> bool:
        """Whether so many pods of controllers run, or have a reason to wait: what is drawn may not fit to the last."""
        pods = [pod for pod in self._pods() if worlds.owner_of(pod)]
        return len(pods) >= num_pods and all(worlds.ready(pod) or reason_of(pod) for pod in pods)
