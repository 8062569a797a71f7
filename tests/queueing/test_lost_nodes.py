"""Pods that were let go for a node which they did not get: they are told why, and nominated anew in their turn."""

import pytest

from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.watches import PODS
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.queueing.rigs import Rig, lost


def test_pods_let_go_that_find_no_node_do_not_stop_the_queue() -> None:
    rig = Rig(max_open=2)
    rig.node("n", 8)
    for name in "abcd":
        rig.pod(name, 1)
    rig.round()
    assert [name for name in "abcd" if rig.node_of(name)] == ["a", "b"]
    rig.round()
    assert not rig.node_of("c")
    rig.round(31.0)  # kube-scheduler found a reason against the nodes of a and b
    assert [rig.node_of(name) for name in "cd"] == ["n", "n"]


def test_a_pod_let_go_that_lost_its_node_is_nominated_anew_in_its_turn() -> None:
    rig = lost()
    rig.pod("next", 1, created="2026-01-01T00:00:00Z")
    rig.round(2.0)
    assert rig.note("p") == "needs 1 GPU, best node: 0 free"
    assert not rig.queue.backlog.on_their_way(rig.now)
    rig.ledger.remove_pod("runs")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("next")) == ("a", "")
    assert rig.note("p", "nomination-lost") == "1. b: 0/1 nodes are available"
    assert (rig.note("p", "planned-node"), rig.note("p")) == ("a", "")
    assert rig.ledger.is_reserved("p", "a")
    rig.round(3.0)  # the refusal from before is still what the API server has
    assert rig.queue.counts.nominated_anew == 1
    rig.bind("p")
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (2, 0)


def test_a_second_loss_is_counted() -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert rig.node_of("p") == "a"
    rig.refuse("p", "cordoned")
    rig.round(20.0)
    assert rig.queue.counts.nominated_anew == 1  # it may be the word from before
    rig.round(11.0)
    assert rig.note("p", "nomination-lost") == "2. a: cordoned"
    assert rig.queue.counts.nominated_anew == 2
    rig.bind("p")
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (2, 0)


def test_a_reservation_on_a_node_that_kube_scheduler_refused_without_asking_kerf_is_given_back() -> None:
    rig = lost()
    rig.ledger.reserve("p", "b", Holding(1), rig.now)
    rig.round(3.0)
    assert rig.ledger.claim("p") is None


@pytest.mark.parametrize("error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(404, "", "gone")])
def test_a_nomination_that_could_not_be_written_is_tried_again(error: ClusterError) -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    rig.api.fail = lambda name, part: error
    rig.round(3.0)
    assert not rig.ledger.claim("p")
    rig.api.fail = lambda name, part: None
    rig.round(3.0)
    assert rig.node_of("p") == "a"


def test_what_kube_scheduler_places_meanwhile_is_left_alone() -> None:
    rig = lost()
    rig.round(3.0)
    rig.node("c", 1)
    rig.ledger.reserve("p", "c", Holding(1), rig.now)  # filter has decided
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert rig.ledger.is_reserved("p", "c")
    assert (rig.queue.counts.nominated_anew, rig.queue.counts.outdated) == (0, 0)
    assert not rig.queue.dispatcher.reserve([(rig.queue.backlog.entries["p"], "a")])
    assert rig.ledger.is_reserved("p", "c")
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["p"]))
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (1, 1)


def test_a_pod_that_is_deleted_after_it_lost_its_node_did_not_get_it() -> None:
    rig = lost()
    rig.round(3.0)
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["p"]))
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (1, 1)


def test_what_was_bound_elsewhere_says_which_node_was_lost_and_why() -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    rig.ledger.reserve("p", "a", Holding(1), rig.now)
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: the node is gone"}
    rig.node("b", 1)
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: kube-scheduler did not take it"}
    rig.why_refused = lambda pod: f"{pod.name} was refused"
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: p was refused"}
    rig.ledger.reserve("p", "b", Holding(1), rig.now)
    assert rig.queue.notes("p") == {}
    assert rig.queue.notes("runs") == {}


