"""What Prometheus tells of a cluster's past, as a history, and in words what it can't tell."""

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


def read_history(prometheus: Prometheus, since: str, match: str, tell: Callable[[str], None]) -> History:
    """The last time of a length such as 30d, as far back as it goes; `tell` hears of each day.

    `match`: label matchers that choose one cluster of several, or "". Raises PrometheusError where something that is
    needed is missing.
    """
    state = kube_state(prometheus, since, match)
    seen = read_pods(state, tell)
    if lacking := [name for name in _NEEDED if name not in seen.series]:
        raise PrometheusError(
            f"{prometheus.url}: no {', '.join(lacking)} in the last {since}: "
            "let kube-state-metrics (2.0 or later) tell them, and Prometheus keep them"
        )
    seen_nodes = read_nodes(state)
    pods, nodes = pod_table(seen, seen_nodes, state.period), node_table(seen_nodes, state.period)
    if not len(pods["pod"]):
        raise PrometheusError(f"{prometheus.url}: no pods in the last {since}, other than those of DaemonSets")
    missing = (*_always(state), *_of_period(state, since), *_of_pods(state, seen), *_of_nodes(state, nodes))
    about = About(source="prometheus", since_s=state.period.since_s, until_s=state.period.until_s, missing=missing)
    return History(about, pods, nodes)


def _always(state: KubeState) -> list[str]:
    step_s, interval_s = state.period.step_s, state.period.scrape_interval_s
    return [
        f"times that no series has: ends of deleted pods and changes of nodes are to within {step_s} s",
        f"pods that came and went between two scrapes, {interval_s} s",
        "which GPUs of its node a pod had",
        "taints, cordons, affinities and quotas",
    ]


def _of_period(state: KubeState, since: str) -> list[str]:
    period, told = state.period, []
    if period.until_s - period.since_s < seconds_of(since) - _HOUR_S:
        first = datetime.fromtimestamp(period.since_s, UTC).isoformat()
        told.append(f"what was before {first}: {since} were asked for, and Prometheus has no more")
    steps = np.diff(period.known_s) / period.step_s - 1
    if (lost := float(steps[steps > HICCUP_STEPS].sum())) > 0:
        told.append(f"{lost * period.step_s / _HOUR_S:.1f} hours in which kube-state-metrics was not scraped")
    return told


def _of_pods(state: KubeState, seen: SeenPods) -> list[str]:
    """What of the optional series is absent, and what that means."""
    told = []
    if not seen.series & {POD_SCHEDULED, POD_START}:
        told.append(f"when pods started: neither {POD_SCHEDULED} nor {POD_START}")
    if POD_COMPLETION not in seen.series:
        told.append(f"when pods completed: no {POD_COMPLETION}; to within {state.period.step_s} s")
    if POD_PHASE not in seen.series:
        told.append(f"whether pods had ended while they were still there: no {POD_PHASE}")
    if not any(state.present(prefix, keys) for prefix, keys in GANGS.items()):
        told.append(f"gangs: no label or annotation that names one in {POD_LABELS}, {POD_ANNOTATIONS}")
    if POD_ANNOTATIONS not in seen.series:
        told.append(f"shares, memory and models asked for by annotation: nothing of them in {POD_ANNOTATIONS}")
    if POD_SELECTORS not in seen.series:
        told.append(f"models asked for by node selector: no {_PRODUCT} in {POD_SELECTORS}")
    classes = {pod.info.get("priority_class", "") for pod in seen.pods.values()} - {"", *CLASS_PRIORITIES}
    if classes:
        told.append(f"numbers of {len(classes)} PriorityClasses: they count as 0")
    return told


def _of_nodes(state: KubeState, nodes: Columns) -> list[str]:
    told = []
    if unknown := len(set(nodes["node"][nodes["gpu_model"] == UNKNOWN])):
        exporters = " or ".join(exporter.always for exporter in EXPORTERS)
        told.append(
            f"GPU models of {unknown} nodes: no {_PRODUCT} in {NODE_LABELS} (--metric-labels-allowlist) and no "
            f"{exporters}; they count as one model, {UNKNOWN}"
        )
    domains = "|".join(re.sub(r"[^a-zA-Z0-9_]", "_", domain) for domain in DOMAINS)
    others = state.series(ALLOCATABLE, f'resource=~"({domains}).+", resource!~"{"|".join(GPUS)}"')
    found = state.prometheus.instant(f"count by (resource) ({others} > 0)", state.period.until_s)
    if found:
        names = ", ".join(sorted(labels.get("resource", "") for labels, _ in found))
        told.append(f"GPUs given out as {names}: they and what asks for them count as none")
    return told
