"""A cluster's history read from Prometheus, with a list of what is missing."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import numpy as np

from extender.core.vendors.registry import DOMAINS, PRODUCT_LABELS
from extender.history.records import About, Columns, History
from model.workloads.prometheus.client import Prometheus, PrometheusError
from model.workloads.prometheus.kube_state import (
    ALLOCATABLE,
    GPUS,
    NODE_LABELS,
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
    KubeState,
    kube_state,
)
from model.workloads.prometheus.nodes import EXPORTERS, HICCUP_STEPS, read_nodes
from model.workloads.prometheus.periods import seconds_of
from model.workloads.prometheus.pod_requests import CLASS_PRIORITIES, GANGS
from model.workloads.prometheus.pods import SeenPods, read_pods
from model.workloads.prometheus.tables import UNKNOWN, node_table, pod_table

_NEEDED: Final = (POD_INFO, POD_CREATED, REQUESTS)
_HOUR_S: Final = 3600
_PRODUCT: Final = " or ".join(PRODUCT_LABELS)


def read_history(prometheus: Prometheus, since: str, match: str, on_step: Callable[[str], None]) -> History:
    """Read the last `since`, such as 30d, as far as there is data; `on_step` is called for each slice.

    `match`: label matchers that select one of several clusters, or "". Raises PrometheusError if a required series is
    missing.
    """
    state = kube_state(prometheus, since, match)
    seen = read_pods(state, on_step)
    if lacking := [name for name in _NEEDED if name not in seen.series]:
        raise PrometheusError(
            f"{prometheus.url}: no {', '.join(lacking)} in the last {since}: "
            "check that kube-state-metrics (2.0 or later) exposes them and Prometheus keeps them"
        )
    seen_nodes = read_nodes(state)
    pods, nodes = pod_table(seen, seen_nodes, state.period), node_table(seen_nodes, state.period)
    if not len(pods["pod"]):
        raise PrometheusError(f"{prometheus.url}: no pods in the last {since} except those of DaemonSets")
    missing = (*_always(state), *_of_period(state, since), *_of_pods(state, seen), *_of_nodes(state, nodes))
    about = About(source="prometheus", since_s=state.period.since_s, until_s=state.period.until_s, missing=missing)
    return History(about, pods, nodes)


def _always(state: KubeState) -> list[str]:
    step_s, interval_s = state.period.step_s, state.period.scrape_interval_s
    return [
        f"exact times without a series: ends of deleted pods and changes of nodes, to within {step_s} s",
        f"pods that lived only between two scrapes ({interval_s} s)",
        "which GPUs of its node a pod had",
        "taints, cordons, affinities and quotas",
    ]


def _of_period(state: KubeState, since: str) -> list[str]:
    period, missing = state.period, []
    if period.until_s - period.since_s < seconds_of(since) - _HOUR_S:
        first = datetime.fromtimestamp(period.since_s, UTC).isoformat()
        missing.append(f"the time before {first}: {since} were requested, but Prometheus has no more")
    steps = np.diff(period.known_s) / period.step_s - 1
    if (lost := float(steps[steps > HICCUP_STEPS].sum())) > 0:
        missing.append(f"{lost * period.step_s / _HOUR_S:.1f} hours in which kube-state-metrics was not scraped")
    return missing


def _of_pods(state: KubeState, seen: SeenPods) -> list[str]:
    """Return what is missing because of absent optional series."""
    missing = []
    if not seen.series & {POD_SCHEDULED, POD_START}:
        missing.append(f"when pods started: neither {POD_SCHEDULED} nor {POD_START}")
    if POD_COMPLETION not in seen.series:
        missing.append(f"when pods completed: no {POD_COMPLETION}; known to within {state.period.step_s} s")
    if POD_PHASE not in seen.series:
        missing.append(f"whether existing pods had ended: no {POD_PHASE}")
    if not any(state.present(prefix, keys) for prefix, keys in GANGS.items()):
        missing.append(f"gangs: no label or annotation that names one in {POD_LABELS}, {POD_ANNOTATIONS}")
    if POD_ANNOTATIONS not in seen.series:
        missing.append(f"shares, memory and models requested by annotation: no such keys in {POD_ANNOTATIONS}")
    if POD_SELECTORS not in seen.series:
        missing.append(f"models requested by node selector: no {_PRODUCT} in {POD_SELECTORS}")
    classes = {pod.info.get("priority_class", "") for pod in seen.pods.values()} - {"", *CLASS_PRIORITIES}
    if classes:
        missing.append(f"values of {len(classes)} PriorityClasses: they count as 0")
    return missing


def _of_nodes(state: KubeState, nodes: Columns) -> list[str]:
    missing = []
    if unknown := len(set(nodes["node"][nodes["gpu_model"] == UNKNOWN])):
        exporters = " or ".join(exporter.always for exporter in EXPORTERS)
        missing.append(
            f"GPU models of {unknown} nodes: no {_PRODUCT} in {NODE_LABELS} (--metric-labels-allowlist) and no "
            f"{exporters}; they count as one model, {UNKNOWN}"
        )
    domains = "|".join(re.sub(r"[^a-zA-Z0-9_]", "_", domain) for domain in DOMAINS)
    others = state.series(ALLOCATABLE, f'resource=~"({domains}).+", resource!~"{"|".join(GPUS)}"')
    found = state.prometheus.instant(f"count by (resource) ({others} > 0)", state.period.until_s)
    if found:
        names = ", ".join(sorted(labels.get("resource", "") for labels, _ in found))
        missing.append(f"GPUs offered as {names}: neither they nor requests for them are counted")
    return missing
