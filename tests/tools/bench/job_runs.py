"""Jobs on a control plane, as pods of up to a node, submitted at their times; and what a kubelet does for them."""

import heapq
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from model.workloads.jobs import JobList
from tests.controlplane import ControlPlane, objects
from tests.tools.bench.servers import BenchError

_POLL_S = 0.05
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_CPU_PER_GPU, _MEMORY_GIB_PER_GPU = 12, 128
"""Eight times that is a whole node's."""


@dataclass
class Times:
    """When J jobs were submitted, started and ended, in seconds since the beginning."""

    submitted: list[float]
    started: list[float]
    ended: list[float]
    waiting: set[int] = field(default_factory=set)
    ends: list[tuple[float, int]] = field(default_factory=list)
    """Heap of what runs."""


def run_list(plane: ControlPlane, listed: JobList, spec: dict[str, Any]) -> Times:
    """Submit jobs at their times, and be their kubelet. Raises BenchError when some never end."""
    num_jobs = len(listed.cluster)
    never = [float("inf")] * num_jobs
    times = Times(never.copy(), never.copy(), never.copy())
    begin = time.monotonic()
    limit_s = 3 * float(listed.submitted_s[-1] + listed.gpu_s.sum())  # one after the other, and something for the rest
    coming = 0
    while coming < num_jobs or times.waiting or times.ends:
        now = time.monotonic() - begin
        if now > limit_s:
            raise BenchError(f"{len(times.waiting)} of {num_jobs} jobs have no node after {now:.0f} s")
        while coming < num_jobs and listed.submitted_s[coming] <= now:
            _submit(plane, listed, coming, spec)
            times.submitted[coming] = time.monotonic() - begin
            times.waiting.add(coming)
            coming += 1
        while times.ends and times.ends[0][0] <= now:
            _, job = heapq.heappop(times.ends)
            _set_phase(plane, listed, job, {"phase": "Succeeded"})
            times.ended[job] = time.monotonic() - begin
        for job in _with_a_node(plane) & times.waiting:
            _set_phase(plane, listed, job, {"phase": "Running", "startTime": f"{datetime.now(UTC):{_TIME}}"})
            times.started[job] = time.monotonic() - begin
            times.waiting.remove(job)
            heapq.heappush(times.ends, (times.started[job] + float(listed.duration_s[job]), job))
        time.sleep(_POLL_S)
    return times


def leave_behind(plane: ControlPlane, before: JobList) -> None:
    """Pods that have ended, as a kubelet would have left them; their times are whole seconds."""
    end = datetime.now(UTC)
    for job, duration_s in enumerate(before.duration_s.tolist()):
        name, namespace = f"before-{job:05}", namespace_of(before.cluster[job])
        pod = _pod(name, namespace, int(before.num_gpus[job]), {"nodeName": "gone"})
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)
        terminated = {"exitCode": 0, "finishedAt": f"{end:{_TIME}}"}
        container = {"name": "main", "image": "", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": "Succeeded", "startTime": f"{end - timedelta(seconds=duration_s):{_TIME}}"}
        states = {"containerStatuses": [container | {"state": {"terminated": terminated}}]}
        _set_status(plane, namespace, name, status | states)


def _with_a_node(plane: ControlPlane) -> set[int]:
    """Jobs whose pods have a node and do not run yet."""
    query = "fieldSelector=status.phase%3DPending%2Cspec.nodeName%21%3D"
    items = plane.request("GET", f"/api/v1/pods?{query}")["items"]
    return {int(item["metadata"]["name"].rpartition("-")[2]) for item in items}


def _submit(plane: ControlPlane, listed: JobList, job: int, spec: dict[str, Any]) -> None:
    namespace = namespace_of(listed.cluster[job])
    pod = _pod(f"job-{job:05}", namespace, int(listed.num_gpus[job]), spec)
    plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", pod)


def _pod(name: str, namespace: str, gpus: int, spec: dict[str, Any]) -> dict[str, Any]:
    cpu, memory = f"{gpus * _CPU_PER_GPU}", f"{gpus * _MEMORY_GIB_PER_GPU}Gi"
    return objects.pod(name, gpus, namespace, cpu=cpu, memory=memory, **spec)


def _set_phase(plane: ControlPlane, listed: JobList, job: int, status: dict[str, str]) -> None:
    _set_status(plane, namespace_of(listed.cluster[job]), f"job-{job:05}", status)


def _set_status(plane: ControlPlane, namespace: str, name: str, status: dict[str, Any]) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
    plane.request("PATCH", path, {"status": status}, "application/merge-patch+json")


def namespace_of(cluster: str) -> str:
    """Of a virtual cluster of the list."""
    return f"vc-{cluster}"
