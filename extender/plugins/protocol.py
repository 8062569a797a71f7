"""Interface of device plugins: a subclass of `DevicePlugin` in its own file, and a line in `registry`.

It translates between a device plugin's formats on nodes and pods and Kerf's. Each node has one owning plugin. Other
packages add theirs by the entry point group `kerf.plugins`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.nodes import NodeOffer, NodeReading
from extender.core.resources.requests import GpuRequest, PodRequest
from extender.dra.owned import OwnedDevices
from extender.dra.uses import DeviceUse
from extender.kube import objects
from extender.kube.client import Transport
from extender.kube.watches import Feed
from extender.plugins.holdings import Holding


class UnreadableError(ValueError):
    """Something can't be read; the message names the key and the fault."""


class PluginGoneError(UnreadableError):
    """A node has what its plugin has written, but the plugin is gone."""


class LockError(Exception):
    """A node's lock could not be taken in time; the message names its holder."""


class AssignedGpu(msgspec.Struct, frozen=True):
    """One GPU that is assigned to a pod, as its plugin knows it."""

    index: int
    uuid: str
    memory_mib: int
    """The GPU's registered memory."""
    given_milli: int = WHOLE_MILLI
    given_mib: int = 0
    """Memory of the pod's share, 0 for the whole GPU."""


class Handover(msgspec.Struct, frozen=True):
    """What to do at a Binding so that the plugin allocates the assigned GPUs."""

    annotations: Mapping[str, str] = msgspec.field(default_factory=dict)
    locks_node: bool = False
    """Whether the node's lock must direct the plugin to the pod."""


class Locks(Protocol):
    """Locks of nodes, each held for one pod at a time."""

    async def take(self, node: str, namespace: str, name: str) -> None:
        """Lock a node for a pod. Raises LockError, ClusterError."""

    async def release(self, node: str, namespace: str, name: str) -> None:
        """Release a lock, if this pod still holds it. Never fails."""


class Stock(Protocol):
    """A plugin's own API objects, mirrored for one ledger. `upsert` and `remove` return the affected nodes."""

    @property
    def feeds(self) -> Sequence[Feed[Any]]:
        """The feeds of its objects."""

    @property
    def owned(self) -> OwnedDevices | None:
        """The devices that Kerf allocates itself, or None."""

    @property
    def num_allocated(self) -> Mapping[str, int]:
        """Allocated devices by namespace."""

    def upsert(self, item: Any) -> set[str]:
        """An object was added or changed."""

    def remove(self, kind: type, uid: str) -> set[str]:
        """An object was deleted."""

    def offer_of(self, node: str) -> NodeOffer | None:
        """Return what a node without GPUs of the kubelet offers by these objects, or None."""

    def uses_on(self, node: str) -> list[DeviceUse]:
        """Return the uses of a node's devices."""

    def holdings_on(self, node: str) -> list[Holding]:
        """Return what is allocated of a node's GPUs."""

    def serves(self, pod_uid: str) -> bool:
        """Whether a pod's devices are among these allocations, so that the pod itself holds none."""

    def request_of(self, pod: objects.Pod) -> GpuRequest | None:
        """Return what a pod requests by these objects, or None."""


class DevicePlugin:
    """Base class of device plugins; the methods' defaults mean that there is nothing to say."""

    name: str
    resources: tuple[str, ...] = ()
    """Resources that only this plugin serves; kube-scheduler's first extender entry has to list them."""
    written: frozenset[str] = frozenset()
    """Annotations that `handover` may set on a pod."""
    told: bool = False
    """Whether `handover` has to be written with a Binding."""
    led: bool = False
    """Whether its node's lock has to direct it to each pod, which only the binder can do."""
    leftovers: tuple[str, ...] = ()
    """Node annotations that remain when the plugin is gone, and may then be removed."""
    parts: bool = False
    """Whether it serves and enforces parts of GPUs, so that Kerf's annotations may request shares."""

    def owns(self, node: objects.Node) -> bool:
        """Whether this plugin owns a node's GPUs, by evidence that it runs there: its annotations outlive it."""
        return False

    def left_behind(self, node: objects.Node) -> str:
        """Return what the plugin has left on a node that it does not own, and why that does not count; "" for none."""
        return ""

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        """Return what an owned node offers, None to use the kubelet and the labels.

        Raises UnreadableError; the node then offers nothing.
        """
        return None

    def request(self, pod: objects.Pod) -> PodRequest | None:
        """Return a pod's request in this plugin's format, None without one; called for every pod.

        Raises RequestError with a message for the pod's author.
        """
        return None

    def concerns(self, pod: objects.Pod) -> bool:
        """Whether `holding` may return something for a pod; called for every pod."""
        return False

    def holding(self, pod: objects.Pod) -> Holding | None:
        """Return what a pod bound to an owned node was given, None if unknown; UUIDs may replace indices.

        Raises UnreadableError; the pod then holds what it requests, of unknown GPUs.
        """
        return None

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        """Return what to write with a pod's Binding to an owned node.

        `decided_at` is Unix time. Raises RequestError if the pod's containers can't be read.
        """
        return Handover()

    def locks(self, transport: Transport, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Locks | None:
        """Return the locks of its nodes, if `handover` uses them."""
        return None

    def stock(self, reading: NodeReading) -> Stock | None:
        """Return the plugin's own API objects, or None. Not called for plugins of other packages."""
        return None
