"""Generated clusters and mixes of pods, from a description of node kinds and pod families.

A description (YAML) has numbers, or ranges `[low, high]` that are sampled for each cluster. `kinds` are mixes that
override some of the base entries, such as one that requests more CPU than the cluster has.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import yaml

from extender.core.clusters import GIB_MIB, WHOLE_MILLI, Floats, Longs
from model.workloads.traces import MAX_GPUS, NodeList, PodList
from model.workloads.workloads import ARRIVED_FRAC

DEMO: Final = Path(__file__).parent / "configs" / "demo.yaml"
Number = float | tuple[float, float]
"""A number, or the range it is drawn from."""
_HOUR_S: Final = 3600.0
_MILLI_STEP: Final = 10
_CPU_STEP: Final = 100
_POPULARITY: Final = 0.7
"""Dirichlet concentration: most pods of a family belong to a few classes."""
_MOST_OF_A_NODE: Final = 0.95
"""Largest request of a pod, as a fraction of the CPU and memory of the largest node that could host it."""
_BETWEEN_S: Final = 60.0
_SKEWED: Final = ("cores", "memory_gib", "hours")
_FRACTIONS: Final = ("choosy", "cpu_pods")


class MixError(ValueError):
    """An invalid description; the message says why."""


class NodeKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A kind of node."""

    model: str
    gpus: int
    cores: Number
    memory_gib: Number
    weight: Number = 1.0
    """Share of the GPUs of this kind, relative to the sum of all weights; 0: none."""

    def __post_init__(self) -> None:
        if not self.model or not 1 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"a kind of node needs a model, and 1 to {MAX_GPUS} gpus")
        _check(self)


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pods with the same number of GPUs, or none."""

    gpus: int
    weight: Number = 1.0
    """Share of the requested GPU, relative to the sum of all weights; for families without GPUs, of the CPU."""
    milli: Number = WHOLE_MILLI
    """Milli of a GPU, drawn for each class; less than 1000 is a share."""
    classes: Number = 8
    """Number of classes."""
    cores: Number = (4, 16)
    """Cores per whole GPU, scaled by `cpu_load`, or per pod without GPUs; drawn for each class."""
    memory_gib: Number = (8, 64)
    """Memory, likewise; always scaled by `memory_load`."""
    choosy: Number = 0.0
    """Fraction of the classes that accept only some models."""
    hours: Number = (0.2, 20)
    """Median duration, drawn for each class."""
    spread: Number = 1.0
    """Standard deviation of the log duration."""

    def __post_init__(self) -> None:
        if not 0 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"a family needs 0 to {MAX_GPUS} gpus")
        _check(self)


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Distribution of a cluster and its pods."""

    gpus: Number
    """GPUs of the cluster."""
    nodes: tuple[NodeKind, ...]
    pods: Mapping[str, Family]
    cpu_load: Number
    """CPU requested by all pods relative to the cluster's CPU, once the requested GPUs equal the cluster's."""
    cpu_pods: Number = 0.0
    """Fraction of that CPU requested by pods without GPUs."""
    memory_load: Number = 0.5
    """As `cpu_load`, for memory."""

    def __post_init__(self) -> None:
        if not self.nodes or not self.pods:
            raise ValueError("nodes and pods must not be empty")
        _check(self)


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A family of mixes."""

    base: Mix
    kinds: Mapping[str, Mapping[str, Any]]
    """Overrides of `base` by name; those of `pods` are merged by family."""

    def mix(self, kind: str) -> Mix:
        """Return the mix of a kind. Raises MixError."""
        if kind not in self.kinds:
            raise MixError(f"no kind {kind!r} of mixes; there are {', '.join(self.kinds)}")
        return _merged(self.base, self.kinds[kind])

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("there are no kinds")
        for name, other in self.kinds.items():
            try:
                _merged(self.base, other)
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"kind {name}: {error}") from None


def read_mixes(path: Path) -> Description:
    """Read a description from a YAML file. Raises MixError that names the file and the fault."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Description)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise MixError(f"{path}: {error}") from None


def drawn(mix: Mix, seed: int) -> tuple[NodeList, PodList]:
    """Draw a cluster, and pods in order of arrival until ARRIVED_FRAC of its GPUs are requested. Raises MixError.

    Arrivals are Poisson, one per minute; `model.simulations.departures` rescales them to a load.
    """
    rng = np.random.default_rng(seed)
    nodes = _nodes(mix, rng)
    return nodes, _pods(mix, nodes, rng)


