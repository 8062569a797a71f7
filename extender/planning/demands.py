"""What a pod wants of its node beside CPU, memory and GPUs: other resources, host ports, and rules about other pods.

As kube-scheduler's plugins NodeResourcesFit, NodePorts, InterPodAffinity and PodTopologySpread take it
(`pkg/scheduler/framework/plugins` of kubernetes 1.37).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - how kube-scheduler names a host port on every address
Labels = Mapping[str, str]


class HostPort(NamedTuple):
    """A port of the node itself."""

    protocol: str
    number: int
    address: str = ANY_ADDRESS


class Condition(NamedTuple):
    """Of a label: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Labels, *, unknown: bool = False) -> bool:
        """Whether labels keep to it; `unknown` is the answer where nobody knows the operator."""
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
        return unknown


Selector = tuple[Condition, ...]
"""All of them hold."""


class Choice(NamedTuple):
    """Which pods a rule is about."""

    namespaces: frozenset[str] | None
    """Theirs, None for any."""
    selector: Selector

    def holds(self, labels: Labels) -> bool:
        """Whether labels of a pod of these namespaces are chosen."""
        return all(condition.holds(labels) for condition in self.selector)


class Term(NamedTuple):
    """Pods that shall be, or shall not be, in the domain of a pod's node."""

    topology: str
    """Label of nodes by which domains are told apart."""
    pods: Choice


class Spread(NamedTuple):
    """How evenly pods are to be spread over domains: `whenUnsatisfiable: DoNotSchedule`."""

    topology: str
    max_skew: int
    min_domains: int
    pods: Choice
    by_affinity: bool = True
    """Whether only nodes count that the pod's node selector and affinity choose."""
    by_taints: bool = False
    """Whether only nodes count whose taints the pod tolerates."""


@dataclass(frozen=True, slots=True)
class Demands:
    """All that one pod wants."""

    resources: tuple[tuple[str, int], ...] = ()
    """Whole units, or bytes, by name."""
    ports: tuple[HostPort, ...] = ()
    near: tuple[Term, ...] = ()
    """Required affinity: one pod that all terms choose is to be in the domain of each."""
    apart: tuple[Term, ...] = ()
    """Required anti-affinity."""
    spread: tuple[Spread, ...] = ()
    unchecked: tuple[str, ...] = ()
    """In words, what of it is not planned."""

    @property
    def is_checked(self) -> bool:
        """Whether there is anything in it that a plan looks at."""
        return bool(self.resources or self.ports or self.near or self.apart or self.spread)

    @property
    def topologies(self) -> set[str]:
        """Labels of nodes that its rules name."""
        return {term.topology for term in (*self.near, *self.apart)} | {rule.topology for rule in self.spread}
