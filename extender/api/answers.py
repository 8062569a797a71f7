"""What people and programs are answered, as types: for the OpenAPI description, and tests hold the answers to them.

Only that: answers are made elsewhere, as plain objects. Parts that differ from pod to pod are left open; their keys are
in docs/reference/.
"""

from typing import Any, Final, Literal

import msgspec

from extender.api.reads.keys import OfCluster
from extender.api.reads.keys import camel as _key
from extender.api.reads.workload_answers import WorkloadList, WorkloadPod


class ProbeStatus(msgspec.Struct):
    """Of a probe; with 200 `degraded` may name parts that work less well."""

    status: str
    degraded: list[str] = []


class RunningVersion(msgspec.Struct):
    version: str
    mode: str
    policy: str


class Detail(OfCluster):
    """Why there is no answer."""

    detail: Any


class Remedy(msgspec.Struct):
    kind: Literal["wait", "pod", "move", "nodes", "setting"]
    text: str
    command: str | None


class PendingPod(msgspec.Struct, rename=_key):
    pod: str
    request: str
    where: Literal["queue", "kerf", "scheduler"]
    why: str
    nearest: str | None
    priority: int
    gang: str | None
    since: float
    explain: str
    sentence: str
    remedy: Remedy | None
    moves_help: bool


class PendingList(OfCluster, rename=_key):
    pods: list[PendingPod]
    total: int
    more: int
    at_least: bool


class ClusterTotals(msgspec.Struct, rename=_key):
    nodes: int
    gpu_nodes: int
    gpus: int
    gpus_booked: float
    gpus_reserved: float
    units: int
    units_free: int
    fragments: int
    gpus_stranded: float | None
    unhealthy: int
    stranded_part: float | None
    nodes_set_aside: int
    nodes_failing: int
    load: float | None
    reservations: int
    bindings: int
    waiting_pods: int
    pending_pods: int


class ClusterNode(msgspec.Struct, rename=_key):
    node: str
    unit: str
    models: list[str]
    gpus: int
    gpus_booked: float
    gpus_reserved: float
    units: int
    units_free: int
    fragments: int
    gpus_stranded: float | None
    unhealthy: int
    memory_mib: int
    memory_free_mib: int
    load: float | None
    pods: int
    reservations: int
    devices: dict[str, Any] | None
    set_aside: str | None


class NodesPage(OfCluster):
    version: int
    totals: ClusterTotals
    items: list[ClusterNode]
    next: str | None


class NodeDetails(ClusterNode, kw_only=True, rename=_key):
    gpu_details: list[dict[str, Any]]
    device_uses: list[dict[str, Any]]
    holders: list[dict[str, Any]]
    stale_seconds: float | msgspec.UnsetType | None = msgspec.UNSET
    not_ready: str | msgspec.UnsetType = msgspec.UNSET


class Explanation(OfCluster, rename=_key):
    pod: str
    uid: str
    decided_at: str | None
    policy: str | None
    request: str
    required: dict[str, Any]
    verdict: Literal["placed", "expired", "rejected", "unasked"]
    node: str | None
    gpus: list[int]
    reasons: dict[str, int]
    lacks: str | None
    nodes: list[dict[str, Any]]
    now: dict[str, Any]
    offered: bool
    queue: str | None
    sentence: str
    remedies: list[Remedy]
    ahead: int | None
    score_terms: dict[str, str]
    would_fit: list[dict[str, Any]] = msgspec.field(default_factory=list)
    by_policy: dict[str, Any] = msgspec.field(default_factory=dict)
    workload: WorkloadPod | None = None


class UsageTotals(msgspec.Struct, rename=_key):
    capacity_gpu_hours: float
    free_gpu_hours: float
    stranded_gpu_hours: float
    sick_gpu_hours: float
    booked_gpu_hours: float
    used_gpu_hours: float
    measured_gpu_hours: float
    idle_gpu_hours: float


class UsageReport(OfCluster):
    source: Literal["kerf", "prometheus"]
    since: float
    until: float
    by: Literal["namespace", "owner", "model"]
    rows: list[dict[str, Any]]
    totals: UsageTotals
    budgets: dict[str, dict[str, float]] | None
    idle: dict[str, Any] | None
    note: str | None = None


class UsageStep(UsageTotals, rename=_key):
    at: int
    seconds: float
    booked_by_namespace: list[float]


class UsageOverTime(OfCluster, rename=_key):
    source: Literal["kerf", "prometheus"]
    since: float
    until: float
    step_seconds: int
    known_since: float | None
    namespaces: list[str]
    steps: list[UsageStep]
    note: str | None = None


class Telemetry(OfCluster):
    """More keys where telemetry is on."""

    state: str
    fault: str = ""


class Rank(OfCluster):
    mode: str
    path: str | None
    served: str
    reason: str
    fault: str | None
    auto: str
    evidence: dict[str, Any] | None
    learning: dict[str, Any] | None
    model: dict[str, Any] | None
    weights: dict[str, float]
    looks: dict[str, Any]
    prices: dict[str, Any]
    mix: dict[str, Any]


class Moves(OfCluster):
    id: str
    target: str
    phase: Literal["none", "moving", "placing", "done", "stopped"]
    step: int
    num_steps: int
    moves: list[dict[str, Any]]
    kept: list[str]
    why: str
    begun: float
    ended: float
    evicted: int
    fault: str
    policy: dict[str, Any] | None
    culprit: Literal["", "target", "moved"]


class PlacedObject(msgspec.Struct):
    """What becomes of the pods of one object."""

    object: str
    place: str
    pods: int
    placed: int
    nodes: list[dict[str, Any]]
    reasons: dict[str, int]
    notes: list[str]


class WhatIfResult(msgspec.Struct, rename=_key):
    planner: str
    version: int
    pods: int
    placed: int
    gpus: int
    fragments: float
    fragments_before: float
    stranded: float | None
    stranded_before: float | None
    assignments: list[dict[str, Any]]
    unassigned: list[Any]
    reasons: dict[str, Any]
    no_move_helps: list[str]
    """Pods without a node that would have none either if running pods moved."""
    nodes: list[dict[str, Any]]
    moved: list[str]
    gained: list[str]
    unreadable: int
    """Pods whose request can't be understood."""
    objects: list[PlacedObject]
    skipped: list[str]
    not_checked: dict[str, int]
    """What nobody has looked at of pods that find a node, and of how many."""
    missing: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


OF_READS: Final[dict[str, type]] = {
    "/healthz": ProbeStatus,
    "/readyz": ProbeStatus,
    "/syncz": ProbeStatus,
    "/version": RunningVersion,
    "/telemetry": Telemetry,
    "/model": Rank,
    "/explain/pod/{namespace}/{name}": Explanation,
    "/pending": PendingList,
    "/workloads": WorkloadList,
    "/defrag": Moves,
    "/nodes": NodesPage,
    "/nodes/{node}": NodeDetails,
    "/usage": UsageReport,
    "/usage/over-time": UsageOverTime,
}
"""What a GET answers with 200, by path; the others answer no JSON."""
