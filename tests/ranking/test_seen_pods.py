"""The mix of pods seen: what a guess counts beside them."""

import pytest

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.ranking import seen_pods
from extender.ranking.demands import Kind
from extender.ranking.seen_pods import SeenPods
from extender.scheduling.assignments import PodIdentity
from tests.ledger.builders import pod_object

ONE, EIGHT = Kind(0, 0, 1, 1000), Kind(0, 0, 8, 1000)


@pytest.mark.parametrize(
    ("num_gpus", "prior_pods", "guessed"),
    [(6000, None, 180.0), (1000, None, 30.0), (16, None, 10.0), (0, None, 10.0), (6000, 7.0, 7.0), (16, 500.0, 500.0)],
)
def test_a_guess_counts_by_the_size_of_the_cluster_and_fades(
    num_gpus: int, prior_pods: float | None, guessed: float
) -> None:
    seen = SeenPods(100.0, {ONE: 3.0, EIGHT: 1.0}, prior_pods)
    seen.num_gpus = num_gpus
    assert seen.counts() == pytest.approx({ONE: 0.75 * guessed, EIGHT: 0.25 * guessed})
    seen.priced = seen.counts()
    for number in range(100):
        seen.asked(PodIdentity("team", f"p-{number}", f"uid-{number}"), PodRequest(GpuRequest(8)))
    left = guessed / 2  # the half-life
    assert seen.counts()[ONE] == pytest.approx(0.75 * left)
    new = seen.counts()[EIGHT] - 0.25 * left
    assert seen.drift() == pytest.approx(0.75 * new / (new + left))


def test_without_a_guess_nothing_is_expected_at_first() -> None:
    assert SeenPods(100.0, {}, None).counts() == {}


def test_of_more_pods_than_are_looked_at_in_the_first_list_none_came_since(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_pods, "_MAX_AT_START", 3)
    monkeypatch.setattr(seen_pods, "_MAX_REMEMBERED", 5)
    seen = SeenPods(100.0, {}, None)

    def pod(number: int) -> objects.Pod:
        made = pod_object(f"p{number}", 1, node="n")
        made.metadata.creation_timestamp = f"2026-11-21T05:59:{number:02}Z"
        return made

    for number in range(10):
        seen.pod_changed(None, pod(number))
    seen.started = True
    assert (seen.num_seen, seen.fresh.num) == (3, 0)
    for number in range(5, 10):
        seen.pod_changed(None, pod(number))  # remembered
    assert seen.num_seen == 3
    for number in range(12):
        seen.pod_changed(None, pod(number))
    assert seen.fresh.num == 2


def test_a_pod_counts_once_before_it_has_a_node_and_after_it_was_asked_about() -> None:
    seen = SeenPods(100.0, {}, None)
    for node in ("", "n"):
        seen.pod_changed(None, pod_object("p", 1, node=node))
    waits = pod_object("asked", 1)
    seen.asked(PodIdentity("team", "asked", waits.metadata.uid), PodRequest(GpuRequest(1)))
    seen.pod_changed(None, waits)
    assert seen.num_seen == 2


def test_what_cannot_be_read_before_a_pod_has_a_node_counts_once_it_has_one() -> None:
    seen = SeenPods(100.0, {}, None)
    typo = {"kerf.dev/gpu-modell": "a100"}
    seen.pod_changed(None, pod_object("p", 1, annotations=typo))
    assert seen.num_seen == 0
    seen.pod_changed(None, pod_object("p", 1, node="n", annotations=typo))
    assert seen.num_seen == 1
