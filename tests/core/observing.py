"""Clusters whose GPUs are observed."""

from collections.abc import Mapping, Sequence

import numpy as np

from extender.core.clusters import Cluster
from extender.core.gauges import Gauge
from extender.ledger.arrays import ClusterArrays, SampleTimes
from tests.core.builders import NodeState, arrays_of

Samples = Mapping[str, Mapping[Gauge, Sequence[float]]]


def observe(arrays: ClusterArrays, samples: Samples, now: float = 1000.0, age_s: float = 0.0) -> Cluster:
    """A snapshot with samples of nodes by name; nodes that are not named have none."""
    if arrays.observed is None:
        arrays.observe(SampleTimes())
    observed = arrays.observed
    assert observed is not None
    raw, sampled_at = observed.begin(), observed.current.sampled_at.copy()
    for name, gauges in samples.items():
        row = arrays.row_of[name]
        raw[:, row] = np.nan
        for gauge, values in gauges.items():
            raw[gauge, row, : len(values)] = values
        sampled_at[row] = now - age_s
    arrays.touch(observed.commit(raw, sampled_at, now))
    return arrays.snapshot()


def observed_cluster(nodes: Mapping[str, NodeState], samples: Samples, age_s: float = 0.0) -> Cluster:
    """A cluster with samples of that age."""
    return observe(arrays_of(nodes), samples, age_s=age_s)
