"""Which nodes are kept for the head, whom they are kept from, and what those are told."""

from dataclasses import replace

import numpy as np
import pytest

from extender.core.clusters import Cluster, Rows
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit
from extender.core.gauges import Gauge
from extender.core.resources.requests import GpuRequest
from extender.planning import rounds
from extender.planning.plan_state import PlanState
from extender.planning.planners import PLANNERS
from extender.planning.planners.problem import problem_of
from extender.planning.plans import PlanPod, View
from extender.planning.quotas import Quotas
from extender.planning.rounds import Head, Rules, greedy_round, place_unit, searched_round
from tests.core.builders import node
from tests.core.observing import observed_cluster
from tests.queueing.builders import A100, gpu_pod, gpu_view, plain_view, reasons, view_of

BIG = Rules(reserves=frozenset({"ns/big"}))


def nodes_of_cpu(*nodes: tuple[int, int, int]) -> View:
    """Nodes n0, n1, ... of so much CPU and memory, and so much of the CPU free."""
    cpu, memory, free = np.array(nodes, np.int64).T
    states = {f"n{row}": node() for row in range(len(nodes))}
    view = view_of(states, cpu_milli=cpu.tolist(), memory_mib=memory.tolist())
    return replace(view, cpu_free_milli=free.copy())


@pytest.mark.parametrize(
    ("view", "pod", "expected"),
    [
        pytest.param(
            nodes_of_cpu((8000, 8192, 1000), (8000, 8192, 3000), (8000, 8192, 2000)),
            PlanPod("ns/big", 4000, 1024),
            {"n1"},
            id="where most CPU is free",
        ),
        pytest.param(
            nodes_of_cpu((4000, 8192, 100), (3999, 8192, 3000)),
            PlanPod("ns/big", 4000, 1024),
            {"n0"},
            id="a node that it fills, CPU",
        ),
        pytest.param(
            replace(nodes_of_cpu((8000, 8192, 100), (8000, 8191, 3000)), memory_free_mib=np.array([100, 100])),
            PlanPod("ns/big", 10, 8192),
            {"n0"},
            id="a node that it fills, memory",
        ),
        pytest.param(
            replace(
                nodes_of_cpu((8000, 8192, 100), (8000, 8192, 3000)), allowed=np.array([[True, True], [True, False]])
            ),
            PlanPod("ns/big", 4000, 1024, kind=1),
            {"n0"},
            id="a node that it may use",
        ),
        pytest.param(
            replace(nodes_of_cpu((8000, 8192, 100)), allowed=np.array([[True], [False]])),
            PlanPod("ns/big", 4000, 1024, kind=1),
            None,
            id="no node that it may use",
        ),
        pytest.param(nodes_of_cpu((8000, 8192, 100)), PlanPod("ns/big", 9000, 1), None, id="too much CPU for any"),
        pytest.param(
            nodes_of_cpu((8000, 8192, 0), (1000, 65_536, 1000)),
            PlanPod("ns/big", 8000, 9000),
            None,
            id="no node with both",
        ),
        pytest.param(
            view_of({"b": node(*[(A100, 40_960)] * 2, held=[0]), "a": node(*[(A100, 40_960)] * 2, held=[1])}),
            gpu_pod("ns/big", 2),
            {"a"},
            id="of equal nodes the first by name",
        ),
        pytest.param(
            gpu_view(2, gpus=4), gpu_pod("ns/big", 1, gang="ns/big", topology="zone"), None, id="no node with its label"
        ),
    ],
)
def test_the_node_kept_for_a_head(view: View, pod: PlanPod, expected: set[str] | None) -> None:
    made = greedy_round(view, [pod], BIG)
    assert made.plan.num_placed == 0
    assert made.head == (None if expected is None else Head("ns/big", frozenset(expected)))


@pytest.mark.parametrize("freer", [0, 1])
def test_a_gang_of_one_rack_keeps_nodes_of_the_one_that_misses_less(freer: int) -> None:
    whole = [(A100, 40_960)] * 4
    held = {freer: ([0], [0, 1]), 1 - freer: ([0, 1, 2], [0, 1, 2])}
    states = {
        f"r{rack}-{number}": node(*whole, held=taken) for rack in (0, 1) for number, taken in enumerate(held[rack])
    }
    view = view_of(states, domains={"rack": np.array([0, 0, 1, 1], np.int32)})
    pods = [gpu_pod(f"ns/g{number}", 4, gang="ns/big", topology="rack") for number in range(2)]
    assert greedy_round(view, pods, BIG).head == Head("ns/big", frozenset({f"r{freer}-0", f"r{freer}-1"}))


