"""Finds the node's GPUs: from the vendor's library if the container has it, else from the driver's files, else from
the kubelet.

The kubelet does not know their order. Then UUIDs are numbered in sorted order, including those of the last report, so
that a GPU that is unhealthy when the agent starts does not change the numbers of the others.
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
_REFRESH_S: Final = 600.0
_GPU: Final = "GPU-"

Allocatable = Mapping[str, Mapping[str, int]]
"""Healthy devices by resource, each with its NUMA node."""


class Gpu(msgspec.Struct, omit_defaults=True):
    """A GPU of the report; defaults stand for unknown values."""

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
    """The node's GPUs, refreshed every `_REFRESH_S`."""

    def __init__(self, root: Path = Path("/"), library: Sequence[str] = COMMAND) -> None:
        """`root` is the folder of proc and sys; `library` is a command that prints the GPUs of the vendor's library."""
        self._root = root
        self._library = library
        self._gpus: list[Gpu] = []
        self._numbered = False
        """Whether their order is known from the library or the driver."""
        self._unknown: set[str] = set()
        """GPUs of the kubelet that neither of them reported."""
        self._seen: set[str] = set()
        """All GPUs reported by any source since the start."""
        self._recalled: frozenset[str] = frozenset()
        self._refresh_at = 0.0
        self._lock = asyncio.Lock()

    @property
    def uuids(self) -> dict[int, str]:
        """UUIDs by index; {} before the first refresh and while no GPU is known."""
        return {gpu.index: gpu.uuid for gpu in self._gpus}

    def recall(self, uuids: Iterable[str]) -> None:
        """Set the GPUs of the last report; they count as present unless the node now has GPUs not among them."""
        self._recalled = frozenset(uuids)

    async def gpus(self, allocatable: Allocatable, now: float) -> list[Gpu]:
        """The GPUs, and which of them are healthy. Never fails."""
        offered = {gpu_of(device): numa for devices in allocatable.values() for device, numa in devices.items()}
        async with self._lock:  # no caller sees another order while the library is being queried
            named = {uuid for uuid in offered if uuid.startswith(_GPU)}
            unknown = named - set(self.uuids.values())
            if now >= self._refresh_at or (self._numbered and not unknown <= self._unknown):
                self._refresh_at = now + _REFRESH_S
                found = await self._by_library() or self._by_driver()
                self._numbered = bool(found)
                self._gpus = found or self._gpus
                self._unknown = unknown
                self._seen |= {gpu.uuid for gpu in found}
            self._seen |= named
            if not self._numbered:
                uuids = self._recalled if self._seen <= self._recalled else self._seen
                self._gpus = [Gpu(index, uuid) for index, uuid in enumerate(sorted(uuids))]
        # The kubelet leaves out devices of unhealthy GPUs. If it has none at all, no plugin is registered.
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
            logger.warning("the vendor's library can't be read: %s", str(error) or "timed out")
            return []
        finally:
            await child.end()
        if code:
            logger.debug("the vendor's library is not available: %s", complaint[-200:])
        return [
            Gpu(gpu.index, gpu.uuid, gpu.model, gpu.memory_mib, True, self._numa(gpu.bus), gpu.link) for gpu in found
        ]

    def _by_driver(self) -> list[Gpu]:
        """The GPUs of the driver's files; [] if some have no UUID yet."""
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
