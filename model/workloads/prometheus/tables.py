"""Observed pods and nodes as columns of a history."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from extender.core.resources.gpu_models import canonical_name, describe_model
from extender.core.vendors.registry import PRODUCT_LABELS, PRODUCT_MEMORY_MIB
from extender.history.records import NODE_COLUMNS, POD_COLUMNS, Column, columns_of, owner_name
from model.workloads.prometheus.kube_state import (
    POD_ANNOTATIONS,
    POD_COMPLETION,
    POD_CREATED,
    POD_LABELS,
    POD_PHASE,
    POD_SCHEDULED,
    POD_SELECTORS,
    POD_START,
)
from model.workloads.prometheus.nodes import HICCUP_STEPS, SeenNodes
from model.workloads.prometheus.periods import Period
from model.workloads.prometheus.pod_requests import asked, gang_name
from model.workloads.prometheus.pods import SeenPod, SeenPods

UNKNOWN: Final = "GPU"
"""Model of GPUs whose model is not known."""
_GANG_WITHIN_S: Final = 600.0
"""Largest gap between submissions within a gang: after it, the same name is a new run."""


def node_table(seen: SeenNodes, period: Period) -> dict[str, Column]:
    """Return a row for each state of each node."""
    rows = []
    for node, spans in sorted(seen.spans.items()):
        model = canonical_name(seen.products.get(node, ""))
        memory = seen.memory_mib.get(node) or PRODUCT_MEMORY_MIB.get(model, 0)
        for number, span in enumerate(spans):
            later = spans[number + 1].since_s if number + 1 < len(spans) else None
            gpus, cpu_milli, memory_mib = span.had
            rows.append({
                "node": node, "gpu_model": (model or UNKNOWN) if gpus else "", "gpus": gpus,
                "gpu_memory_mib": memory if gpus else 0, "cpu_milli": cpu_milli, "memory_mib": memory_mib,
                "from_s": period.since_s if _close(period, period.since_s, span.since_s) else span.since_s,
                "until_s": _until_s(span.until_s, later, period),
            })  # fmt: skip
    return _columns(NODE_COLUMNS, rows)


def pod_table(seen: SeenPods, nodes: SeenNodes, period: Period) -> dict[str, Column]:
    """Return a row for each pod by submission time; pods that ended before the period are left out."""
    models = [describe_model(product, {}) for product in sorted(set(nodes.products.values()))]
    most_memory_mib = max((PRODUCT_MEMORY_MIB.get(model.name, 0) for model in models), default=0)
    most_memory_mib = max(most_memory_mib, *nodes.memory_mib.values(), 0)
    rows = []
    for uid, pod in seen.pods.items():
        started_s = pod.times.get(POD_SCHEDULED) or pod.times.get(POD_START) or math.nan
        ended_s = _ended_s(pod, period, has_phases=POD_PHASE in seen.series)
        submitted_s = pod.times.get(POD_CREATED, 0.0)
        if not submitted_s or ended_s < period.since_s:
            continue
        labels, annotations = pod.said.get(POD_LABELS, {}), pod.said.get(POD_ANNOTATIONS, {})
        selected = pod.said.get(POD_SELECTORS, {})
        product = next((selected[label] for label in PRODUCT_LABELS if label in selected), "")
        request = asked(
            pod.requests, labels, annotations, product, pod.info.get("priority_class", ""), models, most_memory_mib
        )
        namespace, gang = pod.info.get("namespace", ""), gang_name(labels, annotations)
        rows.append({
            **vars(request), "pod": uid, "namespace": namespace, "owner": _owner(pod.info),
            "gang": gang and f"{namespace}/{gang}", "submitted_s": submitted_s, "started_s": started_s,
            "ended_s": ended_s, "node": pod.info.get("node", ""), "gpu_indices": "",
        })  # fmt: skip
    rows.sort(key=lambda row: (row["submitted_s"], row["pod"]))
    _part_gangs(rows)
    return _columns(POD_COLUMNS, rows)


def _owner(info: Mapping[str, str]) -> str:
    kind, name = info.get("created_by_kind", ""), info.get("created_by_name", "")
    if kind in ("", "<none>"):  # the latter in older releases
        kind, name = "Pod", info.get("pod", "")
    return owner_name(info.get("namespace", ""), kind, name)


def _ended_s(pod: SeenPod, period: Period, *, has_phases: bool) -> float:
    """Return the end of a pod, nan if it had not ended.

    The completion time is the last end of any container, which may have restarted: it is the pod's end only if the
    phase agrees, or if the pod disappeared right after.
    """
    completed_s = pod.times.get(POD_COMPLETION, math.nan)
    seen_s = pod.last_seen_s or max(pod.times.values(), default=0.0)
    if pod.ended_by_s < math.inf:
        return completed_s if completed_s <= pod.ended_by_s else pod.ended_by_s
    disappeared = not _close(period, seen_s, period.until_s)
    if completed_s > 0 and (not has_phases or (disappeared and completed_s >= seen_s - period.step_s)):
        return completed_s
    return seen_s if disappeared else math.nan


def _until_s(until_s: float, later_s: float | None, period: Period) -> float:
    """Return the end of a node's state: the start of the next state if close, nan if it lasts to the end."""
    if later_s is not None:
        return later_s if _close(period, until_s, later_s) else until_s
    return math.nan if _close(period, until_s, period.until_s) else until_s


def _close(period: Period, from_s: float, until_s: float) -> bool:
    return period.steps_between(from_s, until_s) <= HICCUP_STEPS


def _part_gangs(rows: list[dict[str, Any]]) -> None:
    """Number the runs of gangs whose names recur; rows are sorted by submission time."""
    last_s: dict[str, float] = {}
    run_number: dict[str, int] = {}
    for row in rows:
        if gang := row["gang"]:
            if row["submitted_s"] - last_s.get(gang, row["submitted_s"]) > _GANG_WITHIN_S:
                run_number[gang] = run_number.get(gang, 1) + 1
            last_s[gang] = row["submitted_s"]
            row["gang"] = f"{gang}#{run_number[gang]}" if gang in run_number else gang


def _columns(kinds: Mapping[str, Any], rows: list[dict[str, Any]]) -> dict[str, Column]:
    empty = {"text": np.array([], object), "whole": np.array([], np.int64), "number": np.array([], np.float64)}
    return columns_of(kinds, {name: [row[name] for row in rows] if rows else empty[kinds[name]] for name in kinds})
