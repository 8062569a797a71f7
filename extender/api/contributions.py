"""What a part brings to a Kerf that runs: see `extender.settings.parts`."""

import importlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from prometheus_client.core import Metric
from starlette.types import ASGIApp

from extender.api.reads import Reads
from extender.explain.what_if.answers import WhatIfAnswers
from extender.scheduling.build import Foundation
from extender.scheduling.unbound_pods import UnboundPods
from extender.settings.tree import PARTS, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What there is for parts to work with."""

    settings: Settings
    base: Foundation
    unbound: UnboundPods
    """Pods without a node that ask for GPUs."""
    what_if: WhatIfAnswers


class PartError(Exception):
    """A part that is wanted can't work; the sentence says what to do."""


class Work(Protocol):
    """What works in the background, in the running event loop."""

    def start(self) -> None:
        """Begin. Raises PartError."""

    async def stop(self) -> None:
        """End: when this returns it has ended."""


async def _at_once() -> None:
    """Nothing has to be waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Of one part."""

    work: Sequence[Work] = ()
    """In the background, from the process' start to its end."""
    metrics: Callable[[], Iterable[Metric]] = tuple
    """Read whenever Prometheus asks."""
    around: Callable[[Mapping[str, ASGIApp]], Mapping[str, ASGIApp]] = lambda verbs: verbs
    """What answers the verbs, by path, with something around it."""
    routes: Callable[[Reads], None] = lambda reads: None
    """Adds the part's routes."""
    shown: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """What the page is told, by the name under which its panels know it."""
    ready: Callable[[], Awaitable[None]] = _at_once
    """Waits, once the work has begun, for what the server serves with."""
    num_unread: Callable[[], int] = int
    """Objects that it has read and could not understand, counted each time that they came."""
    fault: Callable[[], str] = str
    """Why it works less well than it should, "" where it does: `degraded` of /readyz."""


def build_contributions(kernel: Kernel) -> Mapping[str, Contribution]:
    """What the parts bring that settings want, by name. Raises PartError."""
    settings = kernel.settings
    there = [part for part in PARTS if part.with_webhooks_alone or not settings.webhook.alone]
    on = [part for part in there if part.wanted(getattr(settings, part.name))]
    return {part.name: importlib.import_module(part.module).build(kernel, getattr(settings, part.name)) for part in on}


def off_paths(settings: Settings) -> Mapping[str, str]:
    """Paths of parts that are off, and why they answer nothing."""
    off = [part for part in PARTS if not part.wanted(getattr(settings, part.name))]
    return {path: why for part in off for path, why in part.off.items()}
