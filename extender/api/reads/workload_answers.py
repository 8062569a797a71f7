"""What `GET /workloads` answers, as types: see `extender.api.answers`."""

from typing import Literal

import msgspec

from extender.api.reads.keys import OfCluster, camel


class WorkloadPod(msgspec.Struct, rename=camel):
    pod: str
    namespace: str
    owner: str
    gang: str | None
    state: Literal["running", "starting", "ending", "held", "placing", "pending", "gated"]
    node: str | None
    model: str | None
    gpus: float | None
    indices: list[int]
    memory_mib: int | None
    request: str | None
    load: float | None
    idle_seconds: float | None
    priority: int
    since: float | None
    explain: str | None


class WorkloadSums(msgspec.Struct, rename=camel):
    pods: int
    states: dict[str, int]
    gpus_booked: float
    gpus_asked: float
    load: float | None
    idle_pods: int
    idle_gpus: float


class WorkloadGroup(WorkloadSums, rename=camel):
    namespace: str
    owner: str | None
    idle_seconds: float | None
    since: float | None
    priority: int


class WorkloadNames(msgspec.Struct):
    """Of each kind those that have the text of `q` in their own names."""

    pods: list[str]
    owners: list[str]
    namespaces: list[str]
    gangs: list[str]


class WorkloadList(OfCluster, rename=camel):
    by: Literal["pod", "owner", "namespace"]
    pods: list[WorkloadPod]
    groups: list[WorkloadGroup]
    total: int
    more: int
    at_least: bool
    totals: WorkloadSums
    states: dict[str, int]
    idle_after_seconds: float | None
    found: WorkloadNames | None
