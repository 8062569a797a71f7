"""The reader process: reads a source on each command and returns compact arrays.

It is a separate process because decoding 240,000 series takes seconds, which would delay kube-scheduler's requests. It
ends with its standard input, that is, with the service.
"""

import contextlib
import os
import resource
import sys
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, Final

import msgspec
import numpy as np

from extender.telemetry.errors import SourceError, faults_of
from extender.telemetry.frames import (
    DEVICES_PER_FRAME,
    Done,
    Failed,
    GaugeValues,
    HostAges,
    NewDevices,
    PodSamples,
    write_frame,
)
from extender.telemetry.sources.registry import open_source
from extender.telemetry.sources.source import Command, Samples, Source
from extender.telemetry.tables import DeviceTable

_MORE_MIB: Final = 512
"""Limit beyond the memory at start. 48,000 series take 100 MiB; the chart's container has 1,024 for all processes."""


def _bound_memory() -> None:
    """Limit this process' memory; allocations beyond raise MemoryError.

    Limits data, not address space, since threads and numpy's libraries reserve address space without using it.
    """
    used_mib = _memory_mib("VmData")
    if used_mib:  # unknown except on Linux
        limit = int((used_mib + _MORE_MIB) * 2**20)
        with contextlib.suppress(OSError, ValueError):  # a lower limit is in force
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _memory_mib(name: str) -> float:
    """A field of `/proc/self/status` such as VmHWM, in MiB; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) / 1024
    return 0.0


_PODS_PER_FRAME: Final = 2000
_NICENESS: Final = 10  # about a tenth of a contended core: telemetry may wait, kube-scheduler may not


class _Reader:
    """Writes responses to commands to a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._command: Command | None = None
        self._source: Source | None = None
        self._sent: DeviceTable | None = None
        self._num_hosts = 0
        self._num_devices = 0

    def answer(self, command: Command) -> None:
        """Run a command and write the frames."""
        try:
            with faults_of(command.kind):
                samples = self._read(command)
        except SourceError as error:
            fault = str(error).removeprefix(f"{command.kind}: ")
            if self._source is not None:
                self._source.close()
            self._source = self._sent = None  # the next command reopens it
            write_frame(self._stream, Failed(fault))
        else:
            self._write(samples)
        self._stream.flush()

    def _read(self, command: Command) -> Samples:
        if self._source is None or command != self._command:
            if self._source is not None:
                self._source.close()
                self._source = None
            self._command = command
            self._source = open_source(command)
        return self._source.read()

    def _write(self, samples: Samples) -> None:
        self._write_devices(samples.table)
        write_frame(self._stream, HostAges(), samples.age_s)
        for gauge, plane in samples.values.items():
            write_frame(self._stream, GaugeValues(gauge), plane)
        pods, devices = samples.pods, samples.pod_devices
        keys = list(pods)
        for start in range(0, len(keys), _PODS_PER_FRAME):
            batch = keys[start : start + _PODS_PER_FRAME]
            usage = np.array([pods[key] for key in batch], np.float32)
            namespaces, names = [key[0] for key in batch], [key[1] for key in batch]
            write_frame(self._stream, PodSamples(namespaces, names, [devices.get(key, []) for key in batch]), usage)
        samples.report.rss_mib = _most_memory_mib()
        write_frame(self._stream, Done(samples.report))

    def _write_devices(self, table: DeviceTable) -> None:
        first = table is not self._sent
        if first:
            self._sent, self._num_hosts, self._num_devices = table, 0, 0
        while first or self._num_hosts < len(table.hosts) or self._num_devices < len(table.devices):
            hosts = table.hosts[self._num_hosts : self._num_hosts + DEVICES_PER_FRAME]
            self._num_hosts += len(hosts)
            start, end = self._num_devices, self._num_devices + DEVICES_PER_FRAME
            # A GPU's host is sent before it or in the same frame.
            host_idx = list(takewhile(self._num_hosts.__gt__, table.host_idx[start:end]))
            devices = table.devices[start : start + len(host_idx)]
            self._num_devices += len(devices)
            write_frame(
                self._stream,
                NewDevices(
                    first,
                    [host.names for host in hosts],
                    [host.instance for host in hosts],
                    host_idx,
                    [device.number for device in devices],
                    [device.uuid for device in devices],
                ),
            )
            first = False


def _most_memory_mib() -> float:
    """This process' peak memory. On Linux getrusage returns the parent's peak if that is larger."""
    return _memory_mib("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run the commands on standard input until it ends."""
    os.nice(_NICENESS)
    _bound_memory()
    # Frames get a descriptor of their own, so that output of libraries can't corrupt them.
    stream = os.fdopen(os.dup(1), "wb", buffering=2**18)
    os.dup2(2, 1)
    reader = _Reader(stream)
    for line in sys.stdin.buffer:
        reader.answer(msgspec.json.decode(line, type=Command))


if __name__ == "__main__":
    main()
