"""Released pods that did not get their node: the loss is noted on them, and they are nominated again in order."""

from extender.core.orders import Order
from extender.core.resources.requests import GpuRequest
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.scheduling.placer import PodIdentity
from tests.queueing.rigs import Rig, lost


def counts(rig: Rig) -> tuple[int, int, int]:
    return rig.queue.counts.nominated_anew, rig.queue.counts.honoured, rig.queue.counts.fallbacks


def gang(rig: Rig, size: int, **annotations: str) -> list[str]:
    """Release a gang; return its pods."""
    names = [f"g{number}" for number in range(size)]
    for name in names:
        rig.pod(name, 1, gang="g", gang_size=str(size), **annotations)
    rig.round()
    return names


def test_a_pod_that_lost_its_node_is_nominated_again_in_its_turn_and_each_loss_is_counted() -> None:
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
    rig.refuse("p", "cordoned")
    rig.round(20.0)
    assert counts(rig) == (1, 1, 0)  # the refusal may be the one from before
    rig.gone("next")
    rig.round(11.0)
    assert rig.note("p", "nomination-lost") == "2. a: cordoned"
    rig.bind("p")
    assert counts(rig) == (2, 2, 0)


def test_what_kube_scheduler_places_meanwhile_is_left_alone() -> None:
    rig = lost()
    rig.round(3.0)
    rig.node("c", 1)
    rig.ledger.reserve("p", "c", Holding(1), rig.now)  # filter has decided
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert rig.ledger.is_reserved("p", "c")
    assert (counts(rig), rig.queue.counts.outdated) == ((0, 1, 0), 0)
    assert not rig.queue.dispatcher.reserve([(rig.entry("p"), "a")])
    assert rig.ledger.is_reserved("p", "c")
    rig.gone("p")
    assert counts(rig) == (0, 1, 1)


def test_a_pod_that_was_bound_elsewhere_says_which_node_was_lost_and_why() -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    assert rig.queue.notes("p") == {}, "it holds nothing"
    rig.ledger.reserve("p", "a", Holding(1), rig.now)
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: the node is gone"}
    rig.node("b", 1)
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: kube-scheduler did not take it"}
    rig.why_refused = lambda pod: f"{pod.name} was refused"
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: p was refused"}
    rig.ledger.reserve("p", "b", Holding(1), rig.now)
    rig.ledger.reserve("outside", "a", Holding(1), rig.now)
    assert rig.queue.notes("p") == rig.queue.notes("runs") == rig.queue.notes("outside") == {}


def test_behind_the_head_a_pod_that_lost_its_node_leaves_the_heads_nodes_alone() -> None:
    rig = Rig(order=Order.FIFO, reserve_after_s=10.0, skip_s=60.0)
    rig.node("c", 4)
    rig.ledger.reserve("runs", "c", Holding(4), 1e9)
    rig.pod("large", 4, created="2026-01-01T00:00:00Z")
    rig.round(11.0)
    for node, name, created in (("a", "first", "2025-01-01T00:00:00Z"), ("b", "p", "2026-01-01T00:00:01Z")):
        rig.node(node, 1)
        rig.pod(name, 1, created=created)
        rig.round()
        assert rig.node_of(name) == node
        assert not rig.queue.kept_from(name)  # it may find another node by itself
    for node, name in (("a", "first"), ("b", "p")):
        rig.remove_node(node)
        rig.refuse(name)
    rig.round(3.0)
    assert (rig.queue.kept_from("first"), rig.queue.kept_from("p")) == (frozenset(), frozenset({"c"}))
    assert (rig.queue.will_nominate("p"), rig.queue.will_nominate("large")) == (True, False)


def test_a_gang_that_lost_a_node_is_nominated_again_within_its_domain() -> None:
    rig = Rig()
    for name, rack in (("a", "one"), ("b", "one"), ("c", "two")):
        rig.node(name, 1, rack=rack)
    gang(rig, 2, gang_topology="rack")
    rig.bind("g0")
    lost_node = rig.node_of("g1")
    assert {rig.node_of("g0"), lost_node} == {"a", "b"}
    rig.remove_node(lost_node)
    rig.refuse("g1")
    rig.round(6.0)
    assert rig.entry("g1").lost  # there is room, in the other rack
    rig.node("d", 1, rack="one")
    rig.round(6.0)
    assert rig.note("g1", "planned-node") == "d"


def test_a_gang_that_lost_all_its_nodes_keeps_to_the_domain_that_is_written_into_it() -> None:
    rig = Rig()
    for node in ("a", "b"):
        rig.node(node, 1, rack="one")
    names = gang(rig, 2, gang_topology="rack")
    for node in ("a", "b"):
        rig.remove_node(node)
        rig.node(node, 1, rack="two")
    for name in names:
        rig.refuse(name)
    rig.round(6.0)
    assert all(rig.entry(name).lost for name in names)
    for node in ("c", "d"):
        rig.node(node, 1, rack="one")
    rig.round(6.0)
    assert {rig.note(name, "planned-node") for name in names} == {"c", "d"}


def test_a_member_that_lost_its_node_counts_once_and_waits_for_those_that_are_missing() -> None:
    rig = Rig()
    rig.node("a", 3)
    gang(rig, 3)
    rig.bind("g0")
    rig.gone("g2")
    del rig.api.pods["g2"]
    rig.refuse("g1")
    rig.round(6.0)
    assert rig.note("g1") == "gang ns/g waits for its pods: 2 of 3 exist"


def test_after_a_restart_released_pods_are_known_by_what_is_written_on_them() -> None:
    before = lost()
    rig = Rig(before.api, quotas=Quotas({"ns": 1.0}))
    rig.node("a", 1)
    rig.told("p")
    rig.pod("next", 1)
    rig.entry("next").created = 1e10
    rig.ledger.reserve("other", "a", Holding(1), rig.now)
    rig.round(3.0)
    assert rig.entry("p").lost == "b: 0/1 nodes are available"
    rig.ledger.release("other")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("next")) == ("a", "")
    assert rig.queue.over_quota(PodIdentity("ns", "p", "p"), GpuRequest(1)) == ""
