"""GPUs of ResourceClaims in the ledger: what slices offer, what a Binding holds of them, and for how long."""

import pytest

from extender.core.resources.nodes import GpuUnit
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.holdings import whole_gpus
from tests.ledger.builders import TTL_S, node_object, pod_object
from tests.plugins.claims import resource_claim, slice_of


def ledger_of(**gpus: int) -> Ledger:
    """A ledger of nodes with so many GPUs for ResourceClaims."""
    ledger = Ledger(reservation_ttl_s=TTL_S)
    for name, num_gpus in gpus.items():
        ledger.upsert_node(node_object(name))
        ledger.upsert_device(slice_of(name, num_gpus))
    return ledger


def held(ledger: Ledger, node: str) -> tuple[set[int], int]:
    """GPUs that somebody has, and how many of unknown index besides."""
    cluster = ledger.snapshot(0.0)
    row = cluster.row_of[node]
    return {index for index, idle in enumerate(cluster.gpu_idle[row].tolist()) if not idle}, int(
        cluster.untracked_units[row]
    )


def unit(ledger: Ledger, node: str) -> GpuUnit:
    cluster = ledger.snapshot(0.0)
    return GpuUnit(int(cluster.unit[cluster.row_of[node]]))


@pytest.mark.parametrize("told_first", [True, False], ids=["told-before-the-answer", "told-after-it"])
def test_what_a_binding_holds_of_devices_ends_when_the_pod_is_bound_and_told_of(told_first: bool) -> None:
    ledger = ledger_of(n=2)
    pod = pod_object("p", uid="u", node="n")
    claim = ledger.begin_binding("u", "n", whole_gpus(1), 0.0)
    assert held(ledger, "n") == (set(), 1)
    if told_first:
        ledger.upsert_pod(pod, 1.0)
        assert (ledger.claim("u"), held(ledger, "n")) == (claim, (set(), 1)), "whose Binding that is nobody knows yet"
        ledger.end_binding(claim, ClaimState.BOUND, 2.0)
    else:
        ledger.end_binding(claim, ClaimState.BOUND, 1.0)
        ledger.upsert_pod(pod, 2.0)
    assert (ledger.claim("u"), held(ledger, "n")) == (None, (set(), 0)), "the claim has the devices, not the pod"
    ledger.upsert_device(resource_claim("a", devices=("gpu-1",), pods=("u",), pool="n"))
    assert held(ledger, "n") == ({1}, 0)


def test_a_binding_of_somebody_else_to_a_node_that_gives_pods_nothing_leaves_no_claim() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(node_object("n", 2))
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_pod(pod_object("p", uid="u", node="n"), 1.0)
    assert held(ledger, "n") == ({0}, 0)
    ledger.end_binding(claim, None, 2.0)
    assert (ledger.claim("u"), held(ledger, "n")) == (None, (set(), 0))


def test_what_is_told_of_devices_and_claims_counts_until_each_of_them_is_gone() -> None:
    ledger = ledger_of(n=2, m=3)
    for name, node, devices in (("a", "n", ("gpu-0",)), ("b", "m", ("gpu-1", "gpu-2"))):
        ledger.upsert_device(resource_claim(name, devices=devices, pool=node))
    assert (held(ledger, "n")[0] & {0, 1}, held(ledger, "m")[0]) == ({0}, {1, 2})
    assert ledger.num_claimed() == {"default": 3}
    ledger.remove_device(ResourceClaim, "slice-m")
    ledger.remove_device(ResourceSlice, "uid-a")
    assert (unit(ledger, "n"), unit(ledger, "m"), ledger.num_claimed()) == (
        GpuUnit.CLAIM,
        GpuUnit.CLAIM,
        {"default": 3},
    )
    ledger.remove_device(ResourceClaim, "uid-b")
    assert (held(ledger, "m")[0], ledger.num_claimed()) == (set(), {"default": 1})
    ledger.remove_device(ResourceSlice, "slice-m")
    assert (unit(ledger, "n"), unit(ledger, "m")) == (GpuUnit.CLAIM, GpuUnit.NONE)
    assert ledger.num_claimed() == {"default": 1}
    ledger.remove_device(ResourceClaim, "uid-a")
    assert (ledger.num_claimed(), unit(ledger, "n")) == ({}, GpuUnit.CLAIM)
