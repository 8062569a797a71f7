"""GPUs that are sick, and since when: one that comes and goes is not worth a move."""

from collections.abc import Callable, Mapping

from extender.core.clusters import Cluster


class SickGpus:
    """What is sick without a break; nothing of it outlives the process, which then waits anew."""

    def __init__(self, sick_in: Callable[[Cluster], Mapping[str, tuple[int, ...]]], sick_s: float) -> None:
        """`sick_in`: indices of the sick GPUs of a cluster by node."""
        self._sick_in, self._sick_s = sick_in, sick_s
        self._since: dict[tuple[str, int, str], float] = {}

    def look(self, cluster: Cluster, now: float) -> None:
        """A moment: what is not sick in it is well, and what is gone, too."""
        found = {
            (name, gpu, cluster.gpu_uuids[cluster.row_of[name]][gpu])
            for name, gpus in self._sick_in(cluster).items()
            for gpu in gpus
        }
        self._since = {gpu: self._since.get(gpu, now) for gpu in found}

    def steady(self, now: float) -> dict[str, tuple[int, ...]]:
        """Indices of those that have been sick for long enough, by node."""
        found: dict[str, list[int]] = {}
        for (name, gpu, _), since in self._since.items():
            if now - since >= self._sick_s:
                found.setdefault(name, []).append(gpu)
        return {name: tuple(sorted(gpus)) for name, gpus in found.items()}
