"""Actual outcomes of a history: delays, GPUs in use, fragments."""

from typing import Any

import numpy as np
import pytest

from extender.core.fragmentation import fragment_milli
from extender.history.records import History
from model.pasts.accounts import figures
from model.pasts.happened import happened
from model.pasts.pasts import past
from tests.history.builders import history, nodes, pods
from tests.model.happenings import as_it_happened
from tests.model.pasts.test_accounts import random_rows

HOUR = 3600.0
Row = dict[str, Any]


def told_of(found: History) -> dict[str, Any]:
    account = happened(found, past(found))
    assert account is not None
    return figures(past(found), account)


def fragments_of(*rows: Row, gpus: tuple[int, ...] = (8,)) -> float | None:
    found: float | None = told_of(history(pods(*rows), nodes(*gpus)))["fragments"]
    return found


def test_what_really_happened() -> None:
    rows: tuple[Row, ...] = (
        {"ended_s": 4 * HOUR},
        {"submitted_s": HOUR, "started_s": 2 * HOUR, "ended_s": np.nan, "gpus": 2},
        {"submitted_s": 4 * HOUR, "started_s": np.nan, "ended_s": np.nan},
    )
    told = told_of(history(pods(*rows), nodes(8), until_s=5 * HOUR))
    assert told["allocated_gpus"] == pytest.approx((4 * 1 + 2 * 2) / 4)
    assert told["mean_delay_s"] == pytest.approx((0 + HOUR + HOUR) / 3)
    assert told["large_delay_s"] == pytest.approx(HOUR)
    assert (told["never_started"], told["blocked_starts"], told["fragments"]) == (1, None, None)
    unknown = history(pods({}, {"submitted_s": 1.0}), nodes(8), missing=("when pods started: unknown",))
    assert happened(unknown, past(unknown)) is None


def test_who_was_given_up_waited_until_then_and_a_gang_until_all_had_started() -> None:
    rows: tuple[Row, ...] = (
        {"started_s": np.nan, "ended_s": 2 * HOUR},
        {"gang": "g", "submitted_s": HOUR, "started_s": 2 * HOUR},
        {"gang": "g", "submitted_s": HOUR + 60, "started_s": 4 * HOUR},
        {"submitted_s": 6 * HOUR},
    )
    account = happened(found := history(pods(*rows), nodes(8)), past(found))
    assert account is not None
    assert account.delay_s.tolist() == [2 * HOUR, 3 * HOUR - 60, 0.0]
    assert account.never.tolist() == [True, False, False]


def test_pods_of_before_count_as_in_use_and_their_delay_does_not() -> None:
    rows: tuple[Row, ...] = (
        {"submitted_s": -9 * HOUR, "started_s": -HOUR, "ended_s": HOUR, "gpus": 4},
        {"submitted_s": -9 * HOUR, "started_s": -8 * HOUR, "ended_s": -HOUR, "gpus": 4},
        {"submitted_s": 2 * HOUR},
    )
    told = told_of(history(pods(*rows), nodes(8)))
    assert told["allocated_gpus"] == pytest.approx(4 * HOUR / (2 * HOUR))
    assert told["mean_delay_s"] == 0


def test_used_and_fragments_against_a_loop() -> None:
    """A replay's placements, taken as what happened, give the values of a loop over instants."""
    table = nodes(8, 8, 8, 8)
    table["from_s"][3] = 15 * HOUR
    rows = [row | {"cpu_milli": 9000} for row in random_rows(11)]  # seven pods use up a node's CPU
    found = as_it_happened(history(pods(*rows), table, until_s=500 * HOUR), "kube-default")
    known = past(found)
    account = happened(found, known)
    assert account is not None and account.steps.fragment_gpus is not None
    told, there = found.pods, known.offered.nodes
    for step in range(0, len(account.steps.used_gpus), 7):
        at_s = account.steps.edges_s[step]
        cpu, free = there.cpu_free_milli.copy(), there.gpu_free_milli.astype(np.int64)
        for pod in np.flatnonzero((told["started_s"] <= at_s) & (at_s < told["ended_s"])):
            node = known.node_names.index(told["node"][pod])
            cpu[node] -= told["cpu_milli"][pod]
            for gpu in filter(None, told["gpu_indices"][pod].split(",")):
                free[node, int(gpu)] -= told["gpu_milli"][pod]
        used = (there.gpu_free_milli.sum() - free.sum()) / 1000
        assert account.steps.used_gpus[step] == pytest.approx(used)
        gone = {node for node, begin, end in known.offered.absences if begin <= at_s < end}
        rows_there = [node for node in range(len(cpu)) if node not in gone]
        fragments = fragment_milli(cpu[rows_there], free[rows_there], there.model[rows_there], known.offered.tasks.mix)
        assert account.steps.fragment_gpus[step] == pytest.approx(fragments.sum() / 1000, abs=1e-6)


def test_fragments_are_unknown_where_places_are() -> None:
    later: Row = {"submitted_s": HOUR, "node": "node-0"}
    share: Row = {"gpu_milli": 400, "node": "node-0", "gpu_indices": "3"}
    assert fragments_of(share, later) is not None
    assert fragments_of(share | {"gpu_indices": ""}, later) is None
    assert fragments_of({"node": ""}, later) is None
    assert fragments_of({"node": "elsewhere"}, later) is None
    assert fragments_of({"gpus": 0, "gpu_milli": 0}, later) is not None  # it has no GPUs to know of
    for hostile in ("8", "-1", "9" * 40, "\u0663", "0,,1", "x"):
        assert fragments_of(share | {"gpu_indices": hostile}, later) is None


def test_whole_gpus_are_alike_and_may_be_held_twice_for_a_moment() -> None:
    """All 8 are held by two pods whose times overlap: nothing is free, so nothing is a fragment."""
    whole: Row = {"gpus": 8, "node": "node-0", "ended_s": 2 * HOUR}
    assert fragments_of(whole, whole | {"submitted_s": 1.5 * HOUR, "gpu_indices": "77,78"}) == 0
    one: Row = {"node": "node-0", "gpu_indices": "0", "ended_s": 2 * HOUR, "cpu_milli": 0}
    later = one | {"submitted_s": HOUR, "gpu_indices": "1"}
    assert fragments_of(one, one, later) == fragments_of(one, later)
