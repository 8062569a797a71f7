"""What is held on a node whose agent reports what the kubelet really gave, and where the agent lies."""

import json

import numpy as np
import pytest

from extender.core.bookings import book, booking, writable_copy
from extender.core.devices import choose_among
from extender.core.fit.fits import fit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube import objects
from extender.ledger.ledger import AllocationState, Ledger
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS, REPORT
from extender.queueing.pods.objects import decode_node
from tests.ledger.builders import free_units, ledger_of, node_manifest, pod_object, taken, untracked
from tests.nvidia import SHARED_GPU_RESOURCE

GPUS = [{"index": index, "uuid": f"GPU-{index}"} for index in range(4)]


def reporting(given: dict[str, list[str]]) -> objects.Node:
    """A node of NVIDIA's plugin with four GPUs, whose agent reports who was given what."""
    manifest = node_manifest("n", 4)
    by_pod = {uid: {"main": {"nvidia.com/gpu": uuids}} for uid, uuids in given.items()}
    manifest["metadata"]["annotations"] = {REPORT: json.dumps({"version": 1, "gpus": GPUS, "given": by_pod})}
    return decode_node(manifest)


def pod(assigned: str | None = "0", uid: str = "u", name: str = "p", gpus: int = 1) -> objects.Pod:
    return pod_object(name, gpus, uid=uid, node="n", assigned=assigned)


def ledger_with(*pods: objects.Pod) -> Ledger:
    ledger = ledger_of(reporting({}))
    for item in pods:
        ledger.upsert_pod(item, 0.0)
    return ledger


def test_what_was_given_counts_and_is_what_everyone_sees() -> None:
    ledger = ledger_with(pod("0,1", gpus=2))
    assert (taken(ledger), ledger.mistaken()) == ({0, 1}, [])
    assert ledger.upsert_node(reporting({"u": ["GPU-3", "GPU-1"]})) == ()
    (claim,) = ledger.allocations_on("n")
    assert (taken(ledger), sorted(claim.gpus), ledger.mistaken()) == ({1, 3}, [1, 3], [claim])


@pytest.mark.parametrize("bound_here", [True, False])
def test_a_correction_of_a_pod_does_not_count_as_an_edit(bound_here: bool) -> None:
    ledger = ledger_with()
    if bound_here:
        ledger.end_binding(ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0), AllocationState.BOUND, 0.0)
    ledger.upsert_pod(pod("0"), 0.0)
    ledger.upsert_node(reporting({"u": ["GPU-3"]}))
    ledger.upsert_pod(pod("2"), 1.0)
    assert (taken(ledger), ledger.num_edits_ignored) == ({3}, 1), "that was none"
    corrected = pod_object("p", 1, uid="u", node="n", annotations={ASSIGNED_GPUS: "3", ASSIGNED_UUIDS: "GPU-3"})
    for now in (2.0, 3.0):
        assert ledger.upsert_pod(corrected, now) == ()
    assert (ledger.mistaken(), ledger.num_edits_ignored) == ([], 1)
    ledger.upsert_node(reporting({}))
    assert taken(ledger) == {3}, "what it says is true by itself now"
    ledger.upsert_pod(pod("0"), 4.0)
    assert (taken(ledger), ledger.num_edits_ignored) == ({3}, 2)


def test_a_pod_whose_gpus_were_never_assigned_is_not_corrected() -> None:
    ledger = ledger_with(pod(None))
    ledger.upsert_node(reporting({"u": ["GPU-2"]}))
    assert (taken(ledger), ledger.mistaken()) == ({2}, [])


# Time slices.


def sliced(given: dict[str, list[str]], *, steers: bool = True) -> objects.Node:
    """A node of two GPUs with three time slices each."""
    manifest = node_manifest("n", 2, resource=SHARED_GPU_RESOURCE, replicas=3)
    by_pod = {uid: {"main": {SHARED_GPU_RESOURCE: ids}} for uid, ids in given.items()}
    report = {"version": 1, "gpus": GPUS[:2], "given": by_pod, "steers": [SHARED_GPU_RESOURCE] if steers else []}
    manifest["metadata"]["annotations"] = {REPORT: json.dumps(report)}
    return decode_node(manifest)


