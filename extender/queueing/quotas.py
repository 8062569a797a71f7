"""How many GPUs the pods of a namespace may hold at once, and whose turn it is when namespaces compete."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Quotas:
    """Limits and weights by namespace."""

    gpus: Mapping[str, float] = field(default_factory=dict)
    """Most GPUs in use at once; a namespace that is not named has no limit, "*" names all others."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight in fair share, 1 where not named."""

    def limit(self, namespace: str) -> float:
        """GPUs that a namespace may use, inf for no limit."""
        return self.gpus.get(namespace, self.gpus.get("*", float("inf")))

    def excess(self, namespace: str, used: float, asked: float) -> str:
        """Why a namespace that uses so many GPUs may not have so many more, "" when it may."""
        limit = self.limit(namespace)
        if asked <= 0 or used + asked <= limit:
            return ""
        return f"quota of namespace {namespace}: {limit:g} GPUs, {used:g} in use, {asked:g} more asked"

    def shares(self, used: Mapping[str, float]) -> dict[str, float]:
        """GPUs in use over weight, by namespace."""
        return {name: gpus / max(self.weights.get(name, 1.0), 1e-9) for name, gpus in used.items()}
