"""How many GPUs the pods of a namespace may hold at once, and whose turn it is when namespaces compete."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from extender.planning.wait_reasons import Code, WaitReason


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

    def excess(self, namespace: str, used: float, asked: float) -> WaitReason | None:
        """Why a namespace that uses so many GPUs may not have so many more, None when it may."""
        limit = self.limit(namespace)
        if asked <= 0 or used + asked <= limit:
            return None
        return Code.OVER_QUOTA.reason(namespace=namespace, limit=limit, used=used, asked=asked)

    def share(self, namespace: str, gpus: float) -> float:
        """GPUs over a namespace's weight."""
        return gpus / max(self.weights.get(namespace, 1.0), 1e-9)
