"""Sick GPUs: only those that are so without a break."""

from extender.parts.defrag.policy import SickGpus
from tests.core.builders import cluster_of, node
from tests.queueing.builders import A100

CLUSTER = cluster_of({"a": node((A100, 40_960), (A100, 40_960)), "b": node((A100, 40_960))})


def test_a_gpu_counts_once_it_has_been_sick_for_long_enough() -> None:
    now_sick: dict[str, tuple[int, ...]] = {"a": (1,)}
    sick = SickGpus(lambda cluster: now_sick, 300.0)
    sick.look(CLUSTER, 0.0)
    assert sick.steady(299.0) == {}
    now_sick = {"a": (0, 1), "b": (0,)}
    sick.look(CLUSTER, 200.0)
    assert sick.steady(300.0) == {"a": (1,)}
    assert sick.steady(500.0) == {"a": (0, 1), "b": (0,)}
    now_sick = {}
    sick.look(CLUSTER, 501.0)
    assert sick.steady(1e9) == {}


def test_whoever_is_well_for_a_moment_begins_anew() -> None:
    now_sick: dict[str, tuple[int, ...]] = {"a": (1,)}
    sick = SickGpus(lambda cluster: now_sick, 300.0)
    for now in range(0, 3000, 10):
        now_sick = {} if now % 250 == 0 else {"a": (1,)}
        sick.look(CLUSTER, float(now))
        assert sick.steady(float(now)) == {}
