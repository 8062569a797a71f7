"""Caches of what a policy computes from the samples of all nodes, once per refresh of the samples."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.resources.requests import GpuRequest

ValueT = TypeVar("ValueT")


class PerRefresh(Generic[ValueT]):
    """The last computed value, with the samples and inventory it was computed from."""

    def __init__(self, compute: Callable[[Cluster], ValueT]) -> None:
        self._compute = compute
        self._inputs: tuple[object, object] = None, None
        self._value: list[ValueT] = []
        self._version = 0

    def __call__(self, cluster: Cluster) -> ValueT:
        """The value for a cluster, recomputed when its samples or its inventory have changed."""
        samples = None if cluster.observed is None else cluster.observed.value
        if not self._value or self._inputs[0] is not cluster.gpu_model or self._inputs[1] is not samples:
            self._value = [self._compute(cluster)]
            self._inputs = cluster.gpu_model, samples
            self._version += 1
        return self._value[0]

    def version(self, cluster: Cluster) -> int:
        """A number that changes whenever the value may have changed."""
        self(cluster)
        return self._version


class RefreshedScore(ABC):
    """A policy's score that does not depend on pods, computed for all nodes once per refresh of the samples."""

    def __init__(self) -> None:
        self._scores = PerRefresh(self.all_scores)

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) scores."""
        return self._scores(cluster)[rows]

    def context(self, cluster: Cluster) -> Hashable:
        """A value that changes whenever any node's score may change."""
        return self._scores.version(cluster)

    @abstractmethod
    def all_scores(self, cluster: Cluster) -> Floats:
        """(N,) scores."""
