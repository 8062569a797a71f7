"""Devices of GPUs with dynamic MIG, as NVIDIA's DRA driver publishes them.

A GPU has 8 memory slices; a partition takes consecutive ones, from certain start positions. Everything else is counted
by counters shared by all partitions of a GPU. Source: kubernetes-sigs/dra-driver-nvidia-gpu 9593204
(`cmd/gpu-kubelet-plugin/partitions.go`, `mig.go`, `driver.go`: with `DynamicMIG`, Kubernetes 1.35 and newer). Profiles
and positions: NVIDIA's MIG user guide ("Supported MIG profiles"; `nvidia-smi mig -lgip`, `-lgipp`). Sizes of A100:
go-nvml's mock (`pkg/nvml/mock/gpus/a100.go`), except the decoder of 1g.10gb on 80 GB, which the guide doesn't have.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from extender.core.clusters import WHOLE_MILLI
from extender.core.dra.devices import Amount, Capacity, Device, DeviceId, Inventory, Value, Version

DRIVER: Final = "gpu.nvidia.com"
_MEMORY_SLICES: Final = 8
_API_VERSION: Final = "resource.k8s.io/v1"
_ARCHITECTURES: Final = {"A100": ("Ampere", "8.0.0"), "H100": ("Hopper", "9.0.0")}
_DRIVER_VERSION: Final = "580.65.6"
_CUDA_VERSION: Final = "13.0.0"


class Engines(NamedTuple):
    """Engines of a profile."""

    multiprocessors: int
    copy: int
    decoders: int = 0
    jpeg: int = 0
    ofa: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile."""

    name: str
    number: int
    """Profile id, as in `nvidia-smi mig -cgi`."""
    compute: int
    """Compute slices, of 7."""
    starts: tuple[int, ...]
    """Memory slices at which a partition may start."""
    size: int
    """Memory slices, of 8."""
    memory_mib: int
    engines: Engines

    @property
    def share(self) -> float:
        """Fraction of a GPU: the larger of compute and memory."""
        return max(self.compute / 7, self.size / _MEMORY_SLICES)

    @property
    def capacity(self) -> dict[str, Amount]:
        """Capacity by the driver's names."""
        multiprocessors, copy, decoders, jpeg, ofa = self.engines
        return {
            **{"multiprocessors": multiprocessors, "copyEngines": copy, "decoders": decoders, "encoders": 0},
            **{"jpegEngines": jpeg, "ofaEngines": ofa, "memory": self.memory_mib * 2**20},
        }


@dataclass(frozen=True, slots=True)
class GpuKind:
    """A GPU model and its profiles."""

    name: str
    product: str
    profiles: tuple[Profile, ...]
    whole: bool = True
    """Whether the driver also publishes the whole GPU. It doesn't for Ampere, which can't leave MIG mode without a
    reset."""

    @property
    def all_of_it(self) -> Profile:
        """The profile with all memory slices."""
        return self.profiles[-1]


_EVERYWHERE: Final = tuple(range(7))


def _profiles(unit: int, sizes: tuple[tuple[int, Engines], ...]) -> tuple[Profile, ...]:
    """Return the seven profiles of a GPU with `unit` GB per memory slice; `sizes` are MiB and engines of each."""
    shapes: tuple[tuple[str, int, int, tuple[int, ...], int], ...] = (
        (f"1g.{unit}gb", 19, 1, _EVERYWHERE, 1),
        (f"1g.{unit}gb+me", 20, 1, _EVERYWHERE, 1),
        (f"1g.{2 * unit}gb", 15, 1, (0, 2, 4, 6), 2),
        (f"2g.{2 * unit}gb", 14, 2, (0, 2, 4), 2),
        (f"3g.{4 * unit}gb", 9, 3, (0, 4), 4),
        (f"4g.{4 * unit}gb", 5, 4, (0,), 4),
        (f"7g.{8 * unit}gb", 0, 7, (0,), 8),
    )
    return tuple(Profile(*shape, *size) for shape, size in zip(shapes, sizes, strict=True))


def _ampere(unit: int, memory_mib: tuple[int, ...]) -> tuple[Profile, ...]:
    engines = (
        *(Engines(14, 1), Engines(14, 1, 1, 1, 1), Engines(14, 1, 1)),
        *(Engines(28, 2, 1), Engines(42, 3, 2), Engines(56, 4, 2), Engines(98, 7, 5, 1, 1)),
    )
    return _profiles(unit, tuple(zip(memory_mib, engines, strict=True)))


_HOPPER: Final = (
    *((9984, Engines(16, 1, 1, 1)), (9984, Engines(16, 1, 1, 1, 1)), (20096, Engines(26, 1, 1, 1))),
    *((20096, Engines(32, 2, 2, 2)), (40448, Engines(60, 3, 3, 3)), (40448, Engines(64, 4, 4, 4))),
    (81152, Engines(132, 8, 7, 7, 1)),
)
GPUS: Final = {
    kind.name: kind
    for kind in (
        GpuKind(
            "a100-40gb", "NVIDIA A100-SXM4-40GB", _ampere(5, (4864, 4864, 9856, 9856, 19968, 19968, 40192)), whole=False
        ),
        GpuKind(
            "a100-80gb",
            "NVIDIA A100-SXM4-80GB",
            _ampere(10, (9856, 9856, 19968, 19968, 40192, 40192, 80384)),
            whole=False,
        ),
        GpuKind("h100-80gb", "NVIDIA H100 80GB HBM3", _profiles(10, _HOPPER)),
    )
}


