"""The pods of one node: the devices that their containers request, and the GPUs that Kerf assigned to them."""

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from extender.core.resources.quantities import parse_quantity
from extender.kube import objects
from extender.kube.cache import Cache

_ASSIGNED_GPUS: Final = "kerf.dev/assigned-gpus"
_ASSIGNED_UUIDS: Final = "kerf.dev/assigned-uuids"
_ASSIGNED_NODE: Final = "kerf.dev/assigned-node"
_MAX_CHARS: Final = 8192
"""Longest annotation that Kerf writes."""
_MAX_DEVICES: Final = 1024


class Container(objects.Object, rename="camel"):
    name: str = ""
    resources: objects.Resources | None = None
    restart_policy: str | None = None

    def asks(self, resource: str) -> int:
        """Number of devices of a resource, its limit as the kubelet reads it; 0 if it is invalid."""
        text = ((self.resources and self.resources.limits) or {}).get(resource, 0)
        try:
            number = parse_quantity(str(text))
        except ValueError:
            return 0
        return int(number) if number.denominator == 1 and 0 < number <= _MAX_DEVICES else 0


class Spec(objects.Object, rename="camel"):
    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None


class Pod(objects.Named):
    spec: Spec = msgspec.field(default_factory=Spec)
    status: objects.PodStatus = msgspec.field(default_factory=objects.PodStatus)

    @property
    def finished(self) -> bool:
        """Whether it has succeeded or failed; pods that the kubelet refuses have failed."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def lasting(self) -> list[Container]:
        """Containers and sidecars: those that the kubelet lists with their devices."""
        sidecars = [container for container in self.spec.init_containers or () if container.restart_policy == "Always"]
        return [*sidecars, *(self.spec.containers or ())]

    @property
    def passing(self) -> list[Container]:
        """Init containers that end before the others start; their devices are reused."""
        return [container for container in self.spec.init_containers or () if container.restart_policy != "Always"]

    def assigned(self, uuids: Mapping[int, str]) -> list[str]:
        """UUIDs of the GPUs that Kerf assigned to it, in order; `uuids` are those of the node's GPUs by index.

        [] if none are assigned on this node, or their UUIDs are unknown. Never fails, whatever the annotations.
        """
        annotations = self.metadata.annotations or {}
        if annotations.get(_ASSIGNED_NODE, "") not in ("", self.spec.node_name):
            return []
        named = _parts(annotations.get(_ASSIGNED_UUIDS, ""))
        if not named:
            indices = _parts(annotations.get(_ASSIGNED_GPUS, ""))
            by_text = {str(index): uuid for index, uuid in uuids.items()}
            named = [by_text[index] for index in indices] if by_text.keys() >= set(indices) else []
        return list(dict.fromkeys(named))


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part] if len(text) <= _MAX_CHARS else []


class NodePods(Cache[Pod, Pod]):
    """Cache of the node's pods."""

    def __init__(self) -> None:
        super().__init__(lambda pod: pod)
        self.news = asyncio.Event()
        """Set at the next change, and then replaced by a new event."""
        self.subscribe(self._changed)

    def by_name(self) -> dict[str, Pod]:
        """Pods by `namespace/name`."""
        return {pod.key: pod for pod in self.values()}

    def _changed(self, old: Pod | None, new: Pod | None) -> None:
        self.news.set()
        self.news = asyncio.Event()