def pods_on(mix: Mix, nodes: NodeList, seed: int, load: float) -> PodList:
    """Draw pods of a mix in order of arrival, until the requested GPUs are `load` times those of the nodes.

    Raises MixError if no node can host any of them.
    """
    return _pods(mix, nodes, np.random.default_rng(seed), load)


def _nodes(mix: Mix, rng: np.random.Generator) -> NodeList:
    weight = np.array([_number(kind.weight, rng) for kind in mix.nodes])
    gpus = _number(mix.gpus, rng) * weight / max(float(weight.sum()), 1e-9)
    rows: list[tuple[int, int, int, str]] = []
    for kind, num_gpus in zip(mix.nodes, gpus.tolist(), strict=True):
        cores, gib = round(_number(kind.cores, rng)), round(_number(kind.memory_gib, rng))
        rows += [(cores * 1000, gib * GIB_MIB, kind.gpus, kind.model)] * round(num_gpus / kind.gpus)
    if not rows:
        raise MixError("the cluster has no nodes: increase gpus or the nodes' weights")
    cpu, memory, per_node = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    names = tuple(f"node-{number:05d}" for number in range(len(rows)))
    return NodeList(names, cpu, memory, per_node, tuple(row[3] for row in rows))


class _Classes(NamedTuple):
    """C classes of pods."""

    gpus: Longs
    milli: Longs
    """Milli of each GPU, 0 without GPUs."""
    models: Sequence[str]
    """As `PodList.gpu_spec`."""
    cpu_milli: Floats
    memory_mib: Floats
    weight: Floats
    """Share of the requested GPU; for pods without GPUs, of their CPU."""
    duration_s: Floats
    """Median."""
    spread: Floats

    @property
    def requested_gpus(self) -> Floats:
        """(C,) GPUs that a pod requests."""
        return self.gpus * self.milli / WHOLE_MILLI


def _classes(mix: Mix, nodes: NodeList, rng: np.random.Generator) -> _Classes:
    """Draw the classes that fit some node, before CPU and memory are scaled."""
    rows: list[tuple[int, int, str, float, float, float, float, float]] = []
    for family in mix.pods.values():
        weight, choosy, spread = (_number(value, rng) for value in (family.weight, family.choosy, family.spread))
        num_classes = max(round(_number(family.classes, rng)), 1)
        hosts = sorted({nodes.models[i] for i in np.flatnonzero(nodes.num_gpus >= family.gpus).tolist()})
        for part in rng.dirichlet(np.full(num_classes, _POPULARITY)).tolist():
            milli = _milli(family, rng)
            gpus = family.gpus * milli / WHOLE_MILLI if family.gpus else 1.0
            cores, gib = (_skewed(amount, rng) * gpus for amount in (family.cores, family.memory_gib))
            models = rng.permutation(hosts)[: 1 + rng.integers(2)].tolist() if rng.random() < choosy else []
            if hosts:
                spec = "|".join(sorted(models)) if family.gpus else ""
                amounts = cores * 1000, gib * GIB_MIB, weight * part
                rows.append((family.gpus, milli, spec, *amounts, _skewed(family.hours, rng) * _HOUR_S, spread))
    if not any(row[0] and row[5] for row in rows):
        raise MixError("no node can host any of the pods that request GPUs")
    return _Classes._make(
        list(column) if name == "models" else np.array(column)
        for name, column in zip(_Classes._fields, zip(*rows, strict=True), strict=True)
    )


