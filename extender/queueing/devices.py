"""What allocates devices to the ResourceClaims of a queue's pods, as the queue sees it: a part does."""

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


class KeepsDevices(Protocol):
    """Holds devices for pods, and writes what it holds."""

    def read(self, pod: Pod) -> PodClaims:
        """The claims of a pod as they are now. Raises RequestError."""

    async def anything_new(self) -> bool:
        """Whether all claims may mean something else by now."""

    def hold(self, pod: Pod, node: str, allocation: Allocation | None) -> bool:
        """Hold what a pod got of a node; whether its claims still ask what was decided on."""

    def let_go(self, pod: Pod) -> None:
        """Hold nothing any more that is not written for a pod."""

    async def allocate(self, pod: Pod) -> bool:
        """Write what is held for a pod; whether all is written. Raises ClusterError, FencedError, DecodeError."""

    async def catch_up(self) -> None:
        """Before the first decision of a term: know what a leader before may have written. Raises ClusterError,
        DecodeError."""


class SortsOut(Protocol):
    """Tells whose turn it is."""

    def sort_out(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """Those that can be planned, and why the others can't."""


@dataclass(frozen=True, slots=True)
class AllocatesDevices:
    """For one queue."""

    keeper: KeepsDevices
    turns: SortsOut
    works: Mapping[str, Work]
    """What has to go on in the background, by its name."""


class MakesAllocation(Protocol):
    """Makes what allocates for a queue."""

    def __call__(
        self,
        *,
        entries_of: Callable[[str], Iterable[Entry]],
        entries: Callable[[], Iterable[Entry]],
        dirty: Callable[[], None],
        changed: Callable[[str], None],
    ) -> AllocatesDevices:
        """`entries_of` are the pods of the queue that name a claim, given as `namespace/name`, `entries` all that wait;
        `dirty` hears that another round is due, `changed` of claims that are other than before."""


@dataclass(eq=False)
class QueueClaims:
    """The claims of a queue's pods: nothing is done about them where nobody allocates."""

    make_keeper: MakesAllocation | None
    """Makes what allocates, None where that is kube-scheduler's."""
    backlog: Backlog
    dirty: Callable[[], None]
    """Hears that another round is due."""
    made: AllocatesDevices | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.make_keeper is not None:
            self.made = self.make_keeper(
                entries_of=self.backlog.naming,
                entries=self.backlog.entries.values,
                dirty=self.dirty,
                changed=self.backlog.claim_changed,
            )

    @property
    def keeper(self) -> KeepsDevices | None:
        """What holds and writes, None where nobody allocates."""
        return None if self.made is None else self.made.keeper

    def of(self, pod: Pod) -> PodClaims:
        """The claims of a pod as they are now. Raises RequestError."""
        return NO_CLAIMS if self.keeper is None else self.keeper.read(pod)

    def works(self) -> Mapping[str, Work]:
        """What has to go on in the background, by its name."""
        return {} if self.made is None else self.made.works

    async def take_stock(self, opted_out: Callable[[Pod], object]) -> None:
        """Read the claims again that may mean something else by now, and find who waits again; `opted_out` tells of
        pods that no longer take part."""
        if self.keeper is not None:
            await self.backlog.read_claims_again(all_=await self.keeper.anything_new())
        self.backlog.notice_unserved(opted_out)

    def sort_out(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """Those that can be planned, and why the others can't."""
        return (list(waiting), []) if self.made is None else self.made.turns.sort_out(waiting)
