"""Assembles the set_aside part: pod and node watches, the quarantine controller, metrics."""

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from extender.api.contributions import Contribution, Kernel
from extender.explain.failing_nodes import NamesFailingNodes
from extender.kube import objects
from extender.kube.watches import BOUND_PODS, NODES
from extender.metrics.registry import counter, gauge
from extender.parts.set_aside.quarantine import (
    AlikeNodes,
    Failures,
    FailureThresholds,
    PodOutcomes,
    QuarantineConfig,
    QuarantineController,
)
from extender.parts.set_aside.settings import SetAsideSettings
from extender.settings.section import Initiative

_EARLY_S: Final = 60.0
"""A pod that fails within this time of its start counts as a failure; one that runs for longer counts as healthy."""
_FAILURES: Final = 5
"""Failed pods that quarantine a node; each namespace counts for its share at most."""
_WINDOW_S: Final = 600.0
"""Time within which they must fail."""
_MAX_FOR_S: Final = 86400.0
"""Longest quarantine of a node that fails repeatedly."""


def build(kernel: Kernel, wanted: SetAsideSettings) -> Contribution:
    """A controller that reports nodes on which pods fail and, with mode `act`, quarantines them."""
    base = kernel.base
    ledger, hub, acts = base.ledger, base.mirror.hub, wanted.mode is Initiative.ACT
    if acts:
        ledger.enable_quarantine()

    def has_gpus(pod: objects.Pod) -> bool:
        claim = ledger.allocation(pod.metadata.uid)
        return bool(claim is not None and claim.holding) or bool(pod.spec.resource_claims)

    failures = Failures(FailureThresholds(max(_FAILURES, wanted.namespaces), wanted.namespaces, _WINDOW_S))
    lives = PodOutcomes(
        transport=base.transport,
        failures=failures,
        nodes=AlikeNodes(ledger, hub.cache(NODES), base.clock),
        has_gpus=has_gpus,
        clock=base.clock,
        wall_clock=time.time,
        early_s=_EARLY_S,
        window_s=_WINDOW_S,
    )
    terms = QuarantineConfig(
        acts=acts,
        namespaces=wanted.namespaces,
        early_s=_EARLY_S,
        max_frac=wanted.max_frac,
        for_s=wanted.for_s,
        max_for_s=max(_MAX_FOR_S, wanted.for_s),
    )
    keeper = QuarantineController(
        base.transport, ledger, base.events, base.fence, failures, lives, terms, base.clock, time.time
    )
    hub.cache(NODES).subscribe(keeper.changed)
    hub.group(BOUND_PODS).subscribe(lives.changed)

    def metrics() -> Iterator[Metric]:
        text = "Quarantined nodes: they take no new GPU pods, as those of several namespaces failed there early."
        yield gauge("kerf_nodes_set_aside", text, keeper.num_set_aside)
        text = "Nodes on which GPU pods of several namespaces fail early and that are not quarantined."
        yield gauge("kerf_nodes_failing", text, keeper.num_failing)
        text = "GPU pods that failed soon after their start, on any node."
        yield counter("kerf_early_failures", text, lives.num_failed)

    return Contribution(work=[keeper], metrics=metrics, offers={NamesFailingNodes: keeper})
