"""Which nodes are reserved for the head, which pods may not use them, and the reasons these get."""

from dataclasses import replace

import numpy as np
import pytest

from extender.core.clusters import Cluster, Rows
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Fit
from extender.core.resources.requests import GpuRequest
from extender.planning import rounds
from extender.planning.plan_state import PlanState
from extender.planning.plans import PlanPod, View
from extender.planning.quotas import Quotas
from extender.planning.rounds import Head, RoundRules, greedy_round, place_unit
from tests.core.builders import node
from tests.queueing.builders import A100, gpu_pod, gpu_view, plain_view, reasons, view_of

BIG = RoundRules(reserves=frozenset({"ns/big"}))


def nodes_of_cpu(*nodes: tuple[int, int, int]) -> View:
    """Nodes n0, n1, ... by their CPU, memory and free CPU."""
    cpu, memory, free = np.array(nodes, np.int64).T
    states = {f"n{row}": node() for row in range(len(nodes))}
    view = view_of(states, cpu_milli=cpu.tolist(), memory_mib=memory.tolist())
    return replace(view, cpu_free_milli=free.copy())


def in_use(num_nodes: int, *, gpus: int = 4, held: int = 1, cpu_free_milli: int = 62_000) -> View:
    """Nodes n0, n1, ... of 64 CPU; other pods hold the first GPUs and some CPU of each."""
    view = view_of({f"n{row}": node(*[(A100, 40_960)] * gpus, held=range(held)) for row in range(num_nodes)})
    return replace(view, cpu_free_milli=np.full(num_nodes, cpu_free_milli, np.int64))


def asks(key: str, cpu_milli: int, gpus: int = 1, *, gang: str = "", topology: str = "") -> PlanPod:
    return PlanPod(key, cpu_milli, 1024, GpuRequest(gpus), gang=gang, topology=topology)


def gpu_pods(count: int, namespace: str = "good") -> list[PlanPod]:
    return [gpu_pod(f"{namespace}/p{number}") for number in range(count)]


def test_the_node_reserved_for_a_head() -> None:
    cpu = PlanPod("ns/big", 4000, 1024)
    two = nodes_of_cpu((8000, 8192, 100), (8000, 8192, 3000))
    shorter = nodes_of_cpu((8000, 8192, 100), (8000, 8191, 3000))
    equal = {"b": node(*[(A100, 40_960)] * 2, held=[0]), "a": node(*[(A100, 40_960)] * 2, held=[1])}
    for view, pod, expected in (
        (nodes_of_cpu((8000, 8192, 1000), (8000, 8192, 3000), (8000, 8192, 2000)), cpu, "n1"),
        (nodes_of_cpu((4000, 8192, 100), (3999, 8192, 3000)), cpu, "n0"),
        (replace(shorter, memory_free_mib=np.array([100, 100])), PlanPod("ns/big", 10, 8192), "n0"),
        (replace(two, allowed=np.array([[True, True], [True, False]])), replace(cpu, kind=1), "n0"),
        (replace(two, allowed=np.array([[True, True], [False, False]])), replace(cpu, kind=1), None),
        (two, PlanPod("ns/big", 9000, 1), None),
        (nodes_of_cpu((8000, 8192, 0), (1000, 65_536, 1000)), PlanPod("ns/big", 8000, 9000), None),  # none has both
        (view_of(equal), gpu_pod("ns/big", 2), "a"),
        (gpu_view(2, gpus=4), gpu_pod("ns/big", 1, gang="ns/big", topology="zone"), None),
    ):
        made = greedy_round(view, [pod], BIG)
        assert made.plan.num_placed == 0
        assert made.head == (None if expected is None else Head("ns/big", frozenset({expected})))


def test_a_gang_with_a_topology_reserves_nodes_of_the_domain_that_misses_least() -> None:
    whole = [(A100, 40_960)] * 4
    pods = [gpu_pod(f"ns/g{number}", 4, gang="ns/big", topology="rack") for number in range(2)]
    for freer in (0, 1):
        held = {freer: ([0], [0, 1]), 1 - freer: ([0, 1, 2], [0])}
        states = {
            f"r{rack}-{number}": node(*whole, held=taken) for rack in (0, 1) for number, taken in enumerate(held[rack])
        }
        view = view_of(states, domains={"rack": np.array([0, 0, 1, 1], np.int32)})
        assert greedy_round(view, pods, BIG).head == Head("ns/big", frozenset({f"r{freer}-0", f"r{freer}-1"}))
        other = f"r{1 - freer}"
        beside = [replace(pod, beside=(f"{other}-1",)) for pod in pods]
        assert greedy_round(view, beside, BIG).head == Head("ns/big", frozenset({f"{other}-0", f"{other}-1"}))


