"""The state of a row as a key."""

from dataclasses import fields, replace

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.fit.fittings import keep, state_of
from tests.core.builders import cluster_of, node

T4 = ("Tesla-T4", 15360)
CLUSTER = cluster_of({name: node(T4, T4, mig={"1g.10gb": 2}) for name in "abc"})
APART = {"row_version", "tie_rank", "devices", "withheld_units"}
"""Which row it is, what no request is looked up for, and what counts among `untracked_units`."""
COLUMNS = [field.name for field in fields(Cluster) if isinstance(getattr(CLUSTER, field.name), np.ndarray)]


def test_nodes_that_are_alike_are_in_the_same_state() -> None:
    assert state_of(CLUSTER, 0) == state_of(CLUSTER, 2)


@pytest.mark.parametrize("name", sorted(set(COLUMNS) - APART))
def test_every_column_counts(name: str) -> None:
    column = getattr(CLUSTER, name).copy()
    column[1] = ~column[1] if column.dtype == np.bool_ else column[1] + 1
    changed = replace(CLUSTER, **{name: column})
    assert state_of(changed, 1) != state_of(CLUSTER, 1)
    assert state_of(changed, 2) == state_of(CLUSTER, 2)


def test_as_many_states_are_kept_and_then_the_one_that_was_met_first_is_forgotten() -> None:
    known: dict[int, str] = {}
    for state in range(2050):
        keep(known, state, f"row {state}")
    assert list(known) == list(range(2, 2050))
    assert known[2049] == "row 2049"
