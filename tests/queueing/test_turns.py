"""Rounds: the queue order, how long pods wait for the head, fair share and quotas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.scheduling.placer import PodIdentity
from tests.queueing.rigs import Rig


def with_a_head() -> Rig:
    """A pod runs on the only node, and one waits that needs all of it."""
    rig = Rig(order=Order.FIFO, reserve_after_s=0.0, skip_s=60.0)
    rig.node("n", 8)
    rig.pod("runs", 1)
    rig.round()
    rig.bind("runs")
    rig.pod("large", 8, created="1970-01-01T00:00:01Z")
    rig.round()
    return rig


@settings(deadline=None)
@given(steps=st.lists(st.floats(0.1, 40.0), min_size=1, max_size=20), num_small=st.integers(1, 4))
def test_s9_no_pod_is_kept_from_the_nodes_of_the_first_for_longer_than_allowed(
    steps: list[float], num_small: int
) -> None:
    """The worst case for the pods behind it: the head never gets room."""
    rig = with_a_head()
    kept_since = rig.now + 0.1
    names = [f"small{number}" for number in range(num_small)]
    for name in names:
        rig.pod(name, 1, created="1970-01-01T00:00:02Z")
    rig.round()
    for step in steps:
        assert [name for name in names if rig.node_of(name)] == (names if rig.now - kept_since >= 60.0 else [])
        rig.round(step)
    rig.round(61.0)
    assert [name for name in ("large", *names) if rig.node_of(name)] == names


def test_nodes_are_not_kept_for_longer_than_allowed_for_one_who_gets_no_room() -> None:
    rig = with_a_head()
    for number in range(5):  # one after the other, each of them passed over for a short time only
        rig.pod(f"small{number}", 1, created="1970-01-01T00:00:02Z")
        rig.round(14.0)
        assert not rig.node_of("small0")
    rig.round(14.0)
    assert all(rig.node_of(f"small{number}") == "n" for number in range(5))
    rig.pod("later", 1, created="1970-01-01T00:00:03Z")
    rig.round(40.0)
    assert rig.node_of("later") == "n"  # the head backs off


@pytest.mark.parametrize(("order", "first"), [(Order.FIFO, "long-1"), (Order.KERF, "short-1")])
def test_a4_shorter_pods_go_first_in_that_order(order: Order, first: str) -> None:
    rig = Rig(order=order)
    rig.node("n", 1)
    for name, seconds in (("long", 5000.0), ("short", 5.0)):
        rig.queue.durations.finished((f"ns/Pod/{name}/1 GPUs", "ns/1 GPUs", "ns"), seconds)
    rig.pod("long-1", 1)
    rig.pod("short-1", 1)
    rig.round()
    assert rig.api.order == [first]


@pytest.mark.parametrize(("later", "first"), [("1970-01-01T00:01:49Z", "large"), ("1970-01-01T00:01:51Z", "small")])
def test_s1_a_pod_that_wastes_a_gpu_yields_to_those_that_come_soon_after(later: str, first: str) -> None:
    rig = Rig(order=Order.FIFO, patience_s=100.0)
    rig.wastes_gpu = lambda request: request.count == 1
    rig.node("n", 2)
    rig.pod("small", 1, created="1970-01-01T00:00:10Z")
    rig.pod("large", 2, created=later)  # 99 or 101 s after it
    rig.round()
    assert rig.api.order == [first]


def test_where_shares_are_fair_the_namespace_with_less_goes_first() -> None:
    rig = Rig(fair_share=True, order=Order.FIFO)
    rig.node("n", 3)
    rig.pod("has", 2)
    rig.round()
    rig.bind("has")
    rig.told("has")
    rig.pod("a", 1, created="2026-01-01T00:00:00Z")
    rig.pod("b", 1, created="2026-01-02T00:00:00Z", namespace="other")
    rig.round()
    assert (rig.node_of("a"), rig.node_of("b")) == ("", "n")


def test_pods_that_nobody_binds_hold_up_no_other_namespace() -> None:
    rig = Rig(max_open=8)
    rig.node("n", 64)
    for number in range(20):
        rig.pod(f"stuck-{number:02}", 1, created="2026-01-01T00:00:00Z")
    rig.round()
    assert len(rig.placed()) == 8  # no other namespace waits
    rig.pod("good", 1, namespace="good")
    rig.round()
    assert rig.node_of("good") == "n"


def test_quotas_hold_for_those_who_opt_out_of_the_queue() -> None:
    rig = Rig(quotas=Quotas({"ns": 2.0}))
    rig.node("n", 8)

    def asks(name: str, namespace: str = "ns") -> str:
        """The answer to filter, which reserves if it is ""."""
        why = rig.queue.over_quota(PodIdentity(namespace, name, name), GpuRequest(1))
        if not why:
            rig.ledger.reserve(name, "n", Holding(1), rig.now)
        return why

    assert [asks(name) for name in ("a", "b", "b", "c", "d")] == ["", "", "", *["quota of namespace ns: 2 GPUs"] * 2]
    rig.ledger.reserve("a", "n", Holding(2), rig.now)  # it requested memory in total: that is known only now
    rig.ledger.release("b")
    assert asks("c")
    rig.ledger.reserve("a", "n", Holding(1), rig.now)
    assert asks("b") == asks("e", "free") == ""
    rig.ledger.release("a")
    assert [asks("c"), asks("d")] == ["", "quota of namespace ns: 2 GPUs"]
    rig.pod("queued", 1)
    rig.round()
    assert rig.node_of("queued") == ""  # their GPUs count
    rig.ledger.release("c")
    rig.round()
    assert rig.node_of("queued") == "n"
    assert rig.queue.over_quota(PodIdentity("ns", "queued", "queued"), GpuRequest(1)) == ""
    assert asks("d")


@pytest.mark.parametrize(("ranked", "node"), [(True, "a"), (False, "b")])
def test_a_pod_without_gpus_goes_where_gpu_pods_lose_least_if_that_is_wanted(ranked: bool, node: str) -> None:
    """1 of 3 GPUs of a is free, and 2 of 8 of b, of which three pods have 3 of 64 CPU."""
    rig = Rig(rank_cpu_pods=ranked)
    rig.node("a", 3)
    rig.node("b", 8)
    for name, expected in (("p0", "a"), ("p1", "b"), ("p2", "b"), ("p3", "b")):
        rig.pod(name, 2)
        rig.round()
        assert rig.node_of(name) == expected
        rig.bind(name)
    rig.pod("web", 0)
    rig.round()
    assert rig.node_of("web") == node
