"""Running pods: the GPUs in use by namespace, and the run times of pods by owner."""

from collections import defaultdict
from collections.abc import Callable
from math import ceil
from typing import Final

from extender.core.durations import Durations
from extender.kube.cache import Cache, Group
from extender.kube.client import Transport
from extender.kube.objects import Pod, unix_time
from extender.kube.transport import PODS_PATH
from extender.plugins.pods import read_holding
from extender.queueing.sources import list_objects

_FINISHED_PODS: Final = "spec.nodeName!=,status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"


class RunningPods:
    """The GPUs in use by bound pods. Learns the run times of pods that finish."""

    def __init__(
        self, pods: Cache[Pod, Pod] | Group[Pod], durations: Durations, wall_clock: Callable[[], float]
    ) -> None:
        """`pods` are the pods with a node, by UID."""
        self._pods = pods
        self._durations = durations
        self._wall_clock = wall_clock
        self._known: dict[str, tuple[float, float]] = {}
        """GPUs and Unix time when first seen, by UID; later edits of annotations change nothing."""
        self.gpus: defaultdict[str, float] = defaultdict(float)
        """GPUs in use by namespace."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._known

    def left_s(self, uid: str) -> float | None:
        """Return the seconds a pod is expected to keep running, by the run times of similar pods.

        None if these are unknown, or it has run longer than expected.
        """
        pod = self._pods.get(uid)
        started = unix_time(pod.status.start_time) if pod is not None else 0.0
        if pod is None or not started:
            return None
        owners = owners_of(pod, self._known[uid][0])
        left = self._durations.expected_s(owners) - (self._wall_clock() - started)
        return left if left > 0 and self._durations.knows(owners) else None

    def changed(self, old: Pod | None, new: Pod | None) -> None:
        """Count a pod with a node, and learn from one that is gone without being deleted: it has finished."""
        if new is not None and new.metadata.uid not in self._known:
            gpus = _gpus_of(new)
            self._known[new.metadata.uid] = gpus, self._wall_clock()
            self.gpus[new.metadata.namespace] += gpus
        elif new is None and old is not None:
            if not (old.metadata.deletion_timestamp or self._pods.removals_missed):
                self._learn(old)
            gpus, _ = self._known.pop(old.metadata.uid)
            self.gpus[old.metadata.namespace] -= gpus

    def _learn(self, pod: Pod) -> None:
        gpus, seen = self._known[pod.metadata.uid]
        started = unix_time(pod.status.start_time)
        if started:
            if started <= seen < started + 1:  # the API server's times have whole seconds
                started = seen
            self._durations.finished(owners_of(pod, gpus), self._wall_clock() - started)


async def learn_finished(transport: Transport, durations: Durations) -> None:
    """Learn from finished pods that still exist, in the order of their ends.

    Raises ClusterError, msgspec.DecodeError.
    """
    pods = await list_objects(transport, PODS_PATH, Pod, {"fieldSelector": _FINISHED_PODS})
    runs = [(unix_time(_finished_at(pod)), unix_time(pod.status.start_time), pod) for pod in pods]
    for ended, started, pod in sorted(runs, key=lambda run: run[0]):
        if started and ended:
            durations.finished(owners_of(pod, _gpus_of(pod)), ended - started)


def _finished_at(pod: Pod) -> str:
    """Return when a pod's last container ended, "" if unknown."""
    states = [status.state for status in pod.status.container_statuses or ()]
    ends = [state.terminated for state in states if state is not None]
    return max((end.finished_at or "" for end in ends if end is not None), default="")


def _gpus_of(pod: Pod) -> float:
    """Return the GPUs that a pod holds or has held; a share counts as its fraction, a MIG device as one."""
    holding, _ = read_holding(pod)
    mig = sum(count for _, count in holding.mig)
    return mig + (sum(part.milli / 1000 for part in holding.parts) if holding.parts else float(holding.units))


def owners_of(pod: Pod, gpus: float) -> tuple[str, ...]:
    """Return the keys of run times that predict a pod's, narrowest first.

    They are: the same namespace, number of GPUs and controller (or pod) name without trailing digits; the same
    namespace and number of GPUs; the same namespace. A CronJob's Jobs and a user's numbered runs differ in trailing
    digits only.
    """
    namespace = pod.metadata.namespace
    owner = pod.metadata.controller
    name = f"{owner.kind}/{_stem(owner.name)}" if owner else f"Pod/{_stem(pod.metadata.name)}"
    size = f"{ceil(gpus)} GPUs"
    return f"{namespace}/{name}/{size}", f"{namespace}/{size}", namespace


def _stem(name: str) -> str:
    """Return a name without its trailing numbers: "train-lm" for "train-lm-20260101-3"."""
    return name.rstrip("0123456789-") or name
