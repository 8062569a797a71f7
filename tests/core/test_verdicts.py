"""What a verdict tells, and the two short ways to one: for a node chosen before, and from the top of the ranking."""

from dataclasses import replace

import numpy as np
import pytest

from extender.core.clusters import Cluster, Floats, Rows
from extender.core.decisions import Decision, choice, decide, decide_from_top, decide_on
from extender.core.evaluations import Evaluation, Memo, evaluate
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit, Reason
from extender.core.gauges import Gauge
from extender.core.policies.policy import Policy
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node, wholly
from tests.core.observing import observe, observed_cluster

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
ONE = GpuRequest(1)
WHOLE = AskedUnit.WHOLE
TOLD = replace(POLICIES["tightest"], terms=lambda cluster, request, row: {"row": row})
"""A policy that can say what its scores are made of."""
LIVE = POLICIES["live"]


def same(one: Decision, other: Decision) -> bool:
    """Whether two verdicts are the same but for the candidates that they look at."""
    return replace(one, rows=other.rows, evaluation=other.evaluation) == other


def test_from_the_top_tells_all_that_a_verdict_tells() -> None:
    cluster = cluster_of(
        {
            "a": node(*[T4] * 8, numas=[0, 0, 0, 0, 1, 1, 1, 1]),
            "b": node(A100, used={0: (300, 1000)}),
            "full": node(T4, held=[0]),
        }
    )
    for request in (GpuRequest(5), GpuRequest(2), GpuRequest(1, WHOLE, 2048, milli=500)):
        plain = decide(cluster, request, TOLD, all_rows(cluster), Memo())
        found = decide_from_top(cluster, request, TOLD, lambda _: True, Memo(), 1)
        assert found is not None
        assert same(found, plain)
        assert found.rows.tolist() == [0, 1, 2]
        assert found.evaluation.reason.tolist() == plain.evaluation.reason.tolist()
        assert found.evaluation.score.tolist() == plain.evaluation.score.tolist()
        assert (found.policy, found.version, found.terms) == (TOLD.name, cluster.version, TOLD.terms)
    assert decide_from_top(cluster, GpuRequest(9), TOLD, lambda _: True, Memo(), 3) is None


@pytest.mark.parametrize(("max_tries", "best"), [(0, None), (2, None), (3, 2), (4, 2)])
def test_from_the_top_so_many_nodes_are_tried(max_tries: int, best: int | None) -> None:
    cluster = cluster_of({name: node(T4) for name in "abcd"})
    found = decide_from_top(cluster, ONE, TOLD, "cd".__contains__, Memo(), max_tries)
    assert (None if found is None else found.best) == best


def test_what_from_the_top_has_found_does_not_change_any_more() -> None:
    arrays, memo = arrays_of({"a": node(T4), "b": node(T4)}), Memo()
    found = decide_from_top(arrays.snapshot(), ONE, TOLD, lambda _: True, memo, 1)
    arrays.set_held(0, Held(wholly(arrays.offer(0), [0]), 0))
    memo.evaluate(arrays.snapshot(), ONE, TOLD)
    assert found is not None
    assert found.evaluation.fits.tolist() == [True, True]


def used(*mib: float) -> dict[Gauge, tuple[float, ...]]:
    return {Gauge.MEMORY_USED: mib}


def test_a_node_chosen_before_is_occupied_where_by_its_bookings_it_would_do() -> None:
    states = {"free": node(A100), "used": node(A100, A100), "full": node(A100, held=[0])}
    cluster = observed_cluster(states, {"used": used(20000, 0)})

    def verdict(request: GpuRequest, row: int, policy: Policy = LIVE) -> Decision:
        return decide_on(cluster, request, policy, row, Memo())

    assert verdict(GpuRequest(2), 1).evaluation.reason.tolist() == [Reason.OCCUPIED]
    assert verdict(GpuRequest(2), 1, TOLD).gpus == (0, 1)
    assert verdict(ONE, 1).gpus == (1,)
    assert verdict(ONE, 2).evaluation.reason.tolist() == [Reason.BUSY]
    assert verdict(ONE, 2).best is None


def test_only_what_others_hold_becomes_occupied() -> None:
    states = {"small": node(T4), "full": node(A100, held=[0]), "used": node(A100), "free": node(A100)}
    cluster = observed_cluster(states, {"used": used(20000), "small": used(5000)})
    rows = np.array([3, 2, 1, 0])
    reasons = [Reason.FITS, Reason.OCCUPIED, Reason.BUSY, Reason.TOO_SMALL]
    request = GpuRequest(1, memory_each_mib=40960)
    assert evaluate(cluster, request, LIVE, rows).reason.tolist() == reasons
    assert decide(cluster, request, LIVE, rows, Memo()).evaluation.reason.tolist() == reasons


