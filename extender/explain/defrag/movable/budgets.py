"""Disruption budgets: how many pods of each may be away, and whom they count.

Each may have a megabyte of conditions, and is held against every pod of its namespace: what a namespace's budgets say
together is bounded, and pods with equal labels are looked at once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.objects import Metadata
from extender.planning.demands import Condition
from extender.plugins.pod_demands import conditions_of

BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
_MAX_CONDITIONS: Final = 10_000
_MAX_VALUES: Final = 100_000
"""Of all budgets of a namespace together, whose pods stay beyond that."""
_UNREAD: Final = "a disruption budget of its namespace can't be read"


class _Spec(objects.Object):
    selector: objects.LabelSelector | None = None


class _BudgetMetadata(objects.Metadata, rename="camel"):
    generation: int = 0


class _Status(objects.Object, rename="camel"):
    disruptions_allowed: int = 0
    observed_generation: int = 0


class Budget(objects.Named):
    """A PodDisruptionBudget."""

    metadata: _BudgetMetadata = msgspec.field(default_factory=_BudgetMetadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def allowed(self) -> int:
        """How many of its pods may be away now: none where that was not worked out for what it says by now."""
        stale = self.status.observed_generation < self.metadata.generation
        return 0 if stale else max(self.status.disruptions_allowed, 0)

    @property
    def conditions(self) -> Sequence[Condition]:
        """All of which hold for a pod that it counts: an empty selector counts every one of its namespace."""
        return conditions_of(self.spec.selector) if self.spec.selector is not None else ()


class Budgets:
    """The budgets of all namespaces."""

    def __init__(self, budgets: Iterable[Budget], unread: Iterable[str] = ()) -> None:
        """`unread` are the namespaces of those that can't be read: whom these count nobody knows."""
        of: dict[str, list[Budget]] = {}
        for budget in budgets:
            of.setdefault(budget.metadata.namespace, []).append(budget)
        too_much = {namespace: why for namespace, found in of.items() if (why := _too_much(found))}
        self._unread = dict.fromkeys(unread, _UNREAD) | too_much
        self.allowed = {budget.key: budget.allowed for found in of.values() for budget in found}
        """How many pods of each may be away, by its `namespace/name`."""
        self._of = {
            namespace: [(budget.key, budget.conditions) for budget in found if budget.spec.selector is not None]
            for namespace, found in of.items()
            if namespace not in self._unread
        }
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, ...]] = {}  # by namespace and labels

    def of(self, pod: Metadata) -> tuple[str, ...]:
        """The budgets that count a pod, by `namespace/name`; of a namespace whose budgets are not known none."""
        labels = pod.labels or {}
        alike = pod.namespace, frozenset(labels.items())
        found = self._known.get(alike)
        if found is None:
            found = self._known[alike] = tuple(
                key
                for key, conditions in self._of.get(pod.namespace, ())
                # One of an operator that nobody knows holds, so that the pod is counted.
                if all(condition.holds(labels, unknown=True) for condition in conditions)
            )
        return found

    def fault(self, pod: Metadata) -> str:
        """Why nobody can say whether a pod may be evicted, "" where the budgets tell."""
        if why := self._unread.get(pod.namespace):
            return why
        # What the API server makes of more than one is an error, whatever they allow.
        found = self.of(pod)
        return f"more than one disruption budget counts it ({', '.join(found[:4])})" if len(found) > 1 else ""


def _too_much(budgets: Iterable[Budget]) -> str:
    """Why the budgets of a namespace are not held against its pods, "" where they are."""
    selectors = [budget.spec.selector for budget in budgets if budget.spec.selector is not None]
    said = [item for selector in selectors for item in selector.match_expressions or ()]
    num_conditions = len(said) + sum(len(selector.match_labels or ()) for selector in selectors)
    num_values = sum(len(item.values or ()) for item in said)
    if num_conditions <= _MAX_CONDITIONS and num_values <= _MAX_VALUES:
        return ""
    return (
        f"the disruption budgets of its namespace say too much to be read: {num_conditions:,} conditions and "
        f"{num_values:,} values, {_MAX_CONDITIONS:,} and {_MAX_VALUES:,} at most"
    )
