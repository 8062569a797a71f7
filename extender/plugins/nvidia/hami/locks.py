"""HAMi's node lock: which pod a node's plugin serves next.

The plugin serves the pod of the lock and lets the lock go; without one it takes the first pending pod that is marked,
which may be another one. So a pod is bound to such a node only under the lock, one after the other. A lock whose pod
was served, or will never be, is taken over in time: HAMi itself waits five minutes for that. A pod that its kubelet has
begun to start was served, whatever its annotations say: devices come before images. Read in Project-HAMi/HAMi
`pkg/util/nodelock/nodelock.go` of v2.4.1, v2.7.1, v2.8.3 and v2.10.0.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, Transport
from extender.kube.decoding import Decoder
from extender.kube.paths import NODES_PATH
from extender.plugins.nvidia.hami.pods import BIND_PHASE, PHASE_ALLOCATING
from extender.plugins.protocol import LockError

logger = logging.getLogger(__name__)

NODE_LOCK: Final = "hami.io/mutex.lock"

_EXPIRES_S: Final = 300.0
"""HAMi's default: a lock older than this is anybody's."""
_FIRST_WAIT_S: Final = 0.05
_MAX_WAIT_S: Final = 0.5
_LETS_GO_S: Final = 5.0
"""A lock whose pod is served is the plugin's to let go for so long. It tries for up to 2.3 s and looks only once whose
lock it is: one taken over meanwhile would be deleted, and the next pod be served as another one, which fails it."""
_UNBOUND_S: Final = 30.0
"""A lock is taken before its pod is bound; a pod that has no node for longer was given up."""

_node_decoder = Decoder(objects.Node)
_pod_decoder = Decoder(objects.Pod)


@dataclass(frozen=True, slots=True)
class NodeLock:
    """Which pod a node's plugin serves: while it stands, nobody else may send one there."""

    locked_at: float
    """Unix time, 0 when it can't be read: then it has long expired."""
    namespace: str = ""
    name: str = ""
    """"" in the form that named no pod."""

    def is_of(self, namespace: str, name: str) -> bool:
        """Whether it was taken for this pod."""
        return (self.namespace, self.name) == (namespace, name)

    def expired(self, wall_now: float) -> bool:
        """Whether it is anybody's."""
        return wall_now - self.locked_at > _EXPIRES_S


def _read_lock(annotations: Mapping[str, str]) -> NodeLock | None:
    """A node's lock, None when it is free."""
    text = annotations.get(NODE_LOCK)
    if text is None:
        return None
    time, *pod = text[:1024].split(",")
    try:
        locked_at = datetime.fromisoformat(time)
    except ValueError:
        locked_at = datetime.fromtimestamp(0, UTC)
    at = (locked_at if locked_at.tzinfo else locked_at.replace(tzinfo=UTC)).timestamp()
    return NodeLock(at, *pod) if len(pod) == 2 else NodeLock(at)


def _format_lock(namespace: str, name: str, wall_now: float) -> str:
    """A node's lock for one pod: RFC 3339 time, namespace, name."""
    at = datetime.fromtimestamp(int(wall_now), UTC)
    return f"{at:%Y-%m-%dT%H:%M:%SZ},{namespace},{name}"


