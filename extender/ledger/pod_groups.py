"""Pod-group cycles: what kube-scheduler asks for the members of a gang, and takes back without a word.

For a PodGroup (`spec.schedulingGroup`) kube-scheduler calls filter for one member after another, in several topologies
where it knows of any, and binds nobody before enough of them have a node. If they have not, everything is reverted, and
no extender hears of it. So what is reserved for a member counts for the others of its gang, but as long as none of them
is being bound it keeps nobody else from a node. It is given back

- when a member is asked about once more: that is a new cycle, or another topology;
- when another pod would be turned away for it. kube-scheduler asks about one pod at a time, so the gang's cycle is
  over. It failed if a member was turned away; or else where kube-scheduler counts both pods' GPUs by itself, for it
  would not offer a node that the gang is on its way to;
- when nobody has asked for the gang for a while.

Where that was wrong after all, the gang goes before those that its room was given to.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_QUIET_S: Final = 2.0
"""Bindings begin some milliseconds after the last member was asked about."""


@dataclass(slots=True)
class _Cycle:
    """What a gang was told in its last cycle."""

    asked_at: float = 0.0
    """Monotonic time of the last question."""
    last: str = ""
    """Member that was asked about last."""
    asked: set[str] = field(default_factory=set)
    """UIDs of the members asked about."""
    reserved: dict[str, bool] = field(default_factory=dict)
    """UIDs that something is reserved for, and whether kube-scheduler counts it itself."""
    is_binding: bool = False
    """Whether a member is being bound: then the cycle was no failure."""
    turned_away: set[str] = field(default_factory=set)
    """UIDs of the members that found no node."""
    given_to: list[str] = field(default_factory=list)
    """UIDs of the pods that its room was given to."""


class Cycles:
    """The cycles of late, by gang. Not thread-safe; every method returns at once."""

    def __init__(self, release: Callable[[str], None]) -> None:
        """`release` gives back what is reserved for a pod, by UID; what is bound or being bound it leaves alone."""
        self._release = release
        self._cycles: OrderedDict[str, _Cycle] = OrderedDict()  # the one asked about last is last
        self._gang_of: dict[str, str] = {}  # by UID of a member
        self.num_given_back = 0
        """Reservations given back because kube-scheduler seemed to have given the gang up."""

    def __len__(self) -> int:
        """How many gangs are remembered."""
        return len(self._cycles)

    def ask(self, gang: str, uid: str, now: float) -> None:
        """kube-scheduler asks about a member."""
        cycle = self._cycles.setdefault(gang, _Cycle())
        # A nominated node is asked about alone, then all are: that is one question.
        if cycle.is_binding or (uid in cycle.asked and uid != cycle.last):
            self._forget(gang)
            cycle = self._cycles[gang] = _Cycle()
        self._cycles.move_to_end(gang)
        cycle.asked_at, cycle.last = now, uid
        cycle.asked.add(uid)
        cycle.turned_away.discard(uid)
        self._gang_of[uid] = gang

    def turn_away(self, gang: str, uid: str) -> None:
        """A member that was asked about has found no node."""
        if gang in self._cycles:
            self._cycles[gang].turned_away.add(uid)

    def reserve(self, gang: str, uid: str, *, counted: bool) -> None:
        """Something was reserved for a member; `counted`: kube-scheduler counts it itself."""
        if gang in self._cycles:
            self._cycles[gang].reserved[uid] = counted

    def begin_binding(self, uid: str) -> None:
        """A pod is being bound: if it is a member, its gang was placed, and what is reserved for the others stays."""
        cycle = self._cycles.get(self._gang_of.get(uid, ""))
        if cycle is not None:
            cycle.is_binding = True

    def make_way(self, gang: str, uid: str, *, counted: bool) -> bool:
        """Give back, for a pod that would be turned away, what gangs seem to have given up; whether there was any."""
        num_before = self.num_given_back
        for other, cycle in self._cycles.items():
            if other == gang or cycle.is_binding:
                continue
            is_over = bool(cycle.turned_away)
            given = [held for held, is_counted in cycle.reserved.items() if is_over or (counted and is_counted)]
            if given:
                self._give_back(cycle, given)
                cycle.given_to.append(uid)
        return self.num_given_back > num_before

    def claim_back(self, uid: str) -> bool:
        """For a member that is to be bound after all: take it from those it was given to; whether there were any."""
        cycle = self._cycles.get(self._gang_of.get(uid, ""))
        if cycle is None or not cycle.given_to:
            return False
        for other in cycle.given_to:
            self._release(other)
        cycle.given_to.clear()
        return True

    def expire(self, now: float) -> None:
        """Give back what nobody has come for."""
        while self._cycles:
            gang, cycle = next(iter(self._cycles.items()))
            if now < cycle.asked_at + _QUIET_S:
                return
            self._forget(gang)

    def _forget(self, gang: str) -> None:
        """The cycle is over."""
        cycle = self._cycles.pop(gang)
        if not cycle.is_binding:
            self._give_back(cycle, list(cycle.reserved))
        for uid in cycle.asked:
            if self._gang_of.get(uid) == gang:
                del self._gang_of[uid]

    def _give_back(self, cycle: _Cycle, uids: list[str]) -> None:
        for uid in uids:
            del cycle.reserved[uid]
            self._release(uid)
        self.num_given_back += len(uids)
