"""Disruption budgets: how many pods of each may be away, and whom they count."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from extender.kube import objects
from extender.kube.objects import Metadata

BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"


class _Selector(objects.Object, rename="camel"):
    match_labels: dict[str, str] | None = None
    match_expressions: list[objects.Expression] | None = None


class _Spec(objects.Object):
    selector: _Selector | None = None


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

    def counts(self, labels: Mapping[str, str]) -> bool:
        """Whether it counts a pod of its namespace: an empty selector every one, none nobody."""
        selector = self.spec.selector
        if selector is None:
            return False
        alike = all(labels.get(key) == value for key, value in (selector.match_labels or {}).items())
        return alike and all(_holds(item, labels) for item in selector.match_expressions or ())


class Budgets:
    """The budgets of all namespaces."""

    def __init__(self, budgets: Iterable[Budget], unread: Iterable[str] = ()) -> None:
        """`unread` are the namespaces of those that can't be read: whom these count nobody knows."""
        self._unread = frozenset(unread)
        self._of: dict[str, list[Budget]] = {}
        for budget in budgets:
            self._of.setdefault(budget.metadata.namespace, []).append(budget)

    @property
    def allowed(self) -> dict[str, int]:
        """How many pods of each may be away, by its `namespace/name`."""
        return {budget.key: budget.allowed for found in self._of.values() for budget in found}

    def of(self, pod: Metadata) -> tuple[str, ...]:
        """The budgets that count a pod, by `namespace/name`."""
        labels = pod.labels or {}
        return tuple(budget.key for budget in self._of.get(pod.namespace, ()) if budget.counts(labels))

    def fault(self, pod: Metadata) -> str:
        """Why nobody can say whether a pod may be evicted, "" where the budgets tell."""
        if pod.namespace in self._unread:
            return "a disruption budget of its namespace can't be read"
        # What the API server makes of more than one is an error, whatever they allow.
        found = self.of(pod)
        return f"more than one disruption budget counts it ({', '.join(found[:4])})" if len(found) > 1 else ""


def _holds(item: objects.Expression, labels: Mapping[str, str]) -> bool:
    """An expression of a label selector; an operator that nobody knows holds, so that the pod is counted."""
    values = item.values or ()
    match item.operator:
        case "In":
            return labels.get(item.key) in values
        case "NotIn":
            return labels.get(item.key) not in values
        case "Exists":
            return item.key in labels
        case "DoesNotExist":
            return item.key not in labels
    return True
