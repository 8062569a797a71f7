"""GPUs of ResourceClaims in the ledger: what slices offer, what a Binding holds of them, and for how long."""

from extender.core.resources.nodes import GpuUnit
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.ledger.ledger import AllocationState, Ledger
from extender.plugins.holdings import whole_gpus
from tests.ledger.builders import ledger_of, node_object, pod_object, taken, untracked
from tests.plugins.claims import resource_claim, slice_of


def of_slices(**gpus: int) -> Ledger:
    """A ledger of nodes with so many GPUs for ResourceClaims."""
    ledger = ledger_of(*map(node_object, gpus))
    for name, num_gpus in gpus.items():
        ledger.upsert_device(slice_of(name, num_gpus))
    return ledger


def unit(ledger: Ledger, node: str) -> GpuUnit:
    return ledger.rows.offer_of(node).unit


def test_what_a_binding_holds_of_devices_ends_once_the_pod_is_bound_and_reported() -> None:
    for reported_first in (True, False):
        ledger, pod = of_slices(n=2), pod_object("p", uid="u", node="n")
        claim = ledger.begin_binding("u", "n", whole_gpus(1), 0.0)
        assert (taken(ledger), untracked(ledger)) == (set(), 1)
        if reported_first:
            ledger.upsert_pod(pod, 1.0)
            assert (ledger.allocation("u"), untracked(ledger)) == (claim, 1), "it is not known whose Binding that is"
            ledger.end_binding(claim, AllocationState.BOUND, 2.0)
        else:
            ledger.end_binding(claim, AllocationState.BOUND, 1.0)
            ledger.upsert_pod(pod, 2.0)
        assert (ledger.allocation("u"), untracked(ledger)) == (None, 0), "the claim has the devices, not the pod"
        ledger.upsert_device(resource_claim("a", devices=("gpu-1",), pods=("u",), pool="n"))
        assert (taken(ledger), untracked(ledger)) == ({1}, 0)


def test_another_clients_binding_to_a_node_that_gives_pods_nothing_leaves_no_claim() -> None:
    ledger = ledger_of(n=2)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_pod(pod_object("p", uid="u", node="n"), 1.0)
    assert taken(ledger) == {0}
    ledger.end_binding(claim, None, 2.0)
    assert (ledger.allocation("u"), taken(ledger)) == (None, set())


def test_slices_and_claims_count_until_each_of_them_is_gone() -> None:
    ledger = of_slices(n=2, m=3)
    for name, node, devices in (("a", "n", ("gpu-0",)), ("b", "m", ("gpu-1", "gpu-2"))):
        ledger.upsert_device(resource_claim(name, devices=devices, pool=node))
    assert (taken(ledger, "n"), taken(ledger, "m"), ledger.num_claim_devices()) == ({0}, {1, 2}, {"default": 3})
    ledger.remove_device(ResourceClaim, "slice-m")
    ledger.remove_device(ResourceSlice, "uid-a")
    assert (unit(ledger, "n"), unit(ledger, "m"), ledger.num_claim_devices()) == (*[GpuUnit.CLAIM] * 2, {"default": 3})
    ledger.remove_device(ResourceClaim, "uid-b")
    assert (taken(ledger, "m"), ledger.num_claim_devices()) == (set(), {"default": 1})
    ledger.remove_device(ResourceSlice, "slice-m")
    assert (unit(ledger, "n"), unit(ledger, "m"), ledger.num_claim_devices()) == (
        GpuUnit.CLAIM,
        GpuUnit.NONE,
        {"default": 1},
    )
    ledger.remove_device(ResourceClaim, "uid-a")
    assert (taken(ledger, "n"), ledger.num_claim_devices()) == (set(), {})
