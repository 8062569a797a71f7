"""What episodes are drawn from: a trace's nodes and classes of pods, or a small drawn cluster."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Floats, Longs, Rows
from extender.core.fragmentation.arrays import ANY_MODEL, Asks, Nodes
from extender.core.fragmentation.fragments import Mix, TypicalPod, fragment_milli, mix_of
from model.engine.node_scores import book, evaluate_node
from model.engine.ranks import Rank
from model.simulations.configs import EpisodeConfig
from model.workloads.traces import read_nodes, read_pods
from model.workloads.workloads import bits_of, classes_of, empty_nodes, typical_pods


class Scenario(NamedTuple):
    """What episodes are drawn from."""

    nodes: Nodes
    """Empty."""
    asks: Asks
    frequency: Floats
    """(C,) of the classes among arrivals."""
    mean_duration_s: Floats
    """(C,) for departures; durations are exponential about it."""
    mix: Mix

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.nodes.cpu_milli)

    @property
    def gpu_milli(self) -> int:
        """Capacity."""
        return int(self.nodes.num_gpus.sum()) * WHOLE_MILLI

    def asked_milli(self, classes: Longs) -> Longs:
        """(P,) GPU milli that pods of these classes ask for."""
        asked: Longs = (self.asks.num_gpus * self.asks.gpu_milli)[classes]
        return asked

    def fragments(self, nodes: Nodes, rows: Rows | None = None) -> Floats:
        """(R,) fragment milli of rows, of all nodes without any."""
        some = nodes if rows is None else nodes.at(rows)
        return fragment_milli(some.cpu_free_milli, some.gpu_free_milli.astype(np.int64), some.model, self.mix)

    def place(self, nodes: Nodes, c: int, node: int) -> int:
        """Book a class on a node where it fits, in place, on the GPU where FGD would; returns its GPUs as bits."""
        before, scratch = (
            float(self.fragments(nodes, np.array([node]))[0]),
            np.zeros((2, len(self.mix.sizes) + 1), np.int64),
        )
        _, gpu = evaluate_node(nodes, self.asks, c, node, int(Rank.FGD), self.mix, None, before, scratch)
        return book(nodes, self.asks, c, node, gpu)


def scenario(config: EpisodeConfig) -> Scenario:
    """The scenario of a configuration: a trace's, or a drawn one."""
    if not config.traces:
        return drawn_scenario(config.num_nodes)
    directory = Path(config.traces)
    node_list, pod_list = read_nodes(directory), read_pods(directory, config.trace)
    model_bits = bits_of(node_list)
    nodes = empty_nodes(node_list, model_bits, np.arange(len(node_list.names)))
    asks, pod_class = classes_of(pod_list, model_bits)
    count = np.bincount(pod_class, minlength=len(asks.cpu_milli))
    if pod_list.duration_s is None:
        mean_duration_s = np.full(len(count), 3600.0)
    else:
        mean_duration_s = np.maximum(np.bincount(pod_class, pod_list.duration_s, len(count)) / count, 1.0)
    return Scenario(nodes, asks, count / count.sum(), mean_duration_s, typical_pods(pod_list, model_bits))


def drawn_scenario(num_nodes: int) -> Scenario:
    """A small cluster in the proportions of openb, always the same one for a number of nodes.

    Every third node has 8 GPUs and 96 cores, every third 4 and 64, every third 2 and 32; half of the pods ask for a
    share (250, 500 or 750 milli), a third for one GPU, the rest for 2, 4, 8 or none.
    """
    sizes = np.array([8, 4, 2])[np.arange(num_nodes) % 3].astype(np.int64)
    cpu = np.array([96000, 64000, 32000])[np.arange(num_nodes) % 3].astype(np.int64)
    free = np.where(np.arange(8) < sizes[:, None], WHOLE_MILLI, 0).astype(np.int32)
    memory = cpu * 4
    nodes = Nodes(cpu, memory, sizes, np.zeros(num_nodes, np.int64), cpu.copy(), memory.copy(), free)
    rows = [  # cpu_milli, num_gpus, gpu_milli, per thousand, mean duration
        (4000, 1, 250, 150, 3600), (6000, 1, 500, 200, 3600), (8000, 1, 750, 150, 7200), (8000, 1, 1000, 330, 7200),
        (16000, 2, 1000, 60, 14400), (32000, 4, 1000, 30, 14400), (64000, 8, 1000, 20, 28800), (8000, 0, 0, 60, 1800),
    ]  # fmt: skip
    cpus, num, milli, per_mille, durations = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(5))
    asks = Asks(cpus, cpus * 2, num, milli, np.full(len(rows), ANY_MODEL))
    mix = mix_of([TypicalPod(row[0], row[1], row[2], ANY_MODEL, row[3]) for row in rows], 1000)
    return Scenario(nodes, asks, per_mille / 1000, durations.astype(np.float64), mix)
