"""Clusters and mixes of pods drawn from a description: nodes by kind, pods by family, no file from elsewhere needed.

A description (YAML) names numbers, or ranges `[low, high]` that are drawn anew for each cluster. `kinds` are mixes that
differ from it in some of its entries, such as one that asks for more CPU than there is.
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
"""A number, or the range that it is drawn from."""
_HOUR_S: Final = 3600.0
_MILLI_STEP: Final = 10
_CPU_STEP: Final = 100
_POPULARITY: Final = 0.7
"""Concentration of a Dirichlet distribution: a few classes of a family are most of its pods."""
_MOST_OF_A_NODE: Final = 0.95
"""What a pod asks for at most of the CPU and memory of the largest node that could host it."""
_BETWEEN_S: Final = 60.0
_SKEWED: Final = ("cores", "memory_gib", "hours")
_FRACTIONS: Final = ("choosy", "cpu_pods")


class MixError(ValueError):
    """A description that can't be used: says why."""


class NodeKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that are alike."""

    model: str
    gpus: int
    cores: Number
    memory_gib: Number
    weight: Number = 1.0
    """GPUs of this kind, by the sum of all weights; 0: none."""

    def __post_init__(self) -> None:
        if not self.model or not 1 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"a kind of node has a model, and 1 to {MAX_GPUS} gpus")
        _check(self)


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pods that ask for as many GPUs, or for none."""

    gpus: int
    weight: Number = 1.0
    """GPU that they ask for together, by the sum of all weights; of families without GPUs, CPU."""
    milli: Number = WHOLE_MILLI
    """Of a GPU; less than 1000 is a share, drawn for each class."""
    classes: Number = 8
    """How many different pods there are."""
    cores: Number = (4, 16)
    """By whole GPU, where `cpu_load` scales it, or by pod without GPUs; drawn for each class."""
    memory_gib: Number = (8, 64)
    """Likewise; `memory_load` scales all of it."""
    choosy: Number = 0.0
    """Part of the classes that accept some models only."""
    hours: Number = (0.2, 20)
    """Median of how long they run, drawn for each class."""
    spread: Number = 1.0
    """Standard deviation of the logarithm of how long they run."""

    def __post_init__(self) -> None:
        if not 0 <= self.gpus <= MAX_GPUS:
            raise ValueError(f"a pod has 0 to {MAX_GPUS} gpus")
        _check(self)


class Mix(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a cluster and its pods are drawn from."""

    gpus: Number
    """Of the cluster."""
    nodes: tuple[NodeKind, ...]
    pods: Mapping[str, Family]
    cpu_load: Number
    """CPU that all pods ask for when the GPUs asked for are as many as there are, by the CPU that there is."""
    cpu_pods: Number = 0.0
    """Part of that CPU that pods without GPUs ask for."""
    memory_load: Number = 0.5
    """As `cpu_load`, of memory."""

    def __post_init__(self) -> None:
        if not self.nodes or not self.pods:
            raise ValueError("nodes and pods must not be empty")
        _check(self)


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A family of mixes."""

    base: Mix
    kinds: Mapping[str, Mapping[str, Any]]
    """By name: entries of `base` that are others; those of `pods` are merged, family by family."""

    def mix(self, kind: str) -> Mix:
        """One of the kinds. Raises MixError."""
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
    """The description in a YAML file. Raises MixError that names the file and what is wrong."""
    try:
        return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Description)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise MixError(f"{path}: {error}") from None


def drawn(mix: Mix, seed: int) -> tuple[NodeList, PodList]:
    """A cluster, and pods in the order of their arrival until ARRIVED_FRAC of its GPUs are asked for. Raises MixError.

    They come at random, a pod a minute; `model.simulations.departures` brings that to a load.
    """
    rng = np.random.default_rng(seed)
    nodes = _nodes(mix, rng)
    return nodes, _pods(mix, nodes, rng)


def pods_on(mix: Mix, nodes: NodeList, seed: int, asked: float) -> PodList:
    """Pods of one mix in the order of their arrival, until `asked` times as many GPUs are asked for as there are.

    Raises MixError where no node can host any.
    """
    return _pods(mix, nodes, np.random.default_rng(seed), asked)


def _nodes(mix: Mix, rng: np.random.Generator) -> NodeList:
    weight = np.array([_number(kind.weight, rng) for kind in mix.nodes])
    gpus = _number(mix.gpus, rng) * weight / max(float(weight.sum()), 1e-9)
    rows: list[tuple[int, int, int, str]] = []
    for kind, asked in zip(mix.nodes, gpus.tolist(), strict=True):
        cores, gib = round(_number(kind.cores, rng)), round(_number(kind.memory_gib, rng))
        rows += [(cores * 1000, gib * GIB_MIB, kind.gpus, kind.model)] * round(asked / kind.gpus)
    if not rows:
        raise MixError("there are no nodes: more GPUs, or other weights")
    cpu, memory, per_node = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    names = tuple(f"node-{number:05d}" for number in range(len(rows)))
    return NodeList(names, cpu, memory, per_node, tuple(row[3] for row in rows))


