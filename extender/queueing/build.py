"""Builds the queue from the settings."""

import time
from collections.abc import Callable
from functools import partial

from extender.core.resources.requests import GpuRequest
from extender.kube.rights import Grants
from extender.kube.watches import BOUND_PODS
from extender.queueing.controller import QueueController
from extender.queueing.devices import AllocatorFactory
from extender.queueing.direct.mode import DirectMode
from extender.queueing.dispatch import Mode
from extender.queueing.extender_mode import ExtenderMode
from extender.queueing.kept_places import PlaceKeeper
from extender.queueing.options import Options
from extender.queueing.roomless import RoomlessReleaser
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer, PodIdentity
from extender.settings.tree import Settings, rights_of


def build_queue(
    settings: Settings,
    base: Foundation,
    placer: Placer,
    wastes_gpu: Callable[[GpuRequest], bool],
    why_refused: Callable[[PodIdentity], str],
    kept_places: Callable[[], PlaceKeeper | None],
    roomless_releaser: Callable[[], RoomlessReleaser | None],
    keeper: AllocatorFactory | None = None,
) -> QueueController | None:
    """Build the queue's controller, None if the queue is disabled; the last five parameters as in `QueueController`."""
    if not settings.queue.enabled:
        return None
    return QueueController(
        base.transport,
        base.mirror.hub,
        base.ledger,
        placer,
        Options.of(settings.queue, settings.decisions),
        clock=base.clock,
        wall_clock=time.time,
        standby=base.fence.fault,
        mirror_fault=base.mirror.fault,
        events=base.events,
        wastes_gpu=wastes_gpu,
        why_refused=why_refused,
        crowd=base.mirror.bound_pods.index,
        rights=Grants(rights_of(settings)),
        kept_places=kept_places,
        roomless_releaser=roomless_releaser,
        mode=partial(ExtenderMode, resolver=base.resolver) if settings.queue.extender else _direct(base),
        keeper=keeper,
    )


def _direct(base: Foundation) -> Callable[..., Mode]:
    """Return a factory of the mode without an extender."""
    return partial(
        DirectMode,
        resolver=base.resolver,
        fence=base.fence,
        events=base.events,
        pods=base.mirror.hub.group(BOUND_PODS),
        wall_clock=time.time,
    )