class NodeLocks:
    """Takes and releases nodes' locks, for pods that Kerf binds."""

    def __init__(
        self,
        transport: Transport,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        wait_s: float = 3.0,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._wall_clock = wall_clock
        self._wait_s = wait_s
        self._queues: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by node, while one is in use
        self._left: dict[str, tuple[NodeLock, float]] = {}  # by node, with when its pod was first seen not to need it
        self._met: dict[str, tuple[NodeLock, float]] = {}  # by node, with when it was first seen

    async def take(self, node: str, namespace: str, name: str) -> None:
        """Lock a node for a pod; pods of the same node wait for each other. Raises LockError, ClusterError."""
        queue = self._queues.setdefault(node, asyncio.Lock())
        deadline = self._clock() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                await queue.acquire()
            try:
                await self._take(node, namespace, name, deadline)
            finally:
                queue.release()
        except TimeoutError:
            raise LockError(f"node {node} has been locked for other pods for more than {self._wait_s:g} s") from None

    async def release(self, node: str, namespace: str, name: str) -> None:
        """Let a pod's lock go, if it still is the pod's. Never fails: one that stays is taken over in time."""
        try:
            while True:
                found = await self._get_node(node)
                lock = _read_lock(found.metadata.annotations or {})
                if lock is None or not lock.is_of(namespace, name):
                    return
                if await self._write(found, None):
                    return
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("the lock of node %s for pod %s/%s could not be released: %s", node, namespace, name, error)

    async def _take(self, node: str, namespace: str, name: str, deadline: float) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                found = await self._get_node(node)
            except msgspec.DecodeError as error:
                raise LockError(f"node {node} can't be read: {error}") from error
            lock = _read_lock(found.metadata.annotations or {})
            if lock is None or lock.is_of(namespace, name) or await self._is_stale(lock, node):
                if await self._write(found, _format_lock(namespace, name, self._wall_clock())):
                    self._left.pop(node, None)
                    self._met.pop(node, None)
                    return
            elif self._clock() + wait_s > deadline:
                raise LockError(f"node {node} is locked for pod {lock.namespace}/{lock.name}, which HAMi serves first")
            else:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _MAX_WAIT_S)
            if self._clock() > deadline:
                raise LockError(f"node {node} could not be locked within {self._wait_s:g} s")

    async def _get_node(self, node: str) -> objects.Node:
        return _node_decoder.decode(await self._transport.get(f"{NODES_PATH}/{node}"))

    async def _write(self, node: objects.Node, lock: str | None) -> bool:
        """Write a node's lock or take it away; False when the node has changed meanwhile.

        By way of its status, so that no right to change a node's spec is needed.
        """
        metadata = {"annotations": {NODE_LOCK: lock}, "resourceVersion": node.metadata.resource_version}
        try:
            path = f"{NODES_PATH}/{node.metadata.name}/status"
            await self._transport.patch(path, msgspec.json.encode({"metadata": metadata}))
        except ApiError as error:
            if error.status == 409:
                return False
            raise
        return True

    async def _is_stale(self, lock: NodeLock, node: str) -> bool:
        """Whether nobody will let a lock go: it has expired, by its time or by this clock where the other is ahead, or
        its pod has been served, elsewhere or gone for long."""
        if lock.expired(self._wall_clock()) or self._seen_for_s(self._met, node, lock) > _EXPIRES_S:
            return True
        if not lock.name:
            return False
        try:
            pod = _pod_decoder.decode(
                await self._transport.get(f"/api/v1/namespaces/{lock.namespace}/pods/{lock.name}")
            )
        except ApiError as error:
            if error.status != 404:
                raise
        except msgspec.DecodeError:
            return False
        else:
            if not pod.spec.node_name:
                return self._wall_clock() - lock.locked_at > _UNBOUND_S
            phase = (pod.metadata.annotations or {}).get(BIND_PHASE, "")
            # A kubelet has a pod's devices allocated before it pulls images, and tells of its start after that.
            waits = pod.status.phase == "Pending" and pod.status.start_time is None
            if pod.spec.node_name == node and waits and phase == PHASE_ALLOCATING:
                return False
        return self._seen_for_s(self._left, node, lock) >= _LETS_GO_S

    def _seen_for_s(self, seen: dict[str, tuple[NodeLock, float]], node: str, lock: NodeLock) -> float:
        """How long a node's lock is among those `seen`, which it is from now on."""
        before, since = seen.get(node, (None, 0.0))
        if before != lock:
            since = self._clock()
            seen[node] = lock, since
        return self._clock() - since
