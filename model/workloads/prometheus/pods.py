"""Pods from kube-state-metrics, by UID."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from extender.core.vendors.registry import PRODUCT_LABELS
from model.workloads.prometheus.client import Labels, Sample
from model.workloads.prometheus.kube_state import (
    INIT_REQUESTS,
    POD_ANNOTATIONS,
    POD_COMPLETION,
    POD_CREATED,
    POD_INFO,
    POD_LABELS,
    POD_PHASE,
    POD_SCHEDULED,
    POD_SELECTORS,
    POD_START,
    REQUESTS,
    RESOURCES,
    KubeState,
)
from model.workloads.prometheus.periods import Slice, by_slice
from model.workloads.prometheus.pod_requests import ANNOTATIONS, LABELS

_TIMES: Final = (POD_CREATED, POD_SCHEDULED, POD_START, POD_COMPLETION)
_INFO: Final = ("namespace", "pod", "node", "created_by_kind", "created_by_name", "priority_class")
_TEXTS: Final = {
    POD_LABELS: ("label", LABELS),
    POD_ANNOTATIONS: ("annotation", ANNOTATIONS),
    POD_SELECTORS: ("nodeselector", PRODUCT_LABELS),
}
_LAST_SEEN: Final = "last seen"
_NOT_SUBMITTED: Final = ("DaemonSet", "Node")
"""Controllers whose pods belong to nodes; `Node` is that of static pods."""


@dataclass
class SeenPod:
    """A pod, merged over all slices."""

    info: dict[str, str] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)
    """Unix times in seconds, by series."""
    last_seen_s: float = 0.0
    """Last step with a sample; 0 if there is none."""
    ended_by_s: float = float("inf")
    """First step at which it had ended."""
    requests: dict[str, float] = field(default_factory=dict)
    """Requests by resource: the larger of the containers' sum and the init containers' maximum."""
    said: dict[str, dict[str, str]] = field(default_factory=dict)
    """Labels, annotations and node selectors by key, for each series."""


@dataclass(frozen=True)
class SeenPods:
    """Pods of a period, without those that belong to nodes."""

    pods: Mapping[str, SeenPod]
    series: frozenset[str]
    """Series with samples."""


def read_pods(state: KubeState, on_step: Callable[[str], None]) -> SeenPods:
    """Read the pods of a period; `on_step` is called for each slice. Raises PrometheusError."""
    pods: dict[str, SeenPod] = {}
    series: set[str] = set()
    for part, samples_of in by_slice(state.period, lambda part: _ask(state, part)):
        on_step(part.day)
        series |= {name for name, samples in samples_of.items() if samples}
        _note_info(pods, state, samples_of.pop(POD_INFO))
        for name, samples in samples_of.items():
            for labels, value in samples:
                if pod := pods.get(labels.get("uid", "")):
                    _note(pod, name, state, labels, value)
    return SeenPods(pods, frozenset(series))


def _ask(state: KubeState, part: Slice) -> dict[str, list[Sample]]:
    """Query the pods' series in a slice; returns samples by series."""
    uid = ["uid"]
    ended = state.series(POD_PHASE, 'phase=~"Succeeded|Failed"') + " == 1"
    per_container = f"max by (uid, {state.own('container')}, resource) ({state.over(REQUESTS, part, RESOURCES)})"
    queries = {
        POD_INFO: state.last(POD_INFO, [*uid, *map(state.own, _INFO)], part),
        **{name: state.last(name, uid, part) for name in _TIMES},
        _LAST_SEEN: f"max by (uid) ({state.at_steps('max_over_time', f'timestamp({state.series(POD_INFO)})', part)})",
        POD_PHASE: f"min by (uid) ({state.at_steps('min_over_time', f'timestamp({ended})', part)})",
        REQUESTS: f"sum by (uid, resource) ({per_container})",
        INIT_REQUESTS: state.last(INIT_REQUESTS, [*uid, "resource"], part, RESOURCES),
    }
    for name, (prefix, keys) in _TEXTS.items():
        if present := state.present(prefix, keys):
            queries[name] = state.last(name, [*uid, *present.values()], part)
    return {name: state.asked(query, part) for name, query in queries.items()}


def _note_info(pods: dict[str, SeenPod], state: KubeState, samples: Iterable[Sample]) -> None:
    for labels, _ in samples:
        info = {name: value for name in _INFO if (value := labels.get(state.own(name), ""))}
        uid = labels.get("uid", "")
        if uid and info.get("created_by_kind") not in _NOT_SUBMITTED:
            pods.setdefault(uid, SeenPod()).info.update(info)  # without the node until it is bound


def _note(pod: SeenPod, name: str, state: KubeState, labels: Labels, value: float) -> None:
    if name in _TIMES:
        pod.times[name] = value
    elif name == _LAST_SEEN:
        pod.last_seen_s = max(pod.last_seen_s, value)
    elif name == POD_PHASE:
        pod.ended_by_s = min(pod.ended_by_s, value)
    elif name in _TEXTS:
        prefix, keys = _TEXTS[name]
        texts = {key: labels[label] for key, label in state.present(prefix, keys).items() if labels.get(label)}
        pod.said.setdefault(name, {}).update(texts)
    else:
        resource = labels.get("resource", "")
        pod.requests[resource] = max(pod.requests.get(resource, 0.0), value)
