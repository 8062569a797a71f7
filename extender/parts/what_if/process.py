"""Plans a batch of pods on a copy of the cluster: where they would go and which would stay pending.

Nothing is reserved or written. Usage comes from the ledger and includes reservations. Nodes are read from the API
server for their taints, cordons, labels and pod limits.

Runs in a separate process that ends with its answer (see `answers`), as questions may be large.
"""

import pickle
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from extender.explain.manifests.gangs import together
from extender.explain.processes import ChildPipe, serve
from extender.kube.objects import Node, Pod
from extender.kube.watches import ListDecoder
from extender.ledger.bound_pods import BoundPodIndex
from extender.parts.what_if.claims import AskedClaims, read_claims, read_templates
from extender.parts.what_if.inputs import QuestionCluster, WhatIfInputs
from extender.parts.what_if.missing import found_nodes
from extender.parts.what_if.pods import NewPods, PodReader
from extender.parts.what_if.questions import (
    Objects,
    Question,
    WhatIfError,
    WhatIfResult,
    added_nodes,
    asked_pods,
    decoded_node,
    needs_of,
    read_question,
)
from extender.parts.what_if.waiting import waiting_pods
from extender.planning import reports
from extender.planning.plan_state import fragments, state_after
from extender.planning.planners import PLANNERS
from extender.planning.plans import GREEDY, Plan, View
from extender.planning.retries import plan_with_retries

_SEARCH_FRAC: Final = 0.4
"""Fraction of the time for an answer that the search for new nodes may take."""

_nodes_decoder: Final = ListDecoder(Node)
_pods_decoder: Final = ListDecoder(Pod)


def _answer(question: Question, facts: WhatIfInputs) -> WhatIfResult:
    """Where the pods would go; assumes added tolerations only if that places more pods. Raises WhatIfError."""
    until = time.monotonic() + _SEARCH_FRAC * facts.max_s
    found, tolerant = _answered_once(question, facts, until, assume=False)
    if found["unassigned"] and tolerant:
        other, _ = _answered_once(question, facts, until, assume=True)
        if other["placed"] > found["placed"]:
            return other
    return found


def _answered_once(question: Question, facts: WhatIfInputs, until: float, *, assume: bool) -> tuple[WhatIfResult, bool]:
    """The answer, and whether admission may add tolerations to the new pods; `assume` adds them. Raises WhatIfError."""
    request, given = question.asked, question.given
    nodes, moving = _nodes_and_moving(request.drain, facts)
    by_name = {node.metadata.name: node for node in nodes}
    waiting, held = waiting_pods(facts.pending, facts.waiting.held) if facts.pending is not None else ([], {})
    candidates = [decoded_node(manifest, "candidates") for manifest in question.candidates]
    added = added_nodes(question.add_nodes, by_name)
    reader = PodReader(facts.default_policy, _claims(question, facts))
    new = NewPods((*nodes, *(node for node, _ in added), *candidates), assume=assume)
    first = [*moving, *waiting, *new.as_admitted(asked_pods(request))]
    planned, faults = reader.planned(first)
    batch = [one for _, one in planned]
    objects = Objects.of(given, (pod.key for pod in first))
    object_pods = new.as_admitted(objects.pods)
    planned_objects, more_faults = reader.planned(object_pods)
    gangs = together([(pod, objects.copied(pod, one)) for pod, one in planned_objects], batch, given.groups)
    batch = [new.noted(one) for one in (*batch, *gangs.batch)]
    faults |= more_faults | gangs.faults
    crowd = BoundPodIndex.unpacked(facts.crowd, facts.ignored)
    for pod in moving:
        crowd.remove(pod.metadata.uid)
    ground = QuestionCluster(facts, nodes, added, reader.kinds, batch, tuple(request.drain), crowd)
    missing: dict[str, Any] | None = None
    if request.find_nodes:
        specs = [pod.spec for pod in (*first, *object_pods)]
        view, plan, missing = found_nodes(ground, specs, candidates, lambda: time.monotonic() > until)
    else:
        view = ground.view()
        plan = plan_with_retries(PLANNERS[GREEDY], view, batch)
    before = (
        plan_with_retries(PLANNERS[GREEDY], replace(ground, added=()).view(), batch) if question.adds_alone else plan
    )
    stranded_before, stranded = _stranded(facts, view, plan, request.drain)
    unplanned = faults | held
    report = _report(view, plan, unplanned)
    stuck = [plan.pods[position].key for position, why in plan.unassigned.items() if not why.moves_help]
    result: WhatIfResult = {
        **report,  # type: ignore[typeddict-item]  # a report has no `missing`
        "reasons": dict(Counter(entry["reason"] for entry in report["unassigned"]).most_common()),
        "noMoveHelps": [*stuck, *unplanned],
        "moved": [pod.key for pod in moving],
        "fragmentsBefore": round(fragments(facts.cluster), 4),
        "strandedBefore": stranded_before,
        "stranded": stranded,
        "gained": [pod.key for pod, row, had in zip(batch, plan.rows, before.rows, strict=True) if row >= 0 > had],
        "unreadable": len(faults),
        "objects": objects.report(report, gangs.notes),
        "skipped": given.skipped,
        "notChecked": _not_checked(view, plan),
    }
    if missing is not None:
        result["missing"] = missing
    return result, new.tolerate_more