def _scaled(mix: Mix, nodes: NodeList, classes: _Classes, rng: np.random.Generator) -> tuple[_Classes, Floats]:
    """Return the classes with scaled CPU and memory, and the (C,) numbers of pods that together request all GPUs."""
    with_gpus = classes.gpus > 0
    largest = [
        [int(amount[hosts].max()) for amount in (nodes.cpu_milli, nodes.memory_mib)]
        for hosts in (_hosts(nodes, g, spec) for g, spec in zip(classes.gpus.tolist(), classes.models, strict=True))
    ]
    most_cpu, most_memory = np.array(largest, np.float64).T * _MOST_OF_A_NODE
    pods = np.where(with_gpus, classes.weight / np.maximum(classes.requested_gpus, 1e-9), 0.0)
    pods *= float(nodes.num_gpus.sum()) / float((pods * classes.requested_gpus).sum())
    cpu_load, cpu_part, memory_load = (_number(value, rng) for value in (mix.cpu_load, mix.cpu_pods, mix.memory_load))
    if with_gpus.all() or not classes.weight[~with_gpus].any():
        cpu_part = 0.0
    cpu = classes.cpu_milli.copy()
    total = cpu_load * float(nodes.cpu_milli.sum())
    cpu[with_gpus] *= (1 - cpu_part) * total / max(float((pods * cpu)[with_gpus].sum()), 1.0)
    cpu = np.clip(np.rint(cpu / _CPU_STEP) * _CPU_STEP, _CPU_STEP, most_cpu)
    cpu_weight = np.where(with_gpus, 0.0, classes.weight)
    pods += cpu_part * total * cpu_weight / max(float(cpu_weight.sum()), 1e-9) / cpu
    memory = classes.memory_mib * memory_load * float(nodes.memory_mib.sum())
    memory = np.clip(np.rint(memory / max(float((pods * classes.memory_mib).sum()), 1.0)), 1, most_memory)
    return classes._replace(cpu_milli=cpu, memory_mib=memory), pods


def _pods(mix: Mix, nodes: NodeList, rng: np.random.Generator, load: float = ARRIVED_FRAC) -> PodList:
    classes, count = _scaled(mix, nodes, _classes(mix, nodes, rng), rng)
    probability = count / count.sum()
    num_gpus = float(nodes.num_gpus.sum())
    c = np.empty(0, np.int64)
    while (arrived := np.cumsum(classes.requested_gpus[c]))[-1:].sum() < load * num_gpus:
        c = np.append(c, rng.choice(len(probability), 1000, p=probability))
    c = c[: int(np.searchsorted(arrived, load * num_gpus)) + 1]
    submitted = np.cumsum(rng.exponential(_BETWEEN_S, len(c)))
    duration = classes.duration_s[c] * np.exp(classes.spread[c] * rng.standard_normal(len(c)))
    return PodList(
        names=tuple(f"pod-{number:06d}" for number in range(len(c))),
        cpu_milli=classes.cpu_milli[c].astype(np.int64),
        memory_mib=classes.memory_mib[c].astype(np.int64),
        num_gpus=classes.gpus[c].astype(np.int64),
        gpu_milli=classes.milli[c].astype(np.int64),
        gpu_spec=tuple(classes.models[i] for i in c.tolist()),
        submitted_s=np.rint(submitted),
        duration_s=np.maximum(np.rint(duration), 1.0),
    )


def _milli(family: Family, rng: np.random.Generator) -> int:
    if family.gpus != 1:
        return WHOLE_MILLI if family.gpus else 0
    milli = round(_number(family.milli, rng) / _MILLI_STEP) * _MILLI_STEP
    return min(max(milli, _MILLI_STEP), WHOLE_MILLI)


def _hosts(nodes: NodeList, gpus: int, spec: str) -> Longs:
    """Return the nodes with the GPUs for a pod."""
    allowed = np.array([not spec or model in spec.split("|") for model in nodes.models])
    return np.flatnonzero(allowed & (nodes.num_gpus >= gpus))


def _check(struct: msgspec.Struct) -> None:
    """Raise ValueError if a number is negative or a range is invalid."""
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        low, high = value if isinstance(value, tuple) and name != "nodes" else (value, value)
        if isinstance(low, int | float) and not 0 <= low <= high < np.inf:
            raise ValueError(f"{name}: write a number of 0 or more, or [low, high], not {value}")
        if isinstance(value, tuple) and name in _SKEWED and low <= 0:
            raise ValueError(f"{name}: write a range above 0, not {list(value)}")
        if name in _FRACTIONS and high > 1:
            raise ValueError(f"{name}: write a number from 0 to 1, not {value}")


def _number(value: Number, rng: np.random.Generator) -> float:
    return float(rng.uniform(*value)) if isinstance(value, tuple) else float(value)


def _skewed(value: Number, rng: np.random.Generator) -> float:
    """Draw log-uniformly."""
    return float(np.exp(rng.uniform(*np.log(value)))) if isinstance(value, tuple) else float(value)


def _merged(base: Mix, other: Mapping[str, Any]) -> Mix:
    """Return `base` with overrides. Raises msgspec.ValidationError."""
    values = msgspec.to_builtins(base)
    pods = {name: {**values["pods"].get(name, {}), **family} for name, family in other.get("pods", {}).items()}
    return msgspec.convert({**values, **other, "pods": {**values["pods"], **pods}}, Mix)
