"""What the queue does about the ResourceClaims of its pods: nothing, where Kerf allocates none."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.background import Work
from extender.kube.objects import Pod
from extender.planning.wait_reasons import WaitReason
from extender.queueing.claims.keeper import ClaimKeeper
from extender.queueing.claims.reclaimer import Reclaimer
from extender.queueing.claims.turns import Turns
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry

MakeKeeper = Callable[..., ClaimKeeper]


@dataclass(eq=False)
class QueueClaims:
    """The claims of a queue's pods."""

    make_keeper: MakeKeeper | None
    """Makes what allocates, None where that is kube-scheduler's."""
    backlog: Backlog
    dirty: Callable[[], None]
    """Hears that another round is due."""
    keeper: ClaimKeeper | None = field(default=None, init=False)
    _turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        if self.make_keeper is not None:
            self.keeper = self.make_keeper(
                entries_of=self.backlog.naming,
                entries=self.backlog.entries.values,
                dirty=self.dirty,
                changed=self.backlog.claim_changed,
            )
            self._turns = Turns(self.keeper, self.dirty)

    def of(self, pod: Pod) -> PodClaims:
        """The claims of a pod as they are now. Raises RequestError."""
        return NO_CLAIMS if self.keeper is None else self.keeper.read(pod)

    def works(self) -> dict[str, Work]:
        """What has to go on in the background, by its name."""
        if self.keeper is None:
            return {}
        made = {"claims for extended resources": self.keeper.maker().run} if self.keeper.classes_to_make else {}
        return {"queue's ResourceClaims": Reclaimer(self.keeper).run, **made}

    async def take_stock(self, opted_out: Callable[[Pod], object]) -> None:
        """Read the claims again that may mean something else by now, and find who waits again; `opted_out` tells of
        pods that no longer take part."""
        if self.keeper is not None:
            await self.backlog.read_claims_again(all_=await self.keeper.anything_new())
        self.backlog.notice_unserved(opted_out)

    def sort_out(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """Those that can be planned, and why the others can't."""
        return (list(waiting), []) if self.keeper is None else self._turns.sort_out(waiting)
