"""Series of kube-state-metrics, and PromQL over them.

Names and labels: docs/metrics of github.com/kubernetes/kube-state-metrics, version 2.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from extender.core.vendors.registry import VENDORS
from model.workloads.prometheus.client import Prometheus, Sample
from model.workloads.prometheus.periods import Period, Slice, read_period

POD_INFO: Final = "kube_pod_info"
POD_CREATED: Final = "kube_pod_created"
POD_SCHEDULED: Final = "kube_pod_status_scheduled_time"
POD_START: Final = "kube_pod_start_time"
POD_COMPLETION: Final = "kube_pod_completion_time"
POD_PHASE: Final = "kube_pod_status_phase"
POD_LABELS: Final = "kube_pod_labels"
POD_ANNOTATIONS: Final = "kube_pod_annotations"
POD_SELECTORS: Final = "kube_pod_nodeselectors"
REQUESTS: Final = "kube_pod_container_resource_requests"
INIT_REQUESTS: Final = "kube_pod_init_container_resource_requests"
ALLOCATABLE: Final = "kube_node_status_allocatable"
NODE_LABELS: Final = "kube_node_labels"
_LABELLED: Final = (POD_INFO, POD_LABELS, POD_ANNOTATIONS, POD_SELECTORS, REQUESTS, ALLOCATABLE, NODE_LABELS)

GPUS: Final = tuple(re.sub(r"[^a-zA-Z0-9_]", "_", vendor.resource) for vendor in VENDORS)
"""Names of GPU resources, indexed by vendor."""
RESOURCES: Final = f'resource=~"cpu|memory|{"|".join(GPUS)}"'
_CPU_ALLOCATABLE: Final = 'resource="cpu"'
"""Matcher of one series for each node."""


def _label_of(prefix: str, key: str) -> str:
    """Return the label of a series for an object's label, annotation or node selector."""
    return f"{prefix}_{re.sub(r'[^a-zA-Z0-9_]', '_', key)}"


@dataclass(frozen=True)
class KubeState:
    """kube-state-metrics behind a Prometheus."""

    prometheus: Prometheus
    match: str
    """Label matchers that select one of several clusters; "" for all."""
    period: Period
    labels: frozenset[str]
    """All labels of its series."""

    def series(self, name: str, *matchers: str) -> str:
        """Return a selector."""
        return _selector(name, self.match, *matchers)

    def own(self, label: str) -> str:
        """Return the name of a label set by kube-state-metrics: `exported_...` if scraped without `honorLabels`."""
        exported = f"exported_{label}"
        return exported if exported in self.labels else label

    def present(self, prefix: str, keys: Iterable[str]) -> dict[str, str]:
        """Return the series' labels for the keys of labels, annotations or node selectors that exist, by key."""
        return {key: name for key in keys if (name := _label_of(prefix, key)) in self.labels}

    def over(self, name: str, part: Slice, *matchers: str) -> str:
        """PromQL for the last values in a slice."""
        return f"last_over_time({self.series(name, *matchers)}[{part.window}])"

    def last(self, name: str, by: Sequence[str], part: Slice, *matchers: str) -> str:
        """PromQL for the last values in a slice, the largest of each group."""
        return f"max by ({', '.join(by)}) ({self.over(name, part, *matchers)})"

    def at_steps(self, function: str, expression: str, part: Slice) -> str:
        """PromQL for a function of an expression's values at the steps of a slice."""
        return f"{function}(({expression})[{part.window}:{self.period.step_s}s])"

    def asked(self, query: str, part: Slice) -> list[Sample]:
        """Run an instant query at the end of a slice. Raises PrometheusError."""
        return self.prometheus.instant(query, part.until_s)


def _selector(name: str, *matchers: str) -> str:
    """Return PromQL that selects series."""
    matching = ", ".join(matcher for matcher in matchers if matcher)
    return f"{name}{{{matching}}}" if matching else name


def kube_state(prometheus: Prometheus, since: str, match: str) -> KubeState:
    """Return the metrics of the last `since`. Raises PrometheusError if there is no data."""
    nodes, pods = _selector(ALLOCATABLE, match, _CPU_ALLOCATABLE), _selector(POD_INFO, match)
    period = read_period(prometheus, since, nodes, pods)
    names = f'__name__=~"{"|".join(_LABELLED)}"'
    labels = prometheus.label_names(_selector("", names, match), period.since_s, period.until_s)
    return KubeState(prometheus, match, period, frozenset(labels))
