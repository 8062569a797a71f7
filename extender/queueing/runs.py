"""Pods that run: how many GPUs each namespace uses, and how long pods of each owner have run."""

import contextlib
from collections.abc import Callable
from math import ceil
from typing import Final

from extender.cluster import objects
from extender.cluster.mirrors import PODS_PATH
from extender.cluster.pods import read_holding
from extender.cluster.transports import Transport
from extender.cluster.unbound import unix_time
from extender.core.durations import Durations
from extender.core.requests import RequestError
from extender.queueing.batches import gang_of
from extender.queueing.manifests import Pod
from extender.queueing.sources import list_objects

FINISHED_PODS: Final = "spec.nodeName!=,status.phase!=Pending,status.phase!=Running,status.phase!=Unknown"


class Runs:
    """The sink of a reflector of pods that hold something; one that leaves the selection has finished, or is gone."""

    def __init__(self, durations: Durations, wall_clock: Callable[[], float]) -> None:
        self._durations = durations
        self._wall_clock = wall_clock
        self._running: dict[str, tuple[Pod, float, float]] = {}
        """Pod, GPUs, and the time of the first sight, by UID."""
        self.gpus: dict[str, float] = {}
        """GPUs in use by namespace."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._running

    def gangs(self) -> dict[str, list[Pod]]:
        """Pods that hold something, by their gang."""
        found: dict[str, list[Pod]] = {}
        for pod, _, _ in self._running.values():
            with contextlib.suppress(RequestError):
                gang, _ = gang_of(pod)
                if gang:
                    found.setdefault(gang, []).append(pod)
        return found

    def upsert(self, item: objects.Pod) -> None:
        """A pod runs, or has changed."""
        if not isinstance(item, Pod):
            raise TypeError("pods of the queue are decoded with what the queue reads")
        uid = item.metadata.uid
        if item.finished:
            self._end(uid)
            return
        known = self._running.get(uid)
        if known is not None:
            self._running[uid] = item, known[1], known[2]  # an edit of its annotations gives nothing back
            return
        gpus = _gpus_of(item)
        self._running[uid] = item, gpus, self._wall_clock()
        self._count(item, gpus)

    def remove(self, item: objects.Pod) -> None:
        """A pod has finished, or was deleted while it ran: of that nothing is learned."""
        known = self._running.get(item.metadata.uid)
        self._end(item.metadata.uid, learn=known is not None and not known[0].metadata.deletion_timestamp)

    def keep(self, items: set[str], list_began: float) -> None:
        """Pods that a complete list does not name have ended, nobody knows when."""
        for uid in self._running.keys() - items:
            self._end(uid, learn=False)

    def _end(self, uid: str, learn: bool = True) -> None:
        pod, gpus, seen = self._running.pop(uid, (None, 0.0, 0.0))
        if pod is None:
            return
        self._count(pod, -gpus)
        started = unix_time(pod.status.start_time)
        if learn and started:
            if started <= seen < started + 1:  # an API server's times are whole seconds
                started = seen
            self._durations.finished(owners_of(pod, gpus), self._wall_clock() - started)

    def _count(self, pod: Pod, gpus: float) -> None:
        namespace = pod.metadata.namespace
        self.gpus[namespace] = self.gpus.get(namespace, 0.0) + gpus


async def learn_finished(transport: Transport, durations: Durations) -> None:
    """Learn from the pods that have ended and are still there, in the order of their ends.

    Raises ClusterError, msgspec.DecodeError.
    """
    pods = await list_objects(transport, PODS_PATH, Pod, {"fieldSelector": FINISHED_PODS})
    runs = [(unix_time(pod.finished_at), unix_time(pod.status.start_time), pod) for pod in pods]
    for ended, started, pod in sorted(runs, key=lambda run: run[0]):
        if started and ended:
            durations.finished(owners_of(pod, _gpus_of(pod)), ended - started)


def _gpus_of(pod: Pod) -> float:
    """GPUs that a pod holds, or has held; shares as parts of one, MIG devices as one each."""
    holding, _ = read_holding(pod)
    mig = sum(count for _, count in holding.mig)
    return mig + (sum(part.milli / 1000 for part in holding.parts) if holding.parts else float(holding.units))


def owners_of(pod: Pod, gpus: float) -> tuple[str, ...]:
    """Whose history tells of a pod that asks for so many GPUs, narrowest first.

    Of its namespace those with as many GPUs and the same controller (or pod) by name without what is generated; those
    with as many GPUs; all. A CronJob's Jobs and a user's numbered runs differ in their digits alone.
    """
    namespace = pod.metadata.namespace
    owner = next((item for item in pod.metadata.owner_references or () if item.controller), None)
    name = f"{owner.kind}/{_stem(owner.name)}" if owner else f"Pod/{_stem(pod.metadata.name)}"
    size = f"{ceil(gpus)} GPUs"
    return f"{namespace}/{name}/{size}", f"{namespace}/{size}", namespace


def _stem(name: str) -> str:
    """A name without its numbers at the end: "train-lm-20260101-3" is "train-lm"."""
    return name.rstrip("0123456789-") or name
