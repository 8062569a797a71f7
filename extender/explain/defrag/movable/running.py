"""All that runs, in the planner's words: what it holds, what its restart loses, and why it stays where it does."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from extender.core.clusters import Cluster
from extender.core.resources.nodes import OF_CLAIMS
from extender.core.resources.requests import RequestError
from extender.explain.defrag.facts import Costs, Facts, Held
from extender.explain.defrag.movable.bookings import booking_of, gpus_held
from extender.explain.defrag.movable.budgets import Budgets
from extender.explain.defrag.movable.jobs import Jobs
from extender.explain.defrag.movable.residents import Resident, priority_at_least
from extender.explain.defrag.movable.stays import stays
from extender.kube.objects import Pod, unix_time
from extender.planning.moves.models import keeping_its_model
from extender.planning.moves.problems import Running
from extender.planning.plans import PlanPod
from extender.plugins.holdings import NOTHING, Holding
from extender.plugins.pod_resources import read_compute, while_resized
from extender.plugins.pods import owner_of
from extender.queueing.pods.batches import by_gang, gang_of, plan_pod
from extender.queueing.pods.restrictions import Kinds

_LAST_CHECKPOINT: Final = "kerf.dev/last-checkpoint"
"""Annotation of a pod, RFC 3339: what it has computed since is lost by a restart, and no more."""
_CLOCKS_APART_S: Final = 60.0
"""A checkpoint may seem to be so far in the future; one beyond that is none."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What is known of everybody who runs."""

    facts: Facts
    held: Mapping[str, Held]
    """By UID."""
    budgets: Budgets
    jobs: Jobs
    kinds: Kinds

    def running(self, residents: Iterable[Resident], of_target: str) -> list[Running]:
        """All who hold something, but for those that are there for their node. `of_target` is the target's gang, of
        which nobody is moved for the rest of it."""
        facts, row_of = self.facts, self.facts.cluster.row_of
        known = frozenset(uid for uids in facts.pods_on.values() for uid in uids)
        listed = [resident for resident in residents if resident.pod.spec.node_name]
        of_nodes = by_gang(resident.pod for resident in listed if resident.pod.metadata.belongs_to_a_node).keys()
        living = [
            resident
            for resident in listed
            if resident.pod.spec.node_name in row_of
            and resident.pod.metadata.uid in known
            and not resident.pod.metadata.belongs_to_a_node
        ]
        of_jobs = self.jobs.stays([pod.metadata for pod, *_ in living if (pod.metadata.controller is not None)])
        stuck = {of_target: "it is of the gang for which room is made"} if of_target else {}
        stuck |= dict.fromkeys(of_nodes, "a pod of its gang belongs to its node")
        found = [self._of(resident, of_jobs.get(resident.pod.metadata.uid, ""), stuck) for resident in living]
        return found + self._being_placed({pod.uid for pod in found})

    def _of(self, resident: Resident, of_job: str, stuck: Mapping[str, str]) -> Running:
        """`stuck`: why gangs stay, by their names."""
        facts, pod = self.facts, resident.pod
        cluster, costs = facts.cluster, facts.costs
        uid, row = pod.metadata.uid, cluster.row_of[pod.spec.node_name or ""]
        held = self.held.get(uid)
        holding = held.holding if held is not None and held.node == pod.spec.node_name else NOTHING
        why = resident.fault or stays(pod, resident.demands, self.budgets, costs, facts.gated_in) or of_job
        why = why or self._rests(pod)
        gang, fault = _gang(pod)
        planned = PlanPod(pod.key)
        try:
            planned = keeping_its_model(cluster, row, replace(plan_pod(pod, self.kinds), gang="", beside=()))
        except RequestError as error:
            fault = fault or str(error)
        why = why or stuck.get(gang, "")
        if not why and holding and cluster.unit[row] in OF_CLAIMS:
            why = "its node gives its GPUs out by ResourceClaims"
        return Running(
            key=pod.key,
            uid=uid,
            row=row,
            booked=booking_of(cluster, row, holding, *read_compute(while_resized(pod))),
            pod=replace(planned, policy=planned.policy or self.facts.policy),
            cost_gpu_s=_cost_of(pod, holding, costs, self.facts.now),
            priority=priority_at_least(pod),
            gang=gang,
            budgets=() if why or fault else self.budgets.of(pod.metadata),
            stays=why or (f"where it could go can't be told: {fault}" if fault else ""),
        )

    def _rests(self, pod: Pod) -> str:
        """Why it stays for a while yet, "" where it has run for long enough."""
        age_s, rest_s = max(self.facts.now - _started(pod, self.facts.now), 0.0), self.facts.costs.rest_s
        return f"it has run for {age_s:.0f} s, and is left alone for {rest_s:g} s" if age_s < rest_s else ""

    def _being_placed(self, seen: set[str]) -> list[Running]:
        """Those that are on their way to a node, and count against its being empty."""
        cluster: Cluster = self.facts.cluster
        return [
            Running(
                key=held.key or "a pod that is being placed",
                uid=held.uid,
                row=cluster.row_of[held.node],
                booked=booking_of(cluster, cluster.row_of[held.node], held.holding, 0, 0),
                pod=PlanPod(held.key),
                stays="it is being placed there",
            )
            for held in self.held.values()
            if not held.bound and held.node in cluster.row_of and held.uid not in seen
        ]


def _cost_of(pod: Pod, holding: Holding, costs: Costs, now: float) -> float:
    """GPU-seconds that a restart loses: of what its GPUs have done since its start, or since its last checkpoint, and
    until it works again."""
    since = _started(pod, now)
    saved = unix_time((pod.metadata.annotations or {}).get(_LAST_CHECKPOINT))
    begun = min(max(since, saved if saved <= now + _CLOCKS_APART_S else 0.0), now)
    restart_s = costs.restart_s_of.get(owner_of(pod.metadata), costs.restart_s)
    return gpus_held(holding) * (now - begun + restart_s)


def _started(pod: Pod, now: float) -> float:
    """Unix time."""
    return unix_time(pod.status.start_time) or unix_time(pod.metadata.creation_timestamp) or now


def _gang(pod: Pod) -> tuple[str, str]:
    """Name of its gang, and why that can't be told."""
    try:
        return gang_of(pod)[0], ""
    except RequestError as error:
        return "", str(error)
