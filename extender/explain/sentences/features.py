"""The features of the learned rank, in words."""

from typing import Final

FEATURE_WORDS: Final = {
    "fragment": "free GPU that expected pods can't use",
    "worth": "what is left of each GPU, at the prices of what expected pods ask for",
    "gpus_idle": "its idle GPUs",
    "node_idle": "1 where all its GPUs are idle",
    "gpus_partly_used": "its GPUs that are partly used",
    "cpu_short_half": "CPU that is missing for half of what its free GPUs will need",
    "cpu_short": "CPU that is missing for what its free GPUs will need",
    "cpu_short_more": "CPU that is missing for one and a half times what its free GPUs will need",
    "cpu_square": "its free CPU squared, by all its CPU",
    "cpu_log": "the logarithm of its free CPU",
    "gpu_cpu": "its free GPU, times the free part of its CPU",
    "memory_short": "main memory that is missing for what its free GPUs will need",
    "gpu_sqrt": "the square root of its free GPU",
    "gpu_square": "its free GPU squared, by number of GPUs",
    "gpu_wanted": "its free GPU, as far as pods ask for its model",
    "worth_fed": "the same as worth, as far as there is CPU for it",
    "hosts_one": "pods of one GPU that it has room for, by how many are expected",
    "hosts_many": "pods of several GPUs that it has room for, by how many are expected",
    "compute_worth": "its free CPU and memory, at their prices",
}
