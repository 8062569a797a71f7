"""Leader election."""

from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator

from extender.settings.section import Section


class ElectionMode(StrEnum):
    """How the deciding replica is chosen."""

    OFF = "off"
    OWN = "own"
    SCHEDULER = "scheduler"
    NEVER = "never"


class LeaderElectionSettings(Section):
    """Leader election among several replicas: see docs/guides/high-availability.md."""

    GONE = {
        "renew_deadline_s": "always three quarters of leader_election.duration_s",
        "retry_s": "always a quarter of leader_election.duration_s, and 2 at most",
    }

    mode: ElectionMode = ElectionMode.OFF
    """`off`: a single replica. `own`: replicas behind a Service elect a leader with their own Lease. `scheduler`: a
    sidecar decides only while the kube-scheduler beside it holds the scheduler's Lease. `never`: makes no decisions and
    writes nothing, for a process that only serves webhooks."""
    namespace: str = Field(default="kube-system", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """Namespace of the Lease."""
    lease: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9.]{0,55}[a-z0-9])?)?$")
    """Name of the Lease, at most 57 characters; empty: `kerf` in mode own, `kube-scheduler` in mode scheduler."""
    identity: str = ""
    """Mode own: prefix of the holder's name in the Lease; "_" and a random suffix are added. Mode scheduler: the holder
    to recognise as the kube-scheduler beside Kerf, alone or followed by "_" and more. Empty: the host name, which
    containers of a pod share and kube-scheduler puts first."""
    pod: str = Field(default="", pattern=r"^([a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*)?$")
    """Mode own: NAMESPACE/NAME of the pod that Kerf runs in. While it leads, that pod has the label `kerf.dev/leads`
    with the Lease's name, by which a Service finds the leader; empty: no label."""
    duration_s: int = Field(default=2, ge=1)
    """Mode own: another replica takes over after this many seconds without a renewal; the leader stops deciding after
    three quarters of that. It renews every quarter, and at least every 2 s; mode scheduler: the Lease is read as
    often."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return ElectionMode.OFF if value is False else value  # YAML reads a bare `off` as false

    @property
    def lease_name(self) -> str:
        """The Lease's name or its default, "" in a mode without a Lease."""
        defaults = {ElectionMode.OWN: "kerf", ElectionMode.SCHEDULER: "kube-scheduler"}
        return (self.lease or defaults[self.mode]) if self.mode in defaults else ""
