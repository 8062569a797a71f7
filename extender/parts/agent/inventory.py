"""The node's GPUs: by the vendor's library where the container has it, else by the driver's files, else by what the
kubelet has of them.

Of the last nobody tells the order: there the UUIDs are numbered as they sort, those of the last report among them, so
that a GPU that is sick when the agent starts leaves the others their numbers.
"""

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from extender.children import Child
from extender.parts.agent.choice import gpu_of
from extender.parts.agent.nvidia import COMMAND, INFORMATION

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 10.0
_AGAIN_S: Final = 600.0
_GPU: Final = "GPU-"

Allocatable = Mapping[str, Mapping[str, int]]
"""Healthy devices by resource, each with its NUMA node."""


class Gpu(msgspec.Struct, omit_defaults=True):
    """A GPU as the report has it; defaults are what is not known."""

    index: int
    uuid: str
    model: str = ""
    memory_mib: int = 0
    healthy: bool = True
    numa: int = -1
    link: int = -1


class _Found(msgspec.Struct):
    index: int
    uuid: str
    model: str
    memory_mib: int
    bus: str
    link: int


_found_decoder: Final = msgspec.json.Decoder(list[_Found])


class Inventory:
    """The GPUs, looked at anew from time to time."""

    def __init__(self, root: Path = Path("/"), library: Sequence[str] = COMMAND) -> None:
        """`root` is where proc and sys are; `library` a command that prints what the vendor's library says."""
        self._root = root
        self._library = library
        self._gpus: list[Gpu] = []
        self._numbered = False
        """Whether the library or the driver has told their order."""
        self._strange: set[str] = set()
        """GPUs of the kubelet that neither knew of."""
        self._seen: set[str] = set()
        """All GPUs that anybody has told of since the start."""
        self._told_before: frozenset[str] = frozenset()
        self._look_at = 0.0
        self._turn = asyncio.Lock()

    @property
    def uuids(self) -> dict[int, str]:
        """By index; {} before the first look, or while nobody tells of any."""
        return {gpu.index: gpu.uuid for gpu in self._gpus}

    def recall(self, uuids: Iterable[str]) -> None:
        """What the last report had: GPUs that are there, sick at most, unless others are there too by now."""
        self._told_before = frozenset(uuids)

    async def gpus(self, allocatable: Allocatable, now: float) -> list[Gpu]:
        """The GPUs, and which of them are healthy. Never fails."""
        offered = {gpu_of(device): numa for devices in allocatable.values() for device, numa in devices.items()}
        async with self._turn:  # nobody is told another order while the library is being asked
            named = {uuid for uuid in offered if uuid.startswith(_GPU)}
            strange = named - set(self.uuids.values())
            if now >= self._look_at or (self._numbered and not strange <= self._strange):
                self._look_at = now + _AGAIN_S
                found = await self._by_library() or self._by_driver()
                self._numbered = bool(found)
                self._gpus = found or self._gpus
                self._strange = strange
                self._seen |= {gpu.uuid for gpu in found}
            self._seen |= named
            if not self._numbered:
                uuids = self._told_before if self._seen <= self._told_before else self._seen
                self._gpus = [Gpu(index, uuid) for index, uuid in enumerate(sorted(uuids))]
        # A GPU is sick whose devices the kubelet leaves out; not all, when it has none: then no plugin is registered.
        known = not offered.keys().isdisjoint(self.uuids.values())
        return [
            msgspec.structs.replace(
                gpu,
                healthy=gpu.uuid in offered or not known,
                numa=gpu.numa if gpu.numa >= 0 else offered.get(gpu.uuid, -1),
            )
            for gpu in self._gpus
        ]

    async def _by_library(self) -> list[Gpu]:
        child = await Child.start(*self._library, complaints=True)
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                code, printed, complaint = await child.finished()
            found = _found_decoder.decode(printed) if code == 0 else []
        except (TimeoutError, msgspec.DecodeError) as error:
            logger.warning("the vendor's library says nothing of use: %s", str(error) or "timed out")
            return []
        finally:
            await child.end()
        if code:
            logger.debug("no library of the vendor's: %s", complaint[-200:])
        return [
            Gpu(gpu.index, gpu.uuid, gpu.model, gpu.memory_mib, True, self._numa(gpu.bus), gpu.link) for gpu in found
        ]

    def _by_driver(self) -> list[Gpu]:
        """What the driver's files say."""
        gpus: list[Gpu] = []
        for information in sorted(self._root.glob(INFORMATION)):
            with contextlib.suppress(OSError):
                lines = (line.partition(":") for line in information.read_text(errors="replace").splitlines())
                fields = {key.strip(): value.strip() for key, _, value in lines}
                uuid, model = fields.get("GPU UUID", ""), fields.get("Model", "")
                gpus.append(Gpu(len(gpus), uuid, model, numa=self._numa(information.parent.name)))
        return gpus if all(gpu.uuid.startswith(_GPU) and "?" not in gpu.uuid for gpu in gpus) else []

    def _numa(self, bus: str) -> int:
        try:
            return int((self._root / "sys/bus/pci/devices" / bus.lower() / "numa_node").read_text())
        except (OSError, ValueError):
            return -1
