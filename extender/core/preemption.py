"""Whom to evict for a pod: of the victims that were proposed, those whose GPUs it needs, where the least is lost.

kube-scheduler proposes victims on each candidate node by numbers alone (units of a resource, CPU, memory). Whether
their very GPUs would make the pod fit is asked here; nobody is ever added to its proposal, since it has weighed
priorities and disruption budgets that nobody else knows.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

Fits = Callable[[frozenset[str]], bool]
"""Whether the pod fits on the node once the pods of these UIDs are gone."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A pod that would be evicted."""

    uid: str
    priority: int = 0
    gpus: float = 0.0
    """GPUs that it holds, shares as fractions."""
    lost_gpu_s: float = 0.0
    """Its GPUs times the seconds that it has run: work that eviction throws away."""
    leaving: bool = False
    """Whether it is being deleted already: evicting it loses nothing."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node on which evictions may make room."""

    node: str
    victims: tuple[Victim, ...]
    num_pdb_violations: int = 0
    """Victims whose disruption budget does not allow it."""

    @property
    def loss(self) -> tuple[int, int, float, int]:
        """What it costs, smaller is better: broken budgets, then the highest priority, then GPU-seconds, then pods.

        The first two are kube-scheduler's own first two criteria (`pickOneNodeForPreemption`).
        """
        lost = [victim for victim in self.victims if not victim.leaving]
        highest = max((victim.priority for victim in lost), default=-(2**31) - 1)
        return self.num_pdb_violations, highest, sum(victim.lost_gpu_s for victim in lost), len(self.victims)


def needed(candidate: Candidate, gpus_fit: Fits, all_fits: Fits | None) -> Candidate | None:
    """The candidate with only those victims that the pod needs; None where not even all of them make it fit.

    `gpus_fit` is about GPUs alone, `all_fits` about everything that can be accounted for, None where more than that
    counts. A victim is spared where both hold without its eviction. Where nobody seems needed, kube-scheduler has a
    reason that nobody else knows, and all stay. Broken budgets of a smaller choice are counted as high as they may be:
    which pods have them isn't told.
    """
    proposed = frozenset(victim.uid for victim in candidate.victims)
    if not gpus_fit(proposed):
        return None
    if all_fits is None:
        return candidate
    fits = lru_cache(maxsize=None)(lambda evicted: gpus_fit(evicted) and all_fits(evicted))  # both orders ask alike

    def spare(most_worth_first: Iterable[Victim]) -> Candidate:
        evicted = proposed
        for victim in most_worth_first:
            fewer = evicted - {victim.uid}
            if fits(fewer):
                evicted = fewer
        if not evicted:
            return candidate
        victims = tuple(victim for victim in candidate.victims if victim.uid in evicted)
        return replace(candidate, victims=victims, num_pdb_violations=min(candidate.num_pdb_violations, len(victims)))

    # One by one, so that nobody is left who could be spared. The second order leaves few who hold much.
    by_worth = sorted(candidate.victims, key=lambda v: (v.leaving, -v.priority, -v.lost_gpu_s, v.uid))
    by_size = sorted(candidate.victims, key=lambda v: (v.leaving, -v.priority, v.gpus, -v.lost_gpu_s, v.uid))
    return min(spare(by_worth), spare(by_size), key=lambda spared: spared.loss)


def least_lost(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that cost least, in the order given: several only where they cost the same."""
    least = min((candidate.loss for candidate in candidates), default=None)
    return [candidate for candidate in candidates if candidate.loss == least]
