"""The state of telemetry, for display."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, NotRequired, TypedDict

from extender.telemetry.sources.source import Report


class State(StrEnum):
    """The state of telemetry."""

    OFF = "off"
    """Disabled by the settings."""
    ABSENT = "absent"
    """No source is configured, and none was discovered."""
    STANDBY = "standby"
    """Another replica is the leader and reads."""
    WAITING = "waiting"
    """Nothing has been read yet."""
    OK = "ok"
    DEGRADED = "degraded"
    """The last refresh failed, or the samples can't be trusted; `fault` has the reason."""


class TelemetryStatus(TypedDict):
    """The response of `GET /telemetry`; has more keys if telemetry is on."""

    state: Annotated[str, State.OK.value]
    fault: NotRequired[str]


@dataclass
class Status:
    """The state and results of telemetry."""

    state: State = State.WAITING
    fault: str = ""
    read_at: float = float("-inf")
    """Monotonic time of the last successful refresh."""
    report: Report = field(default_factory=Report)
    num_hosts: int = 0
    num_gpus: int = 0
    num_gpus_matched: int = 0
    unmatched: tuple[str, ...] = ()
    """The first few hosts that match no node."""
    doubts: tuple[str, ...] = ()
    """The first few sentences about unused samples."""
    candidates: tuple[str, ...] = ()
    """Discovered addresses."""
    passed_over: tuple[str, ...] = ()
    """The first few addresses discovered in namespaces that no setting names."""
    withheld: str = ""
    """A sentence if configured credentials are withheld from a discovered source, else ""."""
    fold_s: float = 0.0
    """Duration of folding the last refresh, including pauses."""
    num_refreshes: int = 0
    num_failures: int = 0


def unmatched_reason(status: Status) -> Sequence[str]:
    """Sentences about hosts that match no node."""
    return [f"{host}: matches no node by name, exporter pod or address" for host in status.unmatched]


def passed_over_reason(status: Status) -> Sequence[str]:
    """Sentences about apparent Prometheus servers that are not read."""
    return [
        f"{address} looks like a Prometheus and is not read, since anyone could have created it: if it is yours, set "
        "telemetry.url to it, or add its namespace to telemetry.namespaces"
        for address in status.passed_over
    ]
