"""The bound pods by node: what evicting each would cost, and its demands beside CPU, memory and GPUs.

The ledger knows GPUs only. Quantities and times are parsed when needed, for preemption.
"""

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from extender.core.resources.quantities import parse_quantity
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.background import give_way
from extender.kube.indexes import Index
from extender.kube.objects import Pod
from extender.planning.demands import AffinityTerm, Demands, HostPort, Labels
from extender.plugins.pod_demands import read_presence
from extender.plugins.pod_resources import requested, while_resized

_KeyT = TypeVar("_KeyT")

_MAX_TERMS: Final = 256
"""Anti-affinity terms counted for the pods of a namespace."""
_PORTION: Final = 256
_NO_LABELS: Final[Labels] = {}


class IndexedPod(NamedTuple):
    """A pod with a node."""

    uid: str
    namespace: str
    node: str
    labels: Labels
    leaving: bool
    """Whether it is being deleted."""
    demands: Demands | None


class BoundPodIndex:
    """All pods with a node, for planning. Not thread-safe."""

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        """`ignored` are resources that kube-scheduler does not count."""
        self.ignored = frozenset(ignored)
        self._namespace_of: dict[str, str] = {}
        self._in: defaultdict[str, dict[str, IndexedPod]] = defaultdict(dict)
        self.num_pods: Counter[str] = Counter()
        """Number of pods by node."""
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._ports: defaultdict[HostPort, Counter[str]] = defaultdict(Counter)
        self._addresses: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._apart: defaultdict[tuple[str, AffinityTerm], Counter[str]] = defaultdict(Counter)
        self._num_terms: Counter[str] = Counter()  # in `_apart`, by namespace

    def __len__(self) -> int:
        return len(self._namespace_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._namespace_of

    def get(self, uid: str) -> IndexedPod | None:
        """Return a pod by UID, None if it has no node."""
        return self._in[namespace].get(uid) if (namespace := self._namespace_of.get(uid)) is not None else None

    def upsert(self, pod: Pod) -> None:
        """Add or update a pod with a node."""
        metadata = pod.metadata
        self.put(
            IndexedPod(
                uid=metadata.uid,
                namespace=metadata.namespace,
                node=pod.spec.node_name or "",
                labels=metadata.labels or _NO_LABELS,
                leaving=metadata.deletion_timestamp is not None,
                demands=read_presence(pod),
            )
        )

    def put(self, pod: IndexedPod) -> None:
        """Add or replace a pod."""
        known = self.get(pod.uid)
        if known is not None and (known.node, known.demands) == (pod.node, pod.demands):
            self._in[pod.namespace][pod.uid] = pod
            return
        self.remove(pod.uid)
        self._namespace_of[pod.uid] = pod.namespace
        self._in[pod.namespace][pod.uid] = pod
        self._count(pod, 1)

    def remove(self, uid: str) -> None:
        """Remove a pod."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        self._count(self._in[namespace].pop(uid), -1)
        if not self._in[namespace]:
            del self._in[namespace]

    def of(self, namespaces: Iterable[str] | None) -> Iterator[IndexedPod]:
        """Yield the pods of some namespaces, None for all; the set may change meanwhile."""
        tables = (
            self._in.values() if namespaces is None else [self._in[name] for name in namespaces if name in self._in]
        )
        for table in list(tables):
            yield from list(table.values())

    async def packed(self, *, labels: bool) -> list[bytes]:
        """Pickle the pods in portions for another process: all with `labels`, else the `demanding` ones."""
        portions: list[bytes] = []
        portion: list[IndexedPod] = []
        for pod in self.of(None) if labels else self.demanding():
            portion.append(pod)
            if len(portion) == _PORTION:
                portions.append(pickle.dumps(portion, pickle.HIGHEST_PROTOCOL))
                portion = []
                await give_way()
        return [*portions, pickle.dumps(portion, pickle.HIGHEST_PROTOCOL)]

    @classmethod
    def unpacked(cls, portions: Iterable[bytes], ignored: Iterable[str] = ()) -> "BoundPodIndex":
        """Build an index from the result of `packed`, which only the service itself produces."""
        index = cls(ignored)
        for portion in portions:
            for pod in pickle.loads(portion):  # noqa: S301
                index.put(pod)
        return index

    def demanding(self) -> Iterator[IndexedPod]:
        """Yield the pods that take more than CPU, memory and GPUs, or have anti-affinity."""
        return (pod for pod in self.of(None) if pod.demands is not None)

    def used(self, resource: str) -> Mapping[str, int]:
        """Return how much of a resource is taken, by node."""
        return self._used.get(resource, {})

    def holding(self, protocol: str, number: int) -> Iterator[tuple[HostPort, Mapping[str, int]]]:
        """Yield the host ports in use with this protocol and number, one per address, with their pods by node."""
        for address in self._addresses.get((protocol, number), ()):
            port = HostPort(protocol, number, address)
            yield port, self._ports[port]

    def repelling(self) -> Mapping[tuple[str, AffinityTerm], Mapping[str, int]]:
        """Return the number of pods with each anti-affinity term, by their namespace and the term, and by node."""
        return self._apart

    def _count(self, pod: IndexedPod, sign: int) -> None:
        _add(self.num_pods, pod.node, sign)
        if pod.demands is None:
            return
        for name, units in pod.demands.resources:
            _add_to(self._used, name, pod.node, sign * units)
        for port in pod.demands.ports:
            _add_to(self._ports, port, pod.node, sign)
            _add_to(self._addresses, (port.protocol, port.number), port.address, sign)
        for term in pod.demands.anti_affinity:
            key = pod.namespace, term
            if key not in self._apart and (sign < 0 or self._num_terms[pod.namespace] >= _MAX_TERMS):
                continue  # authors may write any number of terms
            before = len(self._apart)
            _add_to(self._apart, key, pod.node, sign)
            _add(self._num_terms, pod.namespace, len(self._apart) - before)


def _add_to(table: "defaultdict[_KeyT, Counter[str]]", key: "_KeyT", node: str, number: int) -> None:
    _add(table[key], node, number)
    if not table[key]:
        del table[key]


def _add(counter: Counter[str], key: str, number: int) -> None:
    counter[key] += number
    if not counter[key]:
        del counter[key]


_PODS: Final = "pods"
_VOLUMES_WITHOUT_LIMIT: Final = frozenset(
    ("name", "configMap", "downwardAPI", "emptyDir", "hostPath", "image", "nfs", "projected", "secret")
)
"""Volume types that no node limits in number or to one pod."""
_NOTHING: Final[Mapping[str, str | int | float]] = {}


class Port(objects.Object, rename="camel"):
    host_port: int | None = None


class DemandingContainer(objects.Object):
    ports: list[Port] | None = None


class SpecDemands(objects.Object, rename="camel"):
    """The fields of a pod's spec that restrict its nodes beside resources, decoded only for preemption."""

    containers: list[DemandingContainer] | None = None
    init_containers: list[DemandingContainer] | None = None
    affinity: objects.Affinity | None = None
    topology_spread_constraints: list[objects.SpreadConstraint] | None = None
    volumes: list[dict[str, Any]] | None = None
    host_network: bool | None = None
    resource_claims: list[Any] | None = None


class DemandingPod(objects.Object):
    spec: SpecDemands = msgspec.field(default_factory=SpecDemands)


class BoundPod(msgspec.Struct, frozen=True):
    """A pod on a node."""

    uid: str
    key: str
    """`namespace/name`."""
    priority: int
    started: str
    """RFC 3339 start time, "" until the kubelet reports it."""
    leaving: bool
    spec: objects.PodSpec

    def ran_s(self, now: float) -> float:
        """Return the seconds since its start at a Unix time, 0 if unknown."""
        started = objects.unix_time(self.started)
        return max(0.0, now - started) if started else 0.0


class BoundPods:
    """Pods by node. Not thread-safe; no method blocks."""

    def __init__(self, ignored_resources: Iterable[str] = ()) -> None:
        """`ignored_resources` are those that kube-scheduler does not count."""
        self._allocatable: dict[str, Mapping[str, str | int | float]] = {}
        self._node_of: dict[str, str] = {}
        self._on: Index[BoundPod] = Index()  # by node and UID
        self.index = BoundPodIndex(ignored_resources)
        """The same pods, for planning."""

    def knows(self, uid: str) -> bool:
        """Whether a pod is on a node."""
        return uid in self._node_of

    def node_of(self, uid: str) -> str:
        """Return the node of a pod, "" for none."""
        return self._node_of.get(uid, "")

    def on(self, node: str) -> Mapping[str, BoundPod]:
        """Return the pods of a node by UID."""
        return self._on.of(node)

    def upsert_node(self, node: objects.Node) -> None:
        """Add or update a node."""
        self._allocatable[node.metadata.name] = node.status.allocatable or _NOTHING

    def remove_node(self, name: str) -> None:
        """Remove a node."""
        self._allocatable.pop(name, None)

    def upsert_pod(self, pod: objects.Pod) -> None:
        """Add or update a pod; one that has finished is removed."""
        uid, node = pod.metadata.uid, pod.spec.node_name
        if pod.finished or not node:
            self.remove_pod(uid)
            return
        if self._node_of.get(uid, node) != node:
            self.remove_pod(uid)
        self._node_of[uid] = node
        leaving = pod.metadata.deletion_timestamp is not None
        started = pod.status.start_time or ""
        self._on.put(node, uid, BoundPod(uid, pod.key, pod.spec.priority or 0, started, leaving, while_resized(pod)))
        self.index.upsert(pod)

    def remove_pod(self, uid: str) -> None:
        """Remove a pod."""
        self.index.remove(uid)
        node = self._node_of.pop(uid, None)
        if node is not None:
            self._on.pop(node, uid)

    def keep_pods(self, listed: set[str]) -> None:
        """Remove the pods that are not in a complete list."""
        for uid in self._node_of.keys() - listed:
            self.remove_pod(uid)

    def have_room(self, node: str, spec: objects.PodSpec, evicted: Iterable[str]) -> bool:
        """Whether a node has all resources that a pod requests once these pods are gone; False if any is unreadable."""
        gone = set(evicted)
        staying = [pod.spec for uid, pod in self.on(node).items() if uid not in gone]
        allocatable = self._allocatable.get(node, _NOTHING)
        try:
            for resource in _requested_names(spec):
                has = parse_quantity(str(allocatable.get(resource, 0)))
                if sum((requested(other, resource) for other in staying), requested(spec, resource)) > has:
                    return False
            return len(staying) < parse_quantity(str(allocatable.get(_PODS, 0)))
        except (RequestError, ValueError):
            return False


def _requested_names(spec: objects.PodSpec) -> set[str]:
    """Return the names of the resources that a pod requests."""
    resources = [container.resources for container in (*(spec.containers or ()), *(spec.init_containers or ()))]
    names: set[str] = set(spec.overhead or ())
    for item in (*resources, spec.resources):
        if item is not None:
            names |= {*(item.requests or ()), *(item.limits or ())}
    return names


def asks_resources_alone(demands: SpecDemands) -> bool:
    """Whether a pod needs resources only: no host ports, volumes, ResourceClaims or rules about other pods."""
    affinity = demands.affinity
    rules = affinity and (
        (affinity.pod_affinity and affinity.pod_affinity.required)
        or (affinity.pod_anti_affinity and affinity.pod_anti_affinity.required)
    )
    spread = any(item.when_unsatisfiable != "ScheduleAnyway" for item in demands.topology_spread_constraints or ())
    ports = any(
        port.host_port
        for container in (*(demands.containers or ()), *(demands.init_containers or ()))
        for port in container.ports or ()
    )
    disks = any(volume.keys() - _VOLUMES_WITHOUT_LIMIT for volume in demands.volumes or ())
    return not (rules or spread or ports or disks or demands.host_network or demands.resource_claims)


def repels_pods(spec: objects.PodSpec) -> bool:
    """Whether a pod has required anti-affinity."""
    return bool(spec.affinity and spec.affinity.pod_anti_affinity and spec.affinity.pod_anti_affinity.required)
