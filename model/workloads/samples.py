"""Random samples of a trace's nodes and pods."""

import numpy as np

from model.workloads.shapes import chosen
from model.workloads.traces import NodeList, PodList


def some_nodes(node_list: NodeList, num_nodes: int, rng: np.random.Generator) -> NodeList:
    """Draw a stratified sample: nodes are sorted by GPUs and model and cut into equal runs; one is drawn from each.

    Raises ValueError if the trace has fewer nodes.
    """
    N = len(node_list.names)
    if not 0 < num_nodes <= N:
        raise ValueError(f"{num_nodes} nodes requested, but the trace has {N}")
    in_order = np.array(sorted(range(N), key=lambda i: (int(node_list.num_gpus[i]), node_list.models[i], i)))
    edges = np.linspace(0, N, num_nodes + 1).astype(np.int64)
    drawn = rng.integers(edges[:-1], edges[1:])
    return chosen(node_list, np.sort(in_order[drawn]))


def some_pods(pod_list: PodList, frac: float, rng: np.random.Generator) -> PodList:
    """Draw a fraction of the pods, at least one."""
    P = len(pod_list.names)
    num = max(min(round(frac * P), P), 1)
    return pod_list.at(np.sort(rng.permutation(P)[:num]))
