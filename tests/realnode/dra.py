"""The DRA driver of a node: `go/cmd/dradriver`, on the library that real drivers are made with."""

import contextlib
import json
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.controlplane.api import ApiError, Object
from tests.controlplane.binaries import find_program
from tests.controlplane.commands import Command
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, start_process, wait_until
from tests.realnode.node import WITHIN_S, Node
from tests.realnode.recorded import Recorded

API: Final = "/apis/resource.k8s.io/v1"
DRIVER: Final = "gpu.nvidia.com"
OWNED: Final[Object] = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}
"""The taint of devices that Kerf allocates."""

Slices = Sequence[Mapping[str, Any]]
"""ResourceSlices as a driver tells them: each has `devices`, or `sharedCounters`."""
DeviceKey = tuple[str, str]
"""Pool and device."""

_PROFILES: Final = (
    ("1g5gb", 19, 1, 1, tuple(range(7))),
    ("2g10gb", 14, 2, 2, (0, 2, 4)),
    ("3g20gb", 9, 3, 4, (0, 4)),
    ("4g20gb", 5, 4, 4, (0,)),
    ("7g40gb", 0, 7, 8, (0,)),
)
"""MIG of an A100 with 40 GB: name, ID, compute slices, memory slices, first memory slices of its placements
(NVIDIA's MIG user guide, "A100 profiles")."""
_PROCESSORS_PER_SLICE: Final = 14


def whole(number: int, node: int = 0, memory: str = "40Gi", taints: Sequence[Object] = (OWNED,)) -> list[Object]:
    """The devices of so many GPUs; those of another node have other UUIDs."""
    return [_gpu(index, node, memory, taints) for index in range(number)]


def partitioned(number: int, node: int = 0, taints: Sequence[Object] = (OWNED,)) -> list[Object]:
    """Slices of so many GPUs (at most 4), each to be had whole or as the partitions that MIG could make of it."""
    full = {"multiprocessors": 7 * _PROCESSORS_PER_SLICE} | {f"memory-slice-{place}": 1 for place in range(8)}
    devices = []
    for index, gpu in enumerate(whole(number, node, taints=taints)):
        devices.append(gpu | {"consumesCounters": [_consumed(index, full)]})
        parent = gpu["attributes"]["uuid"]["string"]
        for profile, number_of, compute, slices, places in _PROFILES:
            for place in places:
                taken = {"multiprocessors": compute * _PROCESSORS_PER_SLICE}
                taken |= {f"memory-slice-{at}": 1 for at in range(place, place + slices)}
                attributes = {"type": "mig", "profile": profile.replace("g", "g.", 1), "parentUUID": parent}
                attributes |= {"uuid": f"MIG-{node:08x}-{index:04x}-4000-8000-{number_of:06x}{place:06x}"}
                devices.append(
                    {
                        "name": f"gpu-{index}-mig-{profile}-{number_of}-{place}",
                        "attributes": {key: {"string": value} for key, value in attributes.items()},
                        "capacity": {"memory": {"value": f"{5 * slices}Gi"}},
                        "taints": list(taints),
                        "consumesCounters": [_consumed(index, taken)],
                    }
                )
    sets = [{"name": f"gpu-{index}", "counters": _values(full)} for index in range(number)]
    return [{"sharedCounters": sets}, {"devices": devices}]


def _gpu(index: int, node: int, memory: str, taints: Sequence[Object]) -> Object:
    uuid = f"GPU-{node:08x}-0000-4000-8000-{index:012x}"
    attributes = {"type": "gpu", "uuid": uuid, "productName": "NVIDIA A100-SXM4-40GB", "architecture": "Ampere"}
    return {
        "name": f"gpu-{index}",
        "attributes": {key: {"string": value} for key, value in attributes.items()},
        "capacity": {"memory": {"value": memory}},
        "taints": list(taints),
    }


def _consumed(gpu: int, counters: Mapping[str, int]) -> Object:
    return {"counterSet": f"gpu-{gpu}", "counters": _values(counters)}


def _values(counters: Mapping[str, int]) -> Object:
    return {name: {"value": str(value)} for name, value in counters.items()}


def taken(devices: Iterable[Object]) -> Counter[tuple[str, str]]:
    """What devices take of the counters that they share."""
    taken: Counter[tuple[str, str]] = Counter()
    for device in devices:
        for consumed in device["consumesCounters"]:
            for counter, amount in consumed["counters"].items():
                taken[consumed["counterSet"], counter] += int(amount["value"])
    return taken


def room(slices: Slices) -> Mapping[tuple[str, str], int]:
    """What there is of counters."""
    sets = [counters for item in slices for counters in item.get("sharedCounters", ())]
    return {(of["name"], name): int(value["value"]) for of in sets for name, value in of["counters"].items()}


