"""Plans moves in a separate process (see `answers`), which ends with its answer.

Reserves and writes nothing. Usage comes from the ledger, including reservations; nodes, pods, disruption budgets and
Jobs come from the API server.
"""

import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from extender.explain.processes import ChildPipe, serve
from extender.kube.objects import Node
from extender.kube.watches import ListDecoder
from extender.ledger.bound_pods import BoundPodIndex
from extender.parts.defrag.facts import BUDGETS, FACTS, HELD, JOBS, NODES, PENDING, PODS, Held, PlanInputs
from extender.parts.defrag.movable import (
    Budget,
    Budgets,
    Job,
    Jobs,
    ListedPod,
    RunningPodInputs,
    is_left,
    residents,
    restart_times,
)
from extender.parts.defrag.plan import PlannedMove, TargetPod
from extender.parts.defrag.questions import LeftPod, RoomAnswer, RoomQuestion, needs_of, read_question
from extender.parts.defrag.targets import (
    RoomTarget,
    TargetInputs,
    figures,
    gpus_of_use,
    on_sick,
    plan_healing,
    target_of_question,
    view_after,
    without_sick,
)
from extender.planning.moves.planner import plan_moves
from extender.planning.moves.problems import MovePlan, Problem
from extender.queueing.node_view import view_of
from extender.queueing.pods.restrictions import RestrictionKinds

_SEARCHES_FRAC: Final = 0.5
"""Fraction of the answer's time limit that the search may take."""
_SEARCHED_FRAC: Final = 0.8
"""Fraction of the time limit after which the search ends in any case, to leave time for the answer."""
_MakePlan = Callable[[Problem, int, Callable[[], bool]], MovePlan]