def _report(view: View, plan: Plan, faults: Mapping[str, str]) -> reports.PlanReport:
    """The report of a plan with the pods that could not be planned, and only the nodes that get pods."""
    report = reports.report(view, plan)
    report["pods"] += len(faults)
    report["unassigned"] += [{"pod": key, "reason": why} for key, why in faults.items()]
    report["nodes"] = [node for node in report["nodes"] if node["pods"]]
    return report


def _stranded(
    facts: WhatIfInputs, view: View, plan: Plan, drained: Sequence[str]
) -> tuple[float, float] | tuple[None, None]:
    """The stranded fraction of all GPUs now and after the plan; None if the service does not count it."""
    if facts.stranding is None:
        return None, None
    after = state_after(view, plan).cluster
    stranding = facts.stranding.unpacked(after)
    closed = [after.row_of[name] for name in drained if name in after.row_of]
    before = stranding.part(facts.cluster, stranding.milli(facts.cluster))
    return before, stranding.part(after, stranding.milli(after, closed))


def _not_checked(view: View, plan: Plan) -> dict[str, int]:
    """Number of placed pods by what was not checked of them, most first."""
    placed = (pod for pod, row in zip(plan.pods, plan.rows, strict=True) if row >= 0)
    return dict(Counter(what for pod in placed for what in view.unchecked(pod)).most_common())


def _nodes_and_moving(drain: Sequence[str], facts: WhatIfInputs) -> tuple[list[Node], list[Pod]]:
    """The cluster's nodes, and the pods to move from drained nodes. Raises WhatIfError."""
    try:
        nodes = _nodes_decoder.decode(facts.nodes).items
        known = {node.metadata.name for node in nodes}
        if unknown := [name for name in drain if name not in known]:
            raise WhatIfError(f"drain: no node is named {', '.join(unknown[:5])}")
        moving = [
            pod
            for name in dict.fromkeys(drain)
            if name in facts.pods_on
            for pod in _pods_decoder.decode(facts.pods_on[name]).items
            if pod.spec.node_name == name and not pod.finished and not pod.metadata.belongs_to_a_node
        ]
    except msgspec.DecodeError as error:
        raise WhatIfError(f"nodes and pods can't be read: {error}") from None
    return nodes, moving


def _claims(question: Question, facts: WhatIfInputs) -> AskedClaims:
    """The ResourceClaims of the question's pods. Raises WhatIfError."""
    request, given = question.asked, question.given
    claims, templates = [*request.claims, *given.claims], [*request.claim_templates, *given.claim_templates]
    try:
        return AskedClaims(facts.devices, read_claims(claims), read_templates(templates))
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        raise WhatIfError(f"claims: {error}") from None


def _answered(pipe: ChildPipe) -> bytes:
    """Read a question, write its `Needs`, read the `Facts`, and return the answer."""
    question = read_question(pipe.read())
    pipe.tell(msgspec.json.encode(needs_of(question)))
    # Written by the service, never by the client, so unpickling is safe.
    facts: WhatIfInputs = pickle.loads(pipe.read())  # noqa: S301
    return msgspec.json.encode(_answer(question, facts))


if __name__ == "__main__":
    serve(_answered)
