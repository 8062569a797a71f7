"""An in-memory substitute for the API server, with its paths and JSON; the demo uses it."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterable
from copy import deepcopy
from typing import Any, Final
from uuid import uuid4

import msgspec

from extender.kube.client import ApiError, Query
from extender.kube.transport import NODES_PATH, PODS_PATH

_POD: Final = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?P<name>[^/]+)(?:/(?P<part>binding|status))?")
_LEASES: Final = re.compile(r"/apis/coordination\.k8s\.io/v1/namespaces/[^/]+/leases")
_NODE: Final = re.compile(r"/api/v1/nodes/(?P<name>[^/]+)(?P<status>/status)?")
_EVENTS: Final = re.compile(r"/api/v1/namespaces/[^/]+/events")

Manifest = dict[str, Any]


class MemoryCluster:
    """An in-memory API server of nodes, pods, leases and ConfigMaps."""

    def __init__(self, objects: Iterable[Manifest] = ()) -> None:
        self._objects: dict[str, dict[tuple[str, str], Manifest]] = {NODES_PATH: {}, PODS_PATH: {}}
        self._watchers: dict[str, set[asyncio.Queue[bytes]]] = {NODES_PATH: set(), PODS_PATH: set()}
        self._leases: dict[str, Manifest] = {}  # by path
        self._config_maps: dict[str, Manifest] = {}  # by path
        self._version = 0
        self.events: list[Manifest] = []
        """The written events, oldest first."""
        for manifest in objects:
            self.apply(manifest)

    def apply(self, manifest: Manifest) -> None:
        """Create an object, or replace the one of that name."""
        path, key = _place(manifest)
        known = self._objects[path].get(key)
        stored = deepcopy(manifest)
        stored["metadata"].setdefault("uid", known["metadata"]["uid"] if known else str(uuid4()))
        self._objects[path][key] = stored
        self._publish(path, "MODIFIED" if known else "ADDED", stored)

    def keep_config_map(self, namespace: str, name: str) -> Manifest:
        """Create an empty ConfigMap, unless it exists, and return it."""
        self._version += 1
        config_map = {"metadata": {"namespace": namespace, "name": name, "resourceVersion": str(self._version)}}
        return self._config_maps.setdefault(f"/api/v1/namespaces/{namespace}/configmaps/{name}", config_map)

    def breathe(self) -> None:
        """Send all watchers a sign of life, as bookmarks do."""
        for queues in self._watchers.values():
            for queue in queues:
                queue.put_nowait(b"")

    @property
    def num_untold(self) -> int:
        """Number of lines that watchers have not taken yet."""
        return sum(queue.qsize() for queues in self._watchers.values() for queue in queues)

    def delete(self, manifest: Manifest) -> None:
        """Delete the object of that name."""
        path, key = _place(manifest)
        self._publish(path, "DELETED", self._objects[path].pop(key))

    def pod(self, namespace: str, name: str) -> Manifest:
        """Return a pod. Raises ApiError 404."""
        try:
            return self._objects[PODS_PATH][namespace, name]
        except KeyError:
            raise ApiError(404, "NotFound", f'pods "{name}" not found') from None

    def node(self, name: str) -> Manifest:
        """Return a node. Raises ApiError 404."""
        try:
            return self._objects[NODES_PATH]["", name]
        except KeyError:
            raise ApiError(404, "NotFound", f'nodes "{name}" not found') from None

    async def start(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to close."""

    async def get(self, path: str, query: Query | None = None) -> bytes:
        if path in self._objects:
            items = list(self._objects[path].values())
            return msgspec.json.encode({"metadata": {"resourceVersion": str(self._version)}, "items": items})
        if found := self._leases.get(path) or self._config_maps.get(path):
            return msgspec.json.encode(found)
        match = _POD.fullmatch(path)
        if match and not match["part"]:
            return msgspec.json.encode(self.pod(match["namespace"], match["name"]))
        if match := _NODE.fullmatch(path):
            return msgspec.json.encode(self.node(match["name"]))
        raise ApiError(404, "NotFound", f"nothing at {path}")

    async def post(self, path: str, body: bytes) -> bytes:
        manifest = msgspec.json.decode(body, type=Manifest)
        if _EVENTS.fullmatch(path):
            self.events.append(manifest)
            return body
        if _LEASES.fullmatch(path):
            return self._create_lease(f"{path}/{manifest['metadata']['name']}", manifest)
        match = _POD.fullmatch(path)
        if match and match["part"] == "binding":
            self._bind(self.pod(match["namespace"], match["name"]), manifest)
            return b'{"kind":"Status","status":"Success","code":201}'
        raise ApiError(404, "NotFound", f"nothing at {path}")

    async def patch(self, path: str, body: bytes) -> bytes:
        if match := _NODE.fullmatch(path):
            return self._patch_node(self.node(match["name"]), msgspec.json.decode(body, type=Manifest)["metadata"])
        if path in self._leases:
            return self._patch_lease(self._leases[path], msgspec.json.decode(body, type=Manifest))
        if path in self._config_maps:
            return self._patch_config_map(self._config_maps[path], msgspec.json.decode(body, type=Manifest))
        match = _POD.fullmatch(path)
        if not match or match["part"] != "status":
            raise ApiError(404, "NotFound", f"nothing at {path}")
        pod = self.pod(match["namespace"], match["name"])
        change = msgspec.json.decode(body, type=Manifest)
        requested = change.get("metadata", {})
        if requested.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise ApiError(422, "Invalid", f"metadata.uid: Invalid value: {requested['uid']}: field is immutable")
        if requested.get("resourceVersion", pod["metadata"]["resourceVersion"]) != pod["metadata"]["resourceVersion"]:
            raise _changed(pod["metadata"]["name"])
        _annotate(pod["metadata"], requested)
        pod["status"] = {**pod.get("status", {}), **change.get("status", {})}
        self._publish(PODS_PATH, "MODIFIED", pod)
        return msgspec.json.encode(pod)

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise ApiError(404, "NotFound", f"nothing at {path}")

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._watchers[path].add(queue)
        ends_at = asyncio.get_running_loop().time() + float(query.get("timeoutSeconds", "inf"))
        try:
            yield []
            with contextlib.suppress(TimeoutError):  # ends as a real watch does
                while True:
                    async with asyncio.timeout_at(ends_at):
                        lines = [await queue.get()]
                    with contextlib.suppress(asyncio.QueueEmpty):
                        while True:
                            lines.append(queue.get_nowait())
                    yield lines
        finally:
            self._watchers[path].discard(queue)

    def _patch_node(self, node: Manifest, requested: Manifest) -> bytes:
        """Apply a merge patch of a node's annotations."""
        metadata = node["metadata"]
        if requested.get("resourceVersion") not in (None, metadata["resourceVersion"]):
            raise ApiError(409, "Conflict", "the object has been modified")
        _annotate(metadata, requested)
        self._publish(NODES_PATH, "MODIFIED", node)
        return msgspec.json.encode(node)

    def _bind(self, pod: Manifest, binding: Manifest) -> None:
        """As the API server's `setPodNodeAndMetadata`."""
        metadata, requested = pod["metadata"], binding["metadata"]
        if requested.get("uid") not in (None, "", metadata["uid"]):
            raise ApiError(
                409, "Conflict", f"the UID in the precondition ({requested['uid']}) is not {metadata['uid']}"
            )
        if requested.get("resourceVersion") not in (None, "", metadata["resourceVersion"]):
            raise _changed(metadata["name"])
        if pod["spec"].get("nodeName"):
            raise ApiError(409, "Conflict", f"pod {metadata['name']} is already assigned to node")
        pod["spec"]["nodeName"] = binding["target"]["name"]
        _annotate(metadata, requested)
        pod["status"] = {"phase": "Running"}
        self._publish(PODS_PATH, "MODIFIED", pod)

    def _create_lease(self, path: str, lease: Manifest) -> bytes:
        if path in self._leases:
            raise ApiError(409, "AlreadyExists", f"{path} already exists")
        self._version += 1
        lease["metadata"] |= {"uid": str(uuid4()), "resourceVersion": str(self._version)}
        self._leases[path] = lease
        return msgspec.json.encode(lease)

    def _patch_lease(self, lease: Manifest, change: Manifest) -> bytes:
        metadata = lease["metadata"]
        if change["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise _changed(metadata["name"])
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        lease["spec"] |= change["spec"]
        return msgspec.json.encode(lease)

    def _patch_config_map(self, config_map: Manifest, requested: Manifest) -> bytes:
        """Apply a merge patch of annotations and data."""
        metadata, change = config_map["metadata"], requested.get("metadata", {})
        if change.get("resourceVersion", metadata["resourceVersion"]) != metadata["resourceVersion"]:
            raise _changed(metadata["name"])
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        _annotate(metadata, change)
        for part in ("data", "binaryData"):
            data = {**config_map.get(part, {}), **requested.get(part, {})}
            config_map[part] = {key: value for key, value in data.items() if value is not None}
        return msgspec.json.encode(config_map)

    def _publish(self, path: str, kind: str, manifest: Manifest) -> None:
        self._version += 1
        manifest["metadata"]["resourceVersion"] = str(self._version)
        line = msgspec.json.encode({"type": kind, "object": manifest})
        for queue in self._watchers[path]:
            queue.put_nowait(line)


def _annotate(metadata: Manifest, requested: Manifest) -> None:
    """Merge annotations."""
    annotations = {**metadata.get("annotations", {}), **requested.get("annotations", {})}
    metadata["annotations"] = {key: value for key, value in annotations.items() if value is not None}


def _changed(name: str) -> ApiError:
    return ApiError(409, "Conflict", f"{name}: the object has been modified")


def _place(manifest: Manifest) -> tuple[str, tuple[str, str]]:
    metadata = manifest["metadata"]
    if manifest["kind"] == "Node":
        return NODES_PATH, ("", metadata["name"])
    return PODS_PATH, (metadata.setdefault("namespace", "default"), metadata["name"])