def test_only_those_that_would_have_room_are_told_of_the_head() -> None:
    # Of both nodes two GPUs are free; a is kept, b is filled by the first that comes.
    view = view_of({name: node(*[(A100, 40_960)] * 4, held=[0, 1]) for name in "ab"})
    pods = [
        gpu_pod("ns/big", 4),
        gpu_pod("ns/first", 2),
        gpu_pod("ns/kept", 1),
        gpu_pod("ns/large", 3),
        gpu_pod("poor/p", 1),
    ]
    made = greedy_round(view, pods, replace(BIG, quotas=Quotas({"poor": 0.0})))
    assert made.head == Head("ns/big", frozenset({"a"}))
    assert made.plan.rows == (-1, 1, -1, -1, -1)
    assert reasons(made.plan) == {
        0: "needs 4 GPUs, best node: 2 free",
        2: "room is kept for ns/big",
        3: "needs 3 GPUs, best node: 2 free",
        4: "quota of namespace poor: 0 GPUs, 0 in use, 1 more requested",
    }


def test_the_pods_of_the_head_itself_are_told_of_their_gang() -> None:
    pods = [gpu_pod(f"ns/g{number}", 3, gang="ns/g") for number in range(3)] + [gpu_pod("ns/single", 2)]
    busy = replace(gpu_view(3, gpus=4), pods_free=np.array([110, 110, 0]))
    made = greedy_round(busy, pods, Rules(reserves=frozenset({"ns/g"})))
    assert made.head is not None
    assert reasons(made.plan) == {
        **dict.fromkeys(range(3), "its gang ns/g does not fit as a whole"),
        3: "room is kept for ns/g",
    }


def test_the_exempt_use_the_nodes_that_are_kept() -> None:
    pods = [PlanPod("ns/big", 8000), *(PlanPod(f"ns/p{number}", 2000) for number in range(3))]
    view = replace(plain_view(1), cpu_free_milli=np.array([7000]))
    made = greedy_round(view, pods, replace(BIG, exempt=frozenset({"ns/p1", "ns/p2"})))
    assert made.plan.rows == (-1, -1, 0, 0)
    assert reasons(made.plan)[1] == "room is kept for ns/big"


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        pytest.param(None, 0, id="all nodes: the rack of two is the tightest"),
        pytest.param([True, True, True, True, True], 0, id="all of them"),
        pytest.param([True, True, False, False, True], 4, id="the rack of which one node is left"),
        pytest.param([False, True, True, False, True], 1, id="the other"),
        pytest.param([False, False, True, True, False], 2, id="the only one"),
        pytest.param([False] * 5, None, id="none"),
    ],
)
def test_a_gang_goes_to_the_tightest_rack_of_the_nodes_that_it_may_use(
    allowed: list[bool] | None, expected: int | None
) -> None:
    view = replace(gpu_view(5), domains={"rack": np.array([0, 0, 1, 1, 1], np.int32)})
    state = PlanState(view, [gpu_pod("ns/g", 1, gang="ns/g", topology="rack")])
    assert place_unit(state, [0], None if allowed is None else np.array(allowed)) == (expected is not None)
    assert state.plan("by hand").rows == ((-1,) if expected is None else (expected,))


@pytest.mark.parametrize("order", [("ns/old", "ns/young"), ("ns/young", "ns/old")])
def test_who_has_waited_long_is_the_head_whoever_asks_for_the_same_before(order: tuple[str, str]) -> None:
    view = replace(gpu_view(1, gpus=4), pods_free=np.array([0]))
    pods = [gpu_pod(key, 4) for key in order]
    assert greedy_round(view, pods, Rules(reserves=frozenset({"ns/old"}))).head == Head("ns/old", frozenset({"n0000"}))


