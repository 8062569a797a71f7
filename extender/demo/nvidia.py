"""The GPU nodes of the demo's cluster, with the label values that GPU Feature Discovery sets on such machines."""

from typing import Final, NamedTuple


class Pool(NamedTuple):
    """A pool of identical nodes."""

    prefix: str
    """Prefix of their names."""
    num_nodes: int
    gpus: int
    """GPUs per node."""
    product: str
    memory_mib: int
    """As reported."""
    cpus: int
    memory_gib: int
    replicas: int = 1
    """Time slices per GPU."""


POOLS: Final = (
    Pool("h100", 6, 8, "NVIDIA-H100-80GB-HBM3", 81559, 192, 2048),
    Pool("a100", 8, 8, "NVIDIA-A100-SXM4-80GB", 81920, 128, 1024),
    Pool("a100-40", 6, 4, "NVIDIA-A100-SXM4-40GB", 40536, 96, 512),
    Pool("v100", 6, 4, "Tesla-V100-SXM2-32GB", 32510, 64, 256),
    Pool("t4", 6, 2, "Tesla-T4", 15360, 32, 128),
)
SHARED: Final = Pool("t4-shared", 2, 2, "Tesla-T4-SHARED", 15360, 32, 128, replicas=4)