class _Listed:
    """Collects the lists of the API server and the ledger."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.bound: list[ListedPod] = []
        self.waiting: list[ListedPod] = []
        self.budgets: list[Budget] = []
        self.unread_budgets: list[str] = []
        self.jobs: list[Job] = []
        self.held: list[Held] = []
        self._nodes, self._budgets, self._jobs = ListDecoder(Node), ListDecoder(Budget), ListDecoder(Job)

    def take(self, kind: bytes, content: bytes) -> None:
        """Add the content of one message."""
        if kind == NODES:
            self.nodes += self._nodes.decode(content).items
        elif kind == PODS:
            self.bound += (resident for resident in residents(content) if resident.pod.spec.node_name)
        elif kind == PENDING:
            self.waiting += (resident for resident in residents(content) if not resident.pod.spec.node_name)
        elif kind == BUDGETS:
            page = self._budgets.decode(content)
            self.budgets += page.items
            self.unread_budgets += (item.namespace for item in page.unread)
        elif kind == JOBS:
            self.jobs += self._jobs.decode(content).items
        elif kind == HELD:
            self.held += pickle.loads(content)  # noqa: S301 - only from the service


def _answer(
    question: RoomQuestion, listed: _Listed, facts: PlanInputs, make: _MakePlan = plan_moves, began: float | None = None
) -> RoomAnswer:
    """The moves that make room. `began` is when the caller began to wait, by `time.monotonic`; None: now.

    Raises QuestionError.
    """
    began = time.monotonic() if began is None else began
    kinds, cluster = RestrictionKinds(), facts.cluster
    target_inputs = TargetInputs(
        cluster=cluster,
        nodes=listed.nodes,
        waiting=listed.waiting,
        residents=listed.bound,
        kinds=kinds,
        policy=facts.policy,
        quotas=facts.quotas,
        used=facts.used,
        queued=facts.queued,
    )
    wanted = target_of_question(question, target_inputs)
    held = {entry.uid: entry for entry in listed.held}
    budgets = Budgets(listed.budgets, listed.unread_budgets)
    costs = replace(facts.costs, restart_s_of=restart_times(listed.bound, facts.costs.restart_s))
    inputs = RunningPodInputs(replace(facts, costs=costs), held, budgets, Jobs(listed.jobs, facts.no_jobs), kinds)
    running = inputs.running(listed.bound, wanted.gang)
    left = [pod for pod in running if pod.row in wanted.target.empty and is_left(pod)]
    running = [pod for pod in running if pod.row not in wanted.target.empty or not is_left(pod)]
    num_pods = {name: len(uids) for name, uids in facts.pods_on.items()}
    batch = [*wanted.target.pods, *(pod.pod for pod in running)]
    bound_index = BoundPodIndex()
    for resident in listed.bound:
        bound_index.upsert(resident.pod)
    view = view_of(cluster, listed.nodes, kinds, batch, num_pods=num_pods, crowd=bound_index)
    view = replace(view, policies=facts.policies)
    if question.heal:
        view = without_sick(view, facts.sick)
        wanted = replace(wanted, target=replace(wanted.target, leave=on_sick(cluster, running, facts.sick)))
    problem = Problem(view, running, wanted.target, question.max_moves, budgets.allowed, facts.policy)
    until = min(time.monotonic() + _SEARCHES_FRAC * facts.max_s, began + _SEARCHED_FRAC * facts.max_s)
    plan = _plan(problem, wanted.refusal, question.heal, make, lambda: time.monotonic() > until)
    controllers = {
        pod.metadata.uid: controller.uid for pod, *_ in listed.bound if (controller := pod.metadata.controller)
    }
    answer = _to_answer(problem, plan, wanted, facts.id, controllers)
    cordoned = {node.metadata.name for node in listed.nodes if node.spec.unschedulable}
    answer.left = [LeftPod(pod.key, cluster.node_names[pod.row], pod.stays) for pod in left]
    answer.open = [name for name in question.empty if name not in cordoned]
    answer.gpus = round(gpus_of_use(problem, plan), 3) if plan.fits else 0.0
    answer.on_sick = sorted(running[number].key for number in problem.target.leave)
    return answer


def _plan(problem: Problem, refusal: str, heal: bool, make: _MakePlan, expired: Callable[[], bool]) -> MovePlan:
    if refusal:
        return MovePlan(problem.view.cluster.version, fits=False, impossible=(refusal,))
    if heal:
        return plan_healing(problem, lambda subproblem: make(subproblem, 0, expired), expired)
    return make(problem, 0, expired)


def _to_answer(
    problem: Problem, plan: MovePlan, wanted: RoomTarget, id_: str, controllers: Mapping[str, str]
) -> RoomAnswer:
    """The plan as an answer, with names of pods and nodes."""
    names, target = problem.view.cluster.node_names, problem.target
    moves = [
        PlannedMove(
            pod=move.pod.key,
            uid=move.pod.uid,
            from_node=names[move.pod.row],
            to_node=names[move.row],
            step=move.step,
            gpus=list(move.gpus),
            cost_gpu_s=round(move.pod.cost_gpu_s, 1),
            controller=controllers.get(move.pod.uid, ""),
            gang=move.pod.gang,
        )
        for move in plan.moves
    ]
    rows = plan.rows or (-1,) * len(target.pods)
    gpus = plan.gpus or ((),) * len(target.pods)
    pods = [
        TargetPod(pod.key, names[row] if row >= 0 else "", list(on), uid)
        for pod, row, on, uid in zip(target.pods, rows, gpus, wanted.uids or ("",) * len(rows), strict=True)
    ]
    before = figures(problem, problem.view)
    return RoomAnswer(
        fits=plan.fits,
        moves=moves,
        cost_gpu_s=round(plan.cost_gpu_s, 1),
        target=pods,
        emptied=[names[row] for row in plan.emptied],
        impossible=list(plan.impossible),
        priority=target.priority,
        id=id_ if plan.fits and plan.moves else "",
        before=before,
        after=figures(problem, view_after(problem.view, plan)) if plan.moves else before,
    )


def _answered(pipe: ChildPipe) -> bytes:
    """Serve one question: read it, send its needs, read the data message by message, and return the answer."""
    began = time.monotonic()
    question = read_question(pipe.read())
    pipe.tell(msgspec.json.encode(needs_of(question)))
    listed = _Listed()
    while (message := pipe.read())[:1] != FACTS:
        listed.take(message[:1], message[1:])
    # Pickled by the service, never by its callers, so it may be trusted.
    facts: Any = pickle.loads(message[1:])  # noqa: S301
    return msgspec.json.encode(_answer(question, listed, facts, began=began))


if __name__ == "__main__":
    serve(_answered)
