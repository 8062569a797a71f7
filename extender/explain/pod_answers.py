"""What is answered to whoever asks why a pod is where it is, or pending."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from extender.core.decisions import ranked
from extender.core.evaluations import broken_down
from extender.core.policies.policy import Policy
from extender.core.resources.requests import PodRequest, RequestError, named
from extender.explain.explanations import explain, offered_rows
from extender.explain.fixes import Fixes, Question, now, running, suggestions
from extender.explain.running_pods import told_of_running
from extender.explain.sentences.nearest import Nearest
from extender.explain.sentences.pending import Lacking, not_bound, why_pending
from extender.explain.sentences.placed import Scores, why_there
from extender.explain.sentences.remedies import to_json
from extender.explain.sentences.words import of_stopped_agent
from extender.explain.undecided_pods import UndecidedPods, without_gpus
from extender.explain.waiting_pods import Waitlist
from extender.explain.wrong_requests import told_of_wrong
from extender.kube import objects
from extender.scheduling.placer import Placement, Placer


@dataclass(frozen=True)
class PodAnswers:
    """Explains pods, in a thread as far as that is possible: what people ask must not keep kube-scheduler waiting."""

    placer: Placer
    fixes: Fixes
    undecided: UndecidedPods
    waitlist: Waitlist
    costs: Callable[[Placement], dict[str, float] | None]
    """What sharing its GPU is expected to cost a pod, None where it shares none."""
    workload: Callable[[str], Awaitable[dict[str, Any] | None]]
    """What a pod has, by its UID, as `GET /workloads` tells it; None for one that has no GPUs."""

    async def told(self, namespace: str, name: str, policy: str = "") -> dict[str, Any]:
        """All that is known of why; `policy` names one to compare with, "" for none.

        Raises UndecidedError where nothing can be said, and RequestError where there is no such policy.
        """
        other = self.placer.policy_of(PodRequest(policy=policy)) if policy else None
        kept = self.placer.decided.last(namespace, name)
        if kept is not None:
            placement = kept
        else:
            pod = await self.undecided.read(namespace, name)
            if pod.spec.node_name:
                return await self._running(pod)
            try:
                placement = self.undecided.consider(pod)
            except RequestError as error:
                return told_of_wrong(pod, str(error), self.waitlist.why(pod.metadata.uid))
        question = self.fixes.ask(placement)
        told = await asyncio.to_thread(_explained, question)
        if other is not None:
            asked = self.placer.remembered(placement.pod.uid)
            told["byPolicy"] = await asyncio.to_thread(_compared, placement, other, asked)
        told["offered"] = kept is not None
        told["queue"] = self.waitlist.why(placement.pod.uid) or None
        if kept is None:
            told = {"wouldFit": []} | told | {"verdict": "unasked"}
        for suggestion in told.get("wouldFit", []):
            if suggestion["change"] == "room":
                suggestion.update(self.fixes.occupied(question, suggestion["nodes"][0]))
        if (cost := self.costs(placement)) is not None:
            told["interference"] = cost
        return told | self._sentence(question, told, kept is not None)

    async def _running(self, pod: objects.Pod) -> dict[str, Any]:
        """What a pod with a node has there. Raises UndecidedError."""
        workload = await self.workload(pod.metadata.uid)
        if workload is None:
            raise without_gpus(pod)
        told = told_of_running(pod, workload, self.undecided.request_of(pod), self.placer.decided.most)
        return told | {"sentence": told["sentence"] + self._of_agent(pod.spec.node_name)}

    def _of_agent(self, node: str | None) -> str:
        return of_stopped_agent(node or "", self.fixes.silent())

    def _sentence(self, question: Question, told: dict[str, Any], offered: bool) -> dict[str, Any]:
        """The sentence, what helps, and how many come first."""
        if told["verdict"] == "placed":
            return {"sentence": _of_placed(told) + self._of_agent(told["node"]), "remedies": [], "ahead": None}
        placement, uid = question.placement, question.placement.pod.uid
        standing = self.waitlist.standing(uid, refused_by_kerf=offered)
        request = placement.decision.request
        nearest = question.nearest or Nearest(f"needs {request}")
        if question.best_node is not None:
            nearest = Nearest(f"needs {request}", fits=True, node=question.best_node)
        elif question.nearest is None:
            nearest = Nearest(told["lacks"] or f"needs {request}")
        lacking = Lacking(
            placement.pod.key,
            request,
            nearest,
            question.holders,
            told.get("wouldFit", ()),
            elsewhere=question.elsewhere,
            ends_in_s=question.ends_in_s,
        )
        sentence, found = why_pending(lacking, standing)
        if told["verdict"] == "expired":
            sentence = not_bound(told["node"], placement.decided_at, sentence)
        sentence += self._of_agent(nearest.node)
        return {"sentence": sentence, "remedies": [to_json(one) for one in found], "ahead": standing.ahead}


def _of_placed(told: dict[str, Any]) -> str:
    again = told.get("askedAgain")
    if again is None:
        return str(told["sentence"])
    would = f"choose another node: {told['sentence']}" if again["node"] else "find no node"
    return f"It stays on {named(told['node'])}, where it is bound; asked again, Kerf would {would}"


def _explained(question: Question) -> dict[str, Any]:
    told = explain(question.placement, question.rules, question.policy.rules)
    told["verdict"] = question.verdict
    told["now"] = now(question)
    told |= running(question)
    if told["verdict"] != "placed":
        told["wouldFit"] = suggestions(question)
    return told


def _compared(placement: Placement, policy: Policy, remembered: PodRequest | None) -> dict[str, Any]:
    """How another policy ranks the same candidates at the same moment; of a pod whose CPU and memory are not known any
    more, as if it asked for none."""
    request, (rows, _) = placement.decision.request, offered_rows(placement)
    asked = policy.asked(replace(remembered or PodRequest(), gpus=request)) or request
    evaluation, breakdown = broken_down(placement.cluster, asked, policy, rows)
    scores = Scores(placement.cluster, asked, rows, evaluation, breakdown, policy)
    order = list(ranked(placement.cluster, rows, evaluation))
    ranks, names = {row: rank for rank, row in enumerate(order, 1)}, placement.cluster.node_names
    numbers = zip(rows.tolist(), evaluation.score.tolist(), scores.of_rows(), strict=True)
    return {
        "policy": policy.name,
        "node": names[order[0]] if order else None,
        "sentence": why_there(scores, len(rows), planned=False),
        "scoreTerms": scores.meanings(),
        "nodes": [
            {"node": names[row], "rank": ranks[row], "score": score, "scoreTerms": added}
            for row, score, added in numbers
            if row in ranks
        ],
    }
