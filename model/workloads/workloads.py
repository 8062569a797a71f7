"""Workloads as arrays for the rules of `extender.core`.

The order of arrival of a published experiment is read from its file; otherwise it is generated in the same way: the
pods are shuffled, then random ones are cloned until a multiple of the GPU capacity has arrived.
"""

import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Longs
from extender.core.fragmentation import ANY_MODEL, MAX_MODELS, Mix, Nodes, PodClasses, TypicalPod, mix_of
from model.workloads.traces import NodeList, PodList, TraceError

ARRIVED_FRAC: Final = 1.3
"""GPU milli that arrive, relative to capacity."""
_TYPICAL_FRAC: Final = 0.95
"""Fraction of the pods that the typical ones cover (the published experiments' `PodPopularityThreshold`)."""


@dataclass(frozen=True)
class Workload:
    """P arrivals on N nodes; nodes are in tie-break order."""

    node_names: tuple[str, ...]
    nodes: Nodes
    """Empty nodes; copied before placing."""
    model_names: tuple[str, ...]
    """(M,) names of the models that `nodes.model` indexes."""
    asks: PodClasses
    """Requests of C classes."""
    pods: Longs
    """(P,) index of each pod in its list."""
    classes: Longs
    """(P,) class of each arrival."""
    asked_milli: Longs
    """(P,) GPU milli of each arrival."""
    mix: Mix

    @property
    def num_gpus(self) -> int:
        """GPUs of all nodes."""
        return int(self.nodes.num_gpus.sum())

    @property
    def gpu_milli(self) -> int:
        """GPU capacity in milli."""
        return self.num_gpus * WHOLE_MILLI


def workload(
    directory: Path, trace: str, seed: int, node_list: NodeList, pod_list: PodList, *, made: bool = False
) -> Workload:
    """Return the arrivals of a trace: as in its `arrivals_<trace>.npz` if that has the seed, else generated.

    `made`: always generate the order, because the nodes are not those of the file.
    """
    path = directory / f"arrivals_{trace}.npz"
    order = None if made else _read_order(path, seed, len(pod_list.names), len(node_list.names))
    if order is None:
        order = made_order(pod_list, node_list, seed)
    if (num_models := len(bits_of(node_list))) > MAX_MODELS:
        raise TraceError(f"{directory}: {num_models} GPU models; at most {MAX_MODELS} are supported")
    return workload_of(node_list, pod_list, *order)


def workload_of(node_list: NodeList, pod_list: PodList, pods: Longs, node_rank: Longs) -> Workload:
    """Return arrivals of (P,) `pods`, indices in the list, on nodes with (N,) tie-break ranks."""
    model_bits = bits_of(node_list)
    asks, pod_class = classes_of(pod_list, model_bits)
    return Workload(
        node_names=tuple(node_list.names[i] for i in np.argsort(node_rank)),
        nodes=empty_nodes(node_list, model_bits, np.argsort(node_rank)),
        model_names=tuple(model_bits),
        asks=asks,
        pods=pods,
        classes=pod_class[pods],
        asked_milli=pod_list.asked_milli[pods],
        mix=typical_pods(pod_list, model_bits),
    )


def bits_of(node_list: NodeList) -> dict[str, int]:
    """Return the bit of each GPU model."""
    return {name: bit for bit, name in enumerate(sorted(set(node_list.models) - {""}))}


def empty_nodes(node_list: NodeList, model_bits: dict[str, int], order: npt.NDArray[np.intp]) -> Nodes:
    """Return empty nodes in an order."""
    num_gpus = node_list.num_gpus[order]
    slots = np.arange(max(int(num_gpus.max(initial=0)), 1))
    return Nodes(
        cpu_milli=node_list.cpu_milli[order],
        memory_mib=node_list.memory_mib[order],
        num_gpus=num_gpus,
        model=np.array([model_bits.get(node_list.models[i], -1) for i in order], dtype=np.int64),
        cpu_free_milli=node_list.cpu_milli[order],
        memory_free_mib=node_list.memory_mib[order],
        gpu_free_milli=np.where(slots < num_gpus[:, None], WHOLE_MILLI, 0).astype(np.int32),
    )