def test_those_who_never_fit_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[GpuRequest] = []

    def counting(cluster: Cluster, request: GpuRequest, rows: Rows) -> Fit:
        looked.append(request)
        return fit(cluster, request, rows)

    monkeypatch.setattr(rounds, "fit", counting)
    pods = [*(gpu_pod(f"ns/huge{number}", 9) for number in range(50)), gpu_pod("ns/big", 4)]
    view = replace(gpu_view(1, gpus=4), pods_free=np.array([0]))
    assert greedy_round(view, pods, Rules(reserves=frozenset(pod.key for pod in pods))).head == Head(
        "ns/big", frozenset({"n0000"})
    )
    assert [request.count for request in looked] == [9, 4]


def test_a_pod_is_not_told_of_no_room_because_of_another_s_policy() -> None:
    """A GPU that nobody has booked and somebody uses: `live` leaves it alone, `tightest` goes by bookings."""
    nodes = {"n": node((A100, 40960))}
    view = replace(view_of(nodes), cluster=observed_cluster(nodes, {"n": {Gauge.MEMORY_USED: [20000.0]}}))
    live, tight = (replace(gpu_pod(f"ns/{policy}"), policy=policy) for policy in ("live", "tightest"))
    assert greedy_round(view, [live, tight], Rules()).plan.rows == (-1, 0)
    for planner in ("exact", "genetic", "q-learning"):
        assert searched_round(view, [live, tight], Rules(), PLANNERS[planner]).plan.rows == (-1, 0)
    assert problem_of(view, [live, tight]).eligible.tolist() == [[False], [True]]


def of_cpu(key: str, cpu_milli: int, gpus: int = 1, *, gang: str = "", topology: str = "") -> PlanPod:
    return PlanPod(key, cpu_milli, 1024, GpuRequest(gpus), gang=gang, topology=topology)


def one_taken(num_nodes: int, gpus: int = 4, cpu_free_milli: int = 62_000) -> View:
    """Nodes of 64 CPU, of each of which somebody has a GPU and some CPU."""
    view = view_of({f"n{row}": node(*[(A100, 40_960)] * gpus, held=[0]) for row in range(num_nodes)})
    return replace(view, cpu_free_milli=np.full(num_nodes, cpu_free_milli, np.int64))


EVIL = Rules(reserves=frozenset({"evil/g"}))
GOOD = [gpu_pod(f"good/p{number}") for number in range(6)]


@pytest.mark.parametrize(
    "gang",
    [
        pytest.param([of_cpu(f"evil/g{n}", 1000, 4, gang="evil/g") for n in range(5)], id="of too many GPUs"),
        pytest.param([of_cpu(f"evil/g{n}", 33_000, 1, gang="evil/g") for n in range(5)], id="of more CPU on each node"),
        pytest.param(
            [PlanPod(f"evil/g{n}", 100, 200_000, GpuRequest(1), gang="evil/g") for n in range(5)],
            id="of more memory on each node",
        ),
        pytest.param([of_cpu(f"evil/g{n}", 1000, 3, gang="evil/g") for n in range(5)], id="of which one fits on each"),
        pytest.param(
            [of_cpu(f"evil/g{n}", 1000, 4, gang="evil/g", topology="rack") for n in range(3)],
            id="of more nodes than a rack has",
        ),
        pytest.param(
            [of_cpu(f"evil/g{n}", 100, count, gang="evil/g") for n, count in enumerate((4, 4, 4, 4, 1))],
            id="of several sizes",
        ),
    ],
)  # fmt: skip
def test_nothing_is_kept_for_a_gang_that_would_not_fit_an_empty_cluster(gang: list[PlanPod]) -> None:
    view = replace(one_taken(4), domains={"rack": np.array([0, 0, 1, 1], np.int32)})
    made = greedy_round(view, [*gang, *GOOD], EVIL)
    assert made.head is None
    assert made.plan.num_placed == 6


def test_no_more_gpus_are_kept_than_the_pods_of_a_head_need() -> None:
    """It waits for CPU: all but one of the GPUs of each node are of no use to it."""
    gang = [of_cpu(f"evil/g{number}", 63_000, gang="evil/g") for number in range(4)]
    made = greedy_round(one_taken(4), [*gang, *GOOD, *(gpu_pod(f"good/q{number}") for number in range(6))], EVIL)
    assert made.head is not None
    assert {need.gpus for need in made.head.needs.values()} == {1}
    assert len(made.head.needs) == 4
    assert made.plan.num_placed == 8  # of 12 that are free
    assert set(list(reasons(made.plan).values())[4:]) == {"room is kept for evil/g"}


