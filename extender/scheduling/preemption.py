"""Judges kube-scheduler's preemption proposals on the mirrored cluster: which of them would make room for a pod."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fit.fits import fit
from extender.core.preemption import Candidate, Gang, Member, Victim, least_lost, needed
from extender.core.resources.requests import GpuRequest
from extender.kube import objects
from extender.ledger.bound_pods import BoundPods, SpecDemands, asks_resources_alone, repels_pods
from extender.ledger.ledger import Ledger
from extender.plugins.holdings import Holding, Part

_NODES_AT_ONCE: Final = 8
_UNDER_WAY_S: Final = 30.0
"""Victims that kube-scheduler has not evicted by then may be proposed again."""
_MAX_ANSWERS: Final = 4096
_FIRST_ROW: Final = np.zeros(1, np.intp)


@dataclass(eq=False)
class Preemptor:
    """Judges preemption proposals. It evicts and reserves nothing."""

    ledger: Ledger
    bound_pods: BoundPods
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _answers: OrderedDict[str, tuple[float, list[Candidate]]] = field(default_factory=OrderedDict, init=False)

    def candidate(
        self,
        pod: objects.Pod,
        node: str,
        uids: Iterable[str],
        num_pdb_violations: int,
        gangs: Mapping[str, Gang] | None = None,
    ) -> Candidate:
        """Return a proposal with its victims' priorities, GPUs and GPU time; an unknown victim counts as the costliest.

        `gangs` are the victims' gangs by UID, from `gangs_of`.
        """
        now = self.wall_clock()
        bound_pods = self.bound_pods.on(node)
        alone = self.ledger.without(node, (), self.clock())
        victims: list[Victim] = []
        for uid in uids:
            gpus, bound, gang = self._gpus_of(uid, node, alone), bound_pods.get(uid), (gangs or {}).get(uid)
            if bound is None:
                victims.append(Victim(uid, (pod.spec.priority or 0) - 1, gpus, gang=gang))
            else:
                victims.append(Victim(uid, bound.priority, gpus, gpus * bound.ran_s(now), bound.leaving, gang))
        return Candidate(node, tuple(victims), num_pdb_violations)

    def gangs_of(self, running: Iterable[Mapping[str, int]]) -> dict[str, Gang]:
        """Return the gang of each pod by UID. `running` maps each gang's pods to how many of its pods they need."""
        now, nodes = self.wall_clock(), dict[str, Cluster | None]()

        def member(uid: str, needs: int) -> Member:
            node = self.bound_pods.node_of(uid)
            bound = self.bound_pods.on(node).get(uid)
            if node not in nodes:
                nodes[node] = self.ledger.without(node, (), self.clock())
            gpus = self._gpus_of(uid, node, nodes[node])
            return Member(needs, bound.priority, gpus * bound.ran_s(now)) if bound is not None else Member(needs)

        gangs = [Gang({uid: member(uid, needs) for uid, needs in pods.items()}) for pods in running]
        return {uid: gang for gang in gangs for uid in gang.members}

    def _gpus_of(self, uid: str, node: str, alone: Cluster | None) -> float:
        """Return how many GPUs of a node a pod holds; `alone` is the cluster of that node."""
        allocation = self.ledger.allocation(uid)
        return _num_gpus(alone, allocation.holding) if alone and allocation and allocation.node == node else 0.0

    async def choose(
        self, pod: objects.Pod, demands: SpecDemands, request: GpuRequest, candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        """Return the candidates that make the pod fit at the least loss, each with the victims needed.

        Leaves out candidates that would end a gang member of the same or a higher priority. Yields to the event loop
        now and then, since hundreds of nodes take a second.
        """
        priority = pod.spec.priority or 0
        spares = asks_resources_alone(demands)
        left: list[Candidate] = []
        for number, candidate in enumerate(candidates):
            if number % _NODES_AT_ONCE == _NODES_AT_ONCE - 1:
                await asyncio.sleep(0)
            with_needed = self._needed(pod, request, candidate, spares=spares)
            if with_needed is not None and all(member.priority < priority for member in with_needed.ending):
                left.append(with_needed)
        chosen = least_lost(left)
        self._remember(pod.metadata.uid, chosen)
        return chosen

    def is_under_way(self, pod: objects.Pod, request: GpuRequest) -> bool:
        """Whether a preemption under way will make enough room for a pod.

        kube-scheduler may see that the victims are gone before Kerf does. Filter then rejects the pod once more, and
        without this check more pods would be evicted for it elsewhere.
        """
        answered_at, candidates = self._answers.get(pod.metadata.uid, (0.0, []))
        nominated = pod.status.nominated_node_name
        recent = self.clock() - answered_at < _UNDER_WAY_S
        return recent and any(
            self._fits(pod, request, candidate.node, frozenset(victim.uid for victim in candidate.victims))
            for candidate in candidates
            if nominated in (None, "", candidate.node)
        )

    def _remember(self, uid: str, chosen: list[Candidate]) -> None:
        """Keep the latest answer about a pod if it may lead to evictions."""
        self._answers.pop(uid, None)
        if uid and chosen:
            self._answers[uid] = self.clock(), chosen
        if len(self._answers) > _MAX_ANSWERS:
            self._answers.popitem(last=False)

    def _fits(self, pod: objects.Pod, request: GpuRequest, node: str, evicted: frozenset[str]) -> bool:
        """Whether a node has the GPUs for a pod once others are evicted, not counting its own reservation."""
        cluster = self.ledger.without(node, evicted | {pod.metadata.uid}, self.clock())
        return cluster is not None and bool(fit(cluster, request, _FIRST_ROW).fits[0])

    def _needed(self, pod: objects.Pod, request: GpuRequest, candidate: Candidate, *, spares: bool) -> Candidate | None:
        node = candidate.node
        bound_pods = self.bound_pods.on(node)
        proposed = [bound_pods.get(victim.uid) for victim in candidate.victims]
        spares = spares and all(bound is not None and not repels_pods(bound.spec) for bound in proposed)

        def gpus_fit(evicted: frozenset[str]) -> bool:
            return self._fits(pod, request, node, evicted)

        def all_fits(evicted: frozenset[str]) -> bool:
            return self.bound_pods.have_room(node, pod.spec, evicted)

        return needed(candidate, gpus_fit, all_fits if spares else None)


def _num_gpus(node: Cluster, holding: Holding) -> float:
    """Return how many GPUs of a node a holding amounts to: a share counts by the larger of its compute and memory
    fractions, a time slice by its fraction of a GPU, a MIG device as one."""
    per_gpu, memory_mib = int(node.units_per_gpu[0]), node.gpu_memory_mib[0].tolist()
    if per_gpu > 1:
        return holding.units / per_gpu

    def fraction(part: Part) -> float:
        known = 0 <= part.gpu < len(memory_mib) and memory_mib[part.gpu]
        return 1.0 if part.whole else max(part.milli / WHOLE_MILLI, part.mib / memory_mib[part.gpu] if known else 0.0)

    unknown = holding.units - len(holding.parts)
    return sum(map(fraction, holding.parts)) + unknown + sum(count for _, count in holding.mig)
