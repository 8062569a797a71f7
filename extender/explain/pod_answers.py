"""What is answered to whoever asks why a pod is where it is, or pending.

Pods that no decision is kept of: what Kerf would decide of them now.

Where too few GPUs are left, or nodes are tainted, kube-scheduler's own plugins rule out every node, and
Kerf is never asked about the pod. Whoever wants to know why it is pending still gets an answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import msgspec

from extender.core.decisions import ranked
from extender.core.evaluations import broken_down
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
    """Nothing can be said of a pod; the sentence says why."""


class UndecidedPods:
    """Asks the API server for the pod, and the placer for a decision; nothing is reserved or kept."""

    def __init__(
        self,
        transport: Transport,
        placer: Placer,
        claims_of: Callable[[objects.Pod], PodClaims] = lambda pod: NO_CLAIMS,
    ) -> None:
        """`claims_of`: the ResourceClaims of a pod that Kerf allocates devices to. Raises RequestError."""
        self._transport = transport
        self._placer = placer
        self._claims_of = claims_of

    def consider(self, pod: objects.Pod) -> Placement:
        """What would be decided of a pod without a node, among all nodes. Raises UndecidedError, RequestError."""
        kept = _not_kept(pod.key)
        request = self._read_request(pod, kept)
        policy = self._placer.policy_of(request)
        asked = policy.asked(request) or request.gpus
        if asked is None:
            raise UndecidedError(f"{kept}. It requests no GPUs, so kube-scheduler places it without Kerf")
        identity = replace(PodIdentity.of(pod), owner=owner_of(pod.metadata))
        return self._placer.consider(identity, asked, policy)

    def _read_request(self, pod: objects.Pod, kept: str) -> PodRequest:
        """What a pod asks, by ResourceClaims too. Raises RequestError, and UndecidedError where its claims say all."""
        request = self._placer.read_request(pod)
        claims = self._claims_of(pod) if pod.spec.resource_claims else NO_CLAIMS
        if unsettled := claims.missing or claims.undecided:
            raise UndecidedError(f"{kept}. Its ResourceClaim {unsettled} does not exist yet, or is being changed")
        if claims.asked is not None:
            return replace(request, gpus=devices_of(claims.asked))
        if request.gpus is None and claims.allocated:
            have = "; ".join(_allocation(claim) for claim in claims.allocated[:_MAX_CLAIMS])
            raise UndecidedError(f"{kept}. Its ResourceClaims have their devices: {have}")
        return request

    def request_of(self, pod: objects.Pod) -> str:
        """What a pod asks for in words, "" where that can't be understood, or its ResourceClaims say it."""
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
            found = "there is no pod of that name" if error.status == _NOT_FOUND else str(error)
            raise UndecidedError(f"{kept}; {found}") from None
        except (ClusterError, msgspec.DecodeError) as error:
            raise UndecidedError(f"{kept}; the pod can't be read: {error}") from None


def _without_gpus(pod: objects.Pod) -> UndecidedError:
    """Of a pod with a node that has no GPUs there."""
    has = "and has ended" if pod.finished else "and has no GPUs there"
    return UndecidedError(f"{_not_kept(pod.key)}. It is on node {pod.spec.node_name}, {has}")


def _not_kept(pod: str) -> str:
    return f"no recent decision about pod {pod}"


def _allocation(claim: ResourceClaim) -> str:
    """What a claim has, and where."""
    found = claim.status.allocation
    devices = ", ".join(result.device for result in claim.results[:_MAX_CLAIMS])
    return f"{claim.metadata.name} has {devices}" + (f" of node {found.node}" if found and found.node else "")


