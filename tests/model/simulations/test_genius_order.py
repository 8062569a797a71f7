"""Genius' order of nodes, against its formula written out."""

import numpy as np

from extender.core.clusters import Rows
from extender.core.fragmentation import Nodes
from model.simulations.baselines import BASELINES
from model.simulations.replays import listed

T4 = {"memory": 15360, "multiprocessors": 40, "decoders": 2, "encoders": 1, "bandwidth": 320}
V100 = {"memory": 32768, "multiprocessors": 80, "decoders": 1, "encoders": 3, "bandwidth": 900}
WEIGHTS = {"memory": 2, "multiprocessors": 2, "decoders": 1, "encoders": 1, "bandwidth": 2}


def order(*nodes: tuple[int, int]) -> Rows:
    """The order of nodes of (number of GPUs, model): T4, V100M32, or one that nobody knows."""
    num_gpus, model = np.array(nodes).T
    some = np.full(len(nodes), 1000)
    free = np.where(np.arange(8) < num_gpus[:, None], 1000, 0).astype(np.int32)
    return listed(BASELINES["genius"], Nodes(some, some, num_gpus, model, some, some, free), ("T4", "V100M32", "G9"))


def test_the_formula() -> None:
    nodes = [(2, 0), (1, 1), (4, 0), (2, 1)]
    gpus = [(T4, V100)[model] for num, model in nodes for _ in range(num)]
    totals = {key: sum(gpu[key] for gpu in gpus) for key in WEIGHTS}
    scores = [
        sum(weight * num * (T4, V100)[model][key] / totals[key] for key, weight in WEIGHTS.items()) * len(gpus)
        for num, model in nodes
    ]
    assert order(*nodes).tolist() == sorted(range(4), key=lambda row: -scores[row])


def test_gpus_of_no_known_product_count_as_average() -> None:
    assert order((1, 0), (1, 2), (1, 1)).tolist() == [2, 1, 0]


def test_nodes_without_gpus_count_as_the_lowest_and_equals_keep_their_order() -> None:
    assert order((0, -1), (1, 0), (2, 0), (0, -1), (2, 0)).tolist() == [2, 4, 0, 1, 3]
