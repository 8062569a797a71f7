"""The mix of pods seen: what a guess counts beside them."""

import msgspec
import pytest

from extender.core.fragmentation import fair_weights
from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.ranking import seen_pods
from extender.ranking.demands import Kind
from extender.ranking.seen_pods import SeenPods, _FreshPods
from extender.scheduling.assignments import PodIdentity
from tests.ledger.builders import pod_manifest, pod_object

ONE, EIGHT, ODD = Kind(0, 0, 1, 1000), Kind(0, 0, 8, 1000), Kind(0, 0, 1, 130)


@pytest.mark.parametrize(
    ("num_gpus", "prior_pods", "guessed"), [(6000, None, 180.0), (16, None, 10.0), (6000, 7.0, 7.0)]
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
    assert seen.counts() == {}
    for node in ("", "n"):
        seen.pod_changed(None, pod_object("p", 1, node=node))
    waits = pod_object("asked", 1)
    seen.asked(PodIdentity("team", "asked", waits.metadata.uid), PodRequest(GpuRequest(1)))
    seen.pod_changed(None, waits)
    assert seen.num_seen == 2


def test_pods_that_belong_to_their_node_do_not_count() -> None:
    seen = SeenPods(100.0, {}, None)
    for kind in ("DaemonSet", "Node"):
        pod = pod_manifest(kind, 1, node="n")
        pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": "o", "uid": "u", "controller": True}]
        seen.pod_changed(None, msgspec.convert(pod, objects.Pod))
    assert seen.num_seen == 0


def test_an_unreadable_pod_counts_once_it_has_a_node() -> None:
    seen = SeenPods(100.0, {}, None)
    typo = {"kerf.dev/gpu-modell": "a100"}
    seen.pod_changed(None, pod_object("p", 1, annotations=typo))
    assert seen.num_seen == 0
    seen.pod_changed(None, pod_object("p", 1, node="n", annotations=typo))
    assert seen.num_seen == 1


# Pods that arrived since: no namespace counts for more than its part of the GPUs in use


def test_a_namespace_that_floods_counts_as_much_as_it_holds() -> None:
    fresh = _FreshPods()
    for _ in range(100):
        fresh.add("research", ONE)
    for _ in range(9900):
        fresh.add("flood", ODD)
    counts = fresh.counts({"research": 95.0, "flood": 5.0})
    assert counts[ODD] / (counts[ODD] + counts[ONE]) == pytest.approx(0.05)
    assert counts[ONE] == 100
    counts = fresh.counts({"research": 95.0})
    assert counts[ODD] / (counts[ODD] + counts[ONE]) == pytest.approx(0.02)


def test_a_namespace_within_its_part_counts_in_full() -> None:
    assert fair_weights({"a": 50, "b": 50}, {"a": 1.0, "b": 1.0}) == {"a": 1.0, "b": 1.0}
    assert fair_weights({"a": 50}, {}) == {"a": 1.0}
    assert fair_weights({"a": 50}, {"a": 3.0}) == {"a": 1.0}
    assert fair_weights({}, {"a": 3.0}) == {}


def test_several_that_flood_are_all_cut() -> None:
    pods = {"a": 100, "b": 5000, "c": 4000}
    weight = fair_weights(pods, {"a": 80.0, "b": 10.0, "c": 10.0})
    whole = sum(weight[name] * pods[name] for name in pods)
    for name in ("b", "c"):
        assert weight[name] * pods[name] / whole == pytest.approx(0.1, rel=0.01)
    assert weight["a"] == 1.0


def test_a_stage_begins_with_nothing_and_kinds_are_bounded() -> None:
    fresh = _FreshPods()
    for number in range(510):
        fresh.add("a", Kind(number, 0, 1, 1000))
    assert fresh.num == 500
    fresh.add("a", Kind(5, 0, 1, 1000))
    fresh.add("b", Kind(900, 0, 1, 1000))  # one namespace's many kinds are no reason to leave out another's
    assert fresh.num == 502
    fresh.begin()
    assert (fresh.num, fresh.counts({})) == (0, {})
