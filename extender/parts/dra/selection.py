"""Selects the pods with ResourceClaims that a round plans, within each namespace's budget of search steps."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DeviceClaims
from extender.core.fit.device_fits import steps_taken
from extender.parts.dra.keeper import ClaimKeeper
from extender.planning.wait_reasons import NOT_REACHED, Code, WaitReason
from extender.queueing.pods.entries import Entry

_STEPS: Final = 3_000_000
"""Search steps, of about a microsecond, that a namespace may spend before its claims wait."""
_STEPS_PER_S: Final = _STEPS / 60
"""Refill rate of the budget."""
_MAX_WAIT_S: Final = 300.0
"""Longest wait of a namespace."""
_MAX_KNOWN: Final = 10_000


@dataclass(eq=False)
class Budgets:
    """Charges search steps to namespaces."""

    clock: Callable[[], float] = time.monotonic
    steps_of: Callable[[DeviceClaims], int] = steps_taken
    _charged: dict[DeviceClaims, int] = field(default_factory=dict, init=False)
    """Steps charged so far, by request."""
    _spent: dict[str, tuple[float, float]] = field(default_factory=dict, init=False)
    """By namespace: steps spent and not yet refilled, and the time of that."""

    def charge(self, asked: Iterable[tuple[str, DeviceClaims]]) -> None:
        """Charge the steps spent on each request since the last call to the first namespace that makes it."""
        if len(self._charged) > _MAX_KNOWN:
            self._charged.clear()
        for namespace, ask in asked:
            taken = self.steps_of(ask)
            before = self._charged.get(ask, 0)
            if taken == before:
                continue
            self._charged[ask] = taken
            max_spent = _STEPS + _MAX_WAIT_S * _STEPS_PER_S
            spent = self._outstanding(namespace) + (taken - before if taken > before else taken)
            self._spent[namespace] = min(spent, max_spent), self.clock()

    def is_spent(self, namespace: str) -> bool:
        """Whether a namespace's budget is used up."""
        return self._outstanding(namespace) > _STEPS

    def _outstanding(self, namespace: str) -> float:
        """Steps spent and not yet refilled."""
        steps, at = self._spent.get(namespace, (0.0, 0.0))
        outstanding = max(steps - (self.clock() - at) * _STEPS_PER_S, 0.0)
        if not outstanding:
            self._spent.pop(namespace, None)
        return outstanding


_NEW_ASKS: Final = 4
"""New requests per namespace and round, so that one namespace's many hard requests don't delay others."""
_NEW_ASKS_IN_ALL: Final = 32
_COST_EACH: Final = 5_000
"""Selector cost of a namespace's new requests on one device; also the limit of a single pod."""
_COST_IN_ALL: Final = 4 * _COST_EACH
_MAX_ASKS: Final = 1000


@dataclass(eq=False)
class PodSelector:
    """Selects the pods that a round plans."""

    keeper: ClaimKeeper
    dirty: Callable[[], None]
    """Called when another round is due."""
    _round: int = field(default=0, init=False)
    _tried: dict[str, int] = field(default_factory=dict, init=False)
    """Last round in which a pod with claims was planned, by pod UID."""
    _served: dict[str, int] = field(default_factory=dict, init=False)
    """Last round in which a namespace's new request was admitted."""
    _known: set[DeviceClaims] = field(default_factory=set, init=False)
    budgets: Budgets = field(default_factory=Budgets)

    def select(self, waiting: Iterable[Entry]) -> tuple[list[Entry], list[tuple[Entry, WaitReason]]]:
        """The pods to plan, in the given order, and the others with their wait reasons.

        Only the first pod that names an unallocated claim is planned; the others follow its devices. A round admits a
        few new requests per namespace.
        """
        fault, first, new, costs = self.keeper.fault(), dict[str, str](), Counter[str](), Counter[str]()
        planned: list[Entry] = []
        passed: list[tuple[Entry, WaitReason]] = []
        entries = list(waiting)
        self.budgets.charge((entry.namespace, asked) for entry in entries if (asked := _asked(entry)) is not None)
        shared_in_gang = self._shared_in_gangs(entries)
        position = {entry.uid: number for number, entry in enumerate(entries)}
        for entry in self._in_turn(entries):
            claims = entry.planned.claims if entry.planned is not None else ()
            if claims and fault:
                passed.append((entry, Code.CLAIMS_UNKNOWN.reason(why=fault)))
            elif claims and (why := self.keeper.resting(entry.uid)):
                passed.append((entry, Code.CLAIM_REFUSED.reason(why=why)))
            elif claims and entry.planned and (shared := shared_in_gang.get((entry.planned.gang, claims[0]))):
                passed.append((entry, Code.CLAIM_IN_GANG.reason(gang=entry.planned.gang, claim=shared)))
            elif shared := next((uid for uid in claims if first.setdefault(uid, entry.uid) != entry.uid), None):
                passed.append((entry, Code.CLAIM_SHARED.reason(claim=self.keeper.name_of(shared))))
            elif claims and self.budgets.is_spent(entry.namespace):
                passed.append((entry, Code.CLAIM_COSTS.reason(namespace=entry.namespace)))
            elif self._admits(entry, new, costs):
                planned.append(entry)
            else:
                passed.append((entry, NOT_REACHED))
        if any(why is NOT_REACHED or why.code is Code.CLAIM_COSTS for _, why in passed):
            self.dirty()
        self._round += 1
        self._tried.update((entry.uid, self._round) for entry in planned if entry.uid in self._tried)
        return sorted(planned, key=lambda entry: position[entry.uid]), passed

    def _shared_in_gangs(self, waiting: list[Entry]) -> dict[tuple[str, str], str]:
        """Names of claims shared by pods of one gang, by the gang and each claim of such a pod.

        These pods can't be released together, since one of them would have to be allocated first.
        """
        pods: dict[tuple[str, str], list[Entry]] = {}
        for entry in waiting:
            if entry.planned is not None and entry.planned.gang:
                for uid in entry.planned.claims:
                    pods.setdefault((entry.planned.gang, uid), []).append(entry)
        return {
            (gang, of_pod): self.keeper.name_of(uid)
            for (gang, uid), entries in pods.items()
            if len(entries) > 1
            for entry in entries
            if entry.planned is not None
            for of_pod in entry.planned.claims
        }

    def _in_turn(self, waiting: list[Entry]) -> list[Entry]:
        """Sort by the last admission of the namespace's new requests, then by the pod's last turn, oldest first.

        So a pod without room does not block others that name its claim, nor a namespace other namespaces.
        """
        with_claims = [entry for entry in waiting if entry.planned is not None and entry.planned.claims]
        self._tried = {entry.uid: self._tried.get(entry.uid, 0) for entry in with_claims}
        self._served = {namespace: self._served.get(namespace, 0) for namespace in {e.namespace for e in with_claims}}
        return sorted(waiting, key=lambda entry: (self._served.get(entry.namespace, 0), self._tried.get(entry.uid, 0)))

    def _admits(self, entry: Entry, new: Counter[str], costs: Counter[str]) -> bool:
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


def _asked(entry: Entry) -> DeviceClaims | None:
    """The device request of a pod's claims."""
    return entry.planned.gpus.devices if entry.planned and entry.planned.gpus else None