def test_behind_the_head_a_pod_that_lost_its_node_leaves_its_nodes_alone_for_a_bounded_time() -> None:
    rig = Rig(order=Order.FIFO, reserve_after_s=10.0, skip_s=60.0)
    rig.node("c", 4)
    for name, gpus in (("r3", 3), ("r1", 1)):
        rig.pod(name, gpus)
    rig.round()
    rig.bind("r3")
    rig.bind("r1")
    rig.pod("large", 4, created="2026-01-01T00:00:00Z")
    rig.round(11.0)
    for node, name, created in (("a", "first", "2025-01-01T00:00:00Z"), ("b", "p", "2026-01-01T00:00:01Z")):
        rig.node(node, 1)
        rig.pod(name, 1, created=created)
        rig.round()
        assert rig.node_of(name) == node
    for node, name in (("a", "first"), ("b", "p")):
        rig.remove_node(node)
        assert not rig.queue.kept_from(name)  # it may find another node by itself
        rig.refuse(name)
    rig.round(3.0)
    assert rig.queue.kept_from("p") == {"c"}
    assert not rig.queue.kept_from("first")
    assert rig.queue.will_nominate("p")
    assert not rig.queue.will_nominate("large")
    rig.ledger.remove_pod("r1")
    rig.round()
    assert (rig.node_of("first"), rig.note("first", "nomination-lost")) == ("c", "1. a: 0/1 nodes are available")
    rig.ledger.remove_pod("first")
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["first"]))
    rig.ledger.release("first")
    rig.round()
    assert str(rig.queue.backlog.entries["p"].skips.reason) == "room is kept for ns/large"
    assert rig.queue.kept_from("p") == {"c"}
    rig.now += 60.1
    assert not rig.queue.kept_from("p")
    rig.round()
    assert rig.note("p", "planned-node") == "c"


def test_a_gang_that_lost_nodes_is_nominated_anew_within_its_domain() -> None:
    rig = Rig()
    for name, rack in (("a", "one"), ("b", "one"), ("c", "two")):
        rig.node(name, 1, rack=rack)
    for name in ("g0", "g1"):
        rig.pod(name, 1, gang="g", gang_size="2", gang_topology="rack")
    rig.round()
    rig.bind("g0")
    lost_node = rig.node_of("g1")
    assert {rig.node_of("g0"), lost_node} == {"a", "b"}
    rig.remove_node(lost_node)
    rig.refuse("g1")
    rig.round(6.0)
    assert rig.queue.backlog.entries["g1"].lost  # there is room, in the other rack
    rig.node("d", 1, rack="one")
    rig.round(6.0)
    assert rig.note("g1", "planned-node") == "d"


def test_a_gang_that_lost_all_its_nodes_keeps_to_the_domain_that_is_written_into_it() -> None:
    rig = Rig()
    names = ("g0", "g1")
    for node in ("a", "b"):
        rig.node(node, 1, rack="one")
    for name in names:
        rig.pod(name, 1, gang="g", gang_size="2", gang_topology="rack")
    rig.round()
    for node in ("a", "b"):
        rig.remove_node(node)
        rig.node(node, 1, rack="two")
    for name in names:
        rig.refuse(name)
    rig.round(6.0)
    assert all(rig.queue.backlog.entries[name].lost for name in names)
    for node in ("c", "d"):
        rig.node(node, 1, rack="one")
    rig.round(6.0)
    assert {rig.note(name, "planned-node") for name in names} == {"c", "d"}


def test_a_member_that_lost_its_node_counts_once() -> None:
    rig = Rig()
    rig.node("a", 3)
    for name in ("g0", "g1", "g2"):
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.round()
    rig.bind("g0")
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods.pop("g2")))
    rig.refuse("g1")
    rig.round(6.0)
    assert rig.note("g1") == "gang ns/g waits for its pods: 2 of 3 exist"


def test_after_a_restart_pods_let_go_are_known_by_what_is_written_on_them() -> None:
    before = lost()
    rig = Rig(before.api)
    rig.node("a", 1)
    rig.hub.cache(PODS).upsert(decode_pod(before.api.pods["p"]))
    rig.pod("next", 1)
    rig.queue.backlog.entries["next"].created = 1e10
    rig.ledger.reserve("other", "a", Holding(1), rig.now)
    rig.round(3.0)
    assert rig.queue.backlog.entries["p"].lost == "b: 0/1 nodes are available"
    rig.ledger.release("other")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("next")) == ("a", "")


def test_a_pod_known_from_before_a_restart_is_within_its_quota_once_it_is_nominated_anew() -> None:
    before = lost()
    rig = Rig(before.api, quotas=Quotas({"ns": 1.0}))
    rig.node("a", 1)
    rig.told("p")
    rig.round()
    assert rig.node_of("p") == "a"
    assert rig.queue.over_quota(PodIdentity("ns", "p", "p"), GpuRequest(1)) == ""
