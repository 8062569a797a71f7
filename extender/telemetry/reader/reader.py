"""The reading process: asks a source when told to and hands on compact arrays.

A process of its own, since decoding 240,000 series takes seconds in which no request of kube-scheduler may wait. It
ends with its standard input: when the service is gone, so is the reader.

How much memory a process that reads answers of others may have: what it has at first, and so much more.
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
"""48,000 series take 100; a container of the chart has 1,024 for all of Kerf's processes."""


def _bound_memory() -> None:
    """Bound this process' own memory from now on: what asks for more gets a MemoryError.

    Data alone: address space counts what is only reserved as well, by threads and by what numpy computes with.
    """
    has = _memory_mib("VmData")
    if has:  # elsewhere than on Linux nobody tells
        most = int((has + _MORE_MIB) * 2**20)
        with contextlib.suppress(OSError, ValueError):  # it is bounded more narrowly
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _memory_mib(what: str) -> float:
    """A line of `/proc/self/status` such as VmHWM, in MiB; 0 where there is none."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) / 1024
    return 0.0


_PODS_PER_FRAME: Final = 2000
_NICENESS: Final = 10  # of a core that both want, a tenth: metrics may wait, kube-scheduler may not


class _Reader:
    """Answers commands on a stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._command: Command | None = None
        self._source: Source | None = None
        self._told: DeviceTable | None = None
        self._num_hosts = 0
        self._num_devices = 0

    def answer(self, command: Command) -> None:
        """Read once and write the frames."""
        try:
            with faults_of(command.kind):
                samples = self._read(command)
        except SourceError as error:
            fault = str(error).removeprefix(f"{command.kind}: ")
            if self._source is not None:
                self._source.close()
            self._source = self._told = None  # the next command looks for one afresh
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
        pods, of = samples.pods, samples.pod_devices
        keys = list(pods)
        for start in range(0, len(keys), _PODS_PER_FRAME):
            some = keys[start : start + _PODS_PER_FRAME]
            usage = np.array([pods[key] for key in some], np.float32)
            namespaces, names = [key[0] for key in some], [key[1] for key in some]
            write_frame(self._stream, PodSamples(namespaces, names, [of.get(key, []) for key in some]), usage)
        samples.report.rss_mib = _most_memory_mib()
        write_frame(self._stream, Done(samples.report))

    def _write_devices(self, table: DeviceTable) -> None:
        first = table is not self._told
        if first:
            self._told, self._num_hosts, self._num_devices = table, 0, 0
        while first or self._num_hosts < len(table.hosts) or self._num_devices < len(table.devices):
            hosts = table.hosts[self._num_hosts : self._num_hosts + DEVICES_PER_FRAME]
            self._num_hosts += len(hosts)
            begin, end = self._num_devices, self._num_devices + DEVICES_PER_FRAME
            # A GPU is told of no sooner than its host.
            host_idx = list(takewhile(self._num_hosts.__gt__, table.host_idx[begin:end]))
            devices = table.devices[begin : begin + len(host_idx)]
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
    """Most memory that this process has held. On Linux getrusage tells the parent's, where that was more."""
    return _memory_mib("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Answer the commands on standard input until it ends."""
    os.nice(_NICENESS)
    _bound_memory()
    # Frames go out on a descriptor of their own: what a library prints must not get between them.
    stream = os.fdopen(os.dup(1), "wb", buffering=2**18)
    os.dup2(2, 1)
    reader = _Reader(stream)
    for line in sys.stdin.buffer:
        reader.answer(msgspec.json.decode(line, type=Command))


if __name__ == "__main__":
    main()
