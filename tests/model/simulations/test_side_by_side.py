"""Tasks in processes: results under their names, in the order of the tasks, and faults as they are."""

import time
from functools import partial

import pytest

from model.simulations.side_by_side import side_by_side


def _slow(tenths: int) -> int:
    time.sleep(tenths / 10)
    return tenths


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    told: list[str] = []
    with side_by_side(jobs, told.append) as run:
        assert list(run({"slow": partial(_slow, 1), "b": partial(_slow, 0)}).items()) == [
            ("slow", 1),
            ("b", 0),
        ]
        assert sorted(told) == ["b", "slow"]
        with pytest.raises(ValueError, match="negative"):
            run({"wrong": partial(_slow, -1)})
