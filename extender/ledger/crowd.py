"""Who is on which node, for plans: labels of pods that run, and what they take beside CPU, memory and GPUs."""

import pickle
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from extender.kube.background import give_way
from extender.kube.objects import Pod
from extender.planning.demands import Demands, HostPort, Labels, Term
from extender.plugins.pod_demands import read_presence

_KeyT = TypeVar("_KeyT")
_MOST_TERMS: Final = 256
"""By which the pods of one namespace keep others away."""
_PORTION: Final = 256
_NO_LABELS: Final[Labels] = {}


class Occupant(NamedTuple):
    """A pod with a node."""

    uid: str
    namespace: str
    node: str
    labels: Labels
    leaving: bool
    """Whether it is being deleted."""
    demands: Demands | None


class Crowd:
    """All pods with a node. Not thread-safe."""

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        """`ignored` are resources that kube-scheduler does not count."""
        self.ignored = frozenset(ignored)
        self._namespace_of: dict[str, str] = {}
        self._in: defaultdict[str, dict[str, Occupant]] = defaultdict(dict)
        self.num_pods: Counter[str] = Counter()
        """By node."""
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._ports: defaultdict[HostPort, Counter[str]] = defaultdict(Counter)
        self._addresses: defaultdict[tuple[str, int], Counter[str]] = defaultdict(Counter)
        self._apart: defaultdict[tuple[str, Term], Counter[str]] = defaultdict(Counter)
        self._num_terms: Counter[str] = Counter()  # of these, by namespace

    def __len__(self) -> int:
        return len(self._namespace_of)

    def __contains__(self, uid: str) -> bool:
        return uid in self._namespace_of

    def get(self, uid: str) -> Occupant | None:
        """A pod with a node."""
        return self._in[namespace].get(uid) if (namespace := self._namespace_of.get(uid)) is not None else None

    def upsert(self, pod: Pod) -> None:
        """A pod with a node was added or changed."""
        metadata = pod.metadata
        self.put(
            Occupant(
                uid=metadata.uid,
                namespace=metadata.namespace,
                node=pod.spec.node_name or "",
                labels=metadata.labels or _NO_LABELS,
                leaving=metadata.deletion_timestamp is not None,
                demands=read_presence(pod),
            )
        )

    def put(self, found: Occupant) -> None:
        """A pod as it is now."""
        known = self.get(found.uid)
        if known is not None and (known.node, known.demands) == (found.node, found.demands):
            self._in[found.namespace][found.uid] = found
            return
        self.remove(found.uid)
        self._namespace_of[found.uid] = found.namespace
        self._in[found.namespace][found.uid] = found
        self._count(found, 1)

    def remove(self, uid: str) -> None:
        """A pod is gone."""
        namespace = self._namespace_of.pop(uid, None)
        if namespace is None:
            return
        self._count(self._in[namespace].pop(uid), -1)
        if not self._in[namespace]:
            del self._in[namespace]

    def of(self, namespaces: Iterable[str] | None) -> Iterator[Occupant]:
        """The pods of some namespaces, None for all, as they are when this begins."""
        tables = (
            self._in.values() if namespaces is None else [self._in[name] for name in namespaces if name in self._in]
        )
        for table in list(tables):
            yield from list(table.values())

    async def packed(self, *, labels: bool) -> list[bytes]:
        """The pods for another process, in portions; with `labels` all of them, else those that take something beside
        CPU, memory and GPUs, or keep others away."""
        found: list[bytes] = []
        portion: list[Occupant] = []
        for one in self.of(None) if labels else self.demanding():
            portion.append(one)
            if len(portion) == _PORTION:
                found.append(pickle.dumps(portion, pickle.HIGHEST_PROTOCOL))
                portion = []
                await give_way()
        return [*found, pickle.dumps(portion, pickle.HIGHEST_PROTOCOL)]

    @classmethod
    def unpacked(cls, portions: Iterable[bytes], ignored: Iterable[str] = ()) -> "Crowd":
        """A crowd from what `packed` gave, which comes from the service alone."""
        crowd = cls(ignored)
        for portion in portions:
            for one in pickle.loads(portion):  # noqa: S301
                crowd.put(one)
        return crowd

    def demanding(self) -> Iterator[Occupant]:
        """Those that take more than CPU, memory and GPUs, or keep others away."""
        return (found for found in self.of(None) if found.demands is not None)

    def used(self, resource: str) -> Mapping[str, int]:
        """How much of a resource is taken, by node."""
        return self._used.get(resource, {})

    def holding(self, protocol: str, number: int) -> Iterator[tuple[HostPort, Mapping[str, int]]]:
        """Of each address that pods have a port of: how many, by node."""
        for address in self._addresses.get((protocol, number), ()):
            port = HostPort(protocol, number, address)
            yield port, self._ports[port]

    def repelling(self) -> Mapping[tuple[str, Term], Mapping[str, int]]:
        """How many pods keep others away, by their namespace and the term, and by node."""
        return self._apart

    def _count(self, found: Occupant, sign: int) -> None:
        _add(self.num_pods, found.node, sign)
        if found.demands is None:
            return
        for name, units in found.demands.resources:
            _at(self._used, name, found.node, sign * units)
        for port in found.demands.ports:
            _at(self._ports, port, found.node, sign)
            _at(self._addresses, (port.protocol, port.number), port.address, sign)
        for term in found.demands.apart:
            key = found.namespace, term
            if key not in self._apart and (sign < 0 or self._num_terms[found.namespace] >= _MOST_TERMS):
                continue  # an author writes any number of them
            before = len(self._apart)
            _at(self._apart, key, found.node, sign)
            _add(self._num_terms, found.namespace, len(self._apart) - before)


def _at(table: "defaultdict[_KeyT, Counter[str]]", key: "_KeyT", at: str, number: int) -> None:
    _add(table[key], at, number)
    if not table[key]:
        del table[key]


def _add(counter: Counter[str], key: str, number: int) -> None:
    counter[key] += number
    if not counter[key]:
        del counter[key]
