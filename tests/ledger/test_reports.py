"""What is held where a node's agent tells what the kubelet really gave, and where it lies."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from extender.core.bookings import book, bookable, booking
from extender.core.devices import choose_among
from extender.core.fit.fits import fit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube import objects
from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS, REPORT
from tests.ledger.builders import node_manifest, pod_object
from tests.nvidia import SHARED_GPU_RESOURCE

GPUS = [{"index": index, "uuid": f"GPU-{index}"} for index in range(4)]


def reporting(given: dict[str, list[str]], **more: Any) -> objects.Node:
    """A node of NVIDIA's plugin with four GPUs, whose agent says who was given what."""
    manifest = node_manifest("n", 4)
    told = {uid: {"main": {"nvidia.com/gpu": uuids}} for uid, uuids in given.items()}
    manifest["metadata"]["annotations"] = {REPORT: json.dumps({"version": 1, "gpus": GPUS, "given": told, **more})}
    return msgspec.convert(manifest, objects.Node)


def ledger_of(*pods: objects.Pod) -> Ledger:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(reporting({}))
    for pod in pods:
        ledger.upsert_pod(pod, 0.0)
    return ledger


def taken(ledger: Ledger) -> set[int]:
    cluster = ledger.snapshot(0.0)
    return {index for index, milli in enumerate(cluster.gpu_free_milli[0].tolist()) if milli == 0}


def free(ledger: Ledger) -> int:
    """GPUs that may be given to somebody."""
    cluster = ledger.snapshot(0.0)
    return int((cluster.gpu_free_milli[0] == 1000).sum() - cluster.untracked_units[0])


def test_what_was_given_counts_and_everybody_sees_it() -> None:
    ledger = ledger_of(pod_object("p", 2, uid="u", node="n", assigned="0,1"))
    assert (taken(ledger), ledger.mistaken()) == ({0, 1}, [])
    assert ledger.upsert_node(reporting({"u": ["GPU-3", "GPU-1"]})) == ()
    assert taken(ledger) == {1, 3}
    (claim,) = ledger.claims_on("n")
    assert sorted(claim.gpus) == [1, 3]
    assert ledger.mistaken() == [claim]


def test_a_pod_that_is_corrected_says_the_truth_and_is_no_edit() -> None:
    ledger = ledger_of(pod_object("p", 1, uid="u", node="n", assigned="0"))
    ledger.upsert_node(reporting({"u": ["GPU-3"]}))
    corrected = pod_object("p", 1, uid="u", node="n", annotations={ASSIGNED_GPUS: "3", ASSIGNED_UUIDS: "GPU-3"})
    assert ledger.upsert_pod(corrected, 1.0) == ()
    assert (ledger.mistaken(), ledger.num_edits_ignored) == ([], 0)
    ledger.upsert_node(reporting({}))
    assert taken(ledger) == {3}, "what it says is true by itself now"
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 2.0)
    assert (taken(ledger), ledger.num_edits_ignored) == ({3}, 1)


def test_another_edit_than_the_correction_changes_nothing() -> None:
    ledger = ledger_of(pod_object("p", 1, uid="u", node="n", assigned="0"))
    ledger.upsert_node(reporting({"u": ["GPU-3"]}))
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="2"), 1.0)
    assert (taken(ledger), ledger.num_edits_ignored) == ({3}, 1)


def test_a_binding_of_this_process_is_corrected_too() -> None:
    ledger = ledger_of()
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.end_binding(claim, ClaimState.BOUND, 0.0)
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 0.0)
    ledger.upsert_node(reporting({"u": ["GPU-2"]}))
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="2"), 1.0)
    assert (taken(ledger), ledger.mistaken(), ledger.num_edits_ignored) == ({2}, [], 0)


def test_nobody_is_corrected_who_was_never_told_which_gpus_it_has() -> None:
    ledger = ledger_of(pod_object("p", 1, uid="u", node="n"))
    ledger.upsert_node(reporting({"u": ["GPU-2"]}))
    assert (taken(ledger), ledger.mistaken()) == ({2}, [])


def sliced(given: dict[str, list[str]], *, steers: bool = True) -> objects.Node:
    """A node of two GPUs with three time slices each."""
    manifest = node_manifest("n", 2, resource=SHARED_GPU_RESOURCE, replicas=3)
    told = {uid: {"main": {SHARED_GPU_RESOURCE: ids}} for uid, ids in given.items()}
    report = {"version": 1, "gpus": GPUS[:2], "given": told, "steers": [SHARED_GPU_RESOURCE] if steers else []}
    manifest["metadata"]["annotations"] = {REPORT: json.dumps(report)}
    return msgspec.convert(manifest, objects.Node)


def slice_pod(name: str, count: int = 1, assigned: str = "") -> objects.Pod:
    return pod_object(name, count, resource=SHARED_GPU_RESOURCE, uid=name, node="n", assigned=assigned)


