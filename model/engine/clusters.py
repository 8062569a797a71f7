"""A trace's nodes and pods as the service knows them, so that its own rules can decide about them.

A trace tells nothing of GPUs' memory, time slices and links: a GPU whose memory nobody knows has 0.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fragmentation.arrays import ANY_MODEL, Asks, Nodes
from extender.core.resources.gpu_models import GpuModel, ModelPattern
from extender.core.resources.gpu_products import PRODUCT_MEMORY_MIB
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest

PRODUCTS: Final = {
    "A10": "a10",
    "P100": "p100-pcie-16gb",
    "T4": "t4",
    "V100M16": "v100-sxm2-16gb",
    "V100M32": "v100-sxm2-32gb",
}
"""Products by their names in the openb traces. G1 to G3 are kept secret there."""


class _OneOf:
    """Stands for a regular expression: some names and no others."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def search(self, text: str, /) -> object | None:
        """Whether it is one of them."""
        return text if text in self._names else None


def cluster_of(nodes: Nodes, model_names: Sequence[str], *, product_memory: bool = False) -> Cluster:
    """The nodes as a snapshot of the service, on the very arrays of what is free.

    `product_memory`: GPUs of known products have theirs, for policies that weigh what products are.
    """
    N, G = nodes.gpu_free_milli.shape
    installed = np.arange(G) < nodes.num_gpus[:, None]
    gpu_model = np.where(installed, nodes.model[:, None], -1).astype(np.int32)
    products = [PRODUCTS.get(name, name) for name in model_names]
    sizes = [PRODUCT_MEMORY_MIB.get(name, 0) if product_memory else 0 for name in products]
    memory = np.array([*sizes, 0], np.int32)[gpu_model]
    nowhere, no_profiles = np.full((N, G), -1, np.int32), np.zeros((N, 0), np.int32)
    names = tuple(f"node-{row:05}" for row in range(N))
    return Cluster(
        version=0, row_of={name: row for row, name in enumerate(names)}, node_names=names,
        models=tuple(GpuModel(product, (name,)) for product, name in zip(products, model_names, strict=True)),
        gpu_uuids=(("",) * G,) * N, gpu_at={}, mig_profiles=(), row_version=np.zeros(N, np.int64),
        tie_rank=np.arange(N, dtype=np.int32),
        unit=np.where(nodes.num_gpus > 0, GpuUnit.WHOLE, GpuUnit.NONE).astype(np.int8),
        units_per_gpu=np.ones(N, np.int32), gpu_model=gpu_model, gpu_memory_mib=memory, gpu_healthy=installed,
        gpu_numa=nowhere, gpu_link=nowhere, plugin_picks=np.zeros(N, np.bool_), slices_led=np.zeros(N, np.bool_),
        num_served=np.zeros(N, np.int32), num_unserved=np.zeros(N, np.int32), gpu_slices=np.zeros((N, G), np.int32),
        gpu_free_milli=nodes.gpu_free_milli,
        gpu_free_mib=np.where(nodes.gpu_free_milli > 0, memory, 0).astype(np.int32),
        untracked_units=np.zeros(N, np.int32), mig_installed=no_profiles, mig_free=no_profiles,
        cpu_milli=nodes.cpu_milli, memory_mib=nodes.memory_mib, cpu_free_milli=nodes.cpu_free_milli,
        memory_free_mib=nodes.memory_free_mib,
    )  # fmt: skip


def requests_of(asks: Asks, model_names: Sequence[str]) -> list[GpuRequest]:
    """(C,) the classes as the service reads them from pods."""
    found = []
    for cpu, memory, num, milli, models in zip(*(column.tolist() for column in asks), strict=True):
        include = None
        if models != ANY_MODEL:
            names = [name for bit, name in enumerate(model_names) if models >> bit & 1]
            include = ModelPattern("|".join(names), _OneOf(frozenset(names)))
        found.append(
            GpuRequest(
                *(num, AskedUnit.WHOLE if num else AskedUnit.NONE),
                include=include,
                milli=milli % WHOLE_MILLI,
                cpu_milli=cpu,
                memory_mib=memory,
            )
        )
    return found
