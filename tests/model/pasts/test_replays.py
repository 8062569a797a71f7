"""Replays of a history as a whole."""

import itertools
import json
from typing import Any

import numpy as np
import pytest

from extender.history.records import History, HistoryError
from extender.ranking import files
from model.pasts.pasts import past
from model.pasts.replays import Asked, replay
from model.pasts.usages import Price, _capacity
from tests.history.builders import history, nodes, pods
from tests.model.happenings import as_it_happened
from tests.model.pasts.test_accounts import random_rows

HOUR = 3600.0
CONTRACT = {"allocated_gpus", "mean_delay_s", "p99_delay_s", "large_delay_s", "fragments"}
MODEL = files.read(files.RELEASED)


def replayed(found: History, *policies: str, **config: Any) -> dict[str, Any]:
    return replay(found, Asked(policies, **config), MODEL, lambda _: None)


def test_the_contract() -> None:
    found = history(pods(*random_rows(0, 60)), nodes(8, 8, 4))
    names = ["kerf", "fgd", "kube-default"]
    report = replayed(found, *names, price=Price(2.0, "EUR"))
    assert list(report["policies"]) == names
    for row in report["policies"].values():
        assert row.keys() >= CONTRACT
        month = row["month"]
        assert month["booked_gpu_hours"] == pytest.approx(row["allocated_gpus"] * 720, abs=0.5)
        assert month["booked_gpu_hours"] + month["idle_gpu_hours"] == pytest.approx(20 * 720, abs=0.2)
        assert month["stranded_cost"] == pytest.approx(2 * month["stranded_gpu_hours"], abs=0.01)
    assert report["actual"].keys() >= CONTRACT
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    for name, values in report["timeline"]["gpus"].items():
        row = report["actual"] if name == "actual" else report["policies"][name]
        assert np.mean(values) == pytest.approx(row["allocated_gpus"], abs=0.06)


def test_what_the_default_did_is_trusted_and_what_another_did_late_is_not() -> None:
    plain = history(pods(*random_rows(1, 300)), nodes(8, 8, 8, 4), until_s=60 * HOUR)
    did = as_it_happened(plain, "kube-default", seed=7, late_s=10.0)
    report = replayed(did, "fgd")
    assert report["error"]["trusted"], report["error"]
    assert list(report["policies"]) == ["fgd"]  # the default is replayed, but was not asked for
    late = replayed(as_it_happened(plain, "kube-default", seed=7, late_s=30 * HOUR), "fgd")
    assert late["error"]["trusted"] is False and late["verdict"][0].startswith("No verdict")


def test_fewer_nodes_by_what_happened_or_by_the_default() -> None:
    plain = history(pods(*random_rows(15, 31, (1, 1, 8))), nodes(*(8,) * 4), until_s=60 * HOUR)
    did = as_it_happened(plain, "kube-default", seed=3, late_s=5.0)
    report = replayed(did, "kerf", "kube-default", fewer=True, price=Price(1.0))
    kerf, default = (report["fewer"]["policies"][name] for name in ("kerf", "kube-default"))
    assert kerf["served"] and kerf["gpus"] < default["gpus"]
    assert kerf["month_cost"] == (32 - kerf["gpus"]) * 720
    both = report["error"]["gpu_delay_s"]
    assert report["fewer"]["limits"]["gpu_delay_s"] == min(both["actual"], both["replayed"])


def test_what_can_not_be_replayed() -> None:
    with pytest.raises(ValueError, match="nonesuch"):
        replayed(history(pods({}), nodes(8)), "nonesuch")
    with pytest.raises(HistoryError, match="no period to replay"):
        replayed(history(pods({}), nodes(8)), "fgd")


def test_capacity_against_a_loop() -> None:
    table = nodes(8, 4, 2)
    table["from_s"][0], table["until_s"][1] = 2 * HOUR, 5 * HOUR
    known = past(history(pods({}, {"submitted_s": 10 * HOUR}), table))
    edges_s = np.array([0.0, HOUR, 3 * HOUR, 10 * HOUR])
    by_hand = []
    for begin, end in itertools.pairwise(edges_s):
        at_s = np.arange(begin, end, 60.0) + 30.0
        by_hand.append(np.mean(8 * (at_s >= 2 * HOUR) + 4 * (at_s < 5 * HOUR) + 2))
    assert _capacity(known, edges_s).tolist() == pytest.approx(by_hand)
