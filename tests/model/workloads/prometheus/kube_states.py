"""Weeks of a generated cluster as kube-state-metrics exports them, in OpenMetrics' text format."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

SCRAPE_S = 120
OFFSET_S = 37
"""Scrapes are at no step of a query."""
GIB = 2**30
_TARGET = {"namespace": "monitoring", "pod": "kube-state-metrics-0", "node": "cpu-0", "container": "main"}
"""Labels of kube-state-metrics as what is scraped."""


@dataclass
class MadePod:
    """A pod with its true times, in seconds since 1970."""

    uid: str
    created_s: float
    scheduled_s: float | None = None
    ended_s: float | None = None
    gone_s: float | None = None
    """Deletion of its object; None: it is there to the end."""
    phase: str = "Succeeded"
    """Phase in which it ended, if it ended before its deletion."""
    completion: bool = True
    """Whether its containers report their end: those of an evicted pod do not."""
    namespace: str = "team-a"
    kind: str = "Job"
    owner: str = "train-29384756"
    node: str = "node-0"
    gpus: int = 1
    init_gpus: int = 0
    cpu: tuple[float, ...] = (2.0,)
    """CPUs by container."""
    memory_gib: float = 8
    priority_class: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass
class MadeNode:
    """A node with the times at which it was there."""

    name: str
    there: list[tuple[float, float]]
    gpus: int = 8
    product: str = "NVIDIA-A100-SXM4-80GB"
    no_gpus: tuple[float, float] = (0.0, 0.0)
    """When its plugin offered none."""


class Page:
    """Series with their samples."""

    def __init__(
        self, since_s: float, until_s: float, outages: Iterable[tuple[float, float]] = (), *, renamed: bool = False
    ) -> None:
        times = np.arange(since_s // SCRAPE_S * SCRAPE_S + OFFSET_S, until_s, SCRAPE_S)
        for start, end in outages:
            times = times[(times < start) | (times >= end)]
        self._times = times
        self._renamed = renamed
        self._families: dict[str, list[str]] = {}

    def add(self, name: str, labels: Mapping[str, str], value: float, spans: Iterable[tuple[float, float]]) -> None:
        if self._renamed and name.startswith("kube_"):
            own = {f"exported_{key}" if key in _TARGET else key: text for key, text in labels.items() if text}
            labels = {**own, **_TARGET}
        told = ",".join(f'{key}="{text}"' for key, text in labels.items() if text)
        for start, end in spans:
            times = self._times[(self._times >= start) & (self._times < end)].tolist()
            self._families.setdefault(name, []).extend(f"{name}{{{told}}} {value:.12g} {at:.0f}" for at in times)

    def text(self, left_out: Iterable[str] = ()) -> str:
        """All series but those left out."""
        lines = []
        for name, samples in self._families.items():
            if name not in left_out:
                lines += [f"# TYPE {name} gauge", *samples]
        return "\n".join([*lines, "# EOF", ""])


def tell_node(page: Page, node: MadeNode, *, labels: bool = True) -> None:
    for resource, value in (("cpu", 64.0), ("memory", 512.0 * GIB)):
        page.add("kube_node_status_allocatable", {"node": node.name, "resource": resource}, value, node.there)
    if node.gpus:
        told = {"node": node.name, "resource": "nvidia_com_gpu"}
        start, end = node.no_gpus
        for since_s, until_s in node.there:
            page.add("kube_node_status_allocatable", told, node.gpus, [(since_s, min(start or until_s, until_s))])
            if since_s <= start < until_s:
                page.add("kube_node_status_allocatable", told, 0, [(start, min(end, until_s))])
                page.add("kube_node_status_allocatable", told, node.gpus, [(end, until_s)])
    product = {"label_nvidia_com_gpu_product": node.product, "label_nvidia_com_gpu_memory": "81920"}
    page.add("kube_node_labels", {"node": node.name, **(product if labels and node.gpus else {})}, 1, node.there)


def tell_pod(page: Page, pod: MadePod, until_s: float) -> None:
    own = {"namespace": pod.namespace, "pod": f"{pod.owner}-{pod.uid}", "uid": pod.uid}
    gone_s = pod.gone_s if pod.gone_s is not None else until_s
    scheduled_s = gone_s if pod.scheduled_s is None else pod.scheduled_s
    ended_s = gone_s if pod.ended_s is None else pod.ended_s
    there, placed, ended = (pod.created_s, gone_s), (scheduled_s, gone_s), (ended_s, gone_s)
    controller = {"created_by_kind": pod.kind, "created_by_name": pod.owner, "priority_class": pod.priority_class}
    page.add("kube_pod_info", {**own, **controller}, 1, [(pod.created_s, scheduled_s)])
    page.add("kube_pod_info", {**own, **controller, "node": pod.node}, 1, [placed])
    page.add("kube_pod_created", own, pod.created_s, [there])
    if pod.scheduled_s is not None:
        page.add("kube_pod_status_scheduled_time", own, pod.scheduled_s, [placed])
    if pod.ended_s is not None and pod.completion:
        page.add("kube_pod_completion_time", own, pod.ended_s, [ended])
    for phase, spans in (("Running", [(scheduled_s, ended_s)]), (pod.phase, [ended])):
        page.add("kube_pod_status_phase", {**own, "phase": phase}, 0, [(pod.created_s, spans[0][0])])
        page.add("kube_pod_status_phase", {**own, "phase": phase}, 1, spans)
    for number, cpu in enumerate(pod.cpu):
        asked = {"cpu": cpu, "memory": pod.memory_gib * GIB / len(pod.cpu), "nvidia_com_gpu": 0 if number else pod.gpus}
        for resource, value in asked.items():
            container = {**own, "container": f"c{number}", "resource": resource}
            if value:
                page.add("kube_pod_container_resource_requests", container, value, [(pod.created_s, scheduled_s)])
                page.add("kube_pod_container_resource_requests", {**container, "node": pod.node}, value, [placed])
    if pod.init_gpus:
        told = {**own, "container": "init", "resource": "nvidia_com_gpu"}
        page.add("kube_pod_init_container_resource_requests", told, pod.init_gpus, [there])
    page.add("kube_pod_labels", {**own, **pod.labels}, 1, [there])
    page.add("kube_pod_annotations", {**own, **pod.annotations}, 1, [there])
