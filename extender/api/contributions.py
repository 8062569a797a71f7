"""The contribution of a part to a running Kerf: see `extender.settings.parts`."""

import importlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from prometheus_client.core import Metric
from starlette.types import ASGIApp

from extender.api.posts import Call
from extender.api.reads import Reads
from extender.explain.processes import QuestionQueue
from extender.queueing.controller import QueueController
from extender.queueing.devices import AllocatorFactory
from extender.ranking.service import LearnedRank
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.scheduling.unbound_pods import UnboundPods
from extender.settings.tree import PARTS, Settings, wanted_parts

CapabilityT = TypeVar("CapabilityT")


class PartError(Exception):
    """An enabled part can't work; says what to do."""


class Capabilities:
    """Implementations that parts offer to the kernel and to each other, by protocol."""

    def __init__(self) -> None:
        self._offered: dict[type, Any] = {}

    def offer(self, offers: Mapping[type, Any]) -> None:
        """Add a part's implementations. Raises PartError if another part already offers one."""
        if taken := self._offered.keys() & offers.keys():
            raise PartError(f"another part offers {', '.join(sorted(kind.__name__ for kind in taken))} already")
        self._offered.update(offers)

    def get(self, capability: type[CapabilityT]) -> CapabilityT | None:
        """The implementation of a protocol, None if no enabled part offers it. Call it when needed, not earlier."""
        return self._offered.get(capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What the kernel provides to parts."""

    settings: Settings
    base: Foundation
    capabilities: Capabilities
    placer: Placer
    queue: QueueController | None
    """None if the queue is off."""
    rank: LearnedRank
    unbound: UnboundPods
    """Unbound pods that request GPUs."""
    turns: QuestionQueue
    """Runs questions that need a separate process, one at a time."""

    def get(self, capability: type[CapabilityT]) -> CapabilityT | None:
        """See `Capabilities.get`."""
        return self.capabilities.get(capability)


class Work(Protocol):
    """Background work in the running event loop."""

    def start(self) -> None:
        """Start. Raises PartError."""

    async def stop(self) -> None:
        """Stop, and wait until it has ended."""


async def _at_once() -> None:
    """Return without waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What one part adds to the service."""

    work: Sequence[Work] = ()
    """Background work, from the start of the process to its end."""
    metrics: Callable[[], Iterable[Metric]] = tuple
    """Collects metrics at each scrape."""
    around: Callable[[Mapping[str, ASGIApp]], Mapping[str, ASGIApp]] = lambda verbs: verbs
    """Wraps the handlers of the verbs, by path."""
    routes: Callable[[Reads], None] = lambda reads: None
    """Adds GET routes for users."""
    calls: Sequence[Call] = ()
    """Paths that take a JSON body."""
    examples: Mapping[type | str, Any] = field(default_factory=dict)
    """Examples of answers that are msgspec structs, for OpenAPI."""
    catch_up: Callable[[], Awaitable[None]] | None = None
    """Takes over a former leader's work in progress before any decision. Raises ClusterError, DecodeError."""
    offers: Mapping[type, Any] = field(default_factory=dict)
    """Implementations for the kernel and other parts, by protocol."""
    shown: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """Data for the page's panels, by name."""
    panel: Path | None = None
    """Folder of scripts for the page; its `panel.js` is a panel, see extender/page/static/panels/index.js."""
    ready: Callable[[], Awaitable[None]] = _at_once
    """Waits until the started part has what the server needs."""
    num_unread: Callable[[], int] = int
    """Count of objects that could not be decoded, each time they were read."""
    fault: Callable[[], str] = str
    """Why it works less well than it should, "" if it does not: `degraded` of /readyz."""


def prepared(settings: Settings, base: Foundation) -> Capabilities:
    """Implementations that parts offer while the kernel is built. Raises PartError."""
    capabilities = Capabilities()
    for part in wanted_parts(settings):
        if part.early:
            module, section = importlib.import_module(part.module), getattr(settings, part.name)
            capabilities.offer(module.prepare(base, section, settings.cluster.max_age_s))
        if part.allocates(getattr(settings, part.name)) and capabilities.get(AllocatorFactory) is None:
            raise PartError(f"part {part.name} allocates devices, and its prepare() brings no AllocatorFactory")
    return capabilities


def build_contributions(kernel: Kernel) -> Mapping[str, Contribution]:
    """Contributions of the enabled parts, by name. Raises PartError."""
    settings = kernel.settings
    contributions: dict[str, Contribution] = {}
    for part in wanted_parts(settings):
        section = getattr(settings, part.name)
        contributions[part.name] = importlib.import_module(part.module).build(kernel, section)
        kernel.capabilities.offer(contributions[part.name].offers)
    return contributions


def off_paths(settings: Settings) -> Mapping[str, str]:
    """Paths of disabled parts, and the message of their 404."""
    on = wanted_parts(settings)
    return {path: why for part in PARTS if part not in on for path, why in part.off.items()}
