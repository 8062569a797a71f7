"""The verb preempt: of the victims that kube-scheduler proposes, it keeps those that are needed."""

import logging
from dataclasses import dataclass
from typing import Final

from extender.api import wire
from extender.api.readiness import Readiness, UnavailableError, check_names
from extender.core.preemption import Candidate
from extender.core.resources.requests import PodRequest, RequestError
from extender.kube import objects
from extender.metrics.registry import Metrics
from extender.plugins.pods import read_pod_request
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.preemption import Preemptor
from extender.scheduling.queue_rules import QueueRules

logger = logging.getLogger(__name__)

_MAX_IN_LOG: Final = 20


@dataclass(frozen=True)
class Evictions:
    """Answers preempt."""

    preemptor: Preemptor
    placer: Placer
    readiness: Readiness
    metrics: Metrics
    queue: QueueRules

    async def preempt(self, body: bytes) -> bytes:
        """Answer preempt; in doubt, no node is left. Raises WireError."""
        call = wire.read_preemption_args(body)
        running = await self.queue.running_gangs(uid for proposal in call.proposals for uid in proposal.uids)
        gangs = self.preemptor.gangs_of(running)
        candidates = [
            self.preemptor.candidate(call.pod, proposal.node, proposal.uids, proposal.num_pdb_violations, gangs)
            for proposal in call.proposals
        ]
        key = call.pod.key
        try:
            check_names(call.pod)
            self.readiness.check_leading()
            await self.readiness.confirm_leading()
            request = read_pod_request(call.pod)
            if request.gpus is not None:
                self.readiness.policy(request)
                if excess := self.queue.over_quota(PodIdentity.of(call.pod), request.gpus):
                    raise UnavailableError(excess)  # filter would not let it use the room
                if why := self.queue.preemption_refusal(call.pod.metadata.uid):
                    raise UnavailableError(why)
                if self._is_room_coming(call.pod, request):
                    raise UnavailableError("room is already being made for it")
                chosen = await self.preemptor.choose(call.pod, call.demands, request.gpus, candidates)
                self._log_preemption(key, candidates, chosen)
                candidates = chosen
        except (RequestError, UnavailableError) as error:
            logger.warning("pod %s evicts no pods: %s", key, error)
            self.metrics.preemptions.labels("refused").inc(len(candidates))
            candidates = []
        return wire.encode(wire.PreemptionResult({candidate.node: _meta(candidate) for candidate in candidates}))

    def _is_room_coming(self, pod: objects.Pod, request: PodRequest) -> bool:
        """Whether a pod will fit without more evictions; it is retried as soon as it does."""
        return self.placer.fits_meanwhile(PodIdentity.of(pod), request) or (
            request.gpus is not None and self.preemptor.is_under_way(pod, request.gpus)
        )

    def _log_preemption(self, key: str, proposed: list[Candidate], chosen: list[Candidate]) -> None:
        num_proposed = {candidate.node: len(candidate.victims) for candidate in proposed}
        spared = sum(num_proposed[candidate.node] - len(candidate.victims) for candidate in chosen)
        self.metrics.preemptions.labels("kept").inc(len(chosen))
        self.metrics.preemptions.labels("dropped").inc(len(proposed) - len(chosen))
        self.metrics.spared_victims.inc(spared)
        nodes = ", ".join(map(_in_log, chosen[:_MAX_IN_LOG]))
        logger.info("pod %s may evict on %d of %d nodes: %s", key, len(chosen), len(proposed), nodes or "none")


def _in_log(candidate: Candidate) -> str:
    ending = f" and {num} more of their gangs" if (num := len(candidate.ending)) else ""
    return f"{candidate.node} ({len(candidate.victims)} pods{ending})"


def _meta(candidate: Candidate) -> wire.MetaVictims:
    pods = [wire.MetaPod(victim.uid) for victim in candidate.victims]
    return wire.MetaVictims(pods, candidate.num_pdb_violations)
