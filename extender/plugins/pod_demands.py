"""A pod's demands besides CPU, memory and GPUs: extended resources, host ports, affinity, topology spread."""

from collections.abc import Collection, Iterable
from functools import cache, lru_cache
from math import ceil
from typing import Final

from extender.core.resources.quantities import parse_quantity
from extender.core.resources.requests import RequestError
from extender.core.vendors.registry import PARTITION_PREFIXES
from extender.kube.objects import (
    Expression,
    LabelSelector,
    Metadata,
    Node,
    Pod,
    PodAffinityTerm,
    PodSpec,
    SpreadConstraint,
    requests_of,
)
from extender.planning.demands import (
    ANY_ADDRESS,
    AffinityTerm,
    Demands,
    HostPort,
    LabelRequirement,
    Labels,
    PodSelector,
    TopologySpread,
)
from extender.plugins.pod_resources import managed_names, requested

_COMPUTE: Final = frozenset({"cpu", "memory", "pods"})
_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of resources that kube-scheduler maps to a DeviceClass."""
_MAX_UNITS: Final = 2**50
"""Limit of a resource's units, so that sums over pods fit an int64."""
_MAX_RULES: Final = 100
_MAX_CONDITIONS: Final = 1_000
_MAX_VALUES: Final = 10_000
_MAX_PORTS: Final = 1_000
_MAX_RESOURCES: Final = 100
"""Limits of a pod's rules, ports and resources, far beyond those of real pods."""
_NO_PODS: Final = PodSelector(frozenset(), ())
_TCP: Final = "TCP"
_BY_NAMESPACES: Final = "pod affinity by labels of namespaces"
_VOLUMES: Final = "the nodes of its volumes (PersistentVolumeClaims)"


@lru_cache(maxsize=4096)
def _is_counted(resource: str) -> bool:
    """Whether a resource is an extended one other than GPUs, to be counted here."""
    managed = resource in managed_names() or resource.startswith((*PARTITION_PREFIXES, _CLASS_PREFIX))
    return resource not in _COMPUTE and not managed


def read_demands(pod: Pod) -> Demands | None:
    """Return the demands of a pod to be placed, None if there are none. Raises RequestError."""
    spec, metadata = pod.spec, pod.metadata
    resources, ports = _resources(spec), _host_ports(spec)
    unchecked = list[str]()
    near, apart = _required(spec)
    terms, others = _terms(near, metadata), _terms(apart, metadata)
    if len(terms) < len(near) or len(others) < len(apart):
        unchecked.append(_BY_NAMESPACES)
    if any(volume.persistent_volume_claim is not None or volume.ephemeral is not None for volume in spec.volumes or ()):
        unchecked.append(_VOLUMES)
    spread = tuple(
        _spread(item, metadata)
        for item in spec.topology_spread_constraints or ()
        if item.when_unsatisfiable == "DoNotSchedule"
    )
    if not (resources or ports or terms or others or spread or unchecked):
        return None
    return Demands(resources, ports, terms, others, spread, tuple(unchecked))


def read_presence(pod: Pod) -> Demands | None:
    """Return a running pod's resources, host ports and anti-affinity, without what is unreadable or over the limits."""
    spec = pod.spec
    if spec.affinity is None and _asks_compute_alone(spec):
        return None  # nearly all pods
    try:
        resources = _resources(spec)
    except RequestError:
        resources = ()
    ports = _host_ports(spec)[:_MAX_PORTS]
    _, required = _required(spec)
    apart = _terms(required, pod.metadata) if required and not says_too_much(spec) else ()
    return Demands(resources, ports, anti_affinity=apart) if resources or ports or apart else None


def _asks_compute_alone(spec: PodSpec) -> bool:
    """Whether a pod clearly requests no other resources and no host ports; a fast check."""
    if spec.init_containers or spec.overhead or spec.resources is not None or spec.host_network:
        return False
    known = _known_names()
    for container in spec.containers or ():
        if (resources := container.resources) is not None and not (
            (not resources.requests or resources.requests.keys() <= known)
            and (not resources.limits or resources.limits.keys() <= known)
        ):
            return False
        if container.ports:
            for port in container.ports:
                if port.host_port:
                    return False
    return True


@cache
def _known_names() -> frozenset[str]:
    return _COMPUTE | managed_names()


def _required(spec: PodSpec) -> tuple[list[PodAffinityTerm], list[PodAffinityTerm]]:
    """Return the terms of a pod's required affinity and anti-affinity."""
    affinity = spec.affinity
    if affinity is None:
        return [], []
    near, apart = affinity.pod_affinity, affinity.pod_anti_affinity
    return (near.required if near is not None else None) or [], (apart.required if apart is not None else None) or []


