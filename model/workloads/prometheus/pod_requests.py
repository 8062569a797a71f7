"""Requests of pods from kube-state-metrics."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core import annotations as pod_annotations
from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.gpu_models import GpuModel, canonical_name, models_allowed
from extender.core.resources.pod_resources import RequestedGpus
from extender.core.resources.quantities import MIB
from extender.core.resources.requests import NO_REQUEST, GpuRequest, RequestError
from extender.core.vendors.registry import SEVERAL
from model.workloads.prometheus.kube_state import GPUS

_GANG: Final = "kerf.dev/gang"
_GANG_ANNOTATIONS: Final = (_GANG, "scheduling.k8s.io/group-name")
_GANG_LABELS: Final = (
    "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "volcano.sh/job-name",
    "kueue.x-k8s.io/pod-group-name", "training.kubeflow.org/job-name",
)  # fmt: skip
GANGS: Final = {"label": _GANG_LABELS, "annotation": _GANG_ANNOTATIONS}
"""Keys that name a gang, by prefix of the series' labels."""
LABELS: Final = (*_GANG_LABELS, *sorted(pod_annotations.ASKING_LABELS), pod_annotations.GENIUS_PRIORITY)
ANNOTATIONS: Final = (*_GANG_ANNOTATIONS, *sorted(pod_annotations.ASKING))
CLASS_PRIORITIES: Final = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Built-in PriorityClasses; of others, only the names are known."""


@dataclass(frozen=True)
class Asked:
    """Request columns of a pod in a history."""

    gpus: int
    gpu_milli: int
    gpu_memory_mib: int
    gpu_models: str
    cpu_milli: int
    memory_mib: int
    priority: int


def asked(
    requests: Mapping[str, float],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    product: str,
    priority_class: str,
    models: Sequence[GpuModel],
    most_memory_mib: int,
) -> Asked:
    """Return a pod's request in a cluster of these models; `most_memory_mib` is of the largest GPU, 0 if unknown.

    `product` comes from the pod's node selector. Invalid annotations are ignored.
    """
    units, vendor = next(
        ((units, at) for at, name in enumerate(GPUS) if (units := round(requests.get(name, 0.0)))), (0, 0)
    )
    of_class = CLASS_PRIORITIES.get(priority_class, 0)
    try:
        gpus = pod_annotations.read_request(RequestedGpus(units, vendor=vendor), annotations, labels, _compiled).gpus
        priority = pod_annotations.read_priority(labels, of_class)
    except RequestError:
        gpus, priority = (GpuRequest(units, vendor=vendor) if units else NO_REQUEST.gpus), of_class
    # Rounded first, because 0.1 + 0.2 > 0.3.
    cpu = math.ceil(round(requests.get("cpu", 0.0) * 1000, 6))
    memory = math.ceil(requests.get("memory", 0.0) / MIB)
    if gpus is None:
        return Asked(0, 0, 0, "", cpu, memory, priority)
    count = gpus.count or max(math.ceil(gpus.memory_total_mib / most_memory_mib) if most_memory_mib else 1, 1)
    wanted = (canonical_name(product) if models else "") or _models(gpus, models)
    return Asked(count, gpus.milli or WHOLE_MILLI, gpus.memory_each_mib, wanted, cpu, memory, priority)


def gang_name(labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the name of the pod's gang within its namespace; "" for none."""
    names = (annotations.get(_GANG), *map(labels.get, _GANG_LABELS), *map(annotations.get, _GANG_ANNOTATIONS))
    return next((name for name in names if name), "")


def _models(gpus: GpuRequest, models: Sequence[GpuModel]) -> str:
    """Return the allowed models; if there are none, the pattern itself, so that no node fits."""
    if gpus.include is None and gpus.exclude is None and not SEVERAL:
        return ""
    allowed = models_allowed(models, gpus.include, gpus.exclude, gpus.vendor)
    if not models or allowed.all():
        return ""
    names = [model.name for model, is_allowed in zip(models, allowed.tolist(), strict=True) if is_allowed]
    return "|".join(names) or (gpus.include.text if gpus.include else "none")


def _compiled(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from None
