"""JSON keys of answers about pods and nodes, with examples where a type alone says little.

The OpenAPI description and its examples are generated from these types, and mypy checks both the server and the
commands against them. kubectl's plugin imports them too, so only the standard library is used here. Parts that differ
from pod to pod are untyped: docs/reference/ has their keys.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

State = Literal["running", "starting", "ending", "held", "placing", "pending", "gated"]
"""State of a pod, see `workloads`."""
By = Literal["pod", "owner", "namespace"]
Sort = Literal["idle", "gpus", "load", "age", "priority", "pods", "name"]

_Pod = Annotated[str, "research/train-1"]


class Remedy(TypedDict):
    kind: Literal["wait", "pod", "move", "nodes", "setting"]
    text: Annotated[str, "wait for research/job-3 on h100-1 to end"]
    command: str | None


class WaitingPod(TypedDict):
    """A summary of a pending pod, for the page's list."""

    pod: _Pod
    request: Annotated[str, "8 GPUs of model h100"]
    why: Annotated[str, "3 x needs 8 GPUs of model h100, best here: 6 free"]
    where: Literal["queue", "kerf", "scheduler"]
    priority: int
    since: Annotated[float, 1795707645.4]


class PendingPod(WaitingPod):
    nearest: Annotated[str | None, "needs 8 GPUs of model h100; h100-1 has 6 free"]
    gang: str | None
    explain: Annotated[str, "kerf explain research/train-1"]
    sentence: Annotated[str, "needs 8 GPUs of model h100; h100-1 has 6 free, research/job-3 holds 2"]
    remedy: Remedy | None
    movesHelp: bool


class PendingList(TypedDict):
    pods: list[PendingPod]
    total: Annotated[int, 1]
    more: int
    atLeast: bool


class GpuSums(TypedDict):
    """Sums over the GPUs of some nodes."""

    gpus: Annotated[int, 8]
    gpusBooked: Annotated[float, 4.0]
    gpusReserved: float
    units: Annotated[int, 8]
    unitsFree: Annotated[int, 4]
    fragments: Annotated[int, 4]
    gpusStranded: Annotated[float | None, 0.7]
    unhealthy: int
    load: Annotated[float | None, 0.3626]


class ClusterTotals(GpuSums):
    nodes: Annotated[int, 38]
    gpuNodes: Annotated[int, 34]
    strandedPart: Annotated[float | None, 0.0284]
    nodesSetAside: int
    nodesFailing: int
    reservations: int
    bindings: int
    waitingPods: Annotated[int, 1]
    pendingPods: Annotated[int, 4]


class ClusterNode(GpuSums):
    node: Annotated[str, "a100-0"]
    unit: Annotated[str, "WHOLE"]
    models: Annotated[list[str], ["a100-sxm4-80gb"]]
    memoryMiB: Annotated[int, 655360]
    memoryFreeMiB: Annotated[int, 327680]
    pods: Annotated[int, 3]
    reservations: int
    devices: dict[str, Any] | None
    setAside: str | None


class NodesPage(TypedDict):
    version: Annotated[int, 261]
    totals: ClusterTotals
    items: list[ClusterNode]
    next: Annotated[str | None, "a100-0"]


class NodeDetails(ClusterNode):
    gpuDetails: Annotated[list[dict[str, Any]], [{"index": 0, "free": True}]]
    deviceUses: list[dict[str, Any]]
    holders: list[dict[str, Any]]


class WorkloadPod(TypedDict):
    pod: _Pod
    namespace: Annotated[str, "research"]
    owner: Annotated[str, "Job/train"]
    gang: str | None
    state: State
    node: Annotated[str | None, "a100-0"]
    model: Annotated[str | None, "a100-sxm4-80gb"]
    gpus: Annotated[float | None, 2.0]
    indices: Annotated[list[int], [0, 1]]
    memoryMiB: Annotated[int | None, 163840]
    request: str | None
    load: Annotated[float | None, 0.012]
    idleSeconds: Annotated[float | None, 5400.0]
    priority: int
    since: Annotated[float | None, 1795707645.0]
    explain: Annotated[str | None, "kerf explain research/train-1"]


class WorkloadSums(TypedDict):
    pods: Annotated[int, 1]
    states: Annotated[dict[str, int], {"running": 1, "pending": 0}]
    gpusBooked: Annotated[float, 2.0]
    gpusAsked: float
    load: Annotated[float | None, 0.012]
    idlePods: Annotated[int, 1]
    idleGpus: Annotated[float, 2.0]


class WorkloadGroup(WorkloadSums):
    namespace: Annotated[str, "research"]
    owner: Annotated[str | None, "Job/train"]
    idleSeconds: Annotated[float | None, 5400.0]
    since: Annotated[float | None, 1795707645.0]
    priority: int


class WorkloadNames(TypedDict):
    """Names that contain the text of `q`, by kind."""

    pods: list[str]
    owners: list[str]
    namespaces: list[str]
    gangs: list[str]


class WorkloadList(TypedDict):
    by: By
    pods: list[WorkloadPod]
    groups: Annotated[list[WorkloadGroup], []]
    total: Annotated[int, 1]
    more: int
    atLeast: bool
    totals: WorkloadSums
    states: Annotated[dict[str, int], {"running": 1, "pending": 0, "idle": 1}]
    idleAfterSeconds: Annotated[float | None, 1800.0]
    found: WorkloadNames | None


class Explanation(TypedDict):
    pod: _Pod
    uid: Annotated[str, "5f6c2f5e-6f0c-4e37-8c0e-1f6f3f3c9d11"]
    decidedAt: Annotated[str | None, "2026-11-26T15:40:45+00:00"]
    policy: Annotated[str | None, "tightest"]
    request: Annotated[str, "8 GPUs"]
    required: Annotated[dict[str, Any], {"count": 8, "unit": "GPU"}]
    node: str | None
    gpus: list[int]
    milli: int | None
    memoryMiB: int | None
    crosses: str | None
    ranking: dict[str, Any] | None
    reasons: Annotated[dict[str, int], {"needs 8 GPUs, best here: 4 free": 1}]
    lacks: str | None
    sentence: Annotated[str, "needs 8 GPUs; a100-0 has 4 free, research/job-1 and research/job-2 hold 4"]
    scoreTerms: dict[str, str]
    nodes: list[dict[str, Any]]

    verdict: Annotated[Literal["placed", "expired", "rejected", "unasked"], "rejected"]
    now: Annotated[dict[str, Any], {"nodesThatFit": 0, "bestNode": None, "held": None, "numChanged": 0}]
    offered: Annotated[bool, True]
    queue: str | None
    remedies: list[Remedy]
    ahead: int | None
    wouldFit: NotRequired[list[dict[str, Any]]]
    byPolicy: NotRequired[dict[str, Any]]
    interference: NotRequired[dict[str, float]]
    askedAgain: NotRequired[dict[str, Any]]
    workload: NotRequired[WorkloadPod]
