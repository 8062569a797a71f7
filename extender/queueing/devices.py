"""The queue's interface to the part that allocates devices to its pods' ResourceClaims."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from extender.core.dra.allocator import Allocation
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.background import Work
from extender.kube.objects import Pod
from extender.planning.wait_reasons import WaitReason
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry


class DeviceAllocator(Protocol):
    """Holds devices for pods and writes the allocations."""

    def read(self, pod: Pod) -> PodClaims:
        """Return a pod's current claims. Raises RequestError."""

    async def claims_outdated(self) -> bool:
        """Whether all claims have to be read again."""

    def hold(self, pod: Pod, node: str, allocation: Allocation | None) -> bool:
        """Hold a pod's devices on a node; return whether its claims' requests are unchanged since the decision."""

    def release_holds(self, pod: Pod) -> None:
        """Release what is held for a pod and not written."""

    async def allocate(self, pod: Pod) -> bool:
        """Write a pod's allocations; return whether all are written. Raises ClusterError, FencedError, DecodeError."""

    async def catch_up(self) -> None:
        """Learn, before the first decision of a term, what a previous leader may have written. Raises ClusterError,
        DecodeError."""


class SelectsPods(Protocol):
    """Decides which pods may be planned."""

    def select(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """Return the pods that can be planned, and the others with reasons."""


@dataclass(frozen=True, slots=True)
class AllocatorParts:
    """The allocation of devices for one queue."""

    allocator: DeviceAllocator
    selector: SelectsPods
    works: Mapping[str, Work]
    """Background work by name."""


class AllocatorFactory(Protocol):
    """Creates the allocation of devices for a queue."""

    def __call__(
        self,
        *,
        entries_of: Callable[[str], Iterable[Entry]],
        entries: Callable[[], Iterable[Entry]],
        dirty: Callable[[], None],
        changed: Callable[[str], None],
    ) -> AllocatorParts:
        """`entries_of` returns the queue's pods that name a claim `namespace/name`, `entries` all of its pods.
        `dirty` is called when another round is due, `changed` with a claim that has changed."""


@dataclass(eq=False)
class QueueClaims:
    """The claims of a queue's pods. Without an allocator all methods are no-ops."""

    make_keeper: AllocatorFactory | None
    """Creates the allocator, None where kube-scheduler allocates."""
    backlog: Backlog
    dirty: Callable[[], None]
    """Called when another round is due."""
    made: AllocatorParts | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.make_keeper is not None:
            self.made = self.make_keeper(
                entries_of=self.backlog.naming,
                entries=self.backlog.entries.values,
                dirty=self.dirty,
                changed=self.backlog.claim_changed,
            )

    @property
    def allocator(self) -> DeviceAllocator | None:
        """The allocator, None where kube-scheduler allocates."""
        return None if self.made is None else self.made.allocator

    def of(self, pod: Pod) -> PodClaims:
        """Return a pod's current claims. Raises RequestError."""
        return NO_CLAIMS if self.allocator is None else self.allocator.read(pod)

    def works(self) -> Mapping[str, Work]:
        """Return background work by name."""
        return {} if self.made is None else self.made.works

    async def take_stock(self, opted_out: Callable[[Pod], object]) -> None:
        """Read changed claims again, and find the pods that have to wait again; `opted_out` returns whether a pod has
        opted out."""
        if self.allocator is not None:
            await self.backlog.read_claims_again(all_=await self.allocator.claims_outdated())
        self.backlog.notice_unserved(opted_out)

    def select(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """Return the pods that can be planned, and the others with reasons."""
        return (list(waiting), []) if self.made is None else self.made.selector.select(waiting)
