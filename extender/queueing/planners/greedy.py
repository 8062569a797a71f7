"""The greedy planner: pod by pod in the order of the batch, each where a live decision would put it."""

from collections.abc import Iterator, Sequence

import numpy as np

from extender.core.clusters import Mask
from extender.queueing.boards import Board
from extender.queueing.plans import Plan, PlanPod, View, units_of


def make(view: View, pods: Sequence[PlanPod], seed: int = 0) -> Plan:
    """The plan; there is no chance in it, so the seed is not looked at."""
    board = Board(view, pods)
    place_units(board, units_of(pods))
    return board.plan("greedy")


def place_units(board: Board, units: Sequence[Sequence[int]]) -> None:
    """Put units on the board in their order, those that have no room left out.

    Once a pod on its own has no room, an equal one later has none either: room only shrinks.
    """
    full: set[object] = set()
    for unit in units:
        pod = board.pods[unit[0]]
        alike = (pod.cpu_milli, pod.memory_mib, pod.gpus, pod.kind) if not pod.gang else None
        if alike is not None and alike in full:
            continue
        if not place_unit(board, unit) and alike is not None:
            full.add(alike)


def place_unit(board: Board, unit: Sequence[int], allowed: Mask | None = None) -> bool:
    """Put a pod, or all pods of a gang, on the board; nothing is left on it when one of them has no room.

    `allowed` (N,) are the nodes that may be used, None for all.
    """
    if len(unit) == 1 and not board.pods[unit[0]].topology:
        row = board.best_row(unit[0], allowed)
        if row is not None:
            board.put(unit[0], row)
        return row is not None
    begun = board.num_steps
    return any(_place_within(board, unit, domain, begun) for domain in _domains(board, unit, allowed))


def _place_within(board: Board, unit: Sequence[int], allowed: Mask | None, begun: int) -> bool:
    for position in unit:
        row = board.best_row(position, allowed)
        if row is None:
            board.undo(begun)
            return False
        board.put(position, row)
    return True


def _domains(board: Board, unit: Sequence[int], allowed: Mask | None) -> Iterator[Mask | None]:
    """Masks of the nodes to try a gang on: the whole cluster, or each domain of its topology, the tightest first.

    Tightest is the domain with the fewest nodes that have room for the gang's first pod, so that roomy ones stay whole.
    """
    domain = board.view.domains_of([board.pods[position] for position in unit])
    if domain is None:
        yield allowed
        return
    room = board.fits(unit[0], allowed)
    numbers, counts = np.unique(domain[room & (domain >= 0)], return_counts=True)
    for number in numbers[np.argsort(counts, kind="stable")].tolist():
        yield (domain == number) if allowed is None else (domain == number) & allowed