@pytest.mark.parametrize("name", ["tightest", "binpack"])
def test_a_share_on_a_node_chosen_before_goes_where_a_share_is_already(name: str) -> None:
    cluster = cluster_of({"other": node(T4), "n": node(T4, T4, used={1: (500, 1000)})})
    decision = decide_on(cluster, GpuRequest(1, WHOLE, 1000, milli=500), POLICIES[name], 1, Memo())
    assert (decision.best, decision.gpus, decision.milli, decision.mib_each) == (1, (1,), 500, (1000,))
    assert decision.evaluation.score.tolist() == [0.0]
    assert decision.rows.tolist() == [1]


@pytest.mark.parametrize(
    ("state", "request_", "units", "milli", "mib", "crosses"),
    [
        pytest.param(node(T4, T4), GpuRequest(2), 2, 1000, 0, "", id="whole"),
        pytest.param(
            node(T4, T4), GpuRequest(0, WHOLE, memory_total_mib=20000), 2, 1000, 0, "", id="as many as hold it"
        ),
        pytest.param(
            node(A100, T4, unit=GpuUnit.PART), GpuRequest(2, memory_each_percent=10), 2, 0, 8192, "", id="shares"
        ),
        pytest.param(node(T4, T4, numas=[0, 1]), GpuRequest(2), 2, 1000, 0, "numa", id="over two NUMA nodes"),
        pytest.param(node(T4, T4, links=[0, 1]), GpuRequest(2), 2, 1000, 0, "link", id="over two link groups"),
        pytest.param(node(T4, T4, numas=[0, 1]), ONE, 1, 1000, 0, "", id="one crosses nothing"),
        pytest.param(
            node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4),
            GpuRequest(3, AskedUnit.SHARED),
            3,
            1000,
            0,
            "",
            id="slices",
        ),
    ],
)
def test_what_the_winner_gives(
    state: NodeState, request_: GpuRequest, units: int, milli: int, mib: int, crosses: str
) -> None:
    cluster = cluster_of({"n": state})
    decision = decide(cluster, request_, TOLD, all_rows(cluster), Memo())
    assert (decision.best, decision.policy, decision.terms) == (0, "tightest", TOLD.terms)
    assert (decision.units, decision.milli, decision.mib, decision.crosses) == (units, milli, mib, crosses)


def last(cluster: Cluster, request: GpuRequest, row: int, room: object) -> int:
    """A choice of the GPU for a share that no other rule makes."""
    return int(cluster.gpu_model.shape[1]) - 1


@pytest.mark.parametrize(
    ("state", "request_", "gpus"),
    [
        pytest.param(node(T4, T4, T4), GpuRequest(1, WHOLE, milli=500), (2,), id="a share is the policy's to place"),
        pytest.param(node(T4, T4, T4), ONE, (0,), id="a whole GPU is not"),
        pytest.param(node(T4, T4, T4), GpuRequest(2, WHOLE, milli=500), (0, 1), id="nor are several shares"),
        pytest.param(
            node(T4, T4, T4, used={1: (500, 0)}, untracked=1),
            GpuRequest(1, WHOLE, milli=500),
            (1,),
            id="nor one beside somebody of unknown index",
        ),
    ],
)
def test_which_choices_are_left_to_the_policy(state: NodeState, request_: GpuRequest, gpus: tuple[int, ...]) -> None:
    cluster, policy = cluster_of({"n": state}), replace(TOLD, share=last)
    checked = fit(cluster, request_, all_rows(cluster))
    assert choice(cluster, 0, request_, policy, checked.room[0], shares=bool(checked.shares[0])) == gpus
    assert decide(cluster, request_, policy, all_rows(cluster), Memo()).gpus == gpus


