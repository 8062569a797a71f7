"""Preemption: of the proposed victims, those whose GPUs the pod needs, on the node where evicting them loses least.

kube-scheduler proposes victims on each candidate node by numbers alone (units of a resource, CPU, memory). Kerf checks
whether their specific GPUs make the pod fit, and never adds a victim: only kube-scheduler knows the priorities and
disruption budgets it weighed. A gang that can't continue without a victim counts as lost with it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

Fits = Callable[[frozenset[str]], bool]
"""Whether the pod fits on the node once the pods with these UIDs are evicted."""


@dataclass(frozen=True, slots=True)
class Member:
    """A running pod of a gang, on any node."""

    needs: int
    """Pods of its gang, including itself, that it needs to keep running."""
    priority: int = 0
    lost_gpu_s: float = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class Gang:
    """Pods that end once too few of them are left."""

    members: Mapping[str, Member]
    """By UID."""

    def ending(self, gone: frozenset[str]) -> list[Member]:
        """The remaining members that can't continue without the pods with these UIDs."""
        stay = [member for uid, member in self.members.items() if uid not in gone]
        return [member for member in stay if member.needs > len(stay)] if len(stay) < len(self.members) else []


@dataclass(frozen=True, slots=True)
class Victim:
    """A proposed victim."""

    uid: str
    priority: int = 0
    gpus: float = 0.0
    """GPUs held, with shares as fractions."""
    lost_gpu_s: float = 0.0
    """GPU-seconds of work that eviction loses."""
    leaving: bool = False
    """Whether it is already being deleted, so that evicting it loses nothing."""
    gang: Gang | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node with its proposed victims."""

    node: str
    victims: tuple[Victim, ...]
    num_pdb_violations: int = 0
    """Victims whose eviction violates a disruption budget."""

    @property
    def ending(self) -> list[Member]:
        """Pods of the victims' gangs that end with them, on any node."""
        return _ending_with(victim for victim in self.victims if not victim.leaving)

    @property
    def loss(self) -> tuple[int, int, float, int]:
        """Cost, smaller is better: (PDB violations, highest priority, lost GPU-seconds, pods).

        The first two are kube-scheduler's first criteria, too (`pickOneNodeForPreemption`).
        """
        lost: list[Victim | Member] = [victim for victim in self.victims if not victim.leaving]
        ending = self.ending
        lost += ending
        highest = max((pod.priority for pod in lost), default=-(2**31) - 1)
        return self.num_pdb_violations, highest, sum(pod.lost_gpu_s for pod in lost), len(self.victims) + len(ending)


def _ending_with(victims: Iterable[Victim]) -> list[Member]:
    """Gang members that can't continue without these victims."""
    gone: dict[int, tuple[Gang, set[str]]] = {}
    for victim in victims:
        if victim.gang is not None:
            gone.setdefault(id(victim.gang), (victim.gang, set()))[1].add(victim.uid)
    return [member for gang, uids in gone.values() for member in gang.ending(frozenset(uids))]


def needed(candidate: Candidate, gpus_fit: Fits, all_fits: Fits | None) -> Candidate | None:
    """The candidate reduced to the victims that the pod needs; None where even all of them don't make it fit.

    `gpus_fit` checks GPUs alone; `all_fits` everything Kerf can account for, None where kube-scheduler checks more.
    A victim is spared where both hold without its eviction. Where no victim seems needed, kube-scheduler must have a
    reason that Kerf can't see, and all are kept. `num_pdb_violations` becomes an upper bound: kube-scheduler does not
    say which victims violate a budget.
    """
    proposed = frozenset(victim.uid for victim in candidate.victims)
    if not gpus_fit(proposed):
        return None
    if all_fits is None:
        return candidate
    fits = lru_cache(maxsize=None)(lambda evicted: gpus_fit(evicted) and all_fits(evicted))

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

    # One by one, so that every victim left is needed. The second order keeps few victims that hold many GPUs.
    worth = {victim.uid: _worth(victim) for victim in candidate.victims}
    by_worth = sorted(candidate.victims, key=lambda v: (v.leaving, *worth[v.uid], v.uid))
    by_size = sorted(candidate.victims, key=lambda v: (v.leaving, worth[v.uid][0], v.gpus, worth[v.uid][1], v.uid))
    return min(spare(by_worth), spare(by_size), key=lambda spared: spared.loss)


def _worth(victim: Victim) -> tuple[int, float]:
    """Sort key of a victim and the gang members it ends, most valuable first: highest priority, then GPU-seconds."""
    with_it = _ending_with([victim])
    highest = max((member.priority for member in with_it), default=victim.priority)
    return -max(victim.priority, highest), -(victim.lost_gpu_s + sum(member.lost_gpu_s for member in with_it))


def least_lost(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with the smallest loss, in the given order."""
    losses = [candidate.loss for candidate in candidates]
    least = min(losses, default=None)
    return [candidate for candidate, loss in zip(candidates, losses, strict=True) if loss == least]
