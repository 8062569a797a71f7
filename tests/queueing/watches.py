"""Pods as a watch reports them, and an API server of a few paths."""

from typing import Any

import msgspec

from extender.kube.client import ApiError, Query
from extender.kube.objects import Condition, Node, Pod
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_node, decode_pod

GATES = {"schedulingGates": [{"name": "kerf.dev/queue"}]}


def pod(name: str = "p", *, gated: bool = True, spec: dict[str, Any] | None = None, **metadata: Any) -> Pod:
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:10Z"}
    return decode_pod({"metadata": {**meta, **metadata}, "spec": {**(GATES if gated else {}), **(spec or {})}})


class Watched:
    """A backlog, and what it reported."""

    def __init__(self) -> None:
        self.now = 100.0
        self.changes = 0
        self.gone: list[str] = []
        self.backlog = Backlog(lambda: self.now, self._changed, self._left)

    def _changed(self) -> None:
        self.changes += 1

    def _left(self, entry: Entry) -> None:
        self.gone.append(entry.pod.metadata.name)


class Answers:
    """An API server of a few paths; what was written to it, and what it refuses."""

    def __init__(self, answers: dict[str, Any] | None = None, refuse: list[ApiError] | None = None) -> None:
        self.answers = answers or {}
        self._refuse = refuse or []
        self.asked: list[str] = []
        self.queries: list[Query] = []
        self.written: list[tuple[str, Any]] = []

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.asked.append(path)
        self.queries.append(query or {})
        if path not in self.answers:
            raise ApiError(404, "NotFound", path)
        return msgspec.json.encode(self.answers[path])

    async def post(self, path: str, body: bytes) -> bytes:
        return await self.patch(path, body)

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    async def patch(self, path: str, body: bytes) -> bytes:
        self.written.append((path, msgspec.json.decode(body)))
        if self._refuse:
            raise self._refuse.pop(0)
        return b"{}"


def entries(*pods: Pod) -> list[Entry]:
    watched = Watched()
    for item in pods:
        watched.backlog.upsert(item)
    return watched.backlog.waiting()


def node(name: str, cpu: str = "8", **metadata: Any) -> Node:
    return decode_node(
        {
            "metadata": {"name": name, "uid": f"uid-{name}", **metadata},
            "status": {"allocatable": {"cpu": cpu, "memory": "16Gi"}},
        }
    )


def refused(manifest: Pod) -> Pod:
    condition = Condition(type="PodScheduled", reason="Unschedulable", message="no room")
    return msgspec.structs.replace(manifest, status=msgspec.structs.replace(manifest.status, conditions=[condition]))


def nominated(manifest: Pod, node: str) -> Pod:
    return msgspec.structs.replace(manifest, status=msgspec.structs.replace(manifest.status, nominated_node_name=node))
