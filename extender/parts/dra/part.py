"""Allocates devices for the queue's pods, and rewrites extended resources to ResourceClaims."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from extender.api.contributions import Contribution, Kernel
from extender.api.reviews import RewritesRequests
from extender.parts.dra.extended_resources import Rewriting
from extender.parts.dra.for_queue import allocating
from extender.parts.dra.keeper import ClaimKeeper
from extender.parts.dra.metrics import DeviceFigures, device_metrics
from extender.parts.dra.settings import DraSettings
from extender.queueing.devices import AllocatorFactory, AllocatorParts
from extender.queueing.pods.entries import Entry
from extender.scheduling.build import Foundation


def prepare(base: Foundation, wanted: DraSettings, max_age_s: float) -> Mapping[type, Any]:
    """The services for the queue and the webhook."""
    classes = wanted.rewrite_extended_resources
    offers: dict[type, Any] = {RewritesRequests: Rewriting(classes)} if classes else {}
    if (owned := base.ledger.rows.owned) is None:
        return offers

    def keeper(
        *,
        entries_of: Callable[[str], Iterable[Entry]],
        entries: Callable[[], Iterable[Entry]],
        dirty: Callable[[], None],
        changed: Callable[[str], None],
    ) -> AllocatorParts:
        claim_keeper = ClaimKeeper(
            transport=base.transport,
            mirror=base.mirror,
            ledger=base.ledger,
            owned=owned,
            fence=base.fence,
            resolver=base.resolver,
            clock=base.clock,
            max_age_s=max_age_s,
            classes_to_make=frozenset(classes.values()),
            entries_of=entries_of,
            entries=entries,
            dirty=dirty,
            changed=changed,
        )
        return allocating(claim_keeper)

    return {**offers, AllocatorFactory: keeper}


def build(kernel: Kernel, wanted: DraSettings) -> Contribution:
    """Metrics, if there is a queue to allocate for."""
    keeper, owned = kernel.queue.claims if kernel.queue is not None else None, kernel.base.ledger.rows.owned
    if owned is None or not isinstance(keeper, ClaimKeeper):
        return Contribution()
    return Contribution(metrics=partial(device_metrics, owned, keeper, DeviceFigures()))
