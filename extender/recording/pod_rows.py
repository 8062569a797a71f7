"""Pods and nodes as rows of a history."""

from collections.abc import Callable
from typing import Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.resources.gpu_models import GpuModel, models_allowed
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.core.vendors.registry import SEVERAL
from extender.history.journals import Row
from extender.history.names import hash_name
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.plugins.kerf import assigned_gpus
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import owner_of
from extender.plugins.protocol import UnreadableError

_MAX_TEXT: Final = 512
_UNKNOWN: Final = "GPU"
"""A model of which nobody tells."""
_MOST: Final = 2**53
"""CPU and memory of a pod: columns have 64 bits, and who asks for more fits nowhere either."""


class PodRows:
    """Reads pods; what it is given to read them by is as the service does."""

    def __init__(
        self,
        read: Callable[[objects.Pod], PodRequest],
        gang_of: Callable[[objects.Pod], tuple[str, int]],
        models: Callable[[], tuple[GpuModel, ...]],
        salt: bytes | None,
    ) -> None:
        """`read` and `gang_of` raise RequestError; `models` are those that there are; names are hashed with a salt."""
        self._read, self._gang_of, self._models, self._salt = read, gang_of, models, salt

    def row(self, pod: objects.Pod, now: float) -> Row | None:
        """A pod as it is known now, in Unix time; None for what is not recorded (`files.about_of`)."""
        metadata = pod.metadata
        if metadata.belongs_to_a_node or not metadata.uid:
            return None
        try:
            asked = self._read(pod)
            gpus, priority = asked.gpus, asked.priority
        except RequestError:
            return None
        if gpus is not None and (gpus.mig or gpus.unit is AskedUnit.SHARED):
            return None
        cpu, memory = (asked.cpu_milli, asked.memory_mib) if gpus else read_compute(pod.spec)
        cpu, memory = min(cpu, _MOST), min(memory, _MOST)
        asks = (0, 0, 0, "")
        if gpus is not None:
            asks = max(gpus.count, 1), gpus.milli or WHOLE_MILLI, gpus.memory_each_mib, self._accepted(gpus)
        started = (unix_time(pod.status.start_time) or now) if pod.spec.node_name else None
        return (
            metadata.uid,
            *(self._name(text) for text in (metadata.namespace, owner_of(metadata), self._gang(pod))),
            *(priority or pod.spec.priority or 0, *asks, cpu, memory),
            *(unix_time(metadata.creation_timestamp) or now, started, now if pod.finished else None),
            *(pod.spec.node_name or "", _indices(pod)),
        )

    def _gang(self, pod: objects.Pod) -> str:
        try:
            return self._gang_of(pod)[0]
        except RequestError:
            return ""

    def _accepted(self, gpus: GpuRequest) -> str:
        """The models that will do; where there is none yet, what is asked for: no node has it."""
        if gpus.include is None and gpus.exclude is None and not SEVERAL:
            return ""
        models = self._models()
        allowed = np.flatnonzero(models_allowed(models, gpus.include, gpus.exclude, gpus.vendor)).tolist()
        names = [models[number].name for number in allowed if models[number].name]
        return "|".join(names)[:_MAX_TEXT] or (gpus.include.text[:_MAX_TEXT] if gpus.include else "none")

    def _name(self, text: str) -> str:
        return text[:_MAX_TEXT] if self._salt is None else hash_name(text, self._salt)


def node_rows(cluster: Cluster) -> dict[str, Row]:
    """The nodes as they are, by name, without times; of several models on a node the one most of its GPUs have."""
    there = cluster.gpu_model >= 0
    num_gpus, memory = there.sum(axis=1).tolist(), cluster.gpu_memory_mib.max(axis=1, initial=0).tolist()
    cpu, main = cluster.cpu_milli.tolist(), cluster.memory_mib.tolist()
    found: dict[str, Row] = {}
    for name, row in cluster.row_of.items():
        model = ""
        if num_gpus[row]:
            model = cluster.models[int(np.bincount(cluster.gpu_model[row][there[row]]).argmax())].name or _UNKNOWN
        found[name] = (name, model, num_gpus[row], memory[row], cpu[row], main[row])
    return found


def _indices(pod: objects.Pod) -> str:
    try:
        return ",".join(map(str, assigned_gpus(pod.metadata.annotations or {})))
    except UnreadableError:
        return ""
