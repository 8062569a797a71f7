"""Tasks in processes."""

import time
from collections.abc import Callable
from functools import partial

import pytest

from model.simulations.side_by_side import side_by_side


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    told: list[str] = []
    tasks: dict[str, Callable[[], object]] = {"slow": partial(time.sleep, 0.1), "quick": partial(int, "3")}
    with side_by_side(jobs, told.append) as run:
        found = run(tasks)
        assert list(found.items()) == [("slow", None), ("quick", 3)]
        assert sorted(told) == ["quick", "slow"]
        with pytest.raises(ValueError, match="invalid literal"):
            run({"wrong": partial(int, "x")})
