"""Small clusters in memory with running pods, PodDisruptionBudgets and Jobs."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from extender.kube.client import ApiError, Query
from extender.kube.memory import MemoryCluster
from tests.api.bodies import Manifest, pod

STARTED = "2026-11-21T06:00:00Z"
BUDGETS, JOBS = "/apis/policy/v1/poddisruptionbudgets", "/apis/batch/v1/jobs"


def running(
    name: str, node: str, gpus: int = 1, indices: str | None = None, *, owner: str = "ReplicaSet", **changes: Any
) -> Manifest:
    """A pod of a controller, running since STARTED on the first GPUs of its node or those of `indices`; `changes` are
    arguments of `bodies.pod`."""
    given = ",".join(map(str, range(gpus))) if indices is None else indices
    annotations = {"kerf.dev/assigned-gpus": given, **changes.pop("annotations", {})}
    made = pod(name, gpus or None, node_name=node, annotations=annotations, **changes)
    if owner:
        reference = {"kind": owner, "name": f"of-{name}", "uid": f"owner-of-{name}", "controller": True}
        reference["apiVersion"] = {"Job": "batch/v1", "ConfigMap": "v1"}.get(owner, "apps/v1")
        made["metadata"]["ownerReferences"] = [reference]
    made["status"]["startTime"] = STARTED
    return made


def budget(name: str, allowed: int, labels: Mapping[str, str] | None = None, namespace: str = "default") -> Manifest:
    """A PodDisruptionBudget for pods with these labels; for all pods if there are none."""
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"budget-{name}"},
        "spec": {"selector": {"matchLabels": dict(labels or {})}},
        "status": {"disruptionsAllowed": allowed},
    }


class Cluster(MemoryCluster):
    """Also has budgets and Jobs; a number is the HTTP status of the response to their list."""

    def __init__(
        self,
        objects: Iterable[Manifest],
        budgets: list[Manifest] | int = 404,
        jobs: list[Manifest] | int = 404,
    ) -> None:
        super().__init__(objects)
        self.others = {BUDGETS: budgets, JOBS: jobs}

    async def get(self, path: str, query: Query | None = None) -> bytes:
        found = self.others.get(path)
        if found is None:
            return await super().get(path, query)
        await asyncio.sleep(0)
        if isinstance(found, int):
            raise ApiError(found, "Forbidden" if found == 403 else "NotFound", f"{path} may not be read")
        return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "items": found})
