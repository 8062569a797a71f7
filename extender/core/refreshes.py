"""What a policy works out of the samples of all nodes: once for each refresh, however many pods come between two."""

from collections.abc import Callable
from typing import Generic, TypeVar

from extender.core.clusters import Cluster

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
