"""What a part brings to a Kerf that runs: see `extender.settings.parts`."""

import importlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from prometheus_client.core import Metric
from starlette.types import ASGIApp

from extender.api.posts import Call
from extender.api.reads import Reads
from extender.explain.processes import Turns
from extender.queueing.controller import QueueController
from extender.queueing.devices import MakesAllocation
from extender.ranking.service import LearnedRank
from extender.scheduling.build import Foundation
from extender.scheduling.placer import Placer
from extender.scheduling.unbound_pods import UnboundPods
from extender.settings.tree import PARTS, Settings, wanted_parts

CapabilityT = TypeVar("CapabilityT")


class PartError(Exception):
    """A part that is wanted can't work; the sentence says what to do."""


class Capabilities:
    """What parts do for the kernel and for each other, by the protocol that says what it is: the kernel's own."""

    def __init__(self) -> None:
        self._offered: dict[type, Any] = {}

    def offer(self, offers: Mapping[type, Any]) -> None:
        """One part does these. Raises PartError where another one does so already."""
        if taken := self._offered.keys() & offers.keys():
            raise PartError(f"another part offers {', '.join(sorted(kind.__name__ for kind in taken))} already")
        self._offered.update(offers)

    def get(self, capability: type[CapabilityT]) -> CapabilityT | None:
        """What does it, None where no part that is on does: to be asked for when it is needed, and not before."""
        return self._offered.get(capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What there is for parts to work with."""

    settings: Settings
    base: Foundation
    capabilities: Capabilities
    placer: Placer
    queue: QueueController | None
    """None where no queue is wanted."""
    rank: LearnedRank
    unbound: UnboundPods
    """Pods without a node that ask for GPUs."""
    turns: Turns
    """In which questions are answered that take a process of their own: one after the other."""

    def get(self, capability: type[CapabilityT]) -> CapabilityT | None:
        """As of `Capabilities`."""
        return self.capabilities.get(capability)


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
    """Adds the GETs that people make."""
    calls: Sequence[Call] = ()
    """The paths that take a JSON body."""
    examples: Mapping[type | str, Any] = field(default_factory=dict)
    """Of answers that are structs of msgspec, for OpenAPI's description."""
    catch_up: Callable[[], Awaitable[None]] | None = None
    """Takes over what a leader before has under way, before anything is decided. Raises ClusterError, DecodeError."""
    offers: Mapping[type, Any] = field(default_factory=dict)
    """What it does for the kernel and other parts, by the protocol that says what that is."""
    shown: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    """What the page is told, by the name under which its panels know it."""
    panel: Path | None = None
    """Folder of scripts for the page; its `panel.js` is a panel, as extender/page/static/panels/index.js has them."""
    ready: Callable[[], Awaitable[None]] = _at_once
    """Waits, once the work has begun, for what the server serves with."""
    num_unread: Callable[[], int] = int
    """Objects that it has read and could not understand, counted each time that they came."""
    fault: Callable[[], str] = str
    """Why it works less well than it should, "" where it does: `degraded` of /readyz."""


def prepared(settings: Settings, base: Foundation) -> Capabilities:
    """What parts do for the kernel while that is built. Raises PartError."""
    capabilities = Capabilities()
    for part in wanted_parts(settings):
        if part.early:
            module, section = importlib.import_module(part.module), getattr(settings, part.name)
            capabilities.offer(module.prepare(base, section, settings.cluster.max_age_s))
        if part.allocates(getattr(settings, part.name)) and capabilities.get(MakesAllocation) is None:
            raise PartError(f"part {part.name} allocates devices, and its prepare() brings no MakesAllocation")
    return capabilities


def build_contributions(kernel: Kernel) -> Mapping[str, Contribution]:
    """What the parts bring that settings want, by name. Raises PartError."""
    settings = kernel.settings
    brought: dict[str, Contribution] = {}
    for part in wanted_parts(settings):
        section = getattr(settings, part.name)
        brought[part.name] = importlib.import_module(part.module).build(kernel, section)
        kernel.capabilities.offer(brought[part.name].offers)
    return brought


def off_paths(settings: Settings) -> Mapping[str, str]:
    """Paths of parts that are off, and why they answer nothing."""
    on = wanted_parts(settings)
    return {path: why for part in PARTS if part not in on for path, why in part.off.items()}
