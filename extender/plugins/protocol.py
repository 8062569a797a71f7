"""What a device plugin is to Kerf: a subclass of `DevicePlugin` in a file of its own, and a line in `registry`.

A plugin's words on nodes and pods are read into Kerf's terms, and what Kerf decides is written in the plugin's words.
Each node belongs to one plugin. Packages bring their own by the entry point group `kerf.plugins`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

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
    """What can't be read: the sentence names the key and what is wrong with it."""


class PluginGoneError(UnreadableError):
    """What a node's plugin has written is there, and the plugin is not."""


class LockError(Exception):
    """A node's lock could not be had in time; the sentence says who has it."""


@dataclass(frozen=True, slots=True)
class AssignedGpu:
    """One GPU that a pod gets, as its plugin knows it."""

    index: int
    uuid: str
    memory_mib: int
    """All its memory, as registered."""
    given_milli: int = WHOLE_MILLI
    given_mib: int = 0
    """What the pod is given of it, where that is less than the whole."""


@dataclass(frozen=True, slots=True)
class Handover:
    """What has to be done with a Binding so that the plugin hands out what was decided."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    locks_node: bool = False
    """Whether the plugin must be led to the pod by its node's lock."""


class Locks(Protocol):
    """Locks of nodes, each for one pod at a time."""

    async def take(self, node: str, namespace: str, name: str) -> None:
        """Lock a node for a pod. Raises LockError, ClusterError."""

    async def release(self, node: str, namespace: str, name: str) -> None:
        """Let a pod's lock go, if it still is the pod's. Never fails."""


class Stock(Protocol):
    """What a plugin tells by objects of its own, mirrored for one ledger.

    What takes objects in returns the nodes of which something has changed.
    """

    @property
    def feeds(self) -> Sequence[Feed[Any]]:
        """Which objects."""

    @property
    def owned(self) -> OwnedDevices | None:
        """The devices that Kerf allocates itself."""

    @property
    def num_allocated(self) -> Mapping[str, int]:
        """Devices that are allocated, by namespace."""

    def upsert(self, item: Any) -> set[str]:
        """An object was added or changed."""

    def remove(self, kind: type, uid: str) -> set[str]:
        """An object is gone."""

    def offer_of(self, node: str) -> NodeOffer | None:
        """What a node offers by these objects, where its kubelet offers no GPUs; None when it has none."""

    def uses_on(self, node: str) -> list[DeviceUse]:
        """Who has which of a node's devices."""

    def holdings_on(self, node: str) -> list[Holding]:
        """What is allocated of a node's GPUs."""

    def serves(self, pod_uid: str) -> bool:
        """Whether a pod's devices are among what is allocated, and not the pod's own to hold."""

    def request_of(self, pod: objects.Pod) -> GpuRequest | None:
        """What a pod asks for by these objects, None when nothing."""


class DevicePlugin:
    """How a device plugin writes on nodes and pods. Says nothing unless a method is overridden."""

    name: str
    resources: tuple[str, ...] = ()
    """Resources that only this plugin hands out: kube-scheduler's first extender entry has to name them."""
    written: frozenset[str] = frozenset()
    """Annotations that `handover` may give a pod."""
    told: bool = False
    """Whether it has to be told of a Binding: `handover`."""
    led: bool = False
    """Whether it has to be led to each pod by its node's lock, as only who binds the pod can."""
    leftovers: tuple[str, ...] = ()
    """Annotations of nodes that stay when it is gone, and that somebody may take off then."""
    parts: bool = False
    """Whether it hands out parts of GPUs, and enforces them: there Kerf's own annotations may ask for a share."""

    def owns(self, node: objects.Node) -> bool:
        """Whether a node's GPUs are this plugin's: by evidence that it is at work there, since what a plugin has
        written stays behind when it is gone."""
        return False

    def left_behind(self, node: objects.Node) -> str:
        """What of the plugin's is on a node that is not its own, and why that does not count, in a sentence; "" for
        nothing. Asked where no GPUs are offered, and by who looks for it."""
        return ""

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        """What one of its nodes offers, None for what the kubelet and the labels say. Raises UnreadableError: then it
        offers nothing."""
        return None

    def request(self, pod: objects.Pod) -> PodRequest | None:
        """What a pod asks for in this plugin's words, None when it uses none of them; asked of every pod.

        Raises RequestError with a sentence for its author.
        """
        return None

    def concerns(self, pod: objects.Pod) -> bool:
        """Whether `holding` may have something to say of a pod; asked of every pod."""
        return False

    def holding(self, pod: objects.Pod) -> Holding | None:
        """What a bound pod has been given of one of its nodes, None when it does not say. UUIDs do instead of indices.

        Raises UnreadableError: then as much is held as the pod asks for, nobody knows of which GPUs.
        """
        return None

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        """What has to be written with a pod's Binding to one of its nodes, where it has to be told.

        `decided_at` is Unix time. Raises RequestError when the pod's containers can't be read.
        """
        return Handover()

    def locks(self, transport: Transport, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Locks | None:
        """The locks of its nodes, where `handover` asks for them."""
        return None

    def stock(self, reading: NodeReading) -> Stock | None:
        """What it tells by objects other than nodes and pods; None when it has none. Not asked of other packages."""
        return None
