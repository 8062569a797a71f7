"""Scenarios that episodes are drawn from: some nodes of a cluster, its pods, and the expected mix."""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import ANY_MODEL, MAX_MODELS, Nodes, PodClasses
from extender.core.valuenet.features import Outlook
from extender.ranking import prices
from model.engine import kernels
from model.simulations.configs import EpisodeConfig
from model.workloads.mixes import DEMO, drawn, read_mixes
from model.workloads.traces import NodeList, PodList, TraceError, read_nodes, read_pods
from model.workloads.workloads import ARRIVED_FRAC, bits_of, classes_of, empty_nodes, typical_pods

CLASS_FEATURES: Final = (
    "CPU / mean CPU of nodes",
    "memory / mean memory of nodes",
    "GPUs / 8",
    "milli of each GPU / 1000",
    "allowed models / all models",
    "GPU worth that a share takes beyond its fraction, in GPUs",
    "mean log duration, relative to all pods",
    "standard deviation of log duration",
)
"""Features of a class of pods. Durations are estimated from earlier pods of the class."""
GPUS, MILLI = CLASS_FEATURES.index("GPUs / 8"), CLASS_FEATURES.index("milli of each GPU / 1000")
LIFETIMES: Final = (len(CLASS_FEATURES) - 2, len(CLASS_FEATURES) - 1)
_MAX_LOG: Final = 5.0


class Scenario(NamedTuple):
    """N empty nodes, C classes of pods and L observed pods."""

    nodes: Nodes
    asks: PodClasses
    classes: Longs
    """(L,) class of each observed pod."""
    duration_s: Floats
    """(L,) its duration."""
    outlook: Outlook
    class_features: Floats
    """(C, len(CLASS_FEATURES))."""

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.nodes.cpu_milli)

    @property
    def gpu_milli(self) -> int:
        """GPU capacity in milli."""
        return int(self.nodes.num_gpus.sum()) * WHOLE_MILLI

    @property
    def num_to_fill(self) -> int:
        """Number of pods that request ARRIVED_FRAC of the GPUs on average."""
        return max(round(ARRIVED_FRAC * self.gpu_milli / float(self.asked_milli(self.classes).mean())), 1)

    def asked_milli(self, classes: Longs) -> Longs:
        """GPU milli that pods of these classes request; same shape."""
        milli: Longs = (self.asks.num_gpus * self.asks.gpu_milli)[classes]
        return milli


def scenario(config: EpisodeConfig, rng: np.random.Generator) -> Scenario:
    """Draw a scenario and solve its shadow prices, which takes a moment.

    Raises TraceError if no pod fits any of the nodes, or a file can't be read.
    """
    if config.traces:
        return scenario_of(*_trace(config.traces, config.trace), config.num_nodes, rng)
    kind = config.mixes[int(rng.integers(len(config.mixes)))]
    return scenario_of(*drawn(read_mixes(DEMO).mix(kind), int(rng.integers(1 << 62))), config.num_nodes, rng)


def scenario_of(node_list: NodeList, pod_list: PodList, num_nodes: int, rng: np.random.Generator) -> Scenario:
    """Draw `num_nodes` of the nodes, with the pods that fit on one of them.

    Raises TraceError if there are too few nodes, or none of these pods requests GPUs.
    """
    if len(node_list.names) < num_nodes:
        raise TraceError(f"num_nodes is {num_nodes}, but the cluster has {len(node_list.names)} nodes")
    model_bits = bits_of(node_list)
    nodes = empty_nodes(node_list, model_bits, rng.permutation(len(node_list.names))[:num_nodes])
    asks, classes = classes_of(pod_list, model_bits)
    kept = kernels.can_run(nodes, asks)[classes]
    classes = classes[kept]
    if not (asks.num_gpus[classes] * asks.gpu_milli[classes]).any():
        raise TraceError(f"no pod that requests GPUs fits any of the {len(nodes.cpu_milli)} nodes: increase num_nodes")
    duration = np.full(len(classes), 3600.0) if pod_list.duration_s is None else pod_list.duration_s[kept]
    duration = np.maximum(duration, 1.0)
    count = np.bincount(classes, minlength=len(asks.cpu_milli)).astype(np.int64)
    outlook = prices.outlook(nodes, asks, count, typical_pods(pod_list, model_bits))
    features = _class_features(nodes, asks, classes, duration, outlook)
    return Scenario(nodes, asks, classes, duration, outlook, features)


def _class_features(nodes: Nodes, asks: PodClasses, classes: Longs, duration_s: Floats, outlook: Outlook) -> Floats:
    """Return `Scenario.class_features` from (L,) observed pods."""
    num_classes = len(asks.cpu_milli)
    count = np.maximum(np.bincount(classes, minlength=num_classes), 1)
    log_s = np.log(duration_s)
    mean, square = (np.bincount(classes, values, num_classes) / count for values in (log_s, log_s**2))
    worth = outlook.worth.left[:-1]
    whole = worth[worth[:, WHOLE_MILLI] > 0]
    milli = np.where(asks.num_gpus == 1, asks.gpu_milli, 0)
    beyond = np.zeros(num_classes)
    if len(whole):
        worths = whole.mean(axis=0)
        beyond = worths[WHOLE_MILLI] - worths[WHOLE_MILLI - milli] - milli / WHOLE_MILLI * worths[WHOLE_MILLI]
    return np.column_stack(
        [
            asks.cpu_milli / nodes.cpu_milli.mean(),
            asks.memory_mib / nodes.memory_mib.mean(),
            asks.num_gpus / 8,
            asks.gpu_milli / WHOLE_MILLI,
            [1.0 if mask == ANY_MODEL else mask.bit_count() / MAX_MODELS for mask in asks.models.tolist()],
            beyond,
            np.clip(mean - float(log_s.mean()), -_MAX_LOG, _MAX_LOG),
            np.sqrt(np.maximum(square - mean**2, 0.0)),
        ]
    )


@cache
def _trace(directory: str, trace: str) -> tuple[NodeList, PodList]:
    folder = Path(directory)
    return read_nodes(folder), read_pods(folder, trace)