def sharing(*pods: tuple[str, int, str], steers: bool = True) -> Ledger:
    """Pods by name, number of slices and assignment, on such a node."""
    ledger = ledger_of(sliced({}, steers=steers))
    for name, count, assigned in pods:
        resource = SHARED_GPU_RESOURCE
        ledger.upsert_pod(pod_object(name, count, resource=resource, uid=name, node="n", assigned=assigned), 0.0)
    return ledger


def slices(ledger: Ledger) -> tuple[list[int], int]:
    """Slices known to be held of each GPU, and of all."""
    return ledger.snapshot(0.0).gpu_slices[0, :2].tolist(), untracked(ledger)


def test_slices_are_known_by_gpu_as_they_are_assigned_and_as_they_are_given() -> None:
    ledger = sharing(("a", 1, "1"), ("b", 1, ""), ("c", 2, ""))
    assert slices(ledger) == ([0, 1], 4)
    assert ledger.upsert_node(sliced({"a": ["GPU-0::2"], "b": ["GPU-1::0"], "c": ["GPU-1::1", "GPU-1::2"]})) == ()
    assert (slices(ledger), ledger.rows.num_overbooked) == (([1, 3], 4), 0)
    assert [claim.pod for claim in ledger.mistaken()] == ["default/a"]
    ledger = sharing(("a", 2, "0,1"))
    ledger.upsert_node(sliced({"a": ["GPU-0::0", "GPU-0::1"]}))
    assert (slices(ledger), ledger.mistaken()) == (([2, 0], 2), []), "an annotation can't say two of one GPU"


def test_more_slices_of_a_gpu_than_it_has_are_warned_of_and_free_nothing() -> None:
    ledger = sharing(*((name, 1, "") for name in "abcd"))
    (warning,) = ledger.upsert_node(sliced({name: [f"GPU-0::{name}"] for name in "abcd"}))
    assert "default/c and default/d are all reported to have GPU-0" in warning
    assert (slices(ledger)[1], ledger.rows.num_overbooked) == (4, 1)


@pytest.mark.parametrize("steers", [True, False])
def test_what_a_plan_books_of_slices_is_what_is_held_then(steers: bool) -> None:
    ledger = sharing(("a", 1, "0"), steers=steers)
    request, rows = GpuRequest(2, AskedUnit.SHARED), np.array([0])
    planned = writable_copy(ledger.snapshot(0.0))
    chosen = choose_among(planned, 0, request, fit(planned, request, rows).room[0], shares=False, spreads=False)
    assert chosen == ((0, 1) if steers else ())
    booked = booking(planned, 0, request, chosen)
    book(planned, 0, booked)
    claim = ledger.begin_binding("u", "n", whole_gpus(2, chosen), 0.0)
    assert slices(ledger) == (planned.gpu_slices[0, :2].tolist(), planned.untracked_units[0])
    book(planned, 0, booked, +1)
    ledger.end_binding(claim, None, 0.0)
    assert slices(ledger) == (planned.gpu_slices[0, :2].tolist(), planned.untracked_units[0]) == ([1, 0], 1)


# Lies and garbage.


def test_a_lie_is_warned_of_once_counted_and_frees_nothing() -> None:
    for given, warning in (
        ({"u": ["GPU-9", "GPU-8"]}, "default/p can't have GPU-8, GPU-9"),
        ({"u": ["GPU-3"]}, "default/p can't have GPU-3"),
        ({"u": ["GPU-1", "GPU-2", "GPU-3"]}, "can't have"),
        ({"u": ["GPU-0", "GPU-1"], "v": ["GPU-1"]}, "both reported to have GPU-1"),
        ({"u": [f"GPU-{number}".ljust(51, "x") for number in range(4)]}, f"{'GPU-3'.ljust(41, 'x')}: not as many"),
    ):
        ledger = ledger_with(pod("0,1", gpus=2), pod("2", "v", "q"))
        before = ledger.num_unreadable
        (told,) = ledger.upsert_node(reporting(given))
        assert warning in told
        assert (ledger.num_unreadable, free_units(ledger.snapshot(0.0), "n")) == (before + 1, 1)
        assert ledger.upsert_node(reporting(given)) == ()


def test_garbage_is_warned_of_once_and_what_was_assigned_stays() -> None:
    ledger = ledger_with(pod("0"))
    node = reporting({})
    node.metadata.annotations = {REPORT: "{"}
    assert any(REPORT in warning for warning in ledger.upsert_node(node))
    assert ledger.upsert_node(node) == ()
    assert (taken(ledger), ledger.num_unreadable) == ({0}, 1)