class _Classes(NamedTuple):
    """C classes of pods."""

    gpus: Longs
    milli: Longs
    """Of each GPU, 0 without GPUs."""
    models: Sequence[str]
    """As `PodList.gpu_spec`."""
    cpu_milli: Floats
    memory_mib: Floats
    weight: Floats
    """Of the GPU asked for; of pods without GPUs, of the CPU that they ask for."""
    duration_s: Floats
    """Median."""
    spread: Floats

    @property
    def asked(self) -> Floats:
        """(C,) GPUs of a pod."""
        return self.gpus * self.milli / WHOLE_MILLI


def _classes(mix: Mix, nodes: NodeList, rng: np.random.Generator) -> _Classes:
    """Before their CPU and memory are scaled. What no node could host is left out."""
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
        raise MixError("no node can host any of the pods that ask for GPUs")
    return _Classes._make(
        list(column) if name == "models" else np.array(column)
        for name, column in zip(_Classes._fields, zip(*rows, strict=True), strict=True)
    )


def _scaled(mix: Mix, nodes: NodeList, classes: _Classes, rng: np.random.Generator) -> tuple[_Classes, Floats]:
    """The classes with their CPU and memory, and (C,) pods of each that ask for all GPUs together."""
    with_gpus = classes.gpus > 0
    largest = [
        [int(amount[hosts].max()) for amount in (nodes.cpu_milli, nodes.memory_mib)]
        for hosts in (_hosts(nodes, g, spec) for g, spec in zip(classes.gpus.tolist(), classes.models, strict=True))
    ]
    most_cpu, most_memory = np.array(largest, np.float64).T * _MOST_OF_A_NODE
    pods = np.where(with_gpus, classes.weight / np.maximum(classes.asked, 1e-9), 0.0)
    pods *= float(nodes.num_gpus.sum()) / float((pods * classes.asked).sum())
    cpu_load, cpu_part, memory_load = (_number(value, rng) for value in (mix.cpu_load, mix.cpu_pods, mix.memory_load))
    if with_gpus.all() or not classes.weight[~with_gpus].any():
        cpu_part = 0.0
    cpu = classes.cpu_milli.copy()
    total = cpu_load * float(nodes.cpu_milli.sum())
    cpu[with_gpus] *= (1 - cpu_part) * total / max(float((pods * cpu)[with_gpus].sum()), 1.0)
    cpu = np.clip(np.rint(cpu / _CPU_STEP) * _CPU_STEP, _CPU_STEP, most_cpu)
    without = np.where(with_gpus, 0.0, classes.weight)
    pods += cpu_part * total * without / max(float(without.sum()), 1e-9) / cpu
    memory = classes.memory_mib * memory_load * float(nodes.memory_mib.sum())
    memory = np.clip(np.rint(memory / max(float((pods * classes.memory_mib).sum()), 1.0)), 1, most_memory)
    return classes._replace(cpu_milli=cpu, memory_mib=memory), pods


def _pods(mix: Mix, nodes: NodeList, rng: np.random.Generator, asked: float = ARRIVED_FRAC) -> PodList:
    classes, count = _scaled(mix, nodes, _classes(mix, nodes, rng), rng)
    often = count / count.sum()
    num_gpus = float(nodes.num_gpus.sum())
    c = np.empty(0, np.int64)
    while (arrived := np.cumsum(classes.asked[c]))[-1:].sum() < asked * num_gpus:
        c = np.append(c, rng.choice(len(often), 1000, p=often))
    c = c[: int(np.searchsorted(arrived, asked * num_gpus)) + 1]
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
    """Nodes that have the GPUs for a pod."""
    allowed = np.array([not spec or model in spec.split("|") for model in nodes.models])
    return np.flatnonzero(allowed & (nodes.num_gpus >= gpus))


def _check(told: msgspec.Struct) -> None:
    """Raises ValueError where a number is below 0, or a range the wrong way round or not to be drawn from."""
    for name in told.__struct_fields__:
        value = getattr(told, name)
        low, high = value if isinstance(value, tuple) and name != "nodes" else (value, value)
        if isinstance(low, int | float) and not 0 <= low <= high < np.inf:
            raise ValueError(f"{name}: a number from 0 on, or [low, high], not {value}")
        if isinstance(value, tuple) and name in _SKEWED and low <= 0:
            raise ValueError(f"{name}: a range above 0, not {list(value)}")
        if name in _FRACTIONS and high > 1:
            raise ValueError(f"{name}: between 0 and 1, not {value}")


def _number(value: Number, rng: np.random.Generator) -> float:
    return float(rng.uniform(*value)) if isinstance(value, tuple) else float(value)


def _skewed(value: Number, rng: np.random.Generator) -> float:
    """The same with as much between 1 and 2 as between 10 and 20."""
    return float(np.exp(rng.uniform(*np.log(value)))) if isinstance(value, tuple) else float(value)


def _merged(base: Mix, other: Mapping[str, Any]) -> Mix:
    """`base` with some entries that are others. Raises msgspec.ValidationError."""
    found = msgspec.to_builtins(base)
    pods = {name: {**found["pods"].get(name, {}), **family} for name, family in other.get("pods", {}).items()}
    return msgspec.convert({**found, **other, "pods": {**found["pods"], **pods}}, Mix)
