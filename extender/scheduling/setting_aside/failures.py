"""When failures speak against a node, and not against the pods that failed.

Whoever may create pods can make them fail. So failures count from several namespaces, few of each; not those of a
workload that fails on other nodes as well and has lived well on none, nor those of a namespace that fails here and
there; and only failures since the start of the last pod that lives well on the node. What comes out later counts too:
where those who failed on a node go on to fail elsewhere, it was not the node.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from extender.scheduling.fair_cache import FairCache

_FAILS_EVERYWHERE: Final = 3
"""Nodes on which pods of a namespace fail, from which on they say nothing of any."""
_MAX_OF_NAMESPACE: Final = 16
"""Failures of a namespace that are kept of a node."""
_MAX_NODES: Final = 16
"""Nodes that are remembered of a workload or namespace."""
_MAX_WORKLOADS: Final = 20_000


@dataclass(frozen=True, slots=True)
class Rules:
    """How much has to come together."""

    failures: int = 5
    namespaces: int = 3
    window_s: float = 600.0
    """In which they have to."""

    @property
    def per_namespace(self) -> int:
        """Failures of a namespace that count at most."""
        return -(-self.failures // self.namespaces)


class Failure(NamedTuple):
    """A pod that failed soon after its start."""

    uid: str
    namespace: str
    workload: str
    """Whose pods are alike (`pods.owner_of`)."""
    at: float
    """Monotonic time."""


class Case(NamedTuple):
    """What speaks against a node."""

    failures: tuple[Failure, ...]

    @property
    def namespaces(self) -> list[str]:
        """Whose pods failed."""
        return sorted({failure.namespace for failure in self.failures})

    def __str__(self) -> str:
        return f"{len(self.failures)} pods of {len(self.namespaces)} namespaces"


class Failures:
    """What is remembered of pods that failed soon after their start, and of those that lived on. Bounded; times are
    monotonic."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._on: dict[str, dict[str, dict[str, Failure]]] = {}  # by node, namespace and UID
        self._well: dict[str, float] = {}  # by node: start of the youngest pod that lives well there
        self._failed_on: FairCache[dict[str, float]] = FairCache(_MAX_WORKLOADS)  # by workload: when on which node
        self._lived_on: FairCache[dict[str, float]] = FairCache(_MAX_WORKLOADS)
        self._namespace_on: dict[str, dict[str, float]] = {}

    @property
    def nodes(self) -> list[str]:
        """On which pods have failed of late."""
        return list(self._on)

    def failed(self, node: str, failure: Failure, *, counts: bool) -> None:
        """A pod failed; with `counts` that may speak against its node."""
        self._note(self._failed_on, failure.namespace, failure.workload, node, failure.at)
        _put(self._namespace_on.setdefault(failure.namespace, {}), node, failure.at)
        if counts:
            of_namespace = self._on.setdefault(node, {}).setdefault(failure.namespace, {})
            of_namespace[failure.uid] = failure
            if len(of_namespace) > _MAX_OF_NAMESPACE:
                del of_namespace[next(iter(of_namespace))]

    def lived(self, node: str, namespace: str, workload: str, started: float, now: float) -> None:
        """A pod that started then lives well, or has ended well."""
        self._note(self._lived_on, namespace, workload, node, now)
        self._well[node] = max(self._well.get(node, float("-inf")), started)

    def well_since(self, node: str) -> float:
        """When the youngest pod that lives well on a node started, -inf where none is known."""
        return self._well.get(node, float("-inf"))

    def against(self, node: str, now: float, least: int | None = None) -> Case | None:
        """What speaks against a node, None where that is too little; `least` failures instead of the rules'."""
        self._drop_old(node, now)
        since = self.well_since(node)
        found = (failure for of in self._on.get(node, {}).values() for failure in of.values() if failure.at > since)
        return self._case(node, found, now, least)

    def stands(self, node: str, case: Case, now: float, least: int | None = None) -> bool:
        """Whether a case still speaks against its node, by all that has come out since."""
        since = self.well_since(node)
        found = (failure for failure in case.failures if failure.at > since)
        return self._case(node, found, now, least) is not None

    def forget(self, node: str) -> None:
        """Nothing speaks against a node any more."""
        self._on.pop(node, None)

    def forget_old(self, now: float, nodes: Iterable[str]) -> None:
        """Forget what is past, and all of nodes that are not there any more."""
        for node in self.nodes:
            self._drop_old(node, now)
        kept = set(nodes)
        self._well = {node: at for node, at in self._well.items() if node in kept}
        for namespace, on in list(self._namespace_on.items()):
            recent = {node: at for node, at in on.items() if at >= now - self._rules.window_s}
            if recent:
                self._namespace_on[namespace] = recent
            else:
                del self._namespace_on[namespace]

    def _case(self, node: str, failures: Iterable[Failure], now: float, least: int | None) -> Case | None:
        found = tuple(failure for failure in failures if not self._is_its_own(failure, node, now))
        num_of: dict[str, int] = {}
        for failure in found:
            num_of[failure.namespace] = min(num_of.get(failure.namespace, 0) + 1, self._rules.per_namespace)
        enough = sum(num_of.values()) >= (self._rules.failures if least is None else least)
        return Case(found) if enough and len(num_of) >= self._rules.namespaces else None

    def _is_its_own(self, failure: Failure, node: str, now: float) -> bool:
        """Whether a failure is that of the pod, as far as other nodes tell."""
        since = min(failure.at, now) - self._rules.window_s
        places = self._namespace_on.get(failure.namespace, {}).values()
        if sum(at >= since for at in places) >= _FAILS_EVERYWHERE:
            return True
        failed, lived = self._failed_on.get(failure.workload) or {}, self._lived_on.get(failure.workload) or {}
        elsewhere = any(at >= since and other != node for other, at in failed.items())
        return elsewhere and not any(other != node for other in lived)

    def _drop_old(self, node: str, now: float) -> None:
        by_namespace = self._on.get(node, {})
        for namespace, of in list(by_namespace.items()):
            for failure in [failure for failure in of.values() if failure.at < now - self._rules.window_s]:
                del of[failure.uid]
            if not of:
                del by_namespace[namespace]
        if not by_namespace:
            self._on.pop(node, None)

    @staticmethod
    def _note(where: FairCache[dict[str, float]], namespace: str, workload: str, node: str, at: float) -> None:
        known = where.get(workload) or {}
        _put(known, node, at)
        where.put(namespace, workload, known, at)


def _put(on: dict[str, float], node: str, at: float) -> None:
    """Remember a node as the newest, and not too many."""
    on.pop(node, None)
    on[node] = at
    if len(on) > _MAX_NODES:
        del on[next(iter(on))]
