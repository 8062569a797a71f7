"""Explains why a pod is on its node or pending.

For a pod without a kept decision it explains what Kerf would decide now. kube-scheduler never calls Kerf for a pod if
its own plugins exclude every node, as with too few GPUs or with taints.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec
from msgspec import structs

from extender.core.decisions import ranked
from extender.core.evaluations import evaluate_with_breakdown
from extender.core.policies.policy import Policy
from extender.core.resources.requests import PodRequest, RequestError, named
from extender.dra.objects import ResourceClaim
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.explain.answers import Explanation, WorkloadPod
from extender.explain.explanations import explain, offered_rows
from extender.explain.fixes import Fixes, Question, suggestions, tell_running
from extender.explain.pending import Waitlist
from extender.explain.sentences.nearest import Nearest
from extender.explain.sentences.pending import Lacking, not_bound, why_pending
from extender.explain.sentences.placed import Scores, why_there
from extender.explain.sentences.remedies import CORRECT, to_json
from extender.explain.sentences.words import bounded, of_stopped_agent
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.transport import is_name
from extender.plugins.pods import owner_of
from extender.queueing.pods.batches import devices_of
from extender.scheduling.placer import Placement, Placer, PodIdentity

_NOT_FOUND: Final = 404
_MAX_CLAIMS: Final = 8
_decoder = Decoder(objects.Pod)


class UndecidedError(Exception):
    """A pod can't be explained; says why."""


class UndecidedPods:
    """Reads a pod from the API server and makes a trial decision, which is neither reserved nor kept."""

    def __init__(
        self,
        transport: Transport,
        placer: Placer,
        claims_of: Callable[[objects.Pod], PodClaims] = lambda pod: NO_CLAIMS,
    ) -> None:
        """`claims_of` gives a pod's ResourceClaims that Kerf allocates; it may raise RequestError."""
        self._transport = transport
        self._placer = placer
        self._claims_of = claims_of

    def consider(self, pod: objects.Pod) -> Placement:
        """A trial decision for a pending pod among all nodes. Raises UndecidedError, RequestError."""
        kept = _not_kept(pod.key)
        request = self._read_request(pod, kept)
        policy = self._placer.policy_of(request)
        asked = policy.weighed_request(request) or request.gpus
        if asked is None:
            raise UndecidedError(f"{kept}. It requests no GPUs, so kube-scheduler places it without Kerf")
        identity = replace(PodIdentity.of(pod), owner=owner_of(pod.metadata))
        return self._placer.preview(identity, asked, policy)

    def _read_request(self, pod: objects.Pod, kept: str) -> PodRequest:
        """A pod's request, including ResourceClaims. Raises RequestError, and UndecidedError if its claims decide."""
        request = self._placer.read_request(pod)
        claims = self._claims_of(pod) if pod.spec.resource_claims else NO_CLAIMS
        if unsettled := claims.missing or claims.undecided:
            raise UndecidedError(f"{kept}. Its ResourceClaim {unsettled} does not exist yet, or is being changed")
        if claims.asked is not None:
            return structs.replace(request, gpus=devices_of(claims.asked))
        if request.gpus is None and claims.allocated:
            have = "; ".join(_allocation(claim) for claim in claims.allocated[:_MAX_CLAIMS])
            raise UndecidedError(f"{kept}. Its ResourceClaims are already allocated: {have}")
        return request

    def request_of(self, pod: objects.Pod) -> str:
        """A pod's request in words; "" if it can't be parsed or is made by ResourceClaims."""
        try:
            return str(self._placer.read_request(pod).gpus or "")
        except RequestError:
            return ""

    async def read(self, namespace: str, name: str) -> objects.Pod:
        """A pod of that name. Raises UndecidedError."""
        kept = _not_kept(f"{namespace}/{name}")
        if not is_name(namespace) or not is_name(name):
            raise UndecidedError(kept)
        try:
            return _decoder.decode(await self._transport.get(PodIdentity(namespace, name, "").path))
        except ApiError as error:
            why = "there is no pod of that name" if error.status == _NOT_FOUND else str(error)
            raise UndecidedError(f"{kept}; {why}") from None
        except (ClusterError, msgspec.DecodeError) as error:
            raise UndecidedError(f"{kept}; the pod can't be read: {error}") from None


def _without_gpus(pod: objects.Pod) -> UndecidedError:
    """The error for a bound pod without GPUs."""
    has = "and has ended" if pod.finished else "and has no GPUs there"
    return UndecidedError(f"{_not_kept(pod.key)}. It is on node {pod.spec.node_name}, {has}")


def _not_kept(pod: str) -> str:
    return f"no recent decision about pod {pod}"


def _allocation(claim: ResourceClaim) -> str:
    """A claim's devices and their node, in words."""
    allocation = claim.status.allocation
    devices = ", ".join(result.device for result in claim.results[:_MAX_CLAIMS])
    where = f" of node {allocation.node}" if allocation and allocation.node else ""
    return f"{claim.metadata.name} has {devices}{where}"