def test_a_head_keeps_as_few_nodes_as_take_its_pods() -> None:
    pods = [of_cpu(f"ns/g{number}", 1000, 2, gang="ns/big") for number in range(3)]
    view = view_of({f"n{row}": node(*[(A100, 40_960)] * 4, held=[0, 1, 2][row:]) for row in range(3)})
    made = greedy_round(replace(view, pods_free=np.zeros(3, np.int64)), pods, BIG)
    assert made.head is not None
    assert made.head.needs == {"n2": (4, 2000, 2048), "n1": (2, 1000, 1024)}


def test_cpu_is_kept_from_those_who_come_for_cpu_alone() -> None:
    view = one_taken(1, cpu_free_milli=40_000)
    pods = [of_cpu("ns/big", 60_000), PlanPod("ns/cpu", 1000, 100), gpu_pod("ns/gpu")]
    made = greedy_round(view, pods, BIG)
    assert made.plan.rows == (-1, -1, 0)
    assert reasons(made.plan)[1] == "room is kept for ns/big"
    with_rest = [of_cpu("ns/big", 30_000, 4), PlanPod("ns/cpu", 10_000, 100), PlanPod("ns/more", 1, 100)]
    assert greedy_round(view, with_rest, BIG).plan.rows == (-1, 0, -1)


def test_gpus_of_a_node_are_not_kept_for_its_cpu() -> None:
    made = greedy_round(one_taken(1), [PlanPod("ns/big", 64_000, 100), *GOOD], BIG)
    assert made.head is not None
    assert made.plan.num_placed == 3


@pytest.mark.parametrize(
    ("ranks", "head"),
    [
        pytest.param({}, "ns/a", id="the first in the order"),
        pytest.param({"ns/a": (0, 2.0), "ns/b": (0, 1.0)}, "ns/b", id="the older"),
        pytest.param({"ns/a": (0, 1.0), "ns/b": (-5, 2.0)}, "ns/b", id="of the higher class"),
        pytest.param({"ns/a": (-5, 2.0), "ns/b": (0, 1.0)}, "ns/a", id="and not of the lower"),
    ],
)
def test_nodes_are_kept_for_the_class_and_not_for_the_place_in_the_order(
    ranks: dict[str, tuple[float, float]], head: str
) -> None:
    view = replace(gpu_view(1, gpus=4), pods_free=np.array([0]))
    pods = [gpu_pod("ns/a", 4), gpu_pod("ns/b", 3)]
    rules = Rules(reserves=frozenset({"ns/a", "ns/b"}), rank=ranks)
    made = greedy_round(view, pods, rules)
    assert made.head is not None
    assert made.head.key == head
    again = greedy_round(view, pods, replace(rules, held=made.head)).head
    assert again == made.head


def test_nothing_is_kept_from_a_higher_class_that_comes_later_in_the_order() -> None:
    view = view_of({"n": node(*[(A100, 40_960)] * 4, held=[0])})
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/low", 1), gpu_pod("ns/high", 1)]
    made = greedy_round(view, pods, replace(BIG, rank={"ns/high": (-1, 0.0)}))
    assert made.plan.rows == (-1, -1, 0)


def test_the_head_stays_so_while_it_is_not_the_turn_of_its_namespace() -> None:
    view = view_of({"n": node(*[(A100, 40_960)] * 4, held=[0])})
    pods = [gpu_pod("ns/big", 4), gpu_pod("other/p", 1)]
    head = greedy_round(view, pods, BIG).head
    assert head is not None
    made = greedy_round(view, pods, replace(BIG, held=head, most={"ns": 0}))
    assert made.head == head
    assert made.plan.rows == (-1, -1)


def test_a_head_that_asks_for_more_by_now_keeps_nothing_that_it_can_t_use() -> None:
    view = one_taken(2)
    head = greedy_round(view, [gpu_pod("ns/big", 4), *GOOD], BIG).head
    assert head is not None
    made = greedy_round(view, [gpu_pod("ns/big", 5), *GOOD], replace(BIG, held=head))
    assert made.head is None
    assert made.plan.num_placed == 6
