"""The fewest nodes: taken away evenly, the same ones first, until pods would wait longer."""

from typing import Any

import numpy as np
import pytest

from model.pasts.accounts import Account, Steps, account_of
from model.pasts.fewer_nodes import Fewest, Limits, _holds_each, _thinned, fewest, gpus_of, limits_of
from model.pasts.pasts import Past, past
from model.simulations.baselines import BASELINES
from model.simulations.departures import simulate_churn
from tests.history.builders import history, nodes, pods

HOUR = 3600.0


def known_of(*rows: dict[str, Any], gpus: tuple[int, ...]) -> Past:
    return past(history(pods(*rows), nodes(*gpus)))


def replayed(known: Past) -> Account:
    return account_of(known, simulate_churn(known.offered, BASELINES["bestfit"], "fifo", 0))


def fewest_of(known: Past) -> tuple[int, int, bool]:
    """Where nobody may wait longer than on all nodes."""
    whole = replayed(known)
    found = fewest(known, limits_of(known, whole), whole, replayed)
    return found.gpus, found.too_few_gpus, found.served


@pytest.mark.parametrize("needed", [1, 6, 10])
def test_a_known_answer(needed: int) -> None:
    """So many pods of 8 GPUs at once, all the time: as many of ten nodes of 8 are needed, and one less won't do."""
    rows = [{"gpus": 8, "ended_s": 9 * HOUR}] * needed + [{"submitted_s": 8 * HOUR, "gpus": 0, "gpu_milli": 0}]
    known = known_of(*rows, gpus=(8,) * 10)
    too_few = 8 * (needed - 1) if needed > 1 else 0  # one node of a kind always stays
    assert fewest_of(known) == (8 * needed, too_few, True)


def test_a_cluster_that_does_not_serve_as_it_is() -> None:
    known = known_of({}, {}, {"submitted_s": 1.0}, gpus=(1,))
    whole = replayed(known)
    found = fewest(known, Limits(60.0, {"1": 60.0}), whole, replayed)
    assert found == Fewest(1, 1, served=False, waited=limits_of(known, whole))


def test_it_tells_how_long_jobs_wait_there() -> None:
    """Four pods of one GPU for an hour on four: in the mean of the four and a last one, half an hour is allowed."""
    known = known_of({}, {}, {}, {}, {"submitted_s": 9 * HOUR}, gpus=(1, 1, 1, 1))
    found = fewest(known, Limits(0.4 * HOUR, {"1": 0.4 * HOUR}), replayed(known), replayed)
    # On two, two of the five wait an hour: 0.4 h in the mean. On one, 0 + 1 + 2 + 3 h: more.
    assert (found.gpus, found.too_few_gpus) == (2, 1)
    assert found.waited == Limits(0.4 * HOUR, {"1": 0.4 * HOUR})


def test_each_kind_of_node_loses_the_same_part_and_smaller_clusters_are_parts_of_larger_ones() -> None:
    table = nodes(*(8,) * 20, *(4,) * 10, *(0,) * 5, 2)
    known = past(history(pods({}, {"submitted_s": 1.0}), table))
    before: set[str] = set(known.node_names)
    for part in (0.0, 0.1, 0.25, 0.5, 0.99):
        smaller = _thinned(known, part)
        gpus = smaller.offered.nodes.num_gpus
        assert [(gpus == size).sum() for size in (8, 4, 0, 2)] == [
            20 - int(part * 20), 10 - int(part * 10), 5, 1,
        ]  # fmt: skip
        assert set(smaller.node_names) <= before
        before = set(smaller.node_names)
        by_name = dict(zip(known.node_names, known.offered.nodes.num_gpus.tolist(), strict=True))
        assert gpus.tolist() == [by_name[name] for name in smaller.node_names]
    assert gpus_of(_thinned(known, 0.5)) == 8 * 10 + 4 * 5 + 2


def test_absences_stay_with_their_nodes() -> None:
    table = nodes(*(8,) * 6)
    table["from_s"] = np.arange(6) * HOUR
    known = past(history(pods({}, {"submitted_s": 1.0}), table))
    smaller = _thinned(known, 0.5)
    began = {smaller.node_names[node]: end for node, _, end in smaller.offered.absences}
    assert began == {name: int(name[-1]) * HOUR for name in smaller.node_names if name != "node-0"}


def test_what_no_longer_fits_is_no_answer() -> None:
    """A gang of three pods of 8 needs three nodes, though it would never have started in the period."""
    gang: list[dict[str, Any]] = [{"gang": "g", "gpus": 8, "submitted_s": HOUR}] * 3
    known = known_of({}, *gang, gpus=(8,) * 8)
    assert _holds_each(known) and _holds_each(_thinned(known, 5 / 8)) and not _holds_each(_thinned(known, 6 / 8))
    assert fewest_of(known) == (24, 16, True)
    busy = known_of({"gpus": 8, "ended_s": np.nan}, *gang, gpus=(8,) * 3)  # where it does not start on all nodes either
    assert fewest_of(busy) == (24, 16, True)


def test_nobody_may_wait_longer() -> None:
    known = known_of({}, {"gpus": 4}, {"submitted_s": 9.0, "gpus": 0, "gpu_milli": 0}, gpus=(8,))

    def account(*delay_s: float) -> Account:
        steps = Steps(np.array([0.0, 9.0]), np.zeros(1), None)
        return Account(np.array(delay_s), np.zeros(3, np.bool_), steps, None)

    limits = limits_of(known, account(10.0, 2000.0, 5.0))
    assert limits == Limits(1005.0, {"1": 10.0, "4-7": 2000.0})

    def serves(*delay_s: float) -> bool:
        return limits.serves(limits_of(known, account(*delay_s)))

    assert serves(10.0, 2000.0, 9999.0)  # who asks for no GPU is not looked at
    assert not serves(10.1, 2000.0, 0.0)
    assert serves(620.0, 1390.0, 0.0)  # a size may wait twice as long and ten minutes where others wait less
    assert not serves(620.1, 0.0, 0.0)
