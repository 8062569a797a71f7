"""A cluster of unlike nodes: kinds with different GPUs, CPUs and memories, and on every second node pods that ask for
different amounts. So hardly two used nodes are in the same state, as in a cluster that has run for some time.
"""

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.controlplane import ControlPlane
from tests.tools.bench import copies, servers

_SEED: Final = 20261128
_MODELS: Final = (
    ("NVIDIA-A100-SXM4-80GB", 81920),
    ("NVIDIA-A100-SXM4-40GB", 40960),
    ("NVIDIA-H100-80GB-HBM3", 81559),
    ("NVIDIA-L40S", 46068),
    ("Tesla-T4", 15360),
)
_NUM_KINDS: Final = 30
_NUM_REQUESTS: Final = 60
"""Different pods that run."""
_GPUS: Final = (2, 4, 8, 8, 8)


@dataclass(frozen=True)
class _Kind:
    """Nodes that are alike when they are empty."""

    prefix: str
    gpus: int
    model: str
    memory_mib: int
    cpus: int

    @property
    def flags(self) -> tuple[str, ...]:
        return (
            *(f"-prefix={self.prefix}", f"-gpus={self.gpus}", f"-product={self.model}"),
            *(f"-memory-mib={self.memory_mib}", f"-cpu={self.cpus}", f"-memory={self.cpus * 8}Gi"),
        )


@dataclass(frozen=True)
class _Request:
    """Pods that ask for the same; those with GPUs have the first ones of their node."""

    prefix: str
    gpus: int
    cpu_milli: int
    memory_mib: int

    @property
    def flags(self) -> tuple[str, ...]:
        assigned = ",".join(map(str, range(self.gpus)))
        return (
            *("-bound=1", f"-prefix={self.prefix}", f"-pod-gpus={self.gpus}"),
            *(f"-cpu={self.cpu_milli}m", f"-memory={self.memory_mib}Mi"),
            *([f"-annotation=kerf.dev/assigned-gpus={assigned}"] if self.gpus else []),
        )


@contextlib.contextmanager
def plane_with_nodes(directory: Path, num_nodes: int) -> Iterator[ControlPlane]:
    """A fresh control plane with such nodes, and pods on every second one: the same at every call."""
    rng = random.Random(_SEED)
    with servers.plane(directory) as opened:
        nodes = _store_nodes(opened, [_kind(number, rng) for number in range(_NUM_KINDS)], num_nodes, rng)
        _store_pods(opened, [_request(number, rng) for number in range(_NUM_REQUESTS)], nodes, rng)
        yield opened


def _kind(number: int, rng: random.Random) -> _Kind:
    model, memory_mib = rng.choice(_MODELS)
    return _Kind(f"k{number:02}", rng.choice(_GPUS), model, memory_mib, rng.choice((32, 48, 64, 96, 128, 192)))


def _request(number: int, rng: random.Random) -> _Request:
    gpus = 0 if number % 2 else rng.choice((1, 1, 2, 3, 4, 6, 7))
    return _Request(f"r{number:02}", gpus, rng.randrange(500, 4000 * max(1, gpus)), rng.randrange(512, 16384))


def _store_nodes(
    plane: ControlPlane, kinds: list[_Kind], num_nodes: int, rng: random.Random
) -> list[tuple[str, _Kind]]:
    """Name and kind of each node."""
    drawn = [*kinds[:num_nodes], *rng.choices(kinds, k=max(0, num_nodes - len(kinds)))]
    nodes = [(f"{kind.prefix}-{number:05}", kind) for kind in kinds for number in range(drawn.count(kind))]
    for kind in kinds:
        first, *others = [name for name, of_kind in nodes if of_kind is kind] or [""]
        if first:
            servers.load(plane, "nodes", "-count=1", *kind.flags)
            copies.copy(
                plane, f"/registry/minions/{first}", f"/api/v1/nodes/{first}", [{first: name} for name in others]
            )
    return nodes


def _store_pods(
    plane: ControlPlane, requests: list[_Request], nodes: list[tuple[str, _Kind]], rng: random.Random
) -> None:
    """One pod with GPUs, and up to three without, on every second node."""
    used: dict[_Request, list[str]] = {request: [] for request in requests}
    for name, kind in nodes[::2]:
        used[rng.choice([request for request in requests if 0 < request.gpus < kind.gpus])].append(name)
        for request in rng.sample([request for request in requests if not request.gpus], k=rng.randrange(4)):
            used[request].append(name)
    for request, names in used.items():
        if not names:
            continue
        servers.load(plane, "pods", *request.flags)
        first, path = f"{request.prefix}-bound-00000", "/api/v1/namespaces/default/pods/"
        original = plane.request("GET", path + first)["spec"]["nodeName"]
        made = [{first: f"{request.prefix}-bound-{n:05x}", original: name} for n, name in enumerate(names, 1)]
        copies.copy(plane, f"/registry/pods/default/{first}", path + first, made)
        plane.request("DELETE", path + first, {"gracePeriodSeconds": 0})  # its node would have one of each
