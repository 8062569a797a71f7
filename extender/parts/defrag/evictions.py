"""Evicting one pod, under the term of the leader who decided it.

Like a Binding, an eviction carries the version of the pod that it was decided on, and is sent only after it was seen
that nobody else leads. Whoever leads next changes the pods that may be about to be evicted: a late one is refused.
"""

from dataclasses import dataclass
from typing import Final

from extender.kube.client import ApiError, Transport
from extender.kube.commit import Outcome, Resolver, Result, Target, commit, refused
from extender.kube.objects import Pod
from extender.parts.defrag.plan import PlannedMove
from extender.queueing.preempted_gangs import post_eviction
from extender.scheduling.binding import read, seal
from extender.scheduling.fence import Fence
from extender.scheduling.placer import PodIdentity

_CONFLICT: Final = 409


class EvictionError(Exception):
    """A pod was not evicted, and will not be by what was sent; says why."""


class BudgetError(EvictionError):
    """A PodDisruptionBudget keeps it for now."""


class _Eviction(Target[Pod]):
    """Has a pod go that is still where a plan found it; its kubelet may write its status meanwhile."""

    tries = 5
    conflicts_pass = True  # of its budget

    def __init__(self, transport: Transport, resolver: Resolver, move: PlannedMove, epoch: str = "") -> None:
        self._transport, self._resolver, self._pod = transport, resolver, identity_of(move)
        super().__init__(self._pod.namespace, move.uid, f"evicting pod {move.pod}", epoch)

    def accepts(self, found: Pod) -> str:
        if found.finished:
            return f"pod {self._pod.key} is gone"
        return f"pod {self._pod.key} is going already" if found.metadata.deletion_timestamp else ""

    async def send(self, version: str) -> Pod | None:
        await post_eviction(self._transport, self._pod, version)
        return None

    async def read(self) -> Pod | None:
        return await read(self._transport, self._pod)

    async def seal(self) -> Pod | None:
        """A pod that can't be changed, or is another one of its name, counts as gone: as far as anybody knows."""
        try:
            return await seal(self._transport, self._pod)
        except ApiError as error:
            if error.status != _CONFLICT and not refused(error):
                raise
        return None

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
        if sealed:
            return Outcome.DONE if found is None or found.metadata.deletion_timestamp else None
        return Outcome.GONE if found is None else None

    def settle(self, result: Result[Pod]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._resolver.add(self)  # whoever waits for the pod to leave sees whether it does; a late one is to fail


@dataclass(eq=False)
class Evictor:
    """Evicts pods that are still where a plan found them."""

    transport: Transport
    fence: Fence
    resolver: Resolver

    async def evict(self, move: PlannedMove, epoch: str) -> None:
        """Have a pod go. Raises EvictionError, BudgetError, FencedError; ClusterError where nobody knows what became of
        it, nor can see to it that nothing will."""
        result = await commit(_Eviction(self.transport, self.resolver, move, epoch), self.fence)
        error = result.error
        match result.outcome:
            case Outcome.DONE:
                return
            case Outcome.FENCED | Outcome.UNKNOWN if error is not None:
                raise error
            case Outcome.NOT_NOW if isinstance(error, ApiError):
                raise BudgetError(f"pod {move.pod} can't be evicted now: {error.message}") from error
            case Outcome.GONE:
                raise EvictionError(f"pod {move.pod} is gone")
            case Outcome.CONFLICT:
                raise EvictionError(f"pod {move.pod} changes too fast to be evicted")
        failed = "can't be" if isinstance(error, ApiError) and error.status < 500 else "was not"
        raise EvictionError(result.why or f"pod {move.pod} {failed} evicted: {error}") from error

    async def seal(self, move: PlannedMove) -> bool:
        """See to it that no eviction which was sent before takes effect any more; whether one has, as far as anybody
        knows. Raises ClusterError, DecodeError."""
        eviction = _Eviction(self.transport, self.resolver, move)
        return eviction.judge(await eviction.seal(), sealed=True) is Outcome.DONE


def identity_of(move: PlannedMove) -> PodIdentity:
    """The pod that a move evicts."""
    namespace, _, name = move.pod.partition("/")
    return PodIdentity(namespace, name, move.uid)
