"""The parts of a running service, and its status."""

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
from extender.ranking.descriptions import summary
from extender.ranking.interfaces import RankEvaluator
from extender.ranking.service import LearnedRank
from extender.scheduling.callers import UncalledPods
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
    """The parts of a running service that routes use."""

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
    """Permissions that Kerf lacks at the API server."""
    label: LeaderLabel | None = None
    """None if no Service selects the leader by label."""
    observer: Observer | None = None
    """None when telemetry is off."""
    judges: RankEvaluator | None = None
    """None if no other ranks are tried."""
    contributions: Mapping[str, Contribution] = field(default_factory=dict)
    """Contributions of parts, by name."""
    unasked: UncalledPods | None = None
    """None if calls of kube-scheduler are not tracked."""
    tasks: Sequence[Tasks] = ()
    """Background tasks."""
    draining: bool = field(default=False)
    """Set when the process is asked to stop: it is no longer ready, and closes connections gracefully."""

    async def ready(self) -> None:
        """Wait until the parts have what the server needs."""
        for contribution in self.contributions.values():
            await contribution.ready()

    async def hand_over(self) -> bool:
        """Give up leadership for good. Returns whether this replica led, so that another may lead by now."""
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
        """How current this process' view of the cluster is. A standby's may be current too."""
        why = self.mirror.fault()
        if why and not self.fence.standby():
            why = self.fence.fault() or why  # without an election the mirror is empty until the takeover is done
        return Blindness(why, self.mirror.age_s())

    def degraded(self) -> list[str]:
        """What works less well than it should while the service is ready."""
        faults = {
            "kube-scheduler": self.unasked.fault() if self.unasked else "",
            "telemetry": self.observer.fault() if self.observer else "",
            "model": self.rank.fault(),
            **{name: contribution.fault() for name, contribution in self.contributions.items()},
        }
        lacking = [fault for tasks in self.tasks for fault in tasks.lacking()]
        return [f"{what}: {fault}" for what, fault in faults.items() if fault] + lacking + self.rights.sentences()

    def needs_restart(self) -> str:
        """Why the process needs a restart, "" if it does not."""
        return next((fault for tasks in self.tasks if (fault := tasks.needs_restart())), "")

    def status(self) -> dict[str, Any]:
        """The service's status for the page; ages in whole seconds."""
        policy, observer = self.placer.policy_of(NO_REQUEST), self.observer
        age_s = observer.age_s() if observer else math.inf
        blind = self.blindness().answer_keys
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