class DraDriver(Recorded):
    """Publishes a pool of the node's name and prepares claims until it is stopped."""

    def __init__(self, plane: ControlPlane, node: Node, slices: Slices) -> None:
        self._plane, self._node = plane, node
        self.slices = list(slices)
        self._calls = node.folder / "dra-calls.jsonl"
        self._calls.unlink(missing_ok=True)
        self._file = node.folder / "dra-pools.json"
        self._holds = node.folder / "dra-holds"
        self.cdi_folder = node.folder / "run" / "cdi"
        shutil.rmtree(self._holds, ignore_errors=True)
        self._holds.mkdir()
        kubelet = node.folder / "lib" / "kubelet"
        self._command: Command = [
            *(find_program("dradriver"), f"-driver={DRIVER}", f"-node={node.name}", f"-pools={self._file}"),
            *(f"-kubeconfig={plane.kubeconfig()}", f"-registry={kubelet / 'plugins_registry'}"),
            *(f"-folder={kubelet / 'plugins' / DRIVER}", f"-cdi-folder={self.cdi_folder}"),
            *(f"-calls={self._calls}", f"-holds={self._holds}"),
        ]
        self.process: Process | None = None

    @property
    def devices(self) -> dict[DeviceKey, Object]:
        """All that it publishes."""
        devices = [device for item in self.slices for device in item.get("devices", ())]
        return {(self._node.name, device["name"]): device for device in devices}

    def start(self) -> None:
        """Return at once."""
        self._write()
        (self._node.folder / "lib" / "kubelet" / "plugins_registry").mkdir(exist_ok=True)
        self.process = start_process("DRA driver", self._command, self._node.folder / "dra.log")

    def stop(self) -> None:
        """SIGTERM; return when it is gone."""
        if self.process is not None:
            self.process.stop()

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()

    def set_slices(self, slices: Slices) -> None:
        """It has others from now on; return when the API server has them."""
        self.slices = list(slices)
        self._write()
        if self.process is not None:
            self.process.signal(signal.SIGHUP)
        self.wait_published()

    def wait_registered(self, before: int = 0) -> None:
        """Wait until the kubelet has registered it more than so often."""
        wait_until(lambda: self.num_registered > before, WITHIN_S, "the kubelet has registered the driver")

    @property
    def num_registered(self) -> int:
        """How often the kubelet has registered it."""
        told = self.calls("NotifyRegistrationStatus")
        return sum(record["request"].get("plugin_registered", False) for record in told)

    def wait_published(self) -> None:
        """Wait until the API server has all that it publishes, and nothing else of it."""

        def seen() -> bool:
            found = self.published()
            complete = {item["spec"]["pool"]["resourceSliceCount"] for item in found} == {len(found)}
            devices = [device for item in found for device in item["spec"].get("devices", ())]
            return complete and sorted(map(_fact, devices)) == sorted(map(_fact, self.devices.values()))

        wait_until(seen, WITHIN_S, f"the slices of {self._node.name} are published")

    def published(self) -> list[Object]:
        """The node's ResourceSlices as the API server has them."""
        found: list[Object] = self._plane.request("GET", f"{API}/resourceslices")["items"]
        return [item for item in found if item["spec"].get("nodeName") == self._node.name]

    def prepared(self) -> dict[str, set[DeviceKey]]:
        """Devices of the claims that are prepared, by the claim's "namespace/name", as the CDI files have them."""
        prepared: dict[str, set[DeviceKey]] = {}
        for path in self.cdi_folder.glob(f"k8s.{DRIVER}-claim_*.json"):
            with contextlib.suppress(FileNotFoundError):
                for device in json.loads(path.read_text())["devices"]:
                    notes = device["annotations"]
                    prepared.setdefault(notes["claim"], set()).add((notes["pool"], notes["device"]))
        return prepared

    def _write(self) -> None:
        partial = self._file.with_suffix(".partial")
        partial.write_text(json.dumps({self._node.name: {"slices": self.slices}}))
        partial.rename(self._file)


def _fact(device: Mapping[str, Any]) -> str:
    """A device without what the API server adds."""
    taints = [{key: taint[key] for key in ("key", "value", "effect")} for taint in device.get("taints", ())]
    return json.dumps([device["name"], device["attributes"], taints], sort_keys=True)


@contextlib.contextmanager
def dra_driver(plane: ControlPlane, node: Node, slices: Slices) -> Iterator[DraDriver]:
    """A DRA driver that the kubelet knows; it goes, and its slices, when all of the node's pods are gone."""
    driver = DraDriver(plane, node, slices)
    driver.start()
    try:
        driver.wait_registered()
        driver.wait_published()
        yield driver
        node.clean()
        wait_until(lambda: not driver.prepared(), WITHIN_S, "all claims are unprepared")
    finally:
        driver.stop()
        for item in driver.published():
            with contextlib.suppress(ApiError):
                plane.request("DELETE", f"{API}/resourceslices/{item['metadata']['name']}")