@dataclass(frozen=True)
class PodAnswers:
    """Explains pods, in a thread as far as that is possible: what people ask must not keep kube-scheduler waiting."""

    placer: Placer
    fixes: Fixes
    undecided: UndecidedPods
    waitlist: Waitlist
    costs: Callable[[Placement], dict[str, float] | None]
    """What sharing its GPU is expected to cost a pod, None where it shares none."""
    workload: Callable[[str], Awaitable[WorkloadPod | None]]
    """What a pod has, by its UID, as `GET /workloads` tells it; None for one that has no GPUs."""

    async def told(self, namespace: str, name: str, policy: str = "") -> Explanation:
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
                return self._wrong(pod, str(error))
        question = self.fixes.ask(placement)
        told = await asyncio.to_thread(_explained, question)
        if other is not None:
            asked = self.placer.remembered(placement.pod.uid)
            told["byPolicy"] = await asyncio.to_thread(_compared, placement, other, asked)
        told["offered"] = kept is not None
        told["queue"] = self.waitlist.why(placement.pod.uid) or None
        if kept is None:
            told["verdict"] = "unasked"
            told.setdefault("wouldFit", [])
        for suggestion in told.get("wouldFit", []):
            if suggestion["change"] == "room":
                suggestion.update(self.fixes.occupied(question, suggestion["nodes"][0]))
        if (cost := self.costs(placement)) is not None:
            told["interference"] = cost
        self._put_into_words(question, told)
        return told

    def _wrong(self, pod: objects.Pod, fault: str) -> Explanation:
        """Of a pod whose request can't be understood: nothing is decided of it until it is corrected."""
        told = _undecided(pod, bounded(fault))
        told["remedies"], told["queue"] = [to_json(CORRECT)], self.waitlist.why(pod.metadata.uid) or None
        told["wouldFit"] = []
        return told

    async def _running(self, pod: objects.Pod) -> Explanation:
        """What a pod with a node has there. Raises UndecidedError."""
        workload = await self.workload(pod.metadata.uid)
        if workload is None or pod.spec.node_name is None:
            raise _without_gpus(pod)
        most = self.placer.decided.most
        kept = f"no decision about it is kept: Kerf keeps the last {most} that it has made since it started"
        told = _undecided(pod, kept + self._of_agent(pod.spec.node_name))
        told.update({"verdict": "placed", "gpus": workload["indices"], "workload": workload})
        told["request"] = self.undecided.request_of(pod)
        told["now"]["held"] = {"node": pod.spec.node_name, "gpus": workload["indices"], "state": "BOUND"}
        return told

    def _of_agent(self, node: str | None) -> str:
        return of_stopped_agent(node or "", self.fixes.silent())

    def _put_into_words(self, question: Question, told: Explanation) -> None:
        """Say in a sentence why, what helps, and how many come first."""
        if told["verdict"] == "placed":
            told["sentence"] = _of_placed(told) + self._of_agent(told["node"])
            return
        placement, uid = question.placement, question.placement.pod.uid
        standing = self.waitlist.standing(uid, refused_by_kerf=told["offered"])
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
            makes_room=self.fixes.makes_room(),
            answers_what_if=self.fixes.answers_what_if(),
        )
        sentence, found = why_pending(lacking, standing)
        if told["verdict"] == "expired":
            sentence = not_bound(str(told["node"]), placement.decided_at, sentence)
        told["sentence"] = sentence + self._of_agent(nearest.node)
        told["remedies"], told["ahead"] = [to_json(one) for one in found], standing.ahead


def _undecided(pod: objects.Pod, sentence: str) -> Explanation:
    """What is told of a pod of which no decision is kept or made."""
    nothing = dict.fromkeys(
        ("decidedAt", "policy", "milli", "memoryMiB", "crosses", "ranking", "lacks", "queue", "ahead")
    )
    told = {
        **{"pod": pod.key, "uid": pod.metadata.uid, "node": pod.spec.node_name, "sentence": sentence},
        **{"request": "", "required": {}, "gpus": [], "reasons": {}, "scoreTerms": {}, "nodes": [], "remedies": []},
        **{"verdict": "rejected", "offered": False},
        "now": {"held": None, "nodesThatFit": 0, "bestNode": None, "numChanged": 0, "changed": [], "gone": []},
    }
    return cast("Explanation", nothing | told)


def _of_placed(told: Explanation) -> str:
    again = told.get("askedAgain")
    if again is None:
        return told["sentence"]
    would = f"choose another node: {told['sentence']}" if again["node"] else "find no node"
    return f"It stays on {named(str(told['node']))}, where it is bound; asked again, Kerf would {would}"


def _explained(question: Question) -> Explanation:
    told = explain(question)
    tell_running(question, told)
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
