"""A pod's demands beside CPU, memory and GPUs: extended resources, host ports, pod affinity and topology spread.

Semantics follow kube-scheduler's plugins NodeResourcesFit, NodePorts, InterPodAffinity and PodTopologySpread
(`pkg/scheduler/framework/plugins` of kubernetes 1.37).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 - kube-scheduler's value for a host port on all addresses
Labels = Mapping[str, str]


class HostPort(NamedTuple):
    """A host port: protocol, number and host IP."""

    protocol: str
    number: int
    address: str = ANY_ADDRESS


class LabelRequirement(NamedTuple):
    """A label selector requirement: In, NotIn, Exists or DoesNotExist."""

    key: str
    operator: str
    values: frozenset[str] = frozenset()

    def holds(self, labels: Labels, *, unknown: bool = False) -> bool:
        """Whether labels match; `unknown` is the result for an unknown operator."""
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


Selector = tuple[LabelRequirement, ...]
"""Requirements, all of which must match."""


class PodSelector(NamedTuple):
    """The pods that a rule selects."""

    namespaces: frozenset[str] | None
    """Namespaces of the pods, None for all."""
    selector: Selector

    def holds(self, labels: Labels) -> bool:
        """Whether the selector matches the labels of a pod in these namespaces."""
        return all(condition.holds(labels) for condition in self.selector)


class AffinityTerm(NamedTuple):
    """A required pod affinity or anti-affinity term."""

    topology: str
    """Topology key: the node label whose values are the domains."""
    pods: PodSelector


class TopologySpread(NamedTuple):
    """A topology spread constraint with `whenUnsatisfiable: DoNotSchedule`."""

    topology: str
    max_skew: int
    min_domains: int
    pods: PodSelector
    by_affinity: bool = True
    """Whether only nodes that match the pod's node selector and affinity count (`nodeAffinityPolicy`)."""
    by_taints: bool = False
    """Whether only nodes whose taints the pod tolerates count (`nodeTaintsPolicy`)."""


@dataclass(frozen=True, slots=True)
class Demands:
    """All demands of one pod."""

    resources: tuple[tuple[str, int], ...] = ()
    """Name and quantity, in whole units or bytes."""
    ports: tuple[HostPort, ...] = ()
    affinity: tuple[AffinityTerm, ...] = ()
    """Required pod affinity: a pod that all terms select must be in the domain of each term."""
    anti_affinity: tuple[AffinityTerm, ...] = ()
    """Required pod anti-affinity."""
    spread: tuple[TopologySpread, ...] = ()
    unchecked: tuple[str, ...] = ()
    """Descriptions of the demands that planning ignores."""

    @property
    def is_checked(self) -> bool:
        """Whether planning has any of these demands to check."""
        return bool(self.resources or self.ports or self.affinity or self.anti_affinity or self.spread)

    @property
    def topologies(self) -> set[str]:
        """Topology keys of its affinity, anti-affinity and spread rules."""
        return {term.topology for term in (*self.affinity, *self.anti_affinity)} | {
            rule.topology for rule in self.spread
        }
