"""Public traces converted to histories."""

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from extender.core.clusters import WHOLE_MILLI
from extender.history.records import NODE_COLUMNS, POD_COLUMNS, About, History, columns_of, hash_names
from model.simulations.simulated_jobs import CPU_MILLI_PER_GPU, MEMORY_MIB_PER_GPU
from model.workloads.jobs import GPUS_PER_NODE, nodes_for_load, read_jobs
from model.workloads.traces import NodeList, PodList, TraceError, pods_path, read_nodes, read_pods

_SALT_BYTES: Final = 32
_NO_PLACES: Final = "where pods ran"
_NO_STARTS: Final = "when pods started: the submission counts as the start"


def openb(directory: Path, trace: str) -> History:
    """Return the pods of a trace with their times, on its nodes. Raises TraceError if it has no times."""
    nodes, pods = read_nodes(directory), read_pods(directory, trace)
    if pods.submitted_s is None or pods.duration_s is None:
        path = pods_path(directory, trace)
        raise TraceError(f"{path}: line 1: no creation_time and deletion_time; a history needs them")
    return listed(nodes, pods, "openb")


def listed(nodes: NodeList, pods: PodList, source: str) -> History:
    """Return pods that started at submission, on permanent nodes. Raises ValueError if the pods have no times."""
    if pods.submitted_s is None or pods.duration_s is None:
        raise ValueError("the pods have no times; a history needs them")
    num_pods, num_nodes = len(pods.names), len(nodes.names)
    blanks = [""] * num_pods
    ended = pods.submitted_s + pods.duration_s
    pod_columns = {
        "pod": pods.names, "namespace": blanks, "owner": pods.names, "gang": blanks,
        "priority": np.zeros(num_pods), "gpus": pods.num_gpus, "gpu_milli": pods.gpu_milli,
        "gpu_memory_mib": np.zeros(num_pods), "gpu_models": pods.gpu_spec, "cpu_milli": pods.cpu_milli,
        "memory_mib": pods.memory_mib, "submitted_s": pods.submitted_s, "started_s": pods.submitted_s,
        "ended_s": ended, "node": blanks, "gpu_indices": blanks,
    }  # fmt: skip
    node_columns = {
        "node": nodes.names, "gpu_model": nodes.models, "gpus": nodes.num_gpus, "gpu_memory_mib": np.zeros(num_nodes),
        "cpu_milli": nodes.cpu_milli, "memory_mib": nodes.memory_mib, "from_s": np.zeros(num_nodes),
        "until_s": np.full(num_nodes, np.nan),
    }  # fmt: skip
    about = About(
        source=source, since_s=float(pods.submitted_s.min()), until_s=float(ended.max()),
        missing=(_NO_PLACES, _NO_STARTS),
    )  # fmt: skip
    order = np.argsort(pods.submitted_s, kind="stable")
    columns = {name: column[order] for name, column in columns_of(POD_COLUMNS, pod_columns).items()}
    return History(about, columns, columns_of(NODE_COLUMNS, node_columns))


def philly(path: Path, load: float) -> History:
    """Return the jobs of a file as gangs of pods of up to GPUS_PER_NODE, on the number of nodes that gives the load.

    Raises TraceError.
    """
    jobs = read_jobs(path)
    num_nodes = max(nodes_for_load(jobs, load), -(-int(jobs.num_gpus.max()) // GPUS_PER_NODE))
    num_parts = -(-jobs.num_gpus // GPUS_PER_NODE)
    job = np.repeat(np.arange(len(num_parts)), num_parts)
    part = np.arange(len(job)) - np.repeat(np.cumsum(num_parts) - num_parts, num_parts)
    gpus = np.minimum(jobs.num_gpus[job] - part * GPUS_PER_NODE, GPUS_PER_NODE)
    blanks = [""] * len(job)
    submitted = jobs.submitted_s[job]
    pod_columns = {
        "pod": [f"job-{j:06d}-{p}" for j, p in zip(job.tolist(), part.tolist(), strict=True)],
        "namespace": [jobs.cluster[j] for j in job.tolist()],
        "owner": [f"{jobs.cluster[j]}/Job/job-{j:06d}" for j in job.tolist()],
        "gang": [f"job-{j:06d}" if num_parts[j] > 1 else "" for j in job.tolist()],
        "priority": jobs.priority[job], "gpus": gpus, "gpu_milli": np.full(len(job), WHOLE_MILLI),
        "gpu_memory_mib": np.zeros(len(job)), "gpu_models": blanks, "cpu_milli": gpus * CPU_MILLI_PER_GPU,
        "memory_mib": gpus * MEMORY_MIB_PER_GPU, "submitted_s": submitted, "started_s": submitted,
        "ended_s": submitted + jobs.duration_s[job], "node": blanks, "gpu_indices": blanks,
    }  # fmt: skip
    node_columns = {
        "node": [f"node-{number:05d}" for number in range(num_nodes)], "gpu_model": ["GPU"] * num_nodes,
        "gpus": np.full(num_nodes, GPUS_PER_NODE), "gpu_memory_mib": np.zeros(num_nodes),
        "cpu_milli": np.full(num_nodes, GPUS_PER_NODE * CPU_MILLI_PER_GPU),
        "memory_mib": np.full(num_nodes, GPUS_PER_NODE * MEMORY_MIB_PER_GPU), "from_s": np.zeros(num_nodes),
        "until_s": np.full(num_nodes, np.nan),
    }  # fmt: skip
    about = About(
        source="philly", since_s=0.0, until_s=float((jobs.submitted_s + jobs.duration_s).max()),
        missing=(_NO_PLACES, _NO_STARTS, f"nodes: as needed for a load of {load:g}", "CPU and memory: in proportion"),
    )  # fmt: skip
    return History(about, columns_of(POD_COLUMNS, pod_columns), columns_of(NODE_COLUMNS, node_columns))


def hashed(history: History) -> History:
    """Return the history with hashed names; the salt is discarded."""
    about = msgspec.structs.replace(history.about, hashed=True)
    return replace(history, about=about, pods=hash_names(history.pods, secrets.token_bytes(_SALT_BYTES)))