def slices(ledger: Ledger) -> tuple[list[int], int]:
    """Slices known to be held of each GPU, and of all."""
    cluster = ledger.snapshot(0.0)
    return cluster.gpu_slices[0, :2].tolist(), int(cluster.untracked_units[0])


def test_slices_are_known_by_gpu_as_they_are_assigned_and_as_they_are_given() -> None:
    ledger = ledger_of()
    ledger.upsert_node(sliced({}))
    for pod in (slice_pod("a", assigned="1"), slice_pod("b"), slice_pod("c", 2)):
        ledger.upsert_pod(pod, 0.0)
    assert slices(ledger) == ([0, 1], 4)
    assert ledger.upsert_node(sliced({"a": ["GPU-0::2"], "b": ["GPU-1::0"], "c": ["GPU-1::1", "GPU-1::2"]})) == ()
    assert slices(ledger) == ([1, 3], 4)
    assert [claim.pod for claim in ledger.mistaken()] == ["default/a"]
    assert not ledger.rows.num_crowded


def test_two_slices_of_one_gpu_are_more_than_an_annotation_can_say() -> None:
    ledger = ledger_of()
    ledger.upsert_node(sliced({}))
    ledger.upsert_pod(slice_pod("a", 2, assigned="0,1"), 0.0)
    ledger.upsert_node(sliced({"a": ["GPU-0::0", "GPU-0::1"]}))
    assert (slices(ledger), ledger.mistaken()) == (([2, 0], 2), [])


def test_more_slices_of_a_gpu_than_it_has_are_named_and_free_nothing() -> None:
    ledger = ledger_of()
    ledger.upsert_node(sliced({}))
    for name in "abcd":
        ledger.upsert_pod(slice_pod(name), 0.0)
    (told,) = ledger.upsert_node(sliced({name: [f"GPU-0::{name}"] for name in "abcd"}))
    assert "default/c and default/d are all reported to have GPU-0" in told
    assert slices(ledger)[1] == 4
    assert ledger.rows.num_crowded == 1


@pytest.mark.parametrize("steers", [True, False])
def test_what_a_plan_books_of_slices_is_what_is_held_then(steers: bool) -> None:
    ledger = ledger_of()
    ledger.upsert_node(sliced({}, steers=steers))
    ledger.upsert_pod(slice_pod("a", assigned="0"), 0.0)
    request, rows = GpuRequest(2, AskedUnit.SHARED), np.array([0])
    planned = bookable(ledger.snapshot(0.0))
    chosen = choose_among(planned, 0, request, fit(planned, request, rows).room[0], shares=False, spreads=False)
    assert chosen == ((0, 1) if steers else ())
    booked = booking(planned, 0, request, chosen)
    book(planned, 0, booked)
    claim = ledger.begin_binding("u", "n", whole_gpus(2, chosen), 0.0)
    assert slices(ledger) == (planned.gpu_slices[0, :2].tolist(), planned.untracked_units[0])
    book(planned, 0, booked, +1)
    ledger.end_binding(claim, None, 0.0)
    assert slices(ledger) == (planned.gpu_slices[0, :2].tolist(), planned.untracked_units[0])
    assert slices(ledger) == ([1, 0], 1)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        pytest.param({"u": ["GPU-9", "GPU-8"]}, "default/p can't have GPU-8, GPU-9", id="not of the node"),
        pytest.param({"u": ["GPU-3"]}, "default/p can't have GPU-3", id="fewer than it asks for"),
        pytest.param({"u": ["GPU-1", "GPU-2", "GPU-3"]}, "can't have", id="more than it asks for"),
        pytest.param(
            {"u": ["GPU-0", "GPU-1"], "v": ["GPU-1"]}, "both reported to have GPU-1", id="one GPU of two pods"
        ),
    ],
)
def test_a_lie_is_named_counted_and_frees_nothing(given: dict[str, list[str]], warning: str) -> None:
    pods = [pod_object("p", 2, uid="u", node="n", assigned="0,1"), pod_object("q", 1, uid="v", node="n", assigned="2")]
    ledger = ledger_of(*pods)
    assert free(ledger) == 1
    before = ledger.num_unreadable
    (told,) = ledger.upsert_node(reporting(given))
    assert warning in told
    assert ledger.num_unreadable == before + 1
    assert free(ledger) == 1
    assert ledger.upsert_node(reporting(given)) == (), "once"


def test_garbage_is_named_once_and_what_was_assigned_stays() -> None:
    ledger = ledger_of(pod_object("p", 1, uid="u", node="n", assigned="0"))
    node = reporting({})
    node.metadata.annotations = {REPORT: "{"}
    told = ledger.upsert_node(node)
    assert any(REPORT in warning for warning in told)
    assert ledger.upsert_node(node) == ()
    assert (taken(ledger), ledger.num_unreadable) == ({0}, 1)
