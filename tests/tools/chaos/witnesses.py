"""Who has seen it all: watches pods and nodes all through a run, on a connection of its own that no fault touches.

What a pod really holds is what its Binding wrote: the first version of the pod that has a node, whatever becomes of its
annotations later. At every pod that comes to a node that node is judged, so that no moment is missed between two looks.
"""

import asyncio
import contextlib
import json
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.tools.chaos import checker, holdings
from tests.tools.chaos.checker import Violation
from tests.tools.chaos.devices import manifests
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Journal
from tests.tools.chaos.modes import RECORD
from tests.tools.chaos.moves import manifests as of_moves

NAMESPACE: Final = "default"
"""Others are not looked at: what hostile authors make there need not be readable."""

_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_NODES: Final = "/api/v1/nodes"
DEVICES: Final = {"pods": _PODS, "claims": manifests.CLAIMS, "slices": manifests.SLICES}
"""Where what happens to claims is told, by kind."""
MOVES: Final = {
    **{"pods": _PODS, "nodes": _NODES, "budgets": of_moves.BUDGETS},
    "maps": f"{of_moves.MAPS}?fieldSelector=metadata.name%3D{RECORD}",
}
"""The same of moves."""
_AGAIN_S: Final = 0.1


@dataclass
class Seen:
    """Pods and nodes as the API server has told of them so far."""

    pods: dict[str, Manifest] = field(default_factory=dict)
    """By UID, as they are."""
    bound: dict[str, Manifest] = field(default_factory=dict)
    """By UID, as they were when they came to their node."""
    nodes: dict[str, Manifest] = field(default_factory=dict)
    """By name."""
    violations: dict[Violation, None] = field(default_factory=dict)
    """In the order in which they were seen."""
    by_node: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def pod(self, pod: Manifest) -> None:
        """A pod is there, or has changed."""
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        finished = holdings.finished(pod)
        judged = bool(node) and uid not in self.bound
        self.pods[uid] = pod
        if judged:
            self.bound[uid] = pod
            self.by_node[node].add(uid)
        if judged and not finished:
            self._judge(node)

    def pod_gone(self, uid: str) -> None:
        """A pod is no more."""
        self.pods.pop(uid, None)
        if (bound := self.bound.pop(uid, None)) is not None:
            self.by_node[bound["spec"]["nodeName"]].discard(uid)

    def node(self, node: Manifest) -> None:
        """A node is there, or has changed."""
        self.nodes[node["metadata"]["name"]] = node

    def holding(self) -> list[Manifest]:
        """All pods; those with a node as their Binding wrote them, but for what has ended or is ending."""
        return [self._held(uid) for uid in self.pods]

    def _held(self, uid: str) -> Manifest:
        now = self.pods[uid]
        return now if (bound := self.bound.get(uid)) is None else holdings.as_bound(bound, now)

    def _judge(self, name: str) -> None:
        if (node := self.nodes.get(name)) is not None:
            found = checker.overbooked([node], [self._held(uid) for uid in self.by_node[name]])
            self.violations |= dict.fromkeys(found)


class Witness:
    """Watches from `start` to `stop`, in the running loop."""

    def __init__(self, url: str, token: str, certificate: Path, noted: Mapping[str, str]) -> None:
        """What is `noted` is kept version by version: paths by kind."""
        self._noted = noted
        self.journal = Journal() if noted else None
        """What was told of it."""
        self._url = url
        self._headers = {"Authorization": f"Bearer {token}"}
        self._trusted = ssl.create_default_context(cafile=str(certificate))
        self._tasks: list[asyncio.Task[None]] = []
        self._session: aiohttp.ClientSession | None = None
        self.seen = Seen()

    async def start(self) -> None:
        """Begin."""
        connector = aiohttp.TCPConnector(ssl=self._trusted)
        self._session = aiohttp.ClientSession(self._url, connector=connector, headers=self._headers)
        self._tasks = [
            asyncio.create_task(self._follow(_NODES, self._nodes_listed, self._node_told)),
            asyncio.create_task(self._follow(_PODS, self._pods_listed, self._pod_told)),
        ]
        self._tasks += [asyncio.create_task(self._note(kind, path)) for kind, path in self._noted.items()]

    async def stop(self) -> None:
        """End."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _follow(
        self, path: str, listed: Callable[[str, list[Manifest]], None], told: Callable[[str, Manifest], None]
    ) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError, ValueError, _GoneError):
                version = await self._list(path, listed)
                while True:
                    version = await self._watch(path, version, told)
            await asyncio.sleep(_AGAIN_S)

    async def _note(self, kind: str, path: str) -> None:
        if self.journal is not None:
            await self._follow(path, partial(self.journal.listed, kind), partial(self.journal.told, kind))

    async def _list(self, path: str, listed: Callable[[str, list[Manifest]], None]) -> str:
        async with self._get(path, {}) as answer:
            answer.raise_for_status()
            found: dict[str, Any] = json.loads(await answer.read())
        version = str(found["metadata"]["resourceVersion"])
        listed(version, found["items"])
        return version

    async def _watch(self, path: str, version: str, told: Callable[[str, Manifest], None]) -> str:
        async with self._get(path, {"watch": "true", "resourceVersion": version}) as answer:
            answer.raise_for_status()
            rest = b""
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise _GoneError
                    version = event["object"]["metadata"]["resourceVersion"]
                    told(event["type"], event["object"])
        await asyncio.sleep(_AGAIN_S)
        return version

    def _get(self, path: str, query: dict[str, str]) -> "aiohttp.client._RequestContextManager":
        if self._session is None:
            raise RuntimeError("the witness is used before start()")
        return self._session.get(path, params=query, timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0))

    def _pods_listed(self, _: str, pods: list[Manifest]) -> None:
        for uid in self.seen.pods.keys() - {pod["metadata"]["uid"] for pod in pods}:
            self.seen.pod_gone(uid)
        for pod in pods:
            self.seen.pod(pod)

    def _pod_told(self, event: str, pod: Manifest) -> None:
        if event == "DELETED":
            self.seen.pod_gone(pod["metadata"]["uid"])
        else:
            self.seen.pod(pod)

    def _nodes_listed(self, _: str, nodes: list[Manifest]) -> None:
        self.seen.nodes = {node["metadata"]["name"]: node for node in nodes}

    def _node_told(self, event: str, node: Manifest) -> None:
        if event == "DELETED":
            self.seen.nodes.pop(node["metadata"]["name"], None)
        else:
            self.seen.node(node)


class _GoneError(Exception):
    """The watch has to begin with a list again."""
