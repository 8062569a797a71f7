"""What watches how pods do on their nodes, with its metrics."""

import time
from collections.abc import Iterator

from prometheus_client.core import Metric

from extender.api.contributions import Contribution, Kernel
from extender.explain.failing_nodes import NamesFailingNodes
from extender.kube import objects
from extender.kube.watches import BOUND_PODS, NODES
from extender.metrics.registry import counter, gauge
from extender.parts.set_aside.quarantine import AlikeNodes, Failures, Keeper, Lives, Rules, Terms
from extender.parts.set_aside.settings import SetAsideSettings
from extender.settings.section import Initiative


def build(kernel: Kernel, wanted: SetAsideSettings) -> Contribution:
    """A keeper that names nodes on which pods fail, and with mode `act` sets them aside."""
    base = kernel.base
    ledger, hub, acts = base.ledger, base.mirror.hub, wanted.mode is Initiative.ACT
    if acts:
        ledger.heed_notes()

    def has_gpus(pod: objects.Pod) -> bool:
        claim = ledger.claim(pod.metadata.uid)
        return bool(claim is not None and claim.holding) or bool(pod.spec.resource_claims)

    failures = Failures(Rules(wanted.failures, wanted.namespaces, wanted.window_s))
    lives = Lives(
        transport=base.transport,
        failures=failures,
        nodes=AlikeNodes(ledger, hub.cache(NODES), base.clock),
        has_gpus=has_gpus,
        clock=base.clock,
        wall_clock=time.time,
        early_s=wanted.early_s,
        window_s=wanted.window_s,
    )
    terms = Terms(
        acts=acts,
        namespaces=wanted.namespaces,
        early_s=wanted.early_s,
        max_frac=wanted.max_frac,
        for_s=wanted.for_s,
        max_for_s=wanted.max_for_s,
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
