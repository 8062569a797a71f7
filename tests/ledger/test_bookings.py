"""Bindings in the ledger: their outcomes, pods that were read instead of watched, and whose word counts."""

from extender.core.annotations import COUNT
from extender.kube import objects
from extender.ledger.ledger import AllocationState, Ledger
from extender.plugins.holdings import Holding, whole_gpus
from extender.plugins.nvidia import hami
from extender.plugins.pods import read_holdings
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.ledger.builders import T4_MIB, TTL_S, free, ledger_of, pod_object, taken, untracked
from tests.plugins.rigs import A, B, hami_node, sharing

BOUND, UNDECIDED = AllocationState.BOUND, AllocationState.UNDECIDED


def pod(assigned: str, node: str = "n") -> objects.Pod:
    """Pod "u", which requests by annotation alone as many GPUs as are assigned."""
    count = {COUNT: str(len(assigned.split(",")))} if assigned else {}
    return pod_object("p", uid="u", node=node, annotations=count, assigned=assigned or None)


def test_a_binding_ends_with_its_outcome() -> None:
    outcomes: tuple[tuple[tuple[AllocationState | None, ...], set[int]], ...] = (
        ((BOUND,), {1}),
        ((None,), set()),
        ((UNDECIDED,), {1}),
        ((UNDECIDED, BOUND), {1}),
        ((UNDECIDED, None), set()),
    )
    for told, held in outcomes:
        ledger = ledger_of(n=2)
        ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
        claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 10.0)
        assert taken(ledger, now=10.0 + 10 * TTL_S) == {1}, "a Binding that was sent has no TTL"
        for outcome in told:
            ledger.reserve("u", "n", whole_gpus(1, (0,)), 350.0)
            ledger.release("u")
            assert (ledger.allocation("u"), taken(ledger)) == (claim, {1}), "neither is possible any more"
            ledger.end_binding(claim, outcome, 400.0)
        assert taken(ledger, now=400.0) == taken(ledger, now=400.0 + TTL_S) == held


def test_a_pod_that_is_bound_elsewhere_than_reserved_leaves_the_first_node() -> None:
    ledger = ledger_of(a=2, b=2)
    ledger.reserve("u", "a", whole_gpus(1, (0,)), 0.0)
    claim = ledger.begin_binding("u", "b", whole_gpus(1, (1,)), 10.0)
    assert (taken(ledger, "a"), taken(ledger, "b")) == (set(), {1})
    assert (claim.node, claim.state, claim.since) == ("b", AllocationState.BINDING, 10.0)
    ledger.upsert_pod(pod("1", "a"), 11.0)
    ledger.end_binding(claim, BOUND, 12.0)
    assert (taken(ledger, "a"), taken(ledger, "b")) == ({1}, set()), "the watch reports it there"


def test_what_was_read_of_a_pod_is_held_until_its_outcome_is_known() -> None:
    ledger = ledger_of(n=2, m=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (1,)), 0.0)
    read = ledger.hold_as_read(pod("0", "m"), 1.0)
    assert read is not None
    assert (read.state, read.since) == (UNDECIDED, 1.0)
    ledger.end_binding(claim, None, 1.0)
    assert (taken(ledger, "n", 1.0), taken(ledger, "m", 1.0 + 10 * TTL_S)) == (set(), {0})
    ledger.end_binding(read, None, 400.0)
    assert taken(ledger, "m", 400.0) == set()
    ledger.upsert_pod(pod("1", "m"), 500.0)
    assert ledger.hold_as_read(pod("0", "m"), 501.0) is None
    assert taken(ledger, "m", 501.0) == {1}, "what the watch has reported counts"


def test_what_was_read_is_held_beside_what_was_sent_to_that_node() -> None:
    ledger = ledger_of(n=4)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    read = ledger.hold_as_read(pod("2"), 1.0)
    assert read is not None
    for ended, outcome in ((claim, None), (read, BOUND)):
        ledger.end_binding(ended, outcome, 2.0)
        assert taken(ledger) == {0, 2}, "either may be true: an author may have edited the pod at once"
    ledger.upsert_pod(pod("3"), 3.0)
    assert taken(ledger) == {0, 2}, "a later edit changes nothing"
    ledger = ledger_of(n=4)
    ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_pod(pod("1"), 1.0)
    ledger.hold_as_read(pod("2"), 2.0)
    assert taken(ledger) == {0, 1}


def test_a_pod_without_annotations_holds_what_was_sent_to_its_node() -> None:
    ledger = ledger_of(n=4, m=4)
    assert ledger.hold_as_read(pod(""), 0.0) is None
    assert ledger.hold_as_read(pod("0", node=""), 0.0) is None
    ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    assert ledger.hold_as_read(pod(""), 1.0) is not None
    assert taken(ledger) == {0}
    assert ledger.hold_as_read(pod("", "m"), 2.0) is None, "it was bound elsewhere"
    assert (ledger.allocation("u"), taken(ledger), taken(ledger, "m")) == (None, set(), set())


def test_a_pod_that_had_ended_when_it_was_read_holds_nothing() -> None:
    ledger = ledger_of(n=4)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    assert ledger.hold_as_read(pod_object("p", 1, uid="u", node="n", phase="Failed"), 2.0) is None
    ledger.end_binding(claim, None, 3.0)
    assert (ledger.allocation("u"), taken(ledger)) == (None, set())


# On the nodes of a plugin that shares GPUs, what a pod says is read in its format.


def hami_pod(mib: int) -> objects.Pod:
    annotations = {hami.ALLOCATED: f"{A},NVIDIA,{mib},0:;"}
    return decode_pod(sharing("p", mib, uid="u", node="n", annotations=annotations))


def hami_ledger() -> Ledger:
    return ledger_of(decode_node(hami_node("n", (A, T4_MIB), (B, T4_MIB))))


def on_hami(ledger: Ledger, pod: objects.Pod) -> Holding:
    return read_holdings(pod)[0].on(ledger.rows.plugin_on("n"))


def free_mib(ledger: Ledger) -> list[int]:
    assert untracked(ledger) == 0
    return [mib for _, mib in free(ledger)]


def test_a_share_that_was_read_or_reported_is_held_as_one() -> None:
    ledger = hami_ledger()
    ledger.hold_as_read(hami_pod(4000), 0.0)
    assert free_mib(ledger) == [T4_MIB - 4000, T4_MIB]
    ledger, pod = hami_ledger(), hami_pod(4000)
    claim = ledger.begin_binding("u", "n", on_hami(ledger, pod), 0.0)
    ledger.upsert_pod(pod, 1.0)
    assert (claim.state, claim.since, claim.disputed, claim.pod) == (BOUND, 1.0, False, "default/p")
    assert free_mib(ledger) == [T4_MIB - 4000, T4_MIB]


def test_a_share_of_another_clients_binding_is_held_as_one() -> None:
    ledger = hami_ledger()
    claim = ledger.begin_binding("u", "n", on_hami(ledger, hami_pod(2000)), 0.0)
    ledger.upsert_pod(hami_pod(4000), 1.0)
    assert (claim.state, claim.disputed) == (AllocationState.BINDING, True)
    ledger.end_binding(claim, None, 2.0)
    assert (claim.state, claim.since) == (BOUND, 2.0)
    assert free_mib(ledger) == [T4_MIB - 4000, T4_MIB]
