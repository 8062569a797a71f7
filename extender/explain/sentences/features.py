"""The features of the learned rank, in words."""

from typing import Final

FEATURE_WORDS: Final = {
    "fragment": "free GPU that expected pods can't use",
    "worth": "what its free GPUs are worth to expected pods",
    "gpus_idle": "its idle GPUs",
    "node_idle": "nodes that are idle as a whole",
    "gpus_partly_used": "its GPUs that are partly used",
    "cpu_short_half": "CPU for half of what its free GPUs need",
    "cpu_short": "CPU for its free GPUs",
    "cpu_short_more": "CPU to spare beside its free GPUs",
    "cpu_square": "its free CPU",
    "cpu_log": "its free CPU",
    "gpu_cpu": "free GPU that has free CPU beside it",
    "memory_short": "main memory for its free GPUs",
    "gpu_sqrt": "its free GPU",
    "gpu_square": "its free GPU, by number of GPUs",
    "gpu_wanted": "free GPU of a model that pods will ask for",
    "worth_fed": "worth of free GPUs that there is CPU for",
    "hosts_one": "room for pods of one GPU",
    "hosts_many": "room for pods of several GPUs",
    "compute_worth": "what its free CPU and memory are worth",
}
