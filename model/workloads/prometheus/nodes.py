"""Nodes from kube-state-metrics: their allocatable resources over time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from extender.core.resources.quantities import MIB
from extender.core.vendors.registry import VENDORS
from extender.core.vendors.vendor import Exporter, Vendor
from model.workloads.prometheus.client import Sample
from model.workloads.prometheus.kube_state import ALLOCATABLE, GPUS, NODE_LABELS, RESOURCES, KubeState
from model.workloads.prometheus.periods import Period, Slice, by_slice

HICCUP_STEPS: Final = 2
"""Shorter changes may be a failed scrape or a plugin restart."""
_NODES_AT_ONCE: Final = 40
EXPORTERS: Final = tuple(vendor.exporter for vendor in VENDORS if vendor.exporter and vendor.exporter.always)
_NODE_LABEL: Final = "node"
"""Node label that a scrape adds to an exporter's series."""


class Inventory(NamedTuple):
    """Allocatable resources of a node."""

    gpus: int
    cpu_milli: int
    memory_mib: int


@dataclass(frozen=True)
class Span:
    """State of a node between two times, both inclusive."""

    since_s: float
    until_s: float
    had: Inventory


@dataclass(frozen=True)
class SeenNodes:
    """Nodes of a period."""

    spans: Mapping[str, Sequence[Span]]
    """Spans by node, ascending."""
    products: Mapping[str, str]
    """GPU product by node, where known."""
    memory_mib: Mapping[str, int]
    """Memory of each GPU by node, where known."""


def read_nodes(state: KubeState) -> SeenNodes:
    """Read the nodes of a period. Raises PrometheusError."""
    spans: dict[str, list[Span]] = {}
    products: dict[str, str] = {}
    memory_mib: dict[str, int] = {}
    for _, (found, labels) in by_slice(state.period, lambda part: (_spans(state, part), _labels(state, part))):
        for node, span in found:
            spans.setdefault(node, []).append(span)
        for node, product, memory in labels:
            products |= {node: product} if product else {}
            memory_mib |= {node: memory} if memory else {}
    settled = {node: _settle(found, state.period) for node, found in spans.items()}
    return SeenNodes(settled, products, memory_mib)


def _settle(spans: Sequence[Span], period: Period) -> list[Span]:
    """Return the spans of a node without short-lived changes: equal spans are merged across gaps of up to HICCUP_STEPS,
    and spans that short are dropped."""
    lasting = [span for span in _joined(spans, period) if _steps(span, period) > HICCUP_STEPS]
    return _joined(lasting, period) or _joined(spans, period)


def _joined(spans: Sequence[Span], period: Period) -> list[Span]:
    merged: list[Span] = []
    for span in spans:
        last = merged[-1] if merged else None
        if last and last.had == span.had and period.steps_between(last.until_s, span.since_s) <= HICCUP_STEPS:
            merged[-1] = Span(last.since_s, span.until_s, span.had)
        else:
            merged.append(span)
    return merged


def _steps(span: Span, period: Period) -> int:
    return period.steps_between(span.since_s, span.until_s) + 2


def _spans(state: KubeState, part: Slice) -> list[tuple[str, Span]]:
    """Return one span for each node that was constant in a slice; the others are read step by step."""
    known_s = state.period.known_s
    times = known_s[(known_s > part.since_s) & (known_s <= part.until_s)].tolist()
    if not times:
        return []
    node = state.own("node")
    least, most, steps = (_by_node(state.asked(query, part), node) for query in _extremes(state, part, node))
    steady = {
        name
        for name, had in most.items()
        if least.get(name) == had and min(steps.get(name, {"": 0.0}).values()) >= len(times)
    }
    found = [(name, Span(times[0], times[-1], _inventory(most[name]))) for name in sorted(steady)]
    others = sorted(most.keys() - steady)
    for first in range(0, len(others), _NODES_AT_ONCE):
        found += _step_by_step(state, part, others[first : first + _NODES_AT_ONCE])
    return found


