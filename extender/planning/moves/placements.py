"""Places pods at the lowest price: the target's, then those evicted for them, and so on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Ints, Mask
from extender.planning.moves.evictions import Prices, cheapest
from extender.planning.moves.obstacles import may_be_emptied
from extender.planning.moves.trials import MoveTrial
from extender.planning.plans import units_of


@dataclass
class Placing:
    """Places a trial's pods with given eviction prices and barred nodes."""

    trial: MoveTrial
    prices: Prices
    barred: dict[int, Mask] = field(default_factory=dict)
    """(N,) rows that a pod may not use; by position."""
    stuck: list[int] = field(default_factory=list)
    """Positions of pods that found no place."""
    paid: dict[int, float] = field(default_factory=dict)
    """By position: price of the evictions made for that pod."""

    def complete(self) -> bool:
        """Place all pods without a node, and return units home that need not move; False if that is impossible."""
        target = self.trial.problem.target
        missing = len(target.empty) + target.num_empty - int(self.trial.closed.sum())
        if not (self.target() and self.empty(missing) and self.settle()):
            return False
        self.spare()
        return True

    def spare(self) -> None:
        """Return units home where possible, the most expensive first."""
        trial = self.trial
        cost, size = trial.units.cost, trial.units.size
        for unit in sorted(trial.away, key=lambda unit: (-cost[unit], -size[unit], unit)):
            trial.bring_home(unit)

    def target(self) -> bool:
        """Place the target's unplaced pods, the largest gangs and pods first; False if one does not fit."""
        pods = self.trial.problem.target.pods
        waiting = [
            unit for unit in units_of(pods) if any(self.trial.state.location(position) is None for position in unit)
        ]
        waiting.sort(key=lambda unit: (not pods[unit[0]].topology, *_largest_first(self.trial, unit)))
        return all(self._target_unit(unit) for unit in waiting)

    def empty(self, num: int) -> bool:
        """Empty and close `num` more nodes, the cheapest; False if there are too few."""
        return all(self._empty_one() for _ in range(num))

    def settle(self) -> bool:
        """Place all evicted units, which may evict others in turn; False if one does not fit.

        Terminates, since no unit is evicted twice.
        """
        trial = self.trial
        while waiting := [unit for unit in trial.away if self._lacks_place(unit)]:
            waiting.sort(key=lambda unit: (len(trial.units.members[unit]) == 1, *self._size(unit)))
            num_away = trial.num_away
            for unit in waiting:
                if not self._settle_unit(unit):
                    return False
                if trial.num_away > num_away:  # it evicted others, which may be larger than the next one
                    break
        return True

    def _lacks_place(self, unit: int) -> bool:
        trial = self.trial
        return any(trial.state.location(trial.position(member)) is None for member in trial.units.members[unit])

    def _size(self, unit: int) -> tuple[int, int, int, int]:
        return _largest_first(self.trial, [self.trial.position(member) for member in self.trial.units.members[unit]])

    def _target_unit(self, unit: Sequence[int]) -> bool:
        """Place a pod, or all of a gang in the cheapest domain of its topology."""
        trial = self.trial
        unplaced = [position for position in unit if trial.state.location(position) is None]
        rows = [row for position in unit if (row := trial.row(position)) is not None]
        domains = [domain for domain in _domains_of(trial, unit) if domain[rows].all()]
        if len(domains) == 1:
            return self._put_all(unplaced, domains[0])
        if not domains:
            self.stuck.append(unit[0])
        best: tuple[float, int, int] | None = None
        for number, domain in enumerate(domains):
            begun = trial.mark()
            if self._put_all(unplaced, domain):
                price = float(self.prices.of_unit[sorted(trial.away)].sum())
                best = min(best or (np.inf, 0, 0), (price, trial.num_away, number))
            trial.rollback(begun)
        return best is not None and self._put_all(unplaced, domains[best[2]])

    def _put_all(self, positions: Sequence[int], domain: Mask) -> bool:
        for position in sorted(positions, key=lambda position: _largest_first(self.trial, [position])):
            allowed = domain & self._not_barred(position)
            if self.trial.problem.target.apart:
                allowed = allowed & ~self._of_target()
            if not self._put(position, allowed):
                return False
        return True

    def _put(self, position: int, allowed: Mask) -> bool:
        """Place a pod where it has room, else where making room is cheapest."""
        trial = self.trial
        row = trial.state.best_row(position, allowed & ~trial.closed)
        if row is None:
            eviction = cheapest(trial, position, allowed, self.prices)
            if eviction is None:
                self.stuck.append(position)
                return False
            self.paid[position] = eviction.price
            for unit in eviction.units:
                trial.evict(unit)
            row = eviction.row
        trial.put(position, row)
        return True

    def _settle_unit(self, unit: int) -> bool:
        trial = self.trial
        positions = [trial.position(member) for member in trial.units.members[unit]]
        if len(positions) == 1:
            home, _ = trial.home[trial.units.members[unit][0]]
            allowed = anywhere(trial, positions[0]) & self._not_barred(positions[0])
            allowed[home] = False
            return self._put(positions[0], allowed)
        return self._settle_gang(unit, positions)

    def _settle_gang(self, unit: int, positions: Sequence[int]) -> bool:
        """Place a gang: members return to their nodes where there is room; at least one goes elsewhere."""
        trial = self.trial
        homes = {trial.position(member): trial.home[member][0] for member in trial.units.members[unit]}
        first = trial.home[trial.units.members[unit][0]][0]
        for position in positions:
            if trial.state.location(position) is not None:
                trial.take(position)
        domains = sorted(_domains_of(trial, positions), key=lambda domain: not domain[first])
        for may_evict in (False, True):
            for domain in domains:
                begun, stuck = trial.mark(), len(self.stuck)
                whole = all(self._put_member(position, homes[position], domain, may_evict) for position in positions)
                if whole and any(trial.row(position) != home for position, home in homes.items()):
                    return True
                trial.rollback(begun)
                del self.stuck[stuck:]
        self.stuck.append(positions[0])
        return False

    def _put_member(self, position: int, home: int, domain: Mask, may_evict: bool) -> bool:
        trial = self.trial
        allowed = domain & self._not_barred(position)
        if allowed[home] and not trial.closed[home] and trial.state.has_room(position, home):
            trial.put(position, home)
            return True
        if may_evict:
            return self._put(position, allowed)
        row = trial.state.best_row(position, allowed & ~trial.closed)
        if row is None:
            return False
        trial.put(position, row)
        return True

    def _not_barred(self, position: int) -> Mask:
        barred = self.barred.get(position)
        may: Mask = np.ones(len(self.trial.closed), np.bool_) if barred is None else ~barred
        if (home := self.trial.leaving.get(position)) is not None:
            may[home] = False
        return may

    def _of_target(self) -> Mask:
        """(N,) rows of the target's pods."""
        mask = np.zeros(len(self.trial.closed), np.bool_)
        mask[list(rows_of_target(self.trial))] = True
        return mask

    def _empty_one(self) -> bool:
        trial, prices = self.trial, self.prices
        may = may_be_emptied(trial) & ~self._of_target() & (np.array(trial.guests) == 0)
        best: tuple[float, int, int, int] | None = None
        for row in np.flatnonzero(may).tolist():
            units = list(trial.at_home(row))
            price = float(prices.of_unit[units].sum()) + (0.0 if prices.of_row is None else float(prices.of_row[row]))
            num_pods = int(trial.units.size[units].sum())
            if not np.isfinite(price) or (
                trial.problem.max_moves is not None and trial.num_away + num_pods > trial.problem.max_moves
            ):
                continue
            candidate = (price, num_pods, int(trial.state.cluster.tie_rank[row]), row)
            best = candidate if best is None else min(best, candidate)
        if best is None:
            return False
        for unit in list(trial.at_home(best[-1])):
            trial.evict(unit)
        trial.close([best[-1]])
        return True


