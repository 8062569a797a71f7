"""Which pods with ResourceClaims a round may plan.

What the claims of each namespace may cost: whoever asks what takes long to find waits, and nobody else.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.fit.device_fits import steps_taken
from extender.parts.dra.keeper import ClaimKeeper
from extender.planning.wait_reasons import NOT_REACHED, Code, WaitReason
from extender.queueing.pods.entries import Entry

_STEPS: Final = 3_000_000
"""Of searches for the claims of a namespace, of about a microsecond, before it has to wait."""
_A_SECOND: Final = _STEPS / 60
"""That are given back."""
_MAX_WAIT_S: Final = 300.0
"""However much has been spent."""
_MAX_KNOWN: Final = 10_000


@dataclass(eq=False)
class Budgets:
    """Counts the steps of searches against the namespaces that asked for them."""

    clock: Callable[[], float] = time.monotonic
    steps_of: Callable[[DevicesAsked], int] = steps_taken
    _charged: dict[DevicesAsked, int] = field(default_factory=dict, init=False)
    """Steps that were charged to somebody, by what is asked."""
    _spent: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """By namespace: steps that are not given back yet, at which time."""

    def charge(self, asked: Iterable[tuple[str, DevicesAsked]]) -> None:
        """Charge what was spent since the last time: to the first namespace that asks it."""
        if len(self._charged) > _MAX_KNOWN:
            self._charged.clear()
        for namespace, ask in asked:
            taken = self.steps_of(ask)
            before = self._charged.get(ask, 0)
            if taken == before:
                continue
            self._charged[ask] = taken
            most = _STEPS + _MAX_WAIT_S * _A_SECOND
            left = self._left(namespace) + (taken - before if taken > before else taken)
            self._spent[namespace] = min(left, most), self.clock()

    def is_spent(self, namespace: str) -> bool:
        """Whether a namespace has to wait."""
        return self._left(namespace) > _STEPS

    def _left(self, namespace: str) -> float:
        """Steps that are not given back yet."""
        steps, at = self._spent.get(namespace, (0.0, 0.0))
        left = max(steps - (self.clock() - at) * _A_SECOND, 0.0)
        if not left:
            self._spent.pop(namespace, None)
        return left


_NEW_ASKS: Final = 4
"""Of each namespace in a round: whoever asks a thousand things that are hard to find holds up nobody."""
_NEW_ASKS_IN_ALL: Final = 32
_COST_EACH: Final = 5_000
"""Of the selectors of those, on one device: what one pod may ask at most is taken on alone."""
_COST_IN_ALL: Final = 4 * _COST_EACH
_MAX_ASKS: Final = 1000


@dataclass(eq=False)
class Turns:
    """Tells whose claims can be decided on in a round."""

    keeper: ClaimKeeper
    dirty: Callable[[], None]
    """Hears that another round is due."""
    _round: int = field(default=0, init=False)
    _tried: dict[str, int] = field(default_factory=dict, init=False)
    """Round in which a pod with claims was planned last, by UID."""
    _served: dict[str, int] = field(default_factory=dict, init=False)
    """Round in which something new was taken on of a namespace."""
    _known: set[DevicesAsked] = field(default_factory=set, init=False)
    budgets: Budgets = field(default_factory=Budgets)

    def sort_out(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """Those that can be planned, and why the others can't.

        A claim's devices are chosen for one pod, the others that name it go where these are. Of what was never searched
        for before a round takes some of each namespace.
        """
        fault, first, new, costs = self.keeper.fault(), dict[str, str](), Counter[str](), Counter[str]()
        planned: list[Entry] = []
        passed: list[tuple[Entry, WaitReason]] = []
        found = list(waiting)
        self.budgets.charge((entry.namespace, asked) for entry in found if (asked := _asked(entry)) is not None)
        within = self._shared_within(found)
        position = {entry.uid: number for number, entry in enumerate(found)}
        for entry in self._in_turn(found):
            claims = entry.planned.claims if entry.planned is not None else ()
            if claims and fault:
                passed.append((entry, Code.CLAIMS_UNKNOWN.reason(why=fault)))
            elif claims and (why := self.keeper.resting(entry.uid)):
                passed.append((entry, Code.CLAIM_REFUSED.reason(why=why)))
            elif claims and entry.planned is not None and (shared := within.get((entry.planned.gang, claims[0]))):
                passed.append((entry, Code.CLAIM_IN_GANG.reason(gang=entry.planned.gang, claim=shared)))
            elif shared := next((uid for uid in claims if first.setdefault(uid, entry.uid) != entry.uid), None):
                passed.append((entry, Code.CLAIM_SHARED.reason(claim=self.keeper.name_of(shared))))
            elif claims and self.budgets.is_spent(entry.namespace):
                passed.append((entry, Code.CLAIM_COSTS.reason(namespace=entry.namespace)))
            elif self._takes_on(entry, new, costs):
                planned.append(entry)
            else:
                passed.append((entry, NOT_REACHED))
        if any(why is NOT_REACHED or why.code is Code.CLAIM_COSTS for _, why in passed):
            self.dirty()
        self._round += 1
        self._tried.update((entry.uid, self._round) for entry in planned if entry.uid in self._tried)
        return sorted(planned, key=lambda entry: position[entry.uid]), passed

    def _shared_within(self, waiting: list[Entry]) -> dict[tuple[str, str], str]:
        """Claims that several pods of one gang name, by the gang and each claim of such a pod: they can't be let go
        together, for one of them would have to come first."""
        pods: dict[tuple[str, str], list[Entry]] = {}
        for entry in waiting:
            if entry.planned is not None and entry.planned.gang:
                for uid in entry.planned.claims:
                    pods.setdefault((entry.planned.gang, uid), []).append(entry)
        return {
            (gang, own): self.keeper.name_of(uid)
            for (gang, uid), entries in pods.items()
            if len(entries) > 1
            for entry in entries
            if entry.planned is not None
            for own in entry.planned.claims
        }

    def _in_turn(self, waiting: list[Entry]) -> list[Entry]:
        """First those with claims whose turn was longest ago: the first pod that names a claim may never find room.

        Of namespaces that ask what is new, too: many that ask it all the time hold no other up.
        """
        with_claims = [entry for entry in waiting if entry.planned is not None and entry.planned.claims]
        self._tried = {entry.uid: self._tried.get(entry.uid, 0) for entry in with_claims}
        self._served = {namespace: self._served.get(namespace, 0) for namespace in {e.namespace for e in with_claims}}
        return sorted(waiting, key=lambda entry: (self._served.get(entry.namespace, 0), self._tried.get(entry.uid, 0)))

    def _takes_on(self, entry: Entry, new: Counter[str], costs: Counter[str]) -> bool:
        asked = _asked(entry)
        if asked is None or asked in self._known:
            return True
        each, in_all = costs[entry.namespace] + asked.cost, costs.total() + asked.cost
        if new[entry.namespace] >= _NEW_ASKS or new.total() >= _NEW_ASKS_IN_ALL:
            return False
        if each > _COST_EACH or in_all > _COST_IN_ALL:
            return False
        new[entry.namespace] += 1
        costs[entry.namespace] = each
        self._served[entry.namespace] = self._round + 1
        if len(self._known) >= _MAX_ASKS:
            self._known.clear()
        self._known.add(asked)
        return True


def _asked(entry: Entry) -> DevicesAsked | None:
    """What the claims of a pod ask of devices."""
    return entry.planned.gpus.devices if entry.planned and entry.planned.gpus else None
