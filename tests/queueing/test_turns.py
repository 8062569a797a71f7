"""Whose turn it is: the order, who gives way, what is kept for the first, other namespaces and their quotas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.core.orders import Order
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.dra.objects import ResourceClaim
from extender.kube.watches import PODS
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.plugins.claims import resource_claim
from tests.queueing.rigs import GATES, Manifest, Rig


@settings(deadline=None)
@given(steps=st.lists(st.floats(0.1, 40.0), min_size=1, max_size=20), num_small=st.integers(1, 4))
def test_s9_nobody_is_kept_from_the_nodes_of_the_first_for_longer_than_allowed(
    steps: list[float], num_small: int
) -> None:
    """The first never gets its room here, which is the worst for those behind it."""
    rig = Rig(order=Order.FIFO, reserve_after_s=0.0, skip_s=60.0)
    rig.node("n", 8)
    rig.pod("runs", 1)
    rig.round()
    rig.bind("runs")
    rig.pod("large", 8)
    rig.round()
    kept_since = rig.now + 0.1
    for number in range(num_small):
        rig.pod(f"small{number}", 1)
    rig.round()
    for step in steps:
        held = [rig.node_of(f"small{number}") for number in range(num_small)]
        assert held == (["n"] * num_small if rig.now - kept_since >= 60.0 else [""] * num_small)
        rig.round(step)
    rig.round(61.0)
    assert all(rig.node_of(f"small{number}") == "n" for number in range(num_small))
    assert not rig.node_of("large")


@pytest.mark.parametrize(("order", "first"), [(Order.FIFO, "long-1"), (Order.KERF, "short-1")])
def test_a4_what_is_expected_to_be_shorter_goes_first_where_that_is_the_order(order: Order, first: str) -> None:
    rig = Rig(order=order)
    rig.node("n", 1)
    for name, seconds in (("long", 5000.0), ("short", 5.0)):
        rig.queue.durations.finished((f"ns/Pod/{name}/1 GPUs", "ns/1 GPUs", "ns"), seconds)
    rig.pod("long-1", 1)
    rig.pod("short-1", 1)
    rig.round()
    assert rig.api.order == [first]


def test_a4_nobody_is_held_back_longer_than_the_bound() -> None:
    rig = Rig(order=Order.KERF, held_most_s=100.0)
    rig.node("n", 1)
    rig.queue.durations.finished(("ns/Pod/long/1 GPUs", "ns/1 GPUs", "ns"), 1e6)
    rig.queue.durations.finished(("ns/Pod/short/1 GPUs", "ns/1 GPUs", "ns"), 0.0)
    rig.pod("long-1", 1, created="1970-01-01T00:00:10Z")
    rig.pod("short-1", 1, created="1970-01-01T00:01:51Z")  # 101 s after it
    rig.round()
    assert rig.api.order == ["long-1"]


@pytest.mark.parametrize(("later", "first"), [("1970-01-01T00:01:49Z", "large"), ("1970-01-01T00:01:51Z", "small")])
def test_s1_who_takes_more_than_his_part_gives_way_to_those_that_come_soon_after(later: str, first: str) -> None:
    rig = Rig(order=Order.FIFO, patience_s=100.0)
    rig.takes_more = lambda request: request.count == 1
    rig.node("n", 2)
    rig.pod("small", 1, created="1970-01-01T00:00:10Z")
    rig.pod("large", 2, created=later)  # 99 or 101 s after it
    rig.round()
    assert rig.api.order == [first]
    rig.bind(first)
    rig.round()
    assert rig.api.order == [first]  # no room


def test_s1_who_gives_way_goes_where_nobody_else_can() -> None:
    rig = Rig(patience_s=100.0)
    rig.takes_more = lambda request: request.count == 1
    rig.node("n", 2)
    rig.pod("small", 1)
    rig.pod("huge", 3)
    rig.round()
    assert rig.api.order == ["small"]


def other(name: str, gpus: int, namespace: str) -> Manifest:
    """A pod of another namespace, behind the gate."""
    resources = {"limits": {"nvidia.com/gpu": gpus, "cpu": 1}}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "annotations": {}},
        "spec": {"schedulingGates": GATES, "containers": [{"resources": resources}]},
        "status": {"phase": "Pending"},
    }


def test_pods_that_nobody_binds_hold_up_no_other_namespace() -> None:
    rig = Rig(max_open=8)
    rig.node("n", 64)
    for number in range(20):
        rig.pod(f"stuck-{number:02}", 1, created="2026-01-01T00:00:00Z")
    rig.round()
    assert sum(bool(rig.node_of(f"stuck-{number:02}")) for number in range(20)) == 8  # nobody else waits
    rig.api.pods["good"] = other("good", 1, "good")
    rig.hub.cache(PODS).upsert(decode_pod(rig.api.pods["good"]))
    rig.round()
    assert rig.node_of("good") == "n"


def test_devices_of_resource_claims_count_against_quotas() -> None:
    rig = Rig(quotas=Quotas({"default": 2.0}))
    rig.ledger.upsert_device(resource_claim("a", devices=("gpu-0", "gpu-1")))
    identity, asked = PodIdentity("default", "p", "p"), GpuRequest(1, AskedUnit.CLAIM)
    assert rig.queue.over_quota(identity, asked) == "quota of namespace default: 2 GPUs"
    rig.ledger.upsert_device(resource_claim("a", devices=("gpu-0",)))
    assert rig.queue.over_quota(identity, asked) == ""
    rig.ledger.remove_device(ResourceClaim, "uid-a")
    assert rig.queue.over_quota(identity, GpuRequest(2, AskedUnit.CLAIM)) == ""


def test_quotas_hold_for_those_who_opt_out_of_the_queue() -> None:
    rig = Rig(quotas=Quotas({"ns": 2.0}))
    rig.node("n", 8)

    def asks(name: str, namespace: str = "ns") -> str:
        """What filter would be told, and what it then does."""
        identity, request = PodIdentity(namespace, name, name), GpuRequest(1)
        why = rig.queue.over_quota(identity, request)
        if not why:
            rig.ledger.reserve(name, "n", Holding(1), rig.now)
        return why

    assert [asks(name) for name in ("a", "b", "b", "c", "d")] == ["", "", "", *["quota of namespace ns: 2 GPUs"] * 2]
    rig.ledger.reserve("a", "n", Holding(2), rig.now)  # it asked for memory in total: that is known only now
    rig.ledger.release("b")
    assert asks("c")
    rig.ledger.reserve("a", "n", Holding(1), rig.now)
    assert asks("b") == asks("e", "free") == ""
    rig.ledger.release("a")
    assert [asks("c"), asks("d")] == ["", "quota of namespace ns: 2 GPUs"]
    rig.pod("queued", 1)
    rig.round()
    assert rig.node_of("queued") == ""  # and what they have counts
    rig.ledger.release("c")
    rig.round()
    assert rig.node_of("queued") == "n"
    assert rig.queue.over_quota(PodIdentity("ns", "queued", "queued"), GpuRequest(1)) == ""
    assert asks("d")


@pytest.mark.parametrize(("ranked", "node"), [(True, "a"), (False, "b")])
def test_a_pod_without_gpus_goes_where_those_who_ask_for_them_lose_least_if_that_is_wanted(
    ranked: bool, node: str
) -> None:
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


def test_nodes_are_not_kept_for_longer_than_allowed_for_one_who_gets_no_room() -> None:
    rig = Rig(order=Order.FIFO, reserve_after_s=0.0, skip_s=60.0)
    rig.node("n", 8)
    rig.pod("runs", 1)
    rig.round()
    rig.bind("runs")
    rig.pod("large", 8, created="1970-01-01T00:00:01Z")
    rig.round()
    for number in range(5):  # one after the other, each of them passed over for a short time only
        rig.pod(f"small{number}", 1, created="1970-01-01T00:00:02Z")
        rig.round(14.0)
        assert rig.node_of("small0") == ("n" if number == 5 else "")
    rig.round(14.0)
    assert all(rig.node_of(f"small{number}") == "n" for number in range(5))
    rig.pod("later", 1, created="1970-01-01T00:00:03Z")
    rig.round(40.0)
    assert rig.node_of("later") == "n"  # nor again at once


def test_a_label_keeps_no_nodes_for_a_pod() -> None:
    """Both wait for all of the node; what is kept is kept for the older one, whatever the other one calls itself."""
    rig = Rig(order=Order.FIFO, reserve_after_s=0.0)
    rig.node("n", 8)
    rig.pod("runs", 1)
    rig.round()
    rig.bind("runs")
    rig.pod("honest", 8, created="1970-01-01T00:00:01Z")
    rig.pod("loud", 8, created="1970-01-01T00:00:02Z")
    rig.api.pods["loud"]["metadata"]["labels"] = {"genius/priority": "90"}
    rig.told("loud")
    rig.pod("small", 1, created="1970-01-01T00:00:03Z")
    rig.round(5.0)
    assert rig.note("small") == "room is kept for ns/honest"
