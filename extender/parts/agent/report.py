"""The annotation by which the agent tells what is: `kerf.dev/node-report`."""

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
"""Half of what an object's annotations may have together. No real node comes near it."""
_VERSION: Final = 1
_SETTLING_S: Final = 0.2
_FAST_S, _FAST_FOR_S, _SLOW_S = 1.0, 5.0, 5.0
_AGAIN_S: Final = 600.0
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0

_Given = Mapping[str, Mapping[str, Devices]]
"""What containers have, by the UID of their pod and their own name."""


def _given(listing: Listing, known: Mapping[str, Pod], before: _Given) -> dict[str, Mapping[str, Devices]]:
    """By UID, of pods that have something; those that are listed and not yet known come with a later report.

    A kubelet that has just begun lists nothing for a moment, whatever it has given: of pods that are there and that it
    does not list, what was said `before` stands.
    """
    found = {
        pod.metadata.uid: before[pod.metadata.uid]
        for name, pod in known.items()
        if name not in listing and pod.metadata.uid in before and not pod.finished
    }
    for name, containers in listing.items():
        having = {container: devices for container, devices in containers.items() if devices}
        if having and name in known:
            found[known[name].metadata.uid] = having
    return found


def _replicas_of(allocatable: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Of resources whose devices are time slices: how many a GPU is shared into."""
    sliced = {name: ids for name, ids in allocatable.items() if any(REPLICA in device for device in ids)}
    return {name: max(Counter(map(gpu_of, ids)).values()) for name, ids in sorted(sliced.items())}


def _text_of(
    gpus: Sequence[Gpu],
    given_to: _Given,
    steers: Sequence[str] = (),
    replicas: Mapping[str, int] = MappingProxyType({}),
    max_bytes: int = _MAX_BYTES,
) -> str:
    """The report, the same for the same; `steers` are the resources whose devices are given as Kerf chose, `replicas`
    as of `_replicas_of`.

    Where it would be too long, the pods with the longest entries are left out, and their number is told: whoever
    writes pods settles the length of no entry but their own.
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


class _Told(msgspec.Struct):
    gpus: list[Gpu] = msgspec.field(default_factory=list)


_node_decoder: Final = Decoder(Named)
_told_decoder: Final = msgspec.json.Decoder(_Told)


def _uuids_told(node: bytes) -> list[str]:
    """UUIDs of the GPUs that the report on a node names, in JSON; none where nothing can be read."""
    with contextlib.suppress(msgspec.DecodeError):
        text = (_node_decoder.decode(node).metadata.annotations or {}).get(_NODE_REPORT, "{}")
        return [gpu.uuid for gpu in _told_decoder.decode(text).gpus]
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
        """`listed` is told of what the kubelet lists; `steers` as of `_text_of`."""
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
        """Look and write, until cancelled."""
        last_news = time.monotonic()
        while True:
            news = self._pods.news
            try:
                await self._write(await self._read())
                self._pause_s = _MIN_PAUSE_S
            except (KubeletError, ClusterError) as error:
                logger.warning("no report now, again in %.0f s: %s", self._pause_s, error)
                await asyncio.sleep(self._pause_s * random.uniform(0.75, 1.25))
                self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
                continue
            recent = time.monotonic() - last_news < _FAST_FOR_S
            await until_set(news, _FAST_S if recent else _SLOW_S)
            if news.is_set():
                last_news = time.monotonic()
                await asyncio.sleep(_SETTLING_S)

    async def _recall(self) -> None:
        """Have the inventory know the GPUs of the last report. Raises ClusterError.

        By a patch of nothing: the agent may not read nodes.
        """
        self._inventory.recall(_uuids_told(await self._transport.patch(self._path, b'{"metadata": {}}')))
        self._recalled = True

    async def _read(self) -> str:
        """Raises KubeletError, ClusterError."""
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
        """Raises ClusterError. What has not changed is written again in a while: somebody may have removed it."""
        age_s = time.monotonic() - self._written_at
        if text == self._written and age_s < _AGAIN_S:
            return
        await asyncio.sleep(max(0.0, _MIN_PAUSE_S - age_s))
        patch = {"metadata": {"annotations": {_NODE_REPORT: text}}}
        await self._transport.patch(self._path, msgspec.json.encode(patch))
        self._written, self._written_at = text, time.monotonic()
