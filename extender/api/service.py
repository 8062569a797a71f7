"""The parts of a running service, and how it is."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from extender import __version__
from extender.api.contributions import Contribution
from extender.api.readiness import Blindness
from extender.api.verbs import Verbs
from extender.core.resources.requests import NO_REQUEST
from extender.explain.fixes import Fixes
from extender.explain.overview import Overviews
from extender.explain.pending import PendingPods, Waitlist
from extender.explain.pod_answers import PodAnswers
from extender.explain.workloads import Workloads
from extender.kube.background import Tasks
from extender.kube.rights import MissingRights
from extender.ledger.mirror import Mirror
from extender.metrics.registry import Metrics
from extender.ranking.beside import JudgesRanks
from extender.ranking.descriptions import summary
from extender.ranking.service import LearnedRank
from extender.scheduling.callers import Unasked
from extender.scheduling.fence import Fence
from extender.scheduling.leader_label import LeaderLabel
from extender.scheduling.placer import Placer
from extender.scheduling.takeover import Leadership
from extender.settings.leader_election import ElectionMode
from extender.settings.tree import Settings
from extender.telemetry.observer import Observer
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.status import State


@dataclass
class Service:
    """The parts of a running service that routes speak to."""

    settings: Settings
    mirror: Mirror
    fence: Fence
    leadership: Leadership
    placer: Placer
    verbs: Verbs
    metrics: Metrics
    owners: OwnerUsage
    fixes: Fixes
    waitlist: Waitlist
    pending: PendingPods
    workloads: Workloads
    overviews: Overviews
    pods: PodAnswers
    rank: LearnedRank
    rights: MissingRights
    """What the API server does not let Kerf do."""
    label: LeaderLabel | None = None
    """None where no Service is led to the leader."""
    observer: Observer | None = None
    """None when telemetry is off."""
    judges: JudgesRanks | None = None
    """None where no rank is tried beside the one that serves."""
    contributions: Mapping[str, Contribution] = field(default_factory=dict)
    """What parts bring, by name."""
    unasked: Unasked | None = None
    """None where nobody looks whether kube-scheduler asks."""
    tasks: Sequence[Tasks] = ()
    """What works in the background."""
    draining: bool = field(default=False)
    """Set when the process has been asked to stop: not ready any more, and connections are closed politely."""

    async def ready(self) -> None:
        """Wait until there is what the server serves with."""
        for brought in self.contributions.values():
            await brought.ready()

    async def hand_over(self) -> bool:
        """Let another replica lead, for good; whether one may have begun to by now."""
        leads = self.settings.leader_election.mode is ElectionMode.OWN and not self.fence.standby()
        if leads:
            await self.leadership.stop()
        if self.label is not None:
            await self.label.taken_off()
        return leads

    def fault(self) -> str:
        """Why the service is not ready, "" when it is."""
        return "shutting down" if self.draining else self.fence.fault() or self.mirror.fault()

    def blindness(self) -> Blindness:
        """How far this process sees the cluster. A standby may well: only others decide."""
        why = self.mirror.fault()
        if why and not self.fence.standby():
            why = self.fence.fault() or why  # without an election nothing is mirrored before the take-over is done
        return Blindness(why, self.mirror.age_s())

    def degraded(self) -> list[str]:
        """What works less well than it should, while the service is ready all the same."""
        faults = {
            "kube-scheduler": self.unasked.fault() if self.unasked else "",
            "telemetry": self.observer.fault() if self.observer else "",
            "model": self.rank.fault(),
            **{name: brought.fault() for name, brought in self.contributions.items()},
        }
        lacking = [fault for tasks in self.tasks for fault in tasks.lacking()]
        return [f"{what}: {fault}" for what, fault in faults.items() if fault] + lacking + self.rights.told()

    def hopeless(self) -> str:
        """Why the process had better end and begin anew, "" for nothing."""
        return next((fault for tasks in self.tasks if (fault := tasks.hopeless())), "")

    def status(self) -> dict[str, Any]:
        """What the service says of itself to people; ages in whole seconds."""
        policy, observer = self.placer.policy_of(NO_REQUEST), self.observer
        age_s = observer.age_s() if observer else math.inf
        blind = self.blindness().told
        if (stale_s := blind.get("staleSeconds")) is not None:
            blind["staleSeconds"] = round(stale_s)
        return {
            "version": __version__,
            "mode": self.settings.decisions.mode.value,
            "policy": policy.name,
            "ranking": policy.description,
            "model": summary(self.rank, self.judges),
            "fault": self.fault(),
            "degraded": self.degraded(),
            "queue": self.settings.queue.enabled,
            "telemetry": {
                "state": observer.status.state if observer else State.OFF,
                "ageSeconds": int(age_s) if math.isfinite(age_s) else None,
            },
            **blind,
        }