def rows_of_target(trial: MoveTrial) -> set[int]:
    """Rows of the target's placed pods."""
    rows = (trial.row(position) for position in range(trial.num_target))
    return {row for row in rows if row is not None}


def _largest_first(trial: MoveTrial, positions: Sequence[int]) -> tuple[int, int, int, int]:
    """Sort key, larger first: GPUs or compute of a share, CPU, memory."""
    pods = [trial.pods[position] for position in positions]
    return (
        -sum(WHOLE_MILLI * pod.num_gpus if pod.gpus is None or not pod.gpus.milli else pod.gpus.milli for pod in pods),
        -sum(pod.cpu_milli for pod in pods),
        -sum(pod.memory_mib for pod in pods),
        positions[0],
    )


def anywhere(trial: MoveTrial, position: int) -> Mask:
    """(N,) the nodes that a single pod's topology allows."""
    numbers = trial.state.view.domains_of([trial.pods[position]])
    return np.ones(len(trial.closed), np.bool_) if numbers is None else numbers >= 0


def _domains_of(trial: MoveTrial, positions: Sequence[int]) -> Iterator[Mask]:
    """Masks (N,) of the nodes that pods may use together, one per domain of their topology."""
    numbers: Ints | None = trial.state.view.domains_of([trial.pods[position] for position in positions])
    if numbers is None:
        yield np.ones(len(trial.closed), np.bool_)
        return
    for number in np.unique(numbers[numbers >= 0]).tolist():
        yield numbers == number
