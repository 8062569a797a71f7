"""What a policy works out of the samples of all nodes: once for each refresh, however many pods come between two."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.fit.reasons import Fit
from extender.core.resources.requests import GpuRequest

WorkedT = TypeVar("WorkedT")


class PerRefresh(Generic[WorkedT]):
    """The last value worked out, and the samples and inventory that it is of."""

    def __init__(self, work_out: Callable[[Cluster], WorkedT]) -> None:
        self._work_out = work_out
        self._of: tuple[object, object] = None, None
        self._worked: list[WorkedT] = []
        self._version = 0

    def __call__(self, cluster: Cluster) -> WorkedT:
        """The value for a cluster; worked out when its samples or its inventory are others than the last time."""
        value = None if cluster.observed is None else cluster.observed.value
        if not self._worked or self._of[0] is not cluster.gpu_model or self._of[1] is not value:
            self._worked = [self._work_out(cluster)]
            self._of = cluster.gpu_model, value
            self._version += 1
        return self._worked[0]

    def version(self, cluster: Cluster) -> int:
        """Another number whenever the value may be another."""
        self(cluster)
        return self._version


class RefreshedScore(ABC):
    """A policy's score that pods do not change: of all nodes, worked out once for each refresh of the samples."""

    def __init__(self) -> None:
        self._scores = PerRefresh(self.all_scores)

    def __call__(self, cluster: Cluster, request: GpuRequest, rows: Rows, fit: Fit) -> Floats:
        """(R,) scores of some rows."""
        return self._scores(cluster)[rows]

    def context(self, cluster: Cluster) -> Hashable:
        """Another value whenever any node's score may be another."""
        return self._scores.version(cluster)

    @abstractmethod
    def all_scores(self, cluster: Cluster) -> Floats:
        """(N,) scores."""
