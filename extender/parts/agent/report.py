"""Writes the node's report, the annotation `kerf.dev/node-report`."""

import asyncio
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from extender.kube.background import Background, until_set
from extender.kube.decoding import Decoder
from extender.kube.objects import Named
from extender.kube.transport import NODES_PATH, ClusterError, Transport
from extender.parts.agent.choice import REPLICA, gpu_of
from extender.parts.agent.inventory import Gpu, Inventory
from extender.parts.agent.kubelet import Devices, KubeletError, Listing, PodResources
from extender.parts.agent.pods import NodePods, Pod

logger = logging.getLogger(__name__)

_NODE_REPORT: Final = "kerf.dev/node-report"
_MAX_BYTES: Final = 128 * 1024
"""Half of the limit of an object's annotations. No real node comes near it."""
_VERSION: Final = 1
_SETTLING_S: Final = 0.2
"""Time for more changes to arrive after a change of a pod."""
_FAST_S, _FAST_FOR_S, _SLOW_S = 1.0, 5.0, 5.0
_REWRITE_S: Final = 600.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0

_Given = Mapping[str, Mapping[str, Devices]]
"""Devices of containers, by UID of the pod and the container's name."""


def _given(listing: Listing, known: Mapping[str, Pod], before: _Given) -> dict[str, Mapping[str, Devices]]:
    """Devices by UID, of the known pods that have some.

    A kubelet that has just started lists no pods for a moment. Unlisted pods that have not finished keep what they had
    `before`.
    """
    found = {
        pod.metadata.uid: before[pod.metadata.uid]
        for name, pod in known.items()
        if name not in listing and pod.metadata.uid in before and not pod.finished
    }
    for name, containers in listing.items():
        with_devices = {container: devices for container, devices in containers.items() if devices}
        if with_devices and name in known:
            found[known[name].metadata.uid] = with_devices
    return found


def _replicas_of(allocatable: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Replicas of each GPU, by resource whose devices are time slices."""
    sliced = {name: ids for name, ids in allocatable.items() if any(REPLICA in device for device in ids)}
    return {name: max(Counter(map(gpu_of, ids)).values()) for name, ids in sorted(sliced.items())}


def _text_of(
    gpus: Sequence[Gpu],
    given_to: _Given,
    steers: Sequence[str] = (),
    replicas: Mapping[str, int] = MappingProxyType({}),
    max_bytes: int = _MAX_BYTES,
) -> str:
    """The report as JSON, in a deterministic order; `steers` are the resources whose devices Kerf chooses, `replicas`
    as returned by `_replicas_of`.

    If it would be too long, the pods with the longest entries are left out and counted: a pod's author only controls
    the length of its own entry.
    """
    entries = sorted(given_to.items(), key=lambda entry: (len(msgspec.json.encode(entry)), entry[0]))
    num_left_out = 0
    while True:
        kept = dict(sorted(entries[: len(entries) - num_left_out]))
        report: dict[str, Any] = {"version": _VERSION, "gpus": list(gpus), "given": kept}
        if steers:
            report["steers"] = list(steers)
        if replicas:
            report["replicas"] = dict(replicas)
        if num_left_out:
            report["left_out"] = num_left_out
        text = msgspec.json.encode(report, order="deterministic")
        if len(text) <= max_bytes or not kept:
            return text.decode()
        num_left_out += 1


class _Report(msgspec.Struct):
    gpus: list[Gpu] = msgspec.field(default_factory=list)


_node_decoder: Final = Decoder(Named)
_report_decoder: Final = msgspec.json.Decoder(_Report)


def _reported_uuids(node: bytes) -> list[str]:
    """UUIDs of the GPUs in the report of a Node as JSON; [] if it can't be read."""
    with contextlib.suppress(msgspec.DecodeError):
        text = (_node_decoder.decode(node).metadata.annotations or {}).get(_NODE_REPORT, "{}")
        return [gpu.uuid for gpu in _report_decoder.decode(text).gpus]
    return []


class Reporter(Background):
    """Writes the report when it has changed."""

    def __init__(
        self,
        node: str,
        transport: Transport,
        pods: NodePods,
        kubelet: PodResources,
        inventory: Inventory,
        listed: Callable[[Listing], None],
        steers: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        """`listed` is called with each listing of the kubelet; `steers` returns those of `_text_of`."""
        super().__init__("reporter")
        self._path = f"{NODES_PATH}/{node}/status"
        self._transport = transport
        self._pods = pods
        self._kubelet = kubelet
        self._inventory = inventory
        self._listed = listed
        self._steers = steers
        self._given: _Given = {}
        self._written = ""
        self._written_at = float("-inf")
        self._pause_s = _MIN_PAUSE_S
        self._recalled = False
        self.asked = False
        """Whether the kubelet has answered at least once."""

    async def run(self) -> None:
        """Read and write, until cancelled."""
        last_change = time.monotonic()
        while True:
            change = self._pods.news
            try:
                await self._write(await self._read())
                self._pause_s = _MIN_PAUSE_S
            except (KubeletError, ClusterError) as error:
                logger.warning("the report was not written, retrying in %.0f s: %s", self._pause_s, error)
                await asyncio.sleep(self._pause_s * random.uniform(0.75, 1.25))
                self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
                continue
            recent = time.monotonic() - last_change < _FAST_FOR_S
            await until_set(change, _FAST_S if recent else _SLOW_S)
            if change.is_set():
                last_change = time.monotonic()
                await asyncio.sleep(_SETTLING_S)

    async def _recall(self) -> None:
        """Give the inventory the GPUs of the last report. Raises ClusterError.

        Reads the node by an empty patch, as the agent has no right to read nodes.
        """
        self._inventory.recall(_reported_uuids(await self._transport.patch(self._path, b'{"metadata": {}}')))
        self._recalled = True

    async def _read(self) -> str:
        """The report as it is now. Raises KubeletError, ClusterError."""
        listing = await self._kubelet.listing()
        self._listed(listing)
        allocatable = await self._kubelet.allocatable()
        self.asked = True
        if not self._recalled:
            await self._recall()
        gpus = await self._inventory.gpus(allocatable, time.monotonic())
        self._given = _given(listing, self._pods.by_name(), self._given)
        return _text_of(gpus, self._given, self._steers(), _replicas_of(allocatable))

    async def _write(self, text: str) -> None:
        """Write the report if it changed, or after `_REWRITE_S`, as it may have been removed. Raises ClusterError."""
        age_s = time.monotonic() - self._written_at
        if text == self._written and age_s < _REWRITE_S:
            return
        await asyncio.sleep(max(0.0, _MIN_PAUSE_S - age_s))
        patch = {"metadata": {"annotations": {_NODE_REPORT: text}}}
        await self._transport.patch(self._path, msgspec.json.encode(patch))
        self._written, self._written_at = text, time.monotonic()
