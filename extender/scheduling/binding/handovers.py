"""What a node's device plugin is told of a Binding: annotations that go with it, and the lock of its node."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from extender.kube import objects
from extender.kube.client import Transport
from extender.ledger.ledger import Claim
from extender.ledger.rows import NodeRows
from extender.plugins.protocol import DevicePlugin, Handover, Locks
from extender.plugins.registry import assigned_gpus
from extender.scheduling.assignments import PodIdentity


@dataclass(eq=False)
class Handovers:
    """Hands decisions over to the plugins of their nodes."""

    transport: Transport
    rows: NodeRows
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _locks: dict[str, Locks | None] = field(default_factory=dict, init=False)  # by plugin

    async def prepare(
        self,
        pod: PodIdentity,
        held: Claim,
        decided_at: float,
        read: Callable[[], Awaitable[objects.Pod | None]],
    ) -> Handover:
        """What has to be written with a Binding; the node is locked for it where its plugin wants that.

        `read` reads the pod as it is. Raises ClusterError, DecodeError, RequestError, LockError.
        """
        node = held.node
        plugin, manifest = self.rows.plugin_on(node), self.rows.manifest(node)
        gpus = assigned_gpus(self.rows.offer_of(node), held.holding)
        if manifest is None or not plugin.told or not gpus or (found := await read()) is None:
            return Handover()
        handed = plugin.handover(found, gpus, manifest, decided_at)
        if handed.locks_node and (locks := self._locks_of(plugin)) is not None:
            await locks.take(node, pod.namespace, pod.name)
        return handed

    async def give_up(self, pod: PodIdentity, node: str, handed: Handover) -> None:
        """A Binding will not take effect: let the lock go that was taken for it."""
        if handed.locks_node and (locks := self._locks_of(self.rows.plugin_on(node))) is not None:
            await locks.release(node, pod.namespace, pod.name)

    def _locks_of(self, plugin: DevicePlugin) -> Locks | None:
        if plugin.name not in self._locks:
            self._locks[plugin.name] = plugin.locks(self.transport, self.clock, self.wall_clock)
        return self._locks[plugin.name]
