"""The least cost of freeing GPUs, compared with a loop, and the lower bound on the cost of all moves."""

import numpy as np

from extender.planning.moves.evictions import cover_costs
from extender.planning.moves.lower_bounds import least_cost
from extender.planning.moves.trials import MoveTrial
from extender.planning.moves.units import units_of
from tests.planning.moves.cases import drawn
from tests.planning.moves.optimum import optimum


def cover_cost(need: int, units: list[tuple[int, float]]) -> float:
    """Cost to free GPUs of one row: units (GPUs, price) leave whole, the cheapest per GPU first, the last in part."""
    left, cost = float(max(need, 0)), 0.0
    for gpus, price in sorted(units, key=lambda unit: unit[1] / unit[0]):
        part = min(left, gpus)
        cost += price * part / gpus
        left -= part
    return cost if left <= 1e-9 else float("inf")


def test_a_worked_example() -> None:
    need = np.array([0, 3, 9])
    row, gpus = np.array([0, 1, 1, 1, 2]), np.array([2, 2, 4, 0, 8])
    price = np.array([5.0, 3.0, 4.0, 1.0, 1.0])
    # Row 1: 4 GPUs cost 1.0 each, 3 of these are needed. Row 2 has 8 of 9.
    assert cover_costs(need, row, gpus, price).tolist() == [0.0, 3.0, float("inf")]


def test_costs_are_those_of_a_loop() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        num_rows, num_units = int(rng.integers(1, 6)), int(rng.integers(0, 20))
        need = rng.integers(-2, 9, num_rows)
        row, gpus = rng.integers(0, num_rows, num_units), rng.integers(0, 5, num_units)
        price = np.round(rng.exponential(10.0, num_units), 2)
        units = list(zip(row.tolist(), gpus.tolist(), price.tolist(), strict=True))
        of_row = [[(g, p) for r, g, p in units if r == number and g] for number in range(num_rows)]
        expected = [cover_cost(int(wanted), units) for wanted, units in zip(need, of_row, strict=True)]
        np.testing.assert_allclose(cover_costs(need, row, gpus, price), expected)


def test_no_moves_cost_less_than_the_bound() -> None:
    for seed in range(12):
        asked = drawn(seed)
        least = optimum(asked)
        assert least is None or least_cost(MoveTrial(asked, units_of(asked))) <= least * (1 + 1e-9), seed
