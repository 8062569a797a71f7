"""Descriptions of the learned rank's features."""

from typing import Final

FEATURE_WORDS: Final = {
    "fragment": "free GPU capacity that expected pods can't use",
    "worth": "value of the free GPU capacity, at the prices of expected requests",
    "gpus_idle": "number of idle GPUs",
    "node_idle": "1 if all its GPUs are idle",
    "gpus_partly_used": "number of partly used GPUs",
    "cpu_short_half": "CPU missing for half of what its free GPUs will need",
    "cpu_short": "CPU missing for what its free GPUs will need",
    "cpu_short_more": "CPU missing for one and a half times what its free GPUs will need",
    "cpu_square": "free CPU squared, divided by all its CPU",
    "cpu_log": "logarithm of its free CPU",
    "gpu_cpu": "free GPU capacity times the free fraction of its CPU",
    "memory_short": "main memory missing for what its free GPUs will need",
    "gpu_sqrt": "square root of its free GPU capacity",
    "gpu_square": "free GPU capacity squared, divided by its number of GPUs",
    "gpu_wanted": "free GPU capacity, weighted by how often pods request its model",
    "worth_fed": "the same as worth, limited to what its CPU can serve",
    "hosts_one": "single-GPU pods that fit, weighted by how many are expected",
    "hosts_many": "multi-GPU pods that fit, weighted by how many are expected",
    "compute_worth": "value of its free CPU and memory, at their prices",
}
