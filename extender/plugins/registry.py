"""The device plugins: Kerf's own, and those of other packages (entry point group `kerf.plugins`)."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, TypeVar

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.nodes import NodeOffer, NodeReading
from extender.core.resources.requests import PodRequest, RequestError
from extender.kube import objects
from extender.kube.client import Transport
from extender.plugins.dra import Dra
from extender.plugins.formats import asks_any
from extender.plugins.holdings import Holding
from extender.plugins.native import Native
from extender.plugins.nvidia.gpushare import GpuShare
from extender.plugins.nvidia.hami import Hami
from extender.plugins.protocol import AssignedGpu, DevicePlugin, Handover, Locks, UnreadableError

logger = logging.getLogger(__name__)

_GROUP: Final = "kerf.plugins"
NATIVE: Final = Native()
_BUILT_IN: Final[tuple[DevicePlugin, ...]] = (Hami(), GpuShare(), Dra())

_T = TypeVar("_T")


@cache
def plugins() -> tuple[DevicePlugin, ...]:
    """All device plugins, in the order in which they are asked whose a node is; the last one takes every node."""
    return (
        *_BUILT_IN,
        *_load_all(entry_points(group=_GROUP), {plugin.name for plugin in (*_BUILT_IN, NATIVE)}),
        NATIVE,
    )


def plugin_of(node: objects.Node) -> DevicePlugin:
    """Whose a node's GPUs are."""
    return next(plugin for plugin in plugins() if plugin.owns(node))


def left_behind(node: objects.Node, owner: DevicePlugin) -> dict[DevicePlugin, str]:
    """What plugins that are gone have left on a node of another one's, or of nobody's, in a sentence each."""
    return {plugin: told for plugin in plugins() if plugin is not owner and (told := plugin.left_behind(node))}


def assigned_gpus(offer: NodeOffer, holding: Holding) -> tuple[AssignedGpu, ...]:
    """The GPUs of a decision as a plugin has to be told them."""
    return tuple(
        AssignedGpu(
            part.gpu,
            offer.gpus[part.gpu].uuid,
            offer.gpus[part.gpu].memory_mib,
            WHOLE_MILLI if part.whole else part.milli,
            part.mib,
        )
        for part in holding.parts
        if 0 <= part.gpu < len(offer.gpus)
    )


# Plugins of other packages


def _load_all(entries: Iterable[EntryPoint], names: set[str]) -> list[DevicePlugin]:
    """Those that can be loaded and have none of these names; of the others the log tells."""
    found: list[DevicePlugin] = []
    for entry in sorted(entries, key=lambda entry: entry.name):
        try:
            plugin = _load(entry)
            if plugin.name in names:
                raise ValueError(f"there is another device plugin {plugin.name!r}")
        except Exception as error:
            logger.error("device plugin %s (%s) is left out: %s", entry.name, entry.value, error)
            continue
        names.add(plugin.name)
        found.append(_Guarded(plugin))
        logger.info("device plugin %s of %s is loaded", plugin.name, entry.value)
    return found


def _load(entry: EntryPoint) -> DevicePlugin:
    loaded = entry.load()
    plugin = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(plugin, DevicePlugin) or not isinstance(getattr(plugin, "name", None), str):
        raise TypeError("it is no extender.plugins.protocol.DevicePlugin with a name")
    return plugin


class _Guarded(DevicePlugin):
    """A plugin of another package: what it should not raise costs its own nodes and pods, and nobody else's."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self._plugin = plugin
        self._told = False
        self.name, self.told, self.led, self.parts = plugin.name, plugin.told, plugin.led, plugin.parts
        self.resources, self.written = tuple(plugin.resources), frozenset(plugin.written)
        self.leftovers = tuple(plugin.leftovers)

    def owns(self, node: objects.Node) -> bool:
        return self._ask(lambda: self._plugin.owns(node)) or False

    def left_behind(self, node: objects.Node) -> str:
        return self._ask(lambda: self._plugin.left_behind(node)) or ""

    def offer(self, node: objects.Node, reading: NodeReading) -> NodeOffer | None:
        return self._ask(lambda: self._plugin.offer(node, reading), UnreadableError)

    def request(self, pod: objects.Pod) -> PodRequest | None:
        return self._ask(lambda: self._plugin.request(pod), RequestError, only=asks_any(pod.spec, self.resources))

    def concerns(self, pod: objects.Pod) -> bool:
        return self._ask(lambda: self._plugin.concerns(pod)) or False

    def holding(self, pod: objects.Pod) -> Holding | None:
        return self._ask(lambda: self._plugin.holding(pod), UnreadableError)

    def handover(
        self, pod: objects.Pod, gpus: Sequence[AssignedGpu], node: objects.Node, decided_at: float
    ) -> Handover:
        return self._ask(lambda: self._plugin.handover(pod, gpus, node, decided_at), RequestError) or Handover()

    def locks(self, transport: Transport, clock: Callable[[], float], wall_clock: Callable[[], float]) -> Locks | None:
        return self._plugin.locks(transport, clock, wall_clock)

    def _ask(self, call: Callable[[], _T], fault: type[ValueError] | None = None, *, only: bool = True) -> _T | None:
        """What the plugin says; surprises become a `fault` that the method may raise, or nothing."""
        try:
            return call()
        except (RequestError, UnreadableError) as error:
            if fault is not None and isinstance(error, fault):
                raise
            surprise: Exception = error
        except Exception as error:
            surprise = error
        if not self._told:
            self._told = True
            logger.error("device plugin %s has failed; this is logged only once", self.name, exc_info=surprise)
        if fault is None or not only:
            return None
        raise fault(f"device plugin {self.name} has failed: {surprise!r}") from surprise
