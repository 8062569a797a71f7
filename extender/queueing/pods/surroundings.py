"""Computes the `Neighbours` of a batch: the effects of bound pods on ports, resources, affinity and spread."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from extender.core.clusters import Longs, Mask
from extender.kube.background import give_way
from extender.ledger.bound_pods import BoundPodIndex
from extender.planning.demands import AffinityTerm
from extender.planning.neighbours import Neighbours
from extender.planning.plans import PlanPod
from extender.queueing.pods.restrictions import NodeRestrictions, RestrictionKinds

_PORTION: Final = 256


class NeighboursBuilder:
    """Computes `neighbours` in portions."""

    def __init__(
        self,
        crowd: BoundPodIndex,
        terrain: NodeRestrictions,
        kinds: RestrictionKinds,
        batch: Collection[PlanPod],
        offered: Callable[[str], Longs],
        placed: Iterable[tuple[PlanPod, str]] = (),
    ) -> None:
        """`offered` returns (N,) what nodes offer of a resource, `placed` are pods on their way to a node."""
        self._crowd, self._terrain, self._kinds, self._batch = crowd, terrain, kinds, batch
        self._offered, self._placed = offered, list(placed)
        self.neighbours: Neighbours | None = None
        """None if no bound pod matters to the batch."""

    def work(self) -> Neighbours | None:
        """Compute the neighbours at once."""
        for _ in self._steps():
            pass
        return self.neighbours

    async def work_in_turns(self) -> Neighbours | None:
        """Compute the neighbours, yielding to the event loop."""
        for _ in self._steps():
            await give_way()
        return self.neighbours

    def _steps(self) -> Iterator[None]:
        crowd = self._crowd
        demanded = {
            (pod.namespace, demands): None
            for pod in self._batch
            if (demands := pod.demands) is not None and demands.is_checked
        }
        terms = [*crowd.repelling(), *((pod.namespace, term) for pod, _ in self._placed for term in _anti_terms(pod))]
        namespaces = frozenset(pod.namespace for pod in self._batch) if terms else frozenset[str]()
        repelling = [(author, term) for author, term in terms if _concerns(term, namespaces)]
        if not demanded and not repelling:
            return
        neighbours = Neighbours.of(
            list(demanded),
            repelling,
            len(self._terrain.cluster.node_names),
            domains=self._terrain.domains,
            offered=self._offered,
            eligible=self._eligible(),
            ignored=crowd.ignored,
        )
        yield
        for name in neighbours.free:
            for row, units in self._by_row(crowd.used(name)):
                neighbours.use(name, row, units)
            yield
        for protocol, number in neighbours.ports:
            for port, num_pods in list(crowd.holding(protocol, number)):
                for row, count in self._by_row(num_pods):
                    neighbours.hold(port, row, count)
            yield
        for (_, term), num_pods in list(crowd.repelling().items()):
            for row, count in self._by_row(num_pods) if term in neighbours.repelling else ():
                neighbours.repel(term, row, count)
        yield
        if any(demands.affinity or demands.anti_affinity or demands.spread for _, demands in demanded):
            yield from self._count_matching(neighbours)
        row_of = self._terrain.cluster.row_of
        for pod, node in self._placed:
            if (at := row_of.get(node)) is not None:
                neighbours.add(pod.namespace, pod.labels, pod.demands, at, 1)
        self.neighbours = neighbours

    def _count_matching(self, neighbours: Neighbours) -> Iterator[None]:
        """Count the bound pods that affinity and spread rules are about."""
        row_of = self._terrain.cluster.row_of
        for number, pod in enumerate(self._crowd.of(neighbours.rules.namespaces), 1):
            if (row := row_of.get(pod.node)) is not None:
                neighbours.join(pod.namespace, pod.labels, row, 1, leaving=pod.leaving)
            if number % _PORTION == 0:
                yield

    def _by_row(self, by_node: Mapping[str, int]) -> list[tuple[int, int]]:
        """Convert node names to rows."""
        row_of = self._terrain.cluster.row_of
        return [(row, number) for node, number in by_node.items() if (row := row_of.get(node)) is not None]

    def _eligible(self) -> Mapping[tuple[int, bool, bool], Mask]:
        keys = {
            (pod.kind, rule.by_affinity, rule.by_taints): None
            for pod in self._batch
            if pod.demands is not None
            for rule in pod.demands.spread
        }
        return {
            (kind, by_affinity, by_taints): self._kinds.eligible(
                self._terrain, kind, by_affinity=by_affinity, by_taints=by_taints
            )
            for kind, by_affinity, by_taints in keys
        }


def _anti_terms(pod: PlanPod) -> tuple[AffinityTerm, ...]:
    return pod.demands.anti_affinity if pod.demands is not None else ()


def _concerns(term: AffinityTerm, namespaces: frozenset[str]) -> bool:
    chosen = term.pods.namespaces
    return chosen is None or not chosen.isdisjoint(namespaces)