def says_too_much(spec: PodSpec) -> str:
    """Return which limit a pod's rules exceed, "" for none."""
    near, apart = _required(spec)
    terms = [*near, *apart]
    spread = spec.topology_spread_constraints or ()
    selectors = [item.label_selector for item in (*terms, *spread) if item.label_selector is not None]
    conditions = [item for selector in selectors for item in selector.match_expressions or ()]
    by_keys = sum(len(item.match_label_keys or ()) for item in (*terms, *spread))
    by_keys += sum(len(term.mismatch_label_keys or ()) for term in terms)
    num_conditions = len(conditions) + sum(len(selector.match_labels or ()) for selector in selectors) + by_keys
    num_values = sum(len(item.values or ()) for item in conditions) + sum(len(term.namespaces or ()) for term in terms)
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    num_ports = sum(len(container.ports or ()) for container in containers if container.ports)
    resources = [container.resources for container in containers if container.resources is not None]
    for number, most, what in (
        (len(terms) + len(spread), _MAX_RULES, "rules about other pods"),
        (num_conditions, _MAX_CONDITIONS, "conditions on labels of other pods"),
        (num_values, _MAX_VALUES, "values in rules about other pods"),
        (num_ports, _MAX_PORTS, "ports"),
        (max((len(requests_of(item)) for item in resources), default=0), _MAX_RESOURCES, "resources of a container"),
    ):
        if number > most:
            return f"{number:,} {what} are too many to be read: write {most:,} at most"
    return ""


def _host_ports(spec: PodSpec) -> tuple[HostPort, ...]:
    """Return a pod's host ports, as `GetHostPorts` of kube-scheduler's `pkg/scheduler/util`. With `hostNetwork` each
    container port is one."""
    ports: dict[HostPort, None] = {}
    sidecars = (item for item in spec.init_containers or () if item.restart_policy == "Always")
    for container in (*(spec.containers or ()), *sidecars):
        for port in container.ports or ():
            number = port.host_port or (port.container_port if spec.host_network else 0)
            if number > 0:
                ports[HostPort(port.protocol or _TCP, number, port.host_ip or ANY_ADDRESS)] = None
    return tuple(ports)


def offered_of(node: Node, resource: str) -> int:
    """Return a node's allocatable units of a resource, 0 if missing or unreadable."""
    value = (node.status.allocatable or {}).get(resource)
    if value is None:
        return 0
    try:
        return max(0, min(int(parse_quantity(str(value))), _MAX_UNITS))
    except ValueError:
        return 0


def _resources(spec: PodSpec) -> tuple[tuple[str, int], ...]:
    names: set[str] = set()
    for containers in (spec.containers, spec.init_containers):
        for container in containers or ():
            if (resources := container.resources) is not None:
                names.update(resources.requests or (), resources.limits or ())
    names.update(spec.overhead or ())
    if spec.resources is not None:
        names.update(spec.resources.requests or (), spec.resources.limits or ())
    counted = []
    for name in names:
        if _is_counted(name) and (units := min(ceil(requested(spec, name)), _MAX_UNITS)) > 0:
            counted.append((name, units))
    return tuple(sorted(counted))


def _terms(required: Iterable[PodAffinityTerm], metadata: Metadata) -> tuple[AffinityTerm, ...]:
    """Return the terms that need no namespace labels."""
    return tuple(
        AffinityTerm(item.topology_key, choice) for item in required if (choice := _choice(item, metadata)) is not None
    )


def _choice(item: PodAffinityTerm, metadata: Metadata) -> PodSelector | None:
    """Return the pods that a term selects; None if that depends on namespace labels."""
    by_labels = item.namespace_selector
    if by_labels is not None and (by_labels.match_labels or by_labels.match_expressions):
        return None
    namespaces = None if by_labels is not None else frozenset(item.namespaces or (metadata.namespace,))
    if item.label_selector is None:
        return _NO_PODS
    labels = metadata.labels or {}
    own = [*_by_keys(item.match_label_keys, "In", labels), *_by_keys(item.mismatch_label_keys, "NotIn", labels)]
    return PodSelector(namespaces, conditions_of(item.label_selector, own))


def _spread(item: SpreadConstraint, metadata: Metadata) -> TopologySpread:
    labels = metadata.labels or {}
    pods = _NO_PODS
    if item.label_selector is not None:
        own = _by_keys(item.match_label_keys, "In", labels)
        pods = PodSelector(frozenset((metadata.namespace,)), conditions_of(item.label_selector, own))
    return TopologySpread(
        topology=item.topology_key,
        max_skew=item.max_skew,
        min_domains=item.min_domains or 1,
        pods=pods,
        by_affinity=item.node_affinity_policy != "Ignore",
        by_taints=item.node_taints_policy == "Honor",
    )


def _by_keys(keys: Collection[str] | None, operator: str, labels: Labels) -> list[LabelRequirement]:
    return [LabelRequirement(key, operator, frozenset((labels[key],))) for key in keys or () if key in labels]


def conditions_of(item: LabelSelector, own: Iterable[LabelRequirement] = ()) -> tuple[LabelRequirement, ...]:
    """Return a selector's conditions, all of which must hold, together with `own`."""
    equal = [
        LabelRequirement(key, "In", frozenset((value,))) for key, value in sorted((item.match_labels or {}).items())
    ]
    return tuple(dict.fromkeys((*equal, *(_condition(one) for one in item.match_expressions or ()), *own)))


def _condition(item: Expression) -> LabelRequirement:
    return LabelRequirement(item.key, item.operator, frozenset(item.values or ()))
