"""Response bodies about GPU-hours, each key with an example; see `extender.explain.answers`."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

By = Literal["namespace", "owner", "model"]
Source = Literal["auto", "kerf", "prometheus"]
"""Where the figures come from."""

_At = Annotated[float, 1795707645.0]


class UsageTotals(TypedDict):
    capacityGpuHours: Annotated[float, 168.0]
    freeGpuHours: Annotated[float, 80.0]
    strandedGpuHours: Annotated[float, 8.0]
    sickGpuHours: float
    bookedGpuHours: Annotated[float, 80.0]
    usedGpuHours: Annotated[float, 60.0]
    measuredGpuHours: Annotated[float, 78.0]
    idleGpuHours: Annotated[float, 12.5]


class UsageReport(TypedDict):
    source: Literal["kerf", "prometheus"]
    since: _At
    until: _At
    by: By
    rows: Annotated[list[dict[str, Any]], [{"namespace": "research", "bookedGpuHours": 80.0, "usedGpuHours": 60.0}]]
    totals: UsageTotals
    budgets: Annotated[dict[str, dict[str, float]] | None, {"research": {"gpuHours": 500.0, "spentGpuHours": 80.0}}]
    idle: Annotated[dict[str, Any] | None, {"afterSeconds": 1800.0, "pods": 0, "gpus": 0, "items": []}]
    note: NotRequired[str]


class UsageStep(UsageTotals):
    at: Annotated[int, 1795704000]
    seconds: Annotated[float, 3600.0]
    bookedByNamespace: Annotated[list[float], [64.0, 16.0]]


class UsageOverTime(TypedDict):
    source: Literal["kerf", "prometheus"]
    since: _At
    until: _At
    stepSeconds: Annotated[int, 3600]
    knownSince: Annotated[float | None, 1795102845.0]
    namespaces: Annotated[list[str], ["research", "(other)"]]
    steps: list[UsageStep]
    note: NotRequired[str]
