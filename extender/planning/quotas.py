"""GPU quotas and fair-share weights by namespace."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from extender.planning.wait_reasons import Code, WaitReason


@dataclass(frozen=True, slots=True)
class Quotas:
    """GPU limits and weights by namespace."""

    gpus: Mapping[str, float] = field(default_factory=dict)
    """Most GPUs in use at once; "*" applies to all namespaces not listed. Without it these have no limit."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Fair-share weights; the default is 1."""

    def limit(self, namespace: str) -> float:
        """A namespace's GPU limit, inf for none."""
        return self.gpus.get(namespace, self.gpus.get("*", float("inf")))

    def excess(self, namespace: str, used: float, asked: float) -> WaitReason | None:
        """The reason if `asked` more GPUs would exceed a namespace's limit, else None."""
        limit = self.limit(namespace)
        if asked <= 0 or used + asked <= limit:
            return None
        return Code.OVER_QUOTA.reason(namespace=namespace, limit=limit, used=used, asked=asked)

    def share(self, namespace: str, gpus: float) -> float:
        """GPUs divided by a namespace's weight."""
        return gpus / max(self.weights.get(namespace, 1.0), 1e-9)
