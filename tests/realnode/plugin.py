"""The device plugin of a node: `go/cmd/deviceplugin`, which behaves as NVIDIA's does."""

import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.controlplane.binaries import find_program
from tests.controlplane.commands import Command
from tests.controlplane.processes import Process, start_process
from tests.realnode.recorded import Recorded


@dataclass(frozen=True)
class Device:
    """What the plugin tells the kubelet of one."""

    id: str
    healthy: bool = True
    numa: int | None = None


Resources = Mapping[str, Sequence[Device]]


def gpus(number: int, node: int = 0) -> list[Device]:
    """So many GPUs; those of another node have other UUIDs."""
    return [Device(f"GPU-{node:08x}-0000-4000-8000-{index:012x}") for index in range(number)]


def replicas(devices: Sequence[Device], number: int) -> list[Device]:
    """So many time slices of each."""
    return [replace(device, id=f"{device.id}::{share}") for device in devices for share in range(number)]


class DevicePlugin(Recorded):
    """Serves resources until it is stopped; `arguments` are more of the program's."""

    def __init__(self, folder: Path, plugin_folder: Path, resources: Resources, *arguments: str) -> None:
        """`folder` is where it keeps what it is told and tells, `plugin_folder` where its sockets lie."""
        self._folder = folder
        self._resources = {name: list(devices) for name, devices in resources.items()}
        self._calls = folder / "device-plugin-calls.jsonl"
        self._calls.unlink(missing_ok=True)
        self._file = folder / "device-plugin.json"
        self._holds = folder / "device-plugin-holds"
        shutil.rmtree(self._holds, ignore_errors=True)
        self._holds.mkdir()
        self._command: Command = [
            *(find_program("deviceplugin"), f"-resources={self._file}", f"-calls={self._calls}"),
            *(f"-plugin-folder={plugin_folder}", f"-cdi-folder={folder / 'run' / 'cdi'}", f"-holds={self._holds}"),
            *arguments,
        ]
        self.process: Process | None = None

    @property
    def resources(self) -> Resources:
        return self._resources

    def start(self) -> None:
        """Return at once."""
        self._write()
        environment = {name: value for name, value in os.environ.items() if name != "KUBELET_SOCKET"}
        log = self._folder / "device-plugin.log"
        self.process = start_process("device plugin", self._command, log, env=environment)

    def stop(self) -> None:
        """SIGTERM; return when it is gone."""
        if self.process is not None:
            self.process.stop()

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()

    def set_healthy(self, *ids: str, healthy: bool) -> None:
        """Devices of these IDs turn sick or well."""
        for name, devices in self._resources.items():
            self._resources[name] = [
                replace(device, healthy=healthy) if device.id in ids else device for device in devices
            ]
        self.tell()

    def set_resources(self, resources: Resources) -> None:
        """It has others from now on."""
        self._resources = {name: list(devices) for name, devices in resources.items()}
        self.tell()

    def tell(self) -> None:
        """Have it read its file again."""
        self._write()
        if self.process is not None:
            self.process.signal(signal.SIGHUP)

    def _write(self) -> None:
        resources = [
            {"name": name, "devices": [asdict(device) for device in devices]}
            for name, devices in self._resources.items()
        ]
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps(resources))
        partial.rename(self._file)
