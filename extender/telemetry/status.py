"""How telemetry is doing, for people."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NotRequired, TypedDict

from extender.telemetry.sources.source import Report


class State(StrEnum):
    """How telemetry is doing."""

    OFF = "off"
    """Not wanted."""
    ABSENT = "absent"
    """No source is configured, and none was found."""
    STANDBY = "standby"
    """Another replica leads, and reads."""
    WAITING = "waiting"
    """Nothing has been read yet."""
    OK = "ok"
    DEGRADED = "degraded"
    """The last refresh failed, or the samples can't be trusted: `fault` says why."""


class TelemetryStatus(TypedDict):
    """What `GET /telemetry` answers; more keys where telemetry is on."""

    state: Annotated[str, State.OK.value]
    fault: NotRequired[str]


@dataclass
class Status:
    """What people are told."""

    state: State = State.WAITING
    fault: str = ""
    read_at: float = float("-inf")
    """Monotonic time of the last refresh that succeeded."""
    report: Report = field(default_factory=Report)
    num_hosts: int = 0
    num_gpus: int = 0
    num_gpus_matched: int = 0
    unmatched: tuple[str, ...] = ()
    """Hosts that are no node, the first few."""
    doubts: tuple[str, ...] = ()
    """Sentences about samples of GPUs that are not used, the first few."""
    candidates: tuple[str, ...] = ()
    """Addresses that were found in the cluster."""
    passed_over: tuple[str, ...] = ()
    """Addresses that were found in namespaces which no setting names, the first few."""
    withheld: str = ""
    """Said where they are asked without the credentials of the settings, "" where there are none."""
    fold_s: float = 0.0
    """Time that folding the last refresh took, pauses included."""
    num_refreshes: int = 0
    num_failures: int = 0


def unmatched_reason(status: Status) -> Sequence[str]:
    """Sentences about hosts that are no node."""
    return [f"{host}: matches no node by name, exporter pod or address" for host in status.unmatched]


def passed_over_reason(status: Status) -> Sequence[str]:
    """Sentences about what looks like a Prometheus and is not read."""
    return [
        f"{address} looks like a Prometheus and is not read, for anybody may have made it: if it is yours, set "
        "telemetry.url to it, or name its namespace in telemetry.namespaces"
        for address in status.passed_over
    ]
