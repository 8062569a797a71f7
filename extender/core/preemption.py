"""Whom to evict for a pod: of the victims that were proposed, those whose GPUs it needs, where the least is lost.

kube-scheduler proposes victims on each candidate node by numbers alone (units of a resource, CPU, memory). Whether
their very GPUs would make the pod fit is asked here; nobody is ever added to its proposal, since it has weighed
priorities and disruption budgets that nobody else knows. A gang that can't go on without a victim counts as one victim
with it: with all that its pods have done, and the highest of their priorities.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

Fits = Callable[[frozenset[str]], bool]
"""Whether the pod fits on the node once the pods of these UIDs are gone."""


@dataclass(frozen=True, slots=True)
class Member:
    """A pod of a gang that runs, on whatever node."""

    needs: int
    """Pods of its gang, itself among them, without which it can't go on."""
    priority: int = 0
    lost_gpu_s: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Gang:
    """Pods that end together once too few are left."""

    members: Mapping[str, Member]
    """By UID."""

    def ending(self, gone: frozenset[str]) -> list[Member]:
        """Those who can't go on without the pods of these UIDs, apart from these themselves."""
        stay = [member for uid, member in self.members.items() if uid not in gone]
        return [member for member in stay if member.needs > len(stay)] if len(stay) < len(self.members) else []


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
    gang: Gang | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node on which evictions may make room."""

    node: str
    victims: tuple[Victim, ...]
    num_pdb_violations: int = 0
    """Victims whose disruption budget does not allow it."""

    @property
    def ending(self) -> list[Member]:
        """Pods of the victims' gangs that end with them, here and elsewhere."""
        return _ending_with(victim for victim in self.victims if not victim.leaving)

    @property
    def loss(self) -> tuple[int, int, float, int]:
        """What it costs, smaller is better: broken budgets, then the highest priority, then GPU-seconds, then pods.

        The first two are kube-scheduler's own first two criteria (`pickOneNodeForPreemption`).
        """
        lost: list[Victim | Member] = [victim for victim in self.victims if not victim.leaving]
        ending = self.ending
        lost += ending
        highest = max((pod.priority for pod in lost), default=-(2**31) - 1)
        return self.num_pdb_violations, highest, sum(pod.lost_gpu_s for pod in lost), len(self.victims) + len(ending)


def _ending_with(victims: Iterable[Victim]) -> list[Member]:
    """Pods that can't go on without these victims of their gangs."""
    gone: dict[int, tuple[Gang, set[str]]] = {}
    for victim in victims:
        if victim.gang is not None:
            gone.setdefault(id(victim.gang), (victim.gang, set()))[1].add(victim.uid)
    return [member for gang, uids in gone.values() for member in gang.ending(frozenset(uids))]


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
    worth = {victim.uid: _worth(victim) for victim in candidate.victims}
    by_worth = sorted(candidate.victims, key=lambda v: (v.leaving, *worth[v.uid], v.uid))
    by_size = sorted(candidate.victims, key=lambda v: (v.leaving, worth[v.uid][0], v.gpus, worth[v.uid][1], v.uid))
    return min(spare(by_worth), spare(by_size), key=lambda spared: spared.loss)


def _worth(victim: Victim) -> tuple[int, float]:
    """Sorts by what goes with a victim, the most worthy first: the highest priority, then GPU-seconds."""
    with_it = _ending_with([victim])
    highest = max((member.priority for member in with_it), default=victim.priority)
    return -max(victim.priority, highest), -(victim.lost_gpu_s + sum(member.lost_gpu_s for member in with_it))


def least_lost(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates that cost least, in the order given: several only where they cost the same."""
    losses = [candidate.loss for candidate in candidates]
    least = min(losses, default=None)
    return [candidate for candidate, loss in zip(candidates, losses, strict=True) if loss == least]