def test_only_pods_that_would_have_room_get_the_head_as_their_reason() -> None:
    # On both nodes two GPUs are free; a is reserved, b is filled by the first pod.
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


def test_pods_of_a_gang_that_is_the_head_get_their_gang_as_reason() -> None:
    pods = [gpu_pod(f"ns/g{number}", 3, gang="ns/g") for number in range(3)] + [gpu_pod("ns/single", 2)]
    busy = replace(gpu_view(3, gpus=4), pods_free=np.array([110, 110, 0]))
    made = greedy_round(busy, pods, RoundRules(reserves=frozenset({"ns/g"})))
    assert made.head is not None
    assert reasons(made.plan) == {
        **dict.fromkeys(range(3), "its gang ns/g does not fit as a whole"),
        3: "room is kept for ns/g",
    }


def test_exempt_pods_use_the_reserved_nodes() -> None:
    pods = [PlanPod("ns/big", 8000), *(PlanPod(f"ns/p{number}", 2000) for number in range(3))]
    view = replace(plain_view(1), cpu_free_milli=np.array([7000]))
    made = greedy_round(view, pods, replace(BIG, exempt=frozenset({"ns/p1", "ns/p2"})))
    assert made.plan.rows == (-1, -1, 0, 0)


def test_a_gang_goes_to_the_tightest_domain_among_the_nodes_that_it_may_use() -> None:
    view = replace(gpu_view(5), domains={"rack": np.array([0, 0, 1, 1, 1], np.int32)})
    for allowed, expected in (
        (None, 0),
        ([True, True, False, False, True], 4),
        ([False, True, True, False, True], 1),
        ([False] * 5, -1),
    ):
        state = PlanState(view, [gpu_pod("ns/g", 1, gang="ns/g", topology="rack")])
        assert place_unit(state, [0], None if allowed is None else np.array(allowed)) == (expected >= 0)
        assert state.plan("test").rows == (expected,)


def test_a_pod_that_has_waited_long_is_the_head_also_behind_an_equal_one() -> None:
    view = replace(gpu_view(1, gpus=4), pods_free=np.array([0]))
    rules = RoundRules(reserves=frozenset({"ns/old"}))
    for order in (("ns/old", "ns/young"), ("ns/young", "ns/old")):
        pods = [gpu_pod(key, 4) for key in order]
        assert greedy_round(view, pods, rules).head == Head("ns/old", frozenset({"n0000"}))


def test_equal_pods_that_fit_no_node_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def counting(cluster: Cluster, request: GpuRequest, rows: Rows) -> Fit:
        checked.append(request.count)
        return fit(cluster, request, rows)

    monkeypatch.setattr(rounds, "fit", counting)
    pods = [*(gpu_pod(f"ns/huge{number}", 9) for number in range(50)), gpu_pod("ns/big", 4)]
    view = replace(gpu_view(1, gpus=4), pods_free=np.array([0]))
    made = greedy_round(view, pods, RoundRules(reserves=frozenset(pod.key for pod in pods)))
    assert made.head == Head("ns/big", frozenset({"n0000"}))
    assert checked == [9, 4]


def test_nothing_is_kept_for_a_gang_that_would_not_fit_an_empty_cluster() -> None:
    view = replace(in_use(4), domains={"rack": np.array([0, 0, 1, 1], np.int32)})
    for gang in (
        [asks(f"evil/g{n}", 33_000, 1, gang="evil/g") for n in range(5)],
        [PlanPod(f"evil/g{n}", 100, 200_000, GpuRequest(1), gang="evil/g") for n in range(5)],
        [asks(f"evil/g{n}", 1000, 3, gang="evil/g") for n in range(5)],
        [asks(f"evil/g{n}", 1000, 4, gang="evil/g", topology="rack") for n in range(3)],
        [asks(f"evil/g{n}", 100, count, gang="evil/g") for n, count in enumerate((4, 4, 4, 4, 1))],
    ):
        made = greedy_round(view, [*gang, *gpu_pods(6)], RoundRules(reserves=frozenset({"evil/g"})))
        assert (made.head, made.plan.num_placed) == (None, 6)


def test_no_more_gpus_are_reserved_than_the_pods_of_a_head_need() -> None:
    """It waits for CPU, and can't use more than one GPU of each node."""
    gang = [asks(f"ns/g{number}", 63_000, gang="ns/big") for number in range(4)]
    made = greedy_round(in_use(4), [*gang, *gpu_pods(12)], BIG)
    assert made.head is not None
    assert [need.gpus for need in made.head.needs.values()] == [1] * 4
    assert made.plan.num_placed == 8  # of 12 that are free
    assert set(list(reasons(made.plan).values())[4:]) == {"room is kept for ns/big"}


