"""What episodes are drawn from: some nodes of a cluster, the pods that come to it, and what is expected of them."""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs
from extender.core.fragmentation import ANY_MODEL, MAX_MODELS, Asks, Nodes
from extender.core.valuenet.features import Outlook
from extender.ranking import prices
from model.engine import kernels
from model.simulations.configs import EpisodeConfig
from model.workloads.mixes import DEMO, drawn, read_mixes
from model.workloads.traces import NodeList, PodList, TraceError, read_nodes, read_pods
from model.workloads.workloads import ARRIVED_FRAC, bits_of, classes_of, empty_nodes, typical_pods

CLASS_FEATURES: Final = (
    "CPU, of the mean node's",
    "memory, of the mean node's",
    "GPUs, of 8",
    "GPU milli of each, of 1000",
    "models allowed, of all",
    "worth of a GPU that a share takes beyond its part, in GPUs",
    "logarithm of how long it runs in the mean, by the mean of all",
    "standard deviation of the logarithm",
)
"""Names of what is known of a class of pods, how long they run included: from those that were there before."""
GPUS, MILLI = CLASS_FEATURES.index("GPUs, of 8"), CLASS_FEATURES.index("GPU milli of each, of 1000")
LIFETIMES: Final = (len(CLASS_FEATURES) - 2, len(CLASS_FEATURES) - 1)
_MAX_LOG: Final = 5.0


class Scenario(NamedTuple):
    """What episodes are drawn from: N empty nodes, C classes of pods, L pods that were seen."""

    nodes: Nodes
    asks: Asks
    classes: Longs
    """(L,)."""
    duration_s: Floats
    """(L,)."""
    outlook: Outlook
    class_features: Floats
    """(C, len(CLASS_FEATURES))."""

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.nodes.cpu_milli)

    @property
    def gpu_milli(self) -> int:
        """Capacity."""
        return int(self.nodes.num_gpus.sum()) * WHOLE_MILLI

    @property
    def num_to_fill(self) -> int:
        """Pods that ask in the mean for ARRIVED_FRAC of the GPUs."""
        return max(round(ARRIVED_FRAC * self.gpu_milli / float(self.asked_milli(self.classes).mean())), 1)

    def asked_milli(self, classes: Longs) -> Longs:
        """GPU milli that pods of these classes ask for, in their shape."""
        asked: Longs = (self.asks.num_gpus * self.asks.gpu_milli)[classes]
        return asked


def scenario(config: EpisodeConfig, rng: np.random.Generator) -> Scenario:
    """A scenario of a configuration. Takes a moment: shadow prices are worked out.

    Raises TraceError where no pod fits any of the nodes, or one can't be read.
    """
    if config.traces:
        return scenario_of(*_trace(config.traces, config.trace), config.num_nodes, rng)
    kind = config.mixes[int(rng.integers(len(config.mixes)))]
    return scenario_of(*drawn(read_mixes(DEMO).mix(kind), int(rng.integers(1 << 62))), config.num_nodes, rng)


def scenario_of(node_list: NodeList, pod_list: PodList, num_nodes: int, rng: np.random.Generator) -> Scenario:
    """So many of the nodes, and the pods that one of them could take.

    Raises TraceError where there are too few nodes, or no such pod that asks for GPUs.
    """
    if len(node_list.names) < num_nodes:
        raise TraceError(f"num_nodes is {num_nodes}, and the cluster has {len(node_list.names)}")
    model_bits = bits_of(node_list)
    nodes = empty_nodes(node_list, model_bits, rng.permutation(len(node_list.names))[:num_nodes])
    asks, classes = classes_of(pod_list, model_bits)
    kept = kernels.can_run(nodes, asks)[classes]
    classes = classes[kept]
    if not (asks.num_gpus[classes] * asks.gpu_milli[classes]).any():
        raise TraceError(f"none of the pods that ask for GPUs fits any of {len(nodes.cpu_milli)} nodes: draw more")
    duration = np.full(len(classes), 3600.0) if pod_list.duration_s is None else pod_list.duration_s[kept]
    duration = np.maximum(duration, 1.0)
    count = np.bincount(classes, minlength=len(asks.cpu_milli)).astype(np.int64)
    outlook = prices.outlook(nodes, asks, count, typical_pods(pod_list, model_bits))
    known = _class_features(nodes, asks, classes, duration, outlook)
    return Scenario(nodes, asks, classes, duration, outlook, known)


def _class_features(nodes: Nodes, asks: Asks, classes: Longs, duration_s: Floats, outlook: Outlook) -> Floats:
    """`Scenario.class_features` of (L,) pods seen."""
    num_classes = len(asks.cpu_milli)
    count = np.maximum(np.bincount(classes, minlength=num_classes), 1)
    log_s = np.log(duration_s)
    mean, square = (np.bincount(classes, values, num_classes) / count for values in (log_s, log_s**2))
    worth = outlook.worth.left[:-1]
    whole = worth[worth[:, WHOLE_MILLI] > 0]
    milli = np.where(asks.num_gpus == 1, asks.gpu_milli, 0)
    beyond = np.zeros(num_classes)
    if len(whole):
        of_gpu = whole.mean(axis=0)
        beyond = of_gpu[WHOLE_MILLI] - of_gpu[WHOLE_MILLI - milli] - milli / WHOLE_MILLI * of_gpu[WHOLE_MILLI]
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
