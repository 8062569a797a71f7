"""What a contract reads, and how it says that it can't."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from extender.cluster import objects
from extender.cluster.holdings import Holding
from extender.core.nodes import NodeOffer
from extender.core.requests import PodRequest


class UnreadableError(ValueError):
    """An annotation that can't be read: the sentence names the key and what is wrong with it."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """How the facts of nodes are understood."""

    memory_tolerance_frac: float = 0.02
    aliases: Mapping[str, Iterable[str]] = field(default_factory=dict)


ReadOffer = Callable[[objects.Node, NodeReading], NodeOffer | None]
"""What a node offers, None when it says nothing in this plugin's way."""
ReadHolding = Callable[[objects.Pod], Holding | None]
"""What a pod has been given, None when it says nothing in this plugin's way. UUIDs do instead of indices."""
ReadRequest = Callable[[objects.Pod], PodRequest | None]
"""What a pod asks for in this plugin's resources and annotations, None when it asks nothing of it.
Raises RequestError with a sentence for its author."""
