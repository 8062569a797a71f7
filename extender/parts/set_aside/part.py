"""What watches how pods do on their nodes, with its metrics."""

import time
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import Metric

from extender.api.contributions import Contribution, Kernel
from extender.explain.failing_nodes import NamesFailingNodes
from extender.kube import objects
from extender.kube.watches import BOUND_PODS, NODES
from extender.metrics.registry import counter, gauge
from extender.parts.set_aside.quarantine import AlikeNodes, Failures, Keeper, Lives, Rules, Terms
from extender.parts.set_aside.settings import SetAsideSettings
from extender.settings.section import Initiative

_EARLY_S: Final = 60.0
"""A pod that fails within this time of its start counts, and one that runs for longer lives well."""
_FAILURES: Final = 5
"""Pods that must have failed on a node, of each namespace no more than its part."""
_WINDOW_S: Final = 600.0
"""In which they must have."""
_MAX_FOR_S: Final = 86400.0
"""Longest time for which a node is set aside that failed again and again."""


def build(kernel: Kernel, wanted: SetAsideSettings) -> Contribution:
    """A keeper that names nodes on which pods fail, and with mode `act` sets them aside."""
    base = kernel.base
    ledger, hub, acts = base.ledger, base.mirror.hub, wanted.mode is Initiative.ACT
    if acts:
        ledger.heed_notes()

    def has_gpus(pod: objects.Pod) -> bool:
        claim = ledger.claim(pod.metadata.uid)
        return bool(claim is not None and claim.holding) or bool(pod.spec.resource_claims)

    failures = Failures(Rules(max(_FAILURES, wanted.namespaces), wanted.namespaces, _WINDOW_S))
    lives = Lives(
        transport=base.transport,
        failures=failures,
        nodes=AlikeNodes(ledger, hub.cache(NODES), base.clock),
        has_gpus=has_gpus,
        clock=base.clock,
        wall_clock=time.time,
        early_s=_EARLY_S,
        window_s=_WINDOW_S,
    )
    terms = Terms(
        acts=acts,
        namespaces=wanted.namespaces,
        early_s=_EARLY_S,
        max_frac=wanted.max_frac,
        for_s=wanted.for_s,
        max_for_s=max(_MAX_FOR_S, wanted.for_s),
    )
    keeper = Keeper(base.transport, ledger, base.events, base.fence, failures, lives, terms, base.clock, time.time)
    hub.cache(NODES).subscribe(keeper.changed)
    hub.part(BOUND_PODS).subscribe(lives.changed)

    def metrics() -> Iterator[Metric]:
        told = "Nodes without new GPU pods because those of several namespaces failed there soon after their start."
        yield gauge("kerf_nodes_set_aside", told, keeper.num_set_aside)
        told = "Nodes on which such pods fail and that are not set aside."
        yield gauge("kerf_nodes_failing", told, keeper.num_failing)
        told = "GPU pods that failed soon after their start, on whatever node."
        yield counter("kerf_early_failures", told, lives.num_failed)

    return Contribution(work=[keeper], metrics=metrics, offers={NamesFailingNodes: keeper})