def classes_of(pod_list: PodList, model_bits: dict[str, int]) -> tuple[PodClasses, Longs]:
    """Return the distinct requests of a list of pods, and the (P,) class of each pod."""
    specs = {spec: _models(spec, model_bits) for spec in set(pod_list.gpu_spec)}
    columns = np.stack(
        [
            pod_list.cpu_milli,
            pod_list.memory_mib,
            pod_list.num_gpus,
            pod_list.gpu_milli,
            np.array([specs[spec] for spec in pod_list.gpu_spec], dtype=np.int64),
        ]
    )
    distinct, pod_class = np.unique(columns, axis=1, return_inverse=True)
    return PodClasses(*(np.ascontiguousarray(column) for column in distinct)), pod_class.reshape(-1).astype(np.int64)


def typical_pods(pod_list: PodList, model_bits: dict[str, int]) -> Mix:
    """Return the classes by descending count until TYPICAL_FRAC of the pods are covered; memory is ignored."""
    keys = zip(
        pod_list.cpu_milli.tolist(),
        pod_list.gpu_milli.tolist(),
        pod_list.num_gpus.tolist(),
        pod_list.gpu_spec,
        strict=True,
    )
    counts = Counter(keys)
    by_count = sorted(counts, key=lambda key: (counts[key], *key), reverse=True)
    typical: list[TypicalPod] = []
    covered = 0
    for cpu, milli, num, spec in by_count:
        if covered >= _TYPICAL_FRAC * len(pod_list.names):
            break
        count = counts[cpu, milli, num, spec]
        covered += count
        typical.append(TypicalPod(cpu, num, milli, _models(spec, model_bits), count))
    return mix_of(typical, len(pod_list.names))


def made_order(pod_list: PodList, node_list: NodeList, seed: int) -> tuple[Longs, Longs]:
    """Generate the pods' order of arrival, as indices, and the nodes' tie-break ranks."""
    milli = pod_list.asked_milli
    if not milli.any():
        raise TraceError("no pod of the trace requests a GPU")
    rng = np.random.default_rng(seed)
    num_pods = len(pod_list.names)
    pods = rng.permutation(num_pods)
    wanted = ARRIVED_FRAC * node_list.gpu_milli
    arrived = int(milli.sum())
    clones: list[int] = []
    while arrived < wanted:
        drawn = rng.integers(num_pods, size=num_pods)
        kept = drawn[: int(np.searchsorted(arrived + np.cumsum(milli[drawn]), wanted)) + 1]
        clones += kept.tolist()
        arrived += int(milli[kept].sum())
    order = np.concatenate([pods, np.array(clones, dtype=np.int64)])
    enough = int(np.searchsorted(np.cumsum(milli[order]), wanted)) + 1
    return order[:enough].astype(np.int64), rng.permutation(len(node_list.names)).astype(np.int64)


def _models(spec: str, model_bits: dict[str, int]) -> int:
    """Return the bits of the models in "A|B"; models that no node has are ignored."""
    if not spec:
        return ANY_MODEL
    return sum(1 << model_bits[name] for name in set(spec.split("|")) if name in model_bits)


def _read_order(path: Path, seed: int, num_pods: int, num_nodes: int) -> tuple[Longs, Longs] | None:
    """Read the order from a file; None if there is no file or it lacks the seed."""
    if not path.exists():
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            if f"pods_{seed}" not in archive:
                return None
            pods, rank = archive[f"pods_{seed}"], archive[f"node_rank_{seed}"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise TraceError(f"{path}: {error}") from None
    for name, array, below in (("pods", pods, num_pods), ("node_rank", rank, num_nodes)):
        whole = array.ndim == 1 and np.issubdtype(array.dtype, np.integer)
        if not whole or len(array) == 0 or array.min() < 0 or array.max() >= below:
            raise TraceError(f"{path}: {name}_{seed}: not a list of indices below {below}")
    if len(rank) != num_nodes or len(set(rank.tolist())) != num_nodes:
        raise TraceError(f"{path}: node_rank_{seed}: not a rank for each of the {num_nodes} nodes")
    return pods.astype(np.int64), rank.astype(np.int64)