class Counted:
    """A policy that counts the rows it scores, by a context that a test sets."""

    def __init__(self) -> None:
        self.scored: list[list[int]] = []
        self.context = 0
        self.next_context: int | None = None
        self.policy = Policy("counted", self.score, "", context=lambda _: self.context)

    def score(self, cluster: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> Floats:
        self.scored.append(rows.tolist())
        if self.next_context is not None:
            self.context, self.next_context = self.next_context, None
        return np.full(len(rows), float(self.context))

    def since(self) -> list[list[int]]:
        scored, self.scored = self.scored, []
        return scored


def scores(evaluation: Evaluation) -> list[float]:
    found: list[float] = evaluation.score.tolist()
    return found


def test_what_is_computed_again_and_when() -> None:
    arrays, memo, counted = arrays_of({"a": node(T4), "b": node(T4), "c": node(T4)}), Memo(), Counted()

    def ask() -> list[float]:
        return scores(memo.evaluate(arrays.snapshot(), ONE, counted.policy).evaluation)

    assert (ask(), counted.since()) == ([0, 0, 0], [[0, 1, 2]])
    assert (ask(), counted.since()) == ([0, 0, 0], [])
    arrays.set_held(1, Held(wholly(arrays.offer(1), [0]), 0))
    assert (ask(), counted.since()) == ([0, -np.inf, 0], [[1]])
    assert (ask(), counted.since()) == ([0, -np.inf, 0], [])
    counted.context = 7
    assert (ask(), counted.since()) == ([7, -np.inf, 7], [[0, 1, 2]])
    assert (ask(), counted.since()) == ([7, -np.inf, 7], [])
    arrays.set_held(1, Held({}, 0))
    counted.next_context = 8  # found out while the one row is scored
    assert (ask(), counted.since()) == ([8, 8, 8], [[1], [0, 1, 2]])
    assert (ask(), counted.since()) == ([8, 8, 8], [])
    arrays.set_held(arrays.set_node("d", node(T4, T4).offer), Held({}, 0))
    assert (ask(), counted.since()) == ([8] * 4, [[0, 1, 2, 3]])


def test_another_policy_is_another_class() -> None:
    cluster, memo, counted = cluster_of({"a": node(T4)}), Memo(), Counted()
    other = replace(counted.policy, name="another")
    first = memo.evaluate(cluster, ONE, counted.policy)
    assert memo.evaluate(cluster, ONE, other) is not first
    assert memo.evaluate(cluster, ONE, counted.policy) is first


def test_what_is_observed_is_counted_once_for_a_snapshot() -> None:
    arrays, memo = arrays_of({"a": node(A100)}), Memo()
    cluster = observe(arrays, {"a": used(20000)})
    seen = memo.seen(cluster, LIVE)
    assert seen.gpu_free_mib.tolist() == [[61920]]
    assert memo.seen(cluster, LIVE) is seen
    assert memo.of("another").seen(cluster, LIVE) is seen
    assert memo.seen(cluster, TOLD) is cluster


def known_again(memo: Memo, cluster: Cluster, count: int, before: object) -> bool:
    return memo.evaluate(cluster, GpuRequest(count), TOLD) is before


def test_as_many_classes_are_remembered_as_there_may_be() -> None:
    cluster, memo = cluster_of({"a": node(T4)}), Memo()
    known = [memo.evaluate(cluster, GpuRequest(count), TOLD) for count in range(1, 65)]
    assert all(known_again(memo, cluster, count, before) for count, before in enumerate(known, 1))
    memo.evaluate(cluster, GpuRequest(65), TOLD)
    assert [known_again(memo, cluster, count, known[count - 1]) for count in (64, 2)] == [True, True]
    assert not known_again(memo, cluster, 1, known[0])


def test_who_has_brought_most_gives_up_the_oldest_and_whoever_asks_again_brings_nothing() -> None:
    cluster, memo = cluster_of({"a": node(T4)}), Memo(max_classes=3)
    one, other = memo.of("one"), memo.of("other")
    first, second = (one.evaluate(cluster, GpuRequest(count), TOLD) for count in (1, 2))
    third = other.evaluate(cluster, GpuRequest(3), TOLD)
    for _ in range(3):  # what `one` has brought stays its own
        assert known_again(other, cluster, 2, second)
        assert known_again(other, cluster, 1, first)
    fourth = other.evaluate(cluster, GpuRequest(4), TOLD)
    assert [known_again(other, cluster, count, was) for count, was in ((1, first), (3, third), (4, fourth))] == [
        True
    ] * 3
    assert not known_again(one, cluster, 2, second)


def test_asking_often_is_not_bringing_many() -> None:
    cluster, memo = cluster_of({"a": node(T4)}), Memo(max_classes=3)
    frequent, other = memo.of("frequent"), memo.of("other")
    known = frequent.evaluate(cluster, GpuRequest(1), TOLD)
    assert all(known_again(frequent, cluster, 1, known) for _ in range(9))
    for count in range(2, 6):
        other.evaluate(cluster, GpuRequest(count), TOLD)
    assert known_again(frequent, cluster, 1, known)


def test_what_was_given_up_counts_for_nobody() -> None:
    cluster, memo = cluster_of({"a": node(T4)}), Memo(max_classes=3)
    past, now = memo.of("past"), memo.of("now")
    known = [past.evaluate(cluster, GpuRequest(count), TOLD) for count in range(1, 9)]
    for count in range(11, 16):
        now.evaluate(cluster, GpuRequest(count), TOLD)
    assert known_again(past, cluster, 8, known[-1])


@pytest.mark.parametrize(("name", "gpus"), [("tightest", (1,)), ("spread", (0,))])
def test_a_policy_that_spreads_has_shares_on_the_emptiest_gpu(name: str, gpus: tuple[int, ...]) -> None:
    cluster = cluster_of({"n": node(T4, T4, used={1: (500, 1000)})})
    share = GpuRequest(1, WHOLE, 1000, milli=500)
    assert decide(cluster, share, POLICIES[name], all_rows(cluster), Memo()).gpus == gpus


def test_a_choice_is_made_by_what_has_room_now() -> None:
    arrays, memo = arrays_of({"a": node(T4, T4, held=[0, 1]), "b": node(T4, held=[0])}), Memo()
    share = GpuRequest(1, memory_each_mib=1024)
    assert decide(arrays.snapshot(), share, TOLD, np.array([0, 1]), memo).best is None
    part = node(T4, T4, used={1: (0, 1000)}, unit=GpuUnit.PART)
    arrays.set_held(arrays.set_node("a", part.offer), Held(part.used, 0))
    decision = decide(arrays.snapshot(), share, TOLD, np.array([0, 1]), memo)
    assert (decision.best, decision.gpus, decision.mib_each) == (0, (1,), (1024,))
