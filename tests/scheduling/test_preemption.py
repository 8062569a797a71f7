"""A node without some of its pods is the node as it would be had they never been there."""

from dataclasses import fields
from itertools import chain, combinations

import numpy as np
import pytest

from extender.kube import objects
from extender.ledger.ledger import Ledger
from tests.ledger.builders import node_object, pod_object

PODS = (
    pod_object("whole", 2, node="n", assigned="0,3"),
    pod_object("also-3", 1, node="n", assigned="3"),  # which is one too many there
    pod_object("foreign", 1, node="n"),
    pod_object("elsewhere", 1, node="m", assigned="0"),
)


def ledger_of(pods: tuple[objects.Pod, ...]) -> Ledger:
    ledger = Ledger(reservation_ttl_s=30.0)
    for name in ("m", "n"):
        ledger.upsert_node(node_object(name, 4))
    for pod in pods:
        ledger.upsert_pod(pod, 0.0)
    return ledger


SETS = list(chain.from_iterable(combinations(PODS, count) for count in range(len(PODS) + 1)))


@pytest.mark.parametrize("gone", SETS, ids=lambda gone: "+".join(pod.metadata.name for pod in gone) or "nobody")
def test_without(gone: tuple[objects.Pod, ...]) -> None:
    ledger = ledger_of(PODS)
    before = ledger.snapshot(0.0)
    alone = ledger.without("n", {pod.metadata.uid for pod in gone}, 0.0)
    assert alone is not None
    assert (alone.node_names, alone.row_of) == (("n",), {"n": 0})
    expected = ledger_of(tuple(pod for pod in PODS if pod not in gone)).snapshot(0.0)
    row = expected.row_of["n"]
    for field in fields(expected):
        value = getattr(expected, field.name)
        if isinstance(value, np.ndarray) and field.name not in ("row_version", "tie_rank", "cpu_free_milli"):
            assert np.array_equal(getattr(alone, field.name), value[row : row + 1]), field.name
    assert ledger.snapshot(0.0) is before, "only asked, nothing changed"


def test_a_node_that_is_not_known() -> None:
    assert ledger_of(()).without("nowhere", set(), 0.0) is None
