"""Evicts single pods, fenced by the leader's term.

Like a Binding, an eviction carries the pod's resourceVersion, and is sent only after leadership was confirmed. The next
leader seals the pods that may be about to be evicted, so that late evictions conflict.
"""

from dataclasses import dataclass
from typing import Final

from extender.kube.client import ApiError, Transport
from extender.kube.commit import Outcome, Resolver, Result, Target, commit, is_permanent_refusal
from extender.kube.objects import Pod
from extender.parts.defrag.plan import PlannedMove
from extender.queueing.preempted_gangs import post_eviction
from extender.scheduling.binding import read, seal
from extender.scheduling.fence import Fence
from extender.scheduling.placer import PodIdentity

_CONFLICT: Final = 409


class EvictionError(Exception):
    """A pod was not evicted, and no request sent will evict it; says why."""


class BudgetError(EvictionError):
    """A PodDisruptionBudget refuses the eviction for now."""


class _Eviction(Target[Pod]):
    """Evicts a pod of a given UID; retries conflicts, since its kubelet may write its status meanwhile."""

    tries = 5
    conflicts_pass = True  # conflicts of its budget are temporary

    def __init__(self, transport: Transport, resolver: Resolver, move: PlannedMove, epoch: str = "") -> None:
        self._transport, self._resolver, self._pod = transport, resolver, identity_of(move)
        super().__init__(self._pod.namespace, move.uid, f"evicting pod {move.pod}", epoch)

    def refusal(self, found: Pod) -> str:
        if found.finished:
            return f"pod {self._pod.key} is gone"
        return f"pod {self._pod.key} is terminating already" if found.metadata.deletion_timestamp else ""

    async def send(self, version: str) -> Pod | None:
        await post_eviction(self._transport, self._pod, version)
        return None

    async def read(self) -> Pod | None:
        return await read(self._transport, self._pod)

    async def seal(self) -> Pod | None:
        """Seal the pod; None, as for one that is gone, if it can't be changed or was recreated."""
        try:
            return await seal(self._transport, self._pod)
        except ApiError as error:
            if error.status != _CONFLICT and not is_permanent_refusal(error):
                raise
        return None

    def judge(self, found: Pod | None, *, sealed: bool) -> Outcome | None:
        if sealed:
            return Outcome.DONE if found is None or found.metadata.deletion_timestamp else None
        return Outcome.GONE if found is None else None

    def settle(self, result: Result[Pod]) -> None:
        if result.outcome is Outcome.UNKNOWN:
            self._resolver.add(self)  # the watch shows whether the pod leaves; a late eviction must fail


@dataclass(eq=False)
class Evictor:
    """Evicts and seals the pods of moves."""

    transport: Transport
    fence: Fence
    resolver: Resolver

    async def evict(self, move: PlannedMove, epoch: str) -> None:
        """Evict a pod. Raises EvictionError, BudgetError or FencedError, and ClusterError if the outcome is unknown and
        can't be settled."""
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
        """Prevent earlier evictions from taking effect later; returns whether one has taken effect, as far as known.

        Raises ClusterError, DecodeError.
        """
        eviction = _Eviction(self.transport, self.resolver, move)
        return eviction.judge(await eviction.seal(), sealed=True) is Outcome.DONE


def identity_of(move: PlannedMove) -> PodIdentity:
    """The pod that a move evicts."""
    namespace, _, name = move.pod.partition("/")
    return PodIdentity(namespace, name, move.uid)
