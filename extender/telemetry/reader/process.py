"""The service's side of the reader process, which is started on demand and restarted if it hangs."""

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

import msgspec

from extender.children import Child
from extender.core.gauges import Gauge
from extender.telemetry import frames
from extender.telemetry.errors import ReaderError, SourceError
from extender.telemetry.frames import Done, Failed, GaugeValues, HostAges, NewDevices, PodSamples
from extender.telemetry.readings import Float32s, Inventory, Reading
from extender.telemetry.series import Host
from extender.telemetry.sources.source import Command, PodUsage

_MAX_REFRESH_S: Final = 60.0
"""After this time a refresh is abandoned and the process ended."""


class ReaderProcess:
    """A reader process. Allows one `read` at a time."""

    def __init__(self, max_s: float = _MAX_REFRESH_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_s = max_s
        """Longest duration of a refresh."""
        self._clock = clock
        self._child: Child | None = None
        self._inventory = Inventory()

    async def read(self, command: Command) -> Reading:
        """Read one refresh. Raises SourceError; ReaderError if the process failed and was ended."""
        read_at = self._clock()
        try:
            async with asyncio.timeout(self.max_s):
                child = await self._running()
                child.writer.write(msgspec.json.encode(command) + b"\n")
                await child.writer.drain()
                return await self._take(child.reader, read_at)
        except TimeoutError:
            await self.close()
            raise ReaderError(f"the refresh did not finish within {self.max_s:g} s") from None
        except (OSError, EOFError, ValueError) as error:
            await self.close()
            raise ReaderError(f"the reader process was stopped: {str(error) or type(error).__name__}") from None
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.end()

    @property
    def pid(self) -> int | None:
        """The process' id; None if it is not running."""
        return None if self._child is None else self._child.process.pid

    async def _running(self) -> Child:
        if self._child is None or not self._child.running:
            await self.close()
            self._inventory = Inventory()
            self._child = await Child.start(sys.executable, "-m", "extender.telemetry.reader.reader")
        return self._child

    async def _take(self, stream: asyncio.StreamReader, read_at: float) -> Reading:
        values: dict[Gauge, Float32s] = {}
        age_s: Float32s = frames.EMPTY
        pods: PodUsage = {}
        pod_devices: dict[tuple[str, str], list[int]] = {}
        while True:
            header_bytes, payload_bytes = frames.read_lengths(await stream.readexactly(frames.LENGTH_BYTES))
            header = frames.decode_header(await stream.readexactly(header_bytes))
            payload = frames.decode_payload(await stream.readexactly(payload_bytes))
            match header:
                case NewDevices():
                    self._add(header)
                case GaugeValues():
                    values[Gauge(header.gauge)] = payload
                case HostAges():
                    age_s = payload
                case PodSamples():
                    keys = list(zip(header.namespaces, header.names, strict=True))
                    pod_devices.update(zip(keys, header.devices, strict=True))
                    for key, (load, memory) in zip(keys, payload.reshape(-1, 2).tolist(), strict=True):
                        pods[key] = load, memory
                case Failed():
                    raise SourceError(header.fault)
                case Done():
                    self._check(values, age_s)
                    return Reading(self._inventory, values, age_s, pods, header.report, read_at, pod_devices)
            await asyncio.sleep(0)  # buffered frames are read without waiting: let requests run in between

    def _add(self, header: NewDevices) -> None:
        if header.first:
            self._inventory = Inventory()
        inventory = self._inventory
        num_hosts = len(inventory.hosts) + len(header.host_names)
        sizes = {len(header.numbers), len(header.uuids)}
        if sizes != {len(header.host_idx)} or any(not 0 <= index < num_hosts for index in header.host_idx):
            raise ValueError("an inconsistent frame of GPUs")
        inventory.hosts += [
            Host(names, instance) for names, instance in zip(header.host_names, header.instances, strict=True)
        ]
        inventory.host_idx += header.host_idx
        inventory.numbers += header.numbers
        inventory.uuids += header.uuids

    def _check(self, values: dict[Gauge, Float32s], age_s: Float32s) -> None:
        num_hosts, num_devices = len(self._inventory.hosts), len(self._inventory.host_idx)
        if any(len(plane) != num_devices for plane in values.values()) or len(age_s) != num_hosts:
            raise ValueError("inconsistent frames")
