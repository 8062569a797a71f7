"""Rows of pods: their times, if some series are missing, and gangs."""

from collections.abc import Mapping

import numpy as np

from extender.history.records import Column
from model.workloads.prometheus.kube_state import (
    POD_COMPLETION,
    POD_CREATED,
    POD_LABELS,
    POD_PHASE,
    POD_SCHEDULED,
    POD_START,
)
from model.workloads.prometheus.nodes import SeenNodes
from model.workloads.prometheus.periods import Period, Slice
from model.workloads.prometheus.pods import SeenPod, SeenPods
from model.workloads.prometheus.tables import pod_table

PERIOD = Period((Slice(0, 6000),), 60, 30, np.arange(60.0, 6060.0, 60.0))
NO_NODES = SeenNodes({}, {}, {})


def table(*pods: SeenPod, series: tuple[str, ...] = (POD_PHASE,)) -> dict[str, Column]:
    seen = SeenPods({f"uid-{number}": pod for number, pod in enumerate(pods)}, frozenset(series))
    return pod_table(seen, NO_NODES, PERIOD)


def pod(
    last_seen_s: float = 6000.0,
    ended_by_s: float = np.inf,
    gang: str = "",
    times: Mapping[str, float] | None = None,
) -> SeenPod:
    told = {POD_CREATED: 100.0, **(times or {})}
    said = {POD_LABELS: {"scheduling.x-k8s.io/pod-group": gang}} if gang else {}
    info = {"namespace": "a", "pod": "p", "created_by_kind": "<none>", "created_by_name": "<none>"}
    return SeenPod(info, told, last_seen_s, ended_by_s, said=said)


def test_starts() -> None:
    both = {POD_SCHEDULED: 200.0, POD_START: 207.0}
    found = table(pod(times=both), pod(times={POD_START: 207.0}), pod())["started_s"]
    assert np.array_equal(found, [200.0, 207.0, np.nan], equal_nan=True)


def test_ends() -> None:
    for seen, series, ended_s in (
        (pod(), (POD_PHASE,), np.nan),
        (pod(5000.0), (POD_PHASE,), 5000.0),  # deleted while it ran
        (pod(5880.0), (POD_PHASE,), np.nan),  # two steps before the end: perhaps a scrape that failed
        (pod(0.0), (POD_PHASE,), 100.0),  # gone before the first step
        (pod(ended_by_s=3000.0), (POD_PHASE,), 3000.0),
        (pod(ended_by_s=3000.0, times={POD_COMPLETION: 2950.0}), (POD_PHASE,), 2950.0),
        (pod(ended_by_s=3000.0, times={POD_COMPLETION: 4000.0}), (POD_PHASE,), 3000.0),
        (pod(times={POD_COMPLETION: 2950.0}), (POD_PHASE,), np.nan),  # a container of it has ended, or starts again
        (pod(5000.0, times={POD_COMPLETION: 2950.0}), (POD_PHASE,), 5000.0),
        (pod(5000.0, times={POD_COMPLETION: 4990.0}), (POD_PHASE,), 4990.0),
        (pod(times={POD_COMPLETION: 2950.0}), (), 2950.0),
    ):
        assert np.array_equal(table(seen, series=series)["ended_s"], [ended_s], equal_nan=True)


def test_who_is_left_out() -> None:
    kept = table(pod(), pod(ended_by_s=60.0, times={POD_COMPLETION: 59.0}), SeenPod())
    assert (kept["pod"].tolist(), kept["owner"].tolist()) == (["uid-0"], ["a/Pod/p"])
    assert len(table()["pod"]) == 0


def test_a_gang_that_comes_again_is_another_one() -> None:
    times = (100.0, 700.0, 1300.0, 1901.0, 5000.0)
    found = table(*(pod(gang="g", times={POD_CREATED: at_s}) for at_s in times), pod(gang="h"))
    by_pod = dict(zip(found["pod"], found["gang"], strict=True))
    assert [by_pod[f"uid-{number}"] for number in range(6)] == ["a/g", "a/g", "a/g", "a/g#2", "a/g#3", "a/h"]