def _extremes(state: KubeState, part: Slice, node: str) -> Iterator[str]:
    """Yield PromQL for the minimum, the maximum and the number of samples of each node's resources."""
    series = state.series(ALLOCATABLE, RESOURCES)
    for reduce in ("min", "max"):
        yield f"{reduce} by ({node}, resource) ({reduce}_over_time({series}[{part.window}]))"
    yield state.at_steps("count_over_time", f"max by ({node}, resource) ({series})", part)


def _by_node(samples: Sequence[Sample], node: str) -> dict[str, dict[str, float]]:
    """Return values by resource, by node."""
    found: dict[str, dict[str, float]] = {}
    for labels, value in samples:
        found.setdefault(labels.get(node, ""), {})[labels.get("resource", "")] = value
    return found


def _step_by_step(state: KubeState, part: Slice, names: Sequence[str]) -> list[tuple[str, Span]]:
    node, step_s = state.own("node"), state.period.step_s
    series = state.series(ALLOCATABLE, RESOURCES, f'{node}=~"{"|".join(name.replace(".", "[.]") for name in names)}"')
    query = f"max by ({node}, resource) ({series})"
    series_of_node: dict[str, dict[float, dict[str, float]]] = {}
    for labels, values in state.prometheus.ranged(query, part.since_s + step_s, part.until_s, step_s):
        at = series_of_node.setdefault(labels.get(node, ""), {})
        for at_s, value in values.items():
            at.setdefault(at_s, {})[labels.get("resource", "")] = value
    found: list[tuple[str, Span]] = []
    for name, by_time in series_of_node.items():
        points = [Span(at_s, at_s, _inventory(had)) for at_s, had in sorted(by_time.items()) if "cpu" in had]
        found += [(name, span) for span in _runs(points, step_s)]
    return found


def _runs(points: Sequence[Span], step_s: int) -> list[Span]:
    """Merge equal spans at consecutive steps."""
    merged: list[Span] = []
    for point in points:
        if merged and merged[-1].had == point.had and point.since_s - merged[-1].until_s <= step_s:
            merged[-1] = Span(merged[-1].since_s, point.until_s, point.had)
        else:
            merged.append(point)
    return merged


def _inventory(had: Mapping[str, float]) -> Inventory:
    gpus = round(sum(had.get(name, 0.0) for name in GPUS))
    return Inventory(gpus, round(had.get("cpu", 0.0) * 1000), int(had.get("memory", 0.0) // MIB))


def _labels(state: KubeState, part: Slice) -> list[tuple[str, str, int]]:
    """Return node, product and MiB of its GPUs: from vendor labels, else from the exporter."""
    found = [row for vendor in VENDORS for row in _by_labels(state, part, vendor)]
    return found or [row for exporter in EXPORTERS for row in _by_exporter(state, part, exporter)]


def _by_labels(state: KubeState, part: Slice, vendor: Vendor) -> list[tuple[str, str, int]]:
    keys = filter(None, (vendor.product_label, vendor.memory_label, *vendor.sizes_by))
    node, present = state.own("node"), state.present("label", keys)
    if vendor.product_label not in present:
        return []
    found = []
    for series, _ in state.asked(state.last(NODE_LABELS, [node, *present.values()], part), part):
        labels = {key: series[name] for key, name in present.items() if series.get(name)}
        model_labels, memory = vendor.labels(labels), labels.get(vendor.memory_label, "")
        memory_mib = int(memory) if memory.isdecimal() else model_labels.memory_mib
        found.append((series.get(node, ""), labels.get(vendor.product_label, ""), memory_mib))
    return found


def _by_exporter(state: KubeState, part: Slice, exporter: Exporter) -> list[tuple[str, str, int]]:
    hosts = (exporter.host[0], _NODE_LABEL)
    query = f"max by ({exporter.model}, {', '.join(hosts)}) ({state.series(exporter.always)})"
    return [
        (host, labels.get(exporter.model, ""), 0)
        for labels, _ in state.asked(query, part)
        for host in sorted({labels[name] for name in hosts if labels.get(name)})
    ]
