"""HAMi's node lock: which pod a node's plugin serves next.

The plugin serves the pod of the lock and lets the lock go; without one it takes the first pending pod that is marked,
which may be another one. So a pod is bound to such a node only under the lock, one after the other. A lock whose pod
is served, or will never be, is taken over: HAMi itself waits five minutes for that.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from extender.cluster import objects
from extender.cluster.contracts.hami import BIND_PHASE, PHASE_ALLOCATING
from extender.cluster.contracts.hami_nodes import NODE_LOCK, NodeLock, format_lock, read_lock
from extender.cluster.decoding import Decoder
from extender.cluster.mirrors import NODES_PATH
from extender.cluster.transports import ApiError, ClusterError, Transport

logger = logging.getLogger(__name__)

_FIRST_WAIT_S: Final = 0.05
_MAX_WAIT_S: Final = 0.5
_UNBOUND_S: Final = 30.0
"""A lock is taken before its pod is bound; a pod that has no node for longer was given up."""

_node_decoder = Decoder(objects.Node)
_pod_decoder = Decoder(objects.Pod)


class LockError(Exception):
    """A node's lock could not be had in time; the sentence says who has it."""


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
        self._queues: dict[str, tuple[asyncio.Lock, int]] = {}  # by node, with the number of those who use it

    async def take(self, node: str, namespace: str, name: str) -> None:
        """Lock a node for a pod; pods of the same node wait for each other. Raises LockError, ClusterError."""
        queue, users = self._queues.get(node) or (asyncio.Lock(), 0)
        self._queues[node] = queue, users + 1
        deadline = self._clock() + self._wait_s
        try:
            async with asyncio.timeout(self._wait_s):
                await queue.acquire()
            try:
                await self._take(node, namespace, name, deadline)
            finally:
                queue.release()
        except TimeoutError:
            raise LockError(f"node {node} is locked for other pods for longer than {self._wait_s:g} s") from None
        finally:
            queue, users = self._queues[node]
            if users == 1:
                del self._queues[node]
            else:
                self._queues[node] = queue, users - 1

    async def release(self, node: str, namespace: str, name: str) -> None:
        """Let a pod's lock go, if it still is the pod's. Never fails: one that stays is taken over in time."""
        try:
            while True:
                found = await self._get_node(node)
                lock = read_lock(found.metadata.annotations or {})
                if lock is None or not lock.is_of(namespace, name):
                    return
                if await self._write(found, None):
                    return
        except (ClusterError, msgspec.DecodeError) as error:
            logger.warning("the lock of node %s for pod %s/%s is left behind: %s", node, namespace, name, error)

    async def _take(self, node: str, namespace: str, name: str, deadline: float) -> None:
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                found = await self._get_node(node)
            except msgspec.DecodeError as error:
                raise LockError(f"node {node} can't be read: {error}") from error
            lock = read_lock(found.metadata.annotations or {})
            if lock is None or lock.is_of(namespace, name) or await self._is_stale(lock, node):
                if await self._write(found, format_lock(namespace, name, self._wall_clock())):
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
        """Whether nobody will let a lock go: it has expired, or its pod is served, elsewhere, ended or gone."""
        if lock.expired(self._wall_clock()):
            return True
        if not lock.name:
            return False
        try:
            pod = _pod_decoder.decode(
                await self._transport.get(f"/api/v1/namespaces/{lock.namespace}/pods/{lock.name}")
            )
        except ApiError as error:
            if error.status == 404:
                return True
            raise
        except msgspec.DecodeError:
            return False
        if not pod.spec.node_name:
            return self._wall_clock() - lock.locked_at > _UNBOUND_S
        phase = (pod.metadata.annotations or {}).get(BIND_PHASE, "")
        return pod.spec.node_name != node or pod.status.phase != "Pending" or phase != PHASE_ALLOCATING
