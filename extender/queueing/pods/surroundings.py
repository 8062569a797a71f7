"""Who is on nodes already, as a batch's pods have to reckon with them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from extender.core.clusters import Longs, Mask
from extender.kube.background import give_way
from extender.ledger.tenants import Crowd
from extender.planning.demands import Term
from extender.planning.neighbours import Neighbours
from extender.planning.plans import PlanPod
from extender.queueing.pods.restrictions import Kinds, Terrain

_PORTION: Final = 256


class Surroundings:
    """Works `neighbours` out, in portions."""

    def __init__(
        self,
        crowd: Crowd,
        terrain: Terrain,
        kinds: Kinds,
        batch: Collection[PlanPod],
        offered: Callable[[str], Longs],
        placed: Iterable[tuple[PlanPod, str]] = (),
    ) -> None:
        """`offered` (N,) is what nodes offer of a resource, `placed` are pods on their way to a node."""
        self._crowd, self._terrain, self._kinds, self._batch = crowd, terrain, kinds, batch
        self._offered, self._placed = offered, list(placed)
        self.neighbours: Neighbours | None = None
        """None where nobody has to reckon with anybody."""

    def work(self) -> Neighbours | None:
        """All of it at once."""
        for _ in self._steps():
            pass
        return self.neighbours

    async def work_in_turns(self) -> Neighbours | None:
        """The same, others of the event loop having their turns in between."""
        for _ in self._steps():
            await give_way()
        return self.neighbours

    def _steps(self) -> Iterator[None]:
        crowd = self._crowd
        asked = {
            (pod.namespace, one): None for pod in self._batch if (one := pod.demands) is not None and one.is_checked
        }
        terms = [*crowd.repelling(), *((pod.namespace, term) for pod, _ in self._placed for term in _apart(pod))]
        namespaces = frozenset(pod.namespace for pod in self._batch) if terms else frozenset[str]()
        repelling = [(author, term) for author, term in terms if _concerns(term, namespaces)]
        if not asked and not repelling:
            return
        found = Neighbours.of(
            list(asked),
            repelling,
            len(self._terrain.cluster.node_names),
            domains=self._terrain.domains,
            offered=self._offered,
            eligible=self._eligible(),
            ignored=crowd.ignored,
        )
        yield
        for name in found.free:
            for row, units in self._by_row(crowd.used(name)):
                found.use(name, row, units)
            yield
        for protocol, number in found.ports:
            for port, held in list(crowd.holding(protocol, number)):
                for row, count in self._by_row(held):
                    found.hold(port, row, count)
            yield
        for (_, term), on in list(crowd.repelling().items()):
            for row, count in self._by_row(on) if term in found.repelling else ():
                found.repel(term, row, count)
        yield
        if any(demands.near or demands.apart or demands.spread for _, demands in asked):
            yield from self._joining(found)
        row_of = self._terrain.cluster.row_of
        for pod, node in self._placed:
            if (at := row_of.get(node)) is not None:
                found.add(pod.namespace, pod.labels, pod.demands, at, 1)
        self.neighbours = found

    def _joining(self, found: Neighbours) -> Iterator[None]:
        """Count whom rules are about."""
        row_of = self._terrain.cluster.row_of
        for number, one in enumerate(self._crowd.of(found.rules.namespaces), 1):
            if (row := row_of.get(one.node)) is not None:
                found.join(one.namespace, one.labels, row, 1, leaving=one.leaving)
            if number % _PORTION == 0:
                yield

    def _by_row(self, on: Mapping[str, int]) -> list[tuple[int, int]]:
        """What is told by node, by row instead."""
        row_of = self._terrain.cluster.row_of
        return [(row, number) for node, number in on.items() if (row := row_of.get(node)) is not None]

    def _eligible(self) -> Mapping[tuple[int, bool, bool], Mask]:
        wanted = {
            (pod.kind, rule.by_affinity, rule.by_taints): None
            for pod in self._batch
            if pod.demands is not None
            for rule in pod.demands.spread
        }
        return {
            (kind, by_affinity, by_taints): self._kinds.eligible(
                self._terrain, kind, by_affinity=by_affinity, by_taints=by_taints
            )
            for kind, by_affinity, by_taints in wanted
        }


def _apart(pod: PlanPod) -> tuple[Term, ...]:
    return pod.demands.apart if pod.demands is not None else ()


def _concerns(term: Term, namespaces: frozenset[str]) -> bool:
    chosen = term.pods.namespaces
    return chosen is None or not chosen.isdisjoint(namespaces)