def test_a_head_reserves_the_fewest_nodes_that_take_its_pods() -> None:
    pods = [asks(f"ns/g{number}", 1000, 2, gang="ns/big") for number in range(3)]
    view = view_of({f"n{row}": node(*[(A100, 40_960)] * 4, held=[0, 1, 2][row:]) for row in range(3)})
    made = greedy_round(replace(view, pods_free=np.zeros(3, np.int64)), pods, BIG)
    assert made.head is not None
    assert made.head.needs == {"n2": (4, 2000, 2048), "n1": (2, 1000, 1024)}


def test_cpu_is_reserved_from_pods_without_gpus() -> None:
    view = in_use(1, cpu_free_milli=40_000)
    pods = [asks("ns/big", 60_000), PlanPod("ns/cpu", 1000, 100), gpu_pod("ns/gpu")]
    made = greedy_round(view, pods, BIG)
    assert made.plan.rows == (-1, -1, 0)
    assert reasons(made.plan)[1] == "room is kept for ns/big"
    with_rest = [asks("ns/big", 30_000, 4), PlanPod("ns/cpu", 10_000, 100), PlanPod("ns/more", 1, 100)]
    assert greedy_round(view, with_rest, BIG).plan.rows == (-1, 0, -1)


def test_gpus_are_not_reserved_for_a_pod_without_gpus() -> None:
    made = greedy_round(in_use(1), [PlanPod("ns/big", 64_000, 100), *gpu_pods(6)], BIG)
    assert made.head is not None
    assert made.plan.num_placed == 3


def test_the_head_is_the_first_by_class_then_age_and_stays_the_head() -> None:
    view = replace(gpu_view(1, gpus=4), pods_free=np.array([0]))
    pods = [gpu_pod("ns/a", 4), gpu_pod("ns/b", 3)]
    for ranks, head in (
        ({}, "ns/a"),
        ({"ns/a": (0, 2.0), "ns/b": (0, 1.0)}, "ns/b"),
        ({"ns/a": (0, 1.0), "ns/b": (-5, 2.0)}, "ns/b"),
        ({"ns/a": (-5, 2.0), "ns/b": (0, 1.0)}, "ns/a"),
    ):
        rules = RoundRules(reserves=frozenset({"ns/a", "ns/b"}), rank=ranks)
        made = greedy_round(view, pods, rules)
        assert made.head is not None
        assert made.head.key == head
        assert greedy_round(view, pods, replace(rules, held=made.head)).head == made.head


def test_nothing_is_reserved_from_a_higher_class_that_comes_later_in_the_order() -> None:
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/low", 1), gpu_pod("ns/high", 1)]
    made = greedy_round(in_use(1), pods, replace(BIG, rank={"ns/high": (-1, 0.0)}))
    assert made.plan.rows == (-1, -1, 0)


def test_a_head_whose_namespace_has_used_its_share_stays_the_head() -> None:
    view, pods = in_use(1), [gpu_pod("ns/big", 4), gpu_pod("other/p", 1)]
    head = greedy_round(view, pods, BIG).head
    assert head is not None
    made = greedy_round(view, pods, replace(BIG, held=head, most={"ns": 0}))
    assert made.head == head
    assert made.plan.rows == (-1, -1)


def test_a_head_that_now_requests_more_than_a_node_has_reserves_nothing() -> None:
    view = in_use(2)
    head = greedy_round(view, [gpu_pod("ns/big", 4), *gpu_pods(6)], BIG).head
    assert head is not None
    made = greedy_round(view, [gpu_pod("ns/big", 5), *gpu_pods(6)], replace(BIG, held=head))
    assert (made.head, made.plan.num_placed) == (None, 6)


def test_a_head_keeps_its_nodes_while_they_exist() -> None:
    view = view_of({"a": node(*[(A100, 40_960)] * 4, held=[0]), "b": node(*[(A100, 40_960)] * 4, held=[0, 1])})
    pods = [gpu_pod("ns/big", 4), gpu_pod("ns/small", 2)]
    held = Head("ns/big", frozenset({"b"}))
    made = greedy_round(view, pods, replace(BIG, held=held))
    assert (made.head, made.plan.rows) == (held, (-1, 0))
    made = greedy_round(view, pods, replace(BIG, held=Head("ns/big", frozenset({"gone"}))))
    assert made.head == Head("ns/big", frozenset({"a"}))