@dataclass(frozen=True)
class PodAnswers:
    """Explains pods, in a thread where possible so that kube-scheduler's calls don't wait."""

    placer: Placer
    fixes: Fixes
    undecided: UndecidedPods
    waitlist: Waitlist
    costs: Callable[[Placement], dict[str, float] | None]
    """Expected slowdown of a pod that shares a GPU; None if it shares none."""
    workload: Callable[[str], Awaitable[WorkloadPod | None]]
    """A pod's item of `GET /workloads`, by UID; None if it has no GPUs."""

    async def explain(self, namespace: str, name: str, policy: str = "") -> Explanation:
        """The explanation of a pod, compared with another policy if `policy` names one.

        Raises UndecidedError, and RequestError for an unknown policy.
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
                return self._wrong(pod, str(error))
        question = self.fixes.ask(placement)
        explanation = await asyncio.to_thread(_explained, question)
        if other is not None:
            asked = self.placer.remembered(placement.pod.uid)
            explanation["byPolicy"] = await asyncio.to_thread(_compared, placement, other, asked)
        explanation["offered"] = kept is not None
        explanation["queue"] = self.waitlist.why(placement.pod.uid) or None
        if kept is None:
            explanation["verdict"] = "unasked"
            explanation.setdefault("wouldFit", [])
        for suggestion in explanation.get("wouldFit", []):
            if suggestion["change"] == "room":
                suggestion.update(self.fixes.occupied(question, suggestion["nodes"][0]))
        if (cost := self.costs(placement)) is not None:
            explanation["interference"] = cost
        self._put_into_words(question, explanation)
        return explanation

    def _wrong(self, pod: objects.Pod, fault: str) -> Explanation:
        """The explanation of a pod whose request can't be parsed."""
        explanation = _undecided(pod, bounded(fault))
        explanation["remedies"], explanation["queue"] = [to_json(CORRECT)], self.waitlist.why(pod.metadata.uid) or None
        explanation["wouldFit"] = []
        return explanation

    async def _running(self, pod: objects.Pod) -> Explanation:
        """The explanation of a bound pod without a kept decision. Raises UndecidedError."""
        workload = await self.workload(pod.metadata.uid)
        if workload is None or pod.spec.node_name is None:
            raise _without_gpus(pod)
        most = self.placer.decided.most
        kept = f"no decision about it is kept: Kerf keeps the last {most} that it has made since it started"
        explanation = _undecided(pod, kept + self._of_agent(pod.spec.node_name))
        explanation.update({"verdict": "placed", "gpus": workload["indices"], "workload": workload})
        explanation["request"] = self.undecided.request_of(pod)
        explanation["now"]["held"] = {"node": pod.spec.node_name, "gpus": workload["indices"], "state": "BOUND"}
        return explanation

    def _of_agent(self, node: str | None) -> str:
        return of_stopped_agent(node or "", self.fixes.silent())

    def _put_into_words(self, question: Question, explanation: Explanation) -> None:
        """Set the sentence, the remedies and the number of pods ahead."""
        if explanation["verdict"] == "placed":
            explanation["sentence"] = _placed_sentence(explanation) + self._of_agent(explanation["node"])
            return
        placement, uid = question.placement, question.placement.pod.uid
        standing = self.waitlist.standing(uid, refused_by_kerf=explanation["offered"])
        request = placement.decision.request
        nearest = question.nearest or Nearest(f"needs {request}")
        if question.best_node is not None:
            nearest = Nearest(f"needs {request}", fits=True, node=question.best_node)
        elif question.nearest is None:
            nearest = Nearest(explanation["lacks"] or f"needs {request}")
        lacking = Lacking(
            placement.pod.key,
            request,
            nearest,
            question.holders,
            explanation.get("wouldFit", ()),
            elsewhere=question.elsewhere,
            ends_in_s=question.ends_in_s,
            makes_room=self.fixes.makes_room(),
            answers_what_if=self.fixes.answers_what_if(),
        )
        sentence, found = why_pending(lacking, standing)
        if explanation["verdict"] == "expired":
            sentence = not_bound(str(explanation["node"]), placement.decided_at, sentence)
        explanation["sentence"] = sentence + self._of_agent(nearest.node)
        explanation["remedies"], explanation["ahead"] = [to_json(one) for one in found], standing.ahead


def _undecided(pod: objects.Pod, sentence: str) -> Explanation:
    """The explanation of a pod without a decision."""
    nothing = dict.fromkeys(
        ("decidedAt", "policy", "milli", "memoryMiB", "crosses", "ranking", "lacks", "queue", "ahead")
    )
    explanation = {
        **{"pod": pod.key, "uid": pod.metadata.uid, "node": pod.spec.node_name, "sentence": sentence},
        **{"request": "", "required": {}, "gpus": [], "reasons": {}, "scoreTerms": {}, "nodes": [], "remedies": []},
        **{"verdict": "rejected", "offered": False},
        "now": {"held": None, "nodesThatFit": 0, "bestNode": None, "numChanged": 0, "changed": [], "gone": []},
    }
    return cast("Explanation", nothing | explanation)


def _placed_sentence(explanation: Explanation) -> str:
    newest = explanation.get("askedAgain")
    if newest is None:
        return explanation["sentence"]
    would = f"choose another node: {explanation['sentence']}" if newest["node"] else "find no node"
    return f"It stays on {named(str(explanation['node']))}, where it is bound; asked again, Kerf would {would}"


def _explained(question: Question) -> Explanation:
    explanation = explain(question)
    tell_running(question, explanation)
    if explanation["verdict"] != "placed":
        explanation["wouldFit"] = suggestions(question)
    return explanation


def _compared(placement: Placement, policy: Policy, remembered: PodRequest | None) -> dict[str, Any]:
    """How another policy ranks the same candidates at the same moment.

    If the pod's CPU and memory request is no longer known, it counts as none.
    """
    request, (rows, _) = placement.decision.request, offered_rows(placement)
    request = policy.weighed_request(structs.replace(remembered or PodRequest(), gpus=request)) or request
    evaluation, breakdown = evaluate_with_breakdown(placement.cluster, request, policy, rows)
    scores = Scores(placement.cluster, request, rows, evaluation, breakdown, policy)
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