@dataclass(frozen=True, slots=True)
class _Published:
    """A published device: the whole GPU, or a partition at a start position."""

    name: str
    gpu: int
    kind: GpuKind
    profile: Profile | None = None
    start: int = 0

    @property
    def consumes(self) -> dict[str, Amount]:
        """Consumption of its GPU's counters, by name."""
        profile = self.profile or self.kind.all_of_it
        counters = {_COUNTERS[name]: amount for name, amount in profile.capacity.items()}
        return counters | {f"memory-slice-{self.start + place}": 1 for place in range(profile.size)}

    @property
    def capacity(self) -> dict[str, Amount]:
        return (self.profile or self.kind.all_of_it).capacity

    def attributes(self, node: str) -> dict[str, Value]:
        """Return its attributes by name, without the driver's domain."""
        uuid = f"GPU-{node}-{self.gpu}"
        architecture, capability = next(entry for model, entry in _ARCHITECTURES.items() if model in self.kind.product)
        own: dict[str, Value] = (
            {"type": "mig", "parentUUID": uuid, "profile": self.profile.name}
            if self.profile
            else {"type": "gpu", "uuid": uuid}
        )
        return own | {
            **{"productName": self.kind.product, "brand": "Nvidia", "architecture": architecture},
            **{"cudaComputeCapability": Version(capability), "driverVersion": Version(_DRIVER_VERSION)},
            **{"cudaDriverVersion": Version(_CUDA_VERSION)},
            "resource.kubernetes.io/pciBusID": f"0000:{16 * self.gpu + 7:02x}:00.0",
        }


_COUNTERS: Final = {
    **{"multiprocessors": "multiprocessors", "copyEngines": "copy-engines", "decoders": "decoders"},
    **{"encoders": "encoders", "jpegEngines": "jpeg-engines", "ofaEngines": "ofa-engines", "memory": "memory"},
}


def _published(kind: GpuKind, gpu: int) -> list[_Published]:
    """Return the devices of one GPU by name: the order in which kube-scheduler tries them."""
    found = [_Published(f"gpu-{gpu}", gpu, kind)] if kind.whole else []
    for profile in kind.profiles:
        label = profile.name.replace(".", "").replace("+", "-")
        found += [
            _Published(f"gpu-{gpu}-mig-{label}-{profile.number}-{start}", gpu, kind, profile, start)
            for start in profile.starts
        ]
    return sorted(found, key=lambda device: device.name)


def resource_slices(kind: GpuKind, num_gpus: int, node: str) -> list[dict[str, Any]]:
    """Return the ResourceSlices of a node: first the counters', then one for each GPU."""
    sets = [{"name": _set_of(gpu), "counters": _values(_all_of(kind))} for gpu in range(num_gpus)]
    specs: list[dict[str, Any]] = [{"sharedCounters": sets}]
    specs += [{"devices": [_device(device, node) for device in _published(kind, gpu)]} for gpu in range(num_gpus)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": len(specs)}
    return [
        {
            **{"apiVersion": _API_VERSION, "kind": "ResourceSlice"},
            "metadata": {"name": f"{position:05d}-{DRIVER}-{node}"},
            "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, **spec},
        }
        for position, spec in enumerate(specs)
    ]


def inventory(kind: GpuKind, num_gpus: int, node: str = "node") -> Inventory:
    """Return the inventory that the service reads from `resource_slices`."""
    names = sorted(_all_of(kind))
    sets = sorted(range(num_gpus), key=_set_of)
    index_of = {(gpu, name): index for index, (gpu, name) in enumerate((gpu, name) for gpu in sets for name in names)}
    devices = tuple(
        _read(device, node, tuple(sorted((index_of[device.gpu, name], n) for name, n in device.consumes.items())))
        for gpu in range(num_gpus)
        for device in _published(kind, gpu)
    )
    counters = tuple(_all_of(kind)[name] for _ in sets for name in names)
    return Inventory(devices, counters, {device.id: index for index, device in enumerate(devices)})


def _all_of(kind: GpuKind) -> dict[str, Amount]:
    """Return the counters of one GPU."""
    return _Published("", 0, kind).consumes


def _set_of(gpu: int) -> str:
    return f"gpu-{gpu}-counter-set"


def _read(device: _Published, node: str, consumes: tuple[tuple[int, Amount], ...]) -> Device:
    profile = device.profile or device.kind.all_of_it
    milli = WHOLE_MILLI * profile.engines.multiprocessors // device.kind.all_of_it.engines.multiprocessors
    return Device(
        DeviceId(DRIVER, node, device.name),
        {_full(name): value for name, value in device.attributes(node).items()},
        {name: Capacity(amount) for name, amount in device.capacity.items()},
        consumes,
        gpu=device.gpu,
        milli=milli,
        mib=profile.memory_mib,
    )


def _full(name: str) -> str:
    return name if "/" in name else f"{DRIVER}/{name}"


def _device(device: _Published, node: str) -> dict[str, Any]:
    return {
        "name": device.name,
        "attributes": dict(_attributes(device, node)),
        "capacity": _values(device.capacity),
        "consumesCounters": [{"counterSet": _set_of(device.gpu), "counters": _values(device.consumes)}],
    }


def _attributes(device: _Published, node: str) -> Iterator[tuple[str, dict[str, str]]]:
    for name, value in device.attributes(node).items():
        yield name, {"version": value.text} if isinstance(value, Version) else {"string": str(value)}


def _values(amounts: dict[str, Amount]) -> dict[str, dict[str, str]]:
    return {name: {"value": str(amount)} for name, amount in amounts.items()}
