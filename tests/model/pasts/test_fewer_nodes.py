"""The fewest nodes on which jobs wait no longer."""

from typing import Any

import numpy as np

from model.pasts.accounts import Account, Steps, account_of
from model.pasts.fewer_nodes import Fewest, Limits, _holds_each, _thinned, fewest, gpus_of, limits_of
from model.pasts.pasts import HistoryWorkload, past
from model.simulations.baselines import BASELINES
from model.simulations.departures import simulate_churn
from tests.history.builders import history, nodes, pods

HOUR = 3600.0


def known_of(*rows: dict[str, Any], gpus: tuple[int, ...]) -> HistoryWorkload:
    return past(history(pods(*rows), nodes(*gpus)))


def replayed(known: HistoryWorkload) -> Account:
    return account_of(known, simulate_churn(known.offered, BASELINES["bestfit"], "fifo", 0))


def fewest_of(known: HistoryWorkload, limits: Limits | None = None) -> Fewest:
    """Waits may be as long as on all nodes if no limits are given."""
    whole = replayed(known)
    return fewest(known, limits or limits_of(known, whole), whole, replayed)


def test_a_known_answer() -> None:
    """As many pods of 8 GPUs at once, all the time, as nodes of 8 are needed: one less won't do."""
    for needed, too_few in ((1, 0), (6, 40), (10, 72)):  # one node of a kind always stays
        rows = [{"gpus": 8, "ended_s": 9 * HOUR}] * needed + [{"submitted_s": 8 * HOUR, "gpus": 0, "gpu_milli": 0}]
        found = fewest_of(known_of(*rows, gpus=(8,) * 10))
        assert (found.gpus, found.too_few_gpus, found.served) == (8 * needed, too_few, True)


def test_a_cluster_that_does_not_serve_as_it_is() -> None:
    known = known_of({}, {}, {"submitted_s": 1.0}, gpus=(1,))
    assert fewest_of(known, Limits(60.0, {"1": 60.0})) == Fewest(
        1, 1, served=False, waited=limits_of(known, replayed(known))
    )


def test_it_tells_how_long_jobs_wait_there() -> None:
    """Of five pods that run an hour on 4 GPUs, two wait an hour on two, and on one 1 + 2 + 3 h are too long."""
    known = known_of({}, {}, {}, {}, {"submitted_s": 9 * HOUR}, gpus=(1, 1, 1, 1))
    limits = Limits(0.4 * HOUR, {"1": 0.4 * HOUR})
    assert fewest_of(known, limits) == Fewest(2, 1, served=True, waited=limits)


def test_each_kind_of_node_loses_the_same_part_and_smaller_clusters_are_parts_of_larger_ones() -> None:
    table = nodes(*(8,) * 20, *(4,) * 10, *(0,) * 5, 2)
    table["from_s"] = np.arange(36) * HOUR
    known = past(history(pods({}, {"submitted_s": 1.0}), table, until_s=99 * HOUR))
    by_name = dict(zip(known.node_names, known.offered.nodes.num_gpus.tolist(), strict=True))
    before = set(known.node_names)
    for part, left in ((0.0, (20, 10)), (0.1, (18, 9)), (0.25, (15, 8)), (0.5, (10, 5)), (0.99, (1, 1))):
        smaller = _thinned(known, part)
        gpus = smaller.offered.nodes.num_gpus
        assert [(gpus == size).sum() for size in (8, 4, 0, 2)] == [*left, 5, 1]
        assert gpus.tolist() == [by_name[name] for name in smaller.node_names]
        assert gpus_of(smaller) == gpus.sum() and set(smaller.node_names) <= before
        before = set(smaller.node_names)
        came_s = {smaller.node_names[node]: end_s for node, _, end_s in smaller.offered.absences}
        assert came_s == {name: int(name.removeprefix("node-")) * HOUR for name in before - {"node-0"}}


def test_what_no_longer_fits_is_no_answer() -> None:
    """A gang of three pods of 8 needs three nodes, though it would never have started in the period."""
    gang: list[dict[str, Any]] = [{"gang": "g", "gpus": 8, "submitted_s": HOUR}] * 3
    known = known_of({}, *gang, gpus=(8,) * 8)
    busy = known_of({"gpus": 8, "ended_s": np.nan}, *gang, gpus=(8,) * 3)  # where it does not start on all nodes either
    assert _holds_each(known) and _holds_each(_thinned(known, 5 / 8)) and not _holds_each(_thinned(known, 6 / 8))
    for found in (fewest_of(known), fewest_of(busy)):
        assert (found.gpus, found.too_few_gpus, found.served) == (24, 16, True)


def test_nobody_may_wait_longer() -> None:
    known = known_of({}, {"gpus": 4}, {"submitted_s": 9.0, "gpus": 0, "gpu_milli": 0}, gpus=(8,))

    def limits(*delay_s: float) -> Limits:
        steps = Steps(np.array([0.0, 9.0]), np.zeros(1), None)
        return limits_of(known, Account(np.array(delay_s), np.zeros(3, np.bool_), steps, None))

    allowed = limits(10.0, 2000.0, 5.0)
    assert allowed == Limits(1005.0, {"1": 10.0, "4-7": 2000.0})
    assert allowed.serves(limits(10.0, 2000.0, 9999.0))  # a job without GPUs does not count
    assert not allowed.serves(limits(10.1, 2000.0, 0.0))
    assert allowed.serves(limits(620.0, 1390.0, 0.0))  # twice as long and ten minutes where others wait less
    assert not allowed.serves(limits(620.1, 0.0, 0.0))
