"""Orders of nodes that don't change while pods are placed: Genius' score where nothing is observed.

Traces tell what GPUs a node has and nothing of what these are doing, so that of Genius' score the static part is left.
It is a property of the node: to take the best node that fits is to take the first one of this order.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from extender.core.clusters import Rows
from extender.core.genius import GeniusWeights, genius_totals
from extender.core.models import GpuModel
from extender.core.packing import Nodes
from extender.core.products import attributes

# Names of the openb traces, as the table of products has them, and memory in MiB. G1 to G3 are kept secret there:
# they count as average.
_PRODUCTS: Final = {
    "A10": ("a10", 23028),
    "P100": ("p100-pcie-16gb", 16384),
    "T4": ("t4", 15360),
    "V100M16": ("v100-sxm2-16gb", 16384),
    "V100M32": ("v100-sxm2-32gb", 32768),
}
_UNKNOWN: Final = ("", np.nan)


def genius_order(nodes: Nodes, model_names: Sequence[str]) -> Rows:
    """(N,) rows by falling static score, equals in the order they have; `model_names` are those of `nodes.model`."""
    products = [_PRODUCTS.get(name, _UNKNOWN) for name in model_names]
    table = attributes([GpuModel(name, ()) for name, _ in products])
    memory = [mib for _, mib in [*products, _UNKNOWN]]
    by_model = np.vstack([memory, table[:4]])  # (5, M + 1); the last column is of nodes without GPUs
    num_slots = nodes.gpu_free_milli.shape[1]
    installed = np.arange(num_slots) < nodes.num_gpus[:, None]  # (N, G)
    static = np.repeat(by_model[:, nodes.model][:, :, None], num_slots, axis=2)
    unknown = np.full((4, *installed.shape), np.nan)
    score, _, _ = genius_totals(static, unknown, installed, GeniusWeights())
    return np.argsort(-score.round(9), kind="stable")
