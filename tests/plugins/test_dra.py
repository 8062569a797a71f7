from typing import Any

import msgspec
import pytest

from extender.core.clusters import Cluster
from extender.core.resources.nodes import GpuUnit, NodeReading
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.dra.conditions import read_request
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.dra.published import _read_inventory
from extender.kube import objects
from extender.kube.indexes import Index
from extender.ledger.ledger import ClaimState, Ledger
from extender.plugins.dra import _DevicePools
from extender.plugins.holdings import whole_gpus
from tests.ledger.builders import node_object
from tests.nvidia import DRIVER
from tests.plugins.claims import resource_claim
from tests.plugins.goldens import case_name, cases

READING = NodeReading()


def device(name: str, uuid: str = "", *, product: str = "Tesla T4", memory: str = "15Gi", **more: Any) -> Any:
    """A device as NVIDIA's driver publishes it."""
    attributes = {"type": {"string": "gpu"}, "uuid": {"string": uuid or f"GPU-{name}"}}
    attributes |= {"productName": {"string": product}, "driverVersion": {"version": "550.0.0"}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}, **more}


def resource_slice(
    *devices: Any, name: str = "s0", node: str = "n1", pool: str = "", generation: int = 1, count: int = 1, **spec: Any
) -> ResourceSlice:
    """A slice of a node's pool."""
    manifest = {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {
            "driver": DRIVER,
            "pool": {"name": pool or node, "generation": generation, "resourceSliceCount": count},
            "nodeName": node,
            "devices": list(devices),
            **spec,
        },
    }
    return msgspec.convert(manifest, ResourceSlice)


def exactly(*expressions: str, count: int = 1, device_class: str = DRIVER, **more: Any) -> Any:
    """A request of a claim."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return {"name": "gpu", "exactly": {"deviceClassName": device_class, "selectors": selectors, "count": count, **more}}


@pytest.mark.parametrize("case", cases("dra", "selectors"), ids=case_name)
def test_selectors_that_can_be_read_become_conditions(case: Any) -> None:
    request = read_request([resource_claim("a", exactly(case["expression"], count=2))])

    assert request is not None
    assert (request.count, request.unit) == (2, AskedUnit.CLAIM)
    assert (request.include.text if request.include else None) == case.get("include")
    assert request.uuids == frozenset(case.get("uuids", ()))
    assert request.memory_each_mib == case.get("memory_each_mib", 0)


def test_requests_of_a_pod_are_added_up() -> None:
    t4 = "device.attributes['gpu.nvidia.com'].productName == 'Tesla T4'"
    alike = read_request([resource_claim("a", exactly(t4, count=2)), resource_claim("b", exactly(t4))])
    assert alike is not None
    assert alike.count == 3
    assert alike.include is not None
    # Different ones: which GPU has to satisfy which is kube-scheduler's to find out.
    assert read_request([resource_claim("a", exactly(t4), exactly())]) == GpuRequest(2, AskedUnit.CLAIM)


def test_the_first_alternative_counts() -> None:
    alternatives = {"name": "gpu", "firstAvailable": [exactly(count=4)["exactly"], exactly(count=1)["exactly"]]}
    assert read_request([resource_claim("a", alternatives)]) == GpuRequest(4, AskedUnit.CLAIM)


def test_more_selectors_than_can_be_read_at_once_are_no_conditions() -> None:
    t4 = "device.attributes['gpu.nvidia.com'].productName == 'Tesla T4'"
    read = read_request([resource_claim("a", exactly(t4, f"true // {'x' * 9000}"))])
    unread = read_request([resource_claim("a", exactly(t4, f"true // {'x' * 9000}", f"true // {'y' * 2000}"))])
    assert read is not None
    assert read.include is not None
    assert unread == GpuRequest(1, AskedUnit.CLAIM)


@pytest.mark.parametrize(
    "request_", [exactly(device_class="nic.example.com"), exactly(adminAccess=True), {"name": "x"}]
)
def test_what_takes_no_gpu_asks_for_none(request_: Any) -> None:
    assert read_request([resource_claim("a", request_)]) is None


def test_an_inventory_is_in_the_order_of_minor_numbers() -> None:
    tainted = [{"key": "health", "effect": "NoSchedule"}]
    inventory = _read_inventory(
        [resource_slice(device("gpu-10"), device("gpu-2", taints=tainted), device("gpu-1", memory="40536Mi"))], READING
    )

    assert [gpu.uuid for gpu in inventory.offer.gpus] == ["GPU-gpu-1", "GPU-gpu-2", "GPU-gpu-10"]
    assert [gpu.healthy for gpu in inventory.offer.gpus] == [True, False, True]
    assert [gpu.memory_mib for gpu in inventory.offer.gpus] == [40960, 15360, 15360]
    assert inventory.offer.unit is GpuUnit.CLAIM
    assert inventory.offer.gpus[0].model.name == "t4"


def test_only_complete_pools_of_the_newest_generation_count() -> None:
    pools = _DevicePools(READING)

    def uuids() -> list[str]:
        offer = pools.offer_of("n1")
        return [gpu.uuid for gpu in offer.gpus] if offer else []

    pools.upsert(resource_slice(device("gpu-0"), name="s0", generation=1))
    assert uuids() == ["GPU-gpu-0"]
    pools.upsert(resource_slice(device("gpu-1"), name="s1", generation=2, count=2))
    assert uuids() == []
    pools.upsert(resource_slice(device("gpu-2"), name="s2", generation=2, count=2))
    assert uuids() == ["GPU-gpu-1", "GPU-gpu-2"]


def test_slices_come_change_and_go() -> None:
    pools = _DevicePools(READING)

    assert pools.upsert(resource_slice(device("gpu-0"))) == {"n1"}
    assert pools.upsert(resource_slice(device("gpu-0"), name="x", driver="other")) == set()
    offer = pools.offer_of("n1")
    assert offer is not None
    assert len(offer.gpus) == 1
    moved = resource_slice(device("gpu-0"), device("gpu-1"), generation=2)
    assert pools.upsert(moved) == {"n1"}
    offer = pools.offer_of("n1")
    assert offer is not None
    assert len(offer.gpus) == 2
    assert pools.remove(ResourceSlice, "uid-s0") == {"n1"}
    assert pools.offer_of("n1") is None


def test_what_claims_hold() -> None:
    pools = _DevicePools(READING)
    partition = {"name": "mig-1", "attributes": {"type": {"string": "mig"}, "parentUUID": {"string": "GPU-gpu-2"}}}
    pools.upsert(resource_slice(device("gpu-0"), device("gpu-1"), device("gpu-2"), partition))

    assert pools.upsert(resource_claim("a", devices=("gpu-1",), pods=("pod-a",))) == {"n1"}
    pools.upsert(resource_claim("admin", devices=("gpu-0",), adminAccess=True))
    pools.upsert(resource_claim("mig", devices=("mig-1",)))
    pools.upsert(resource_claim("mig-too", devices=("mig-1", "gone")))
    held = pools.holdings_on("n1")
    assert sorted(gpu for holding in held for gpu in holding.gpus) == [1, 2]
    assert sum(holding.units for holding in held) == 3  # and one that is not there any more
    assert pools.serves("pod-a")
    assert not pools.serves("pod-b")

    changed = [pools.remove(ResourceClaim, uid) for uid in ("uid-admin", "uid-mig", "uid-mig-too")]
    assert changed == [set(), {"n1"}, {"n1"}]
    assert [holding.gpus for holding in pools.holdings_on("n1")] == [(1,)]
    assert pools.upsert(resource_claim("a", exactly())) == {"n1"}  # deallocated
    assert pools.holdings_on("n1") == []
    assert not pools.serves("pod-a")


def test_nothing_is_kept_of_claims_and_slices_that_are_gone() -> None:
    pools = _DevicePools(READING)
    before = {name: len(of) for name, of in vars(pools).items() if isinstance(of, dict | Index)}
    for number in range(3):
        pools.upsert(resource_slice(device("gpu-0"), name=f"s{number}", node=f"n{number}"))
        pools.upsert(resource_claim("a", devices=("gpu-0", "gpu-1"), pods=("pod-a",), pool=f"anything-{number}"))
    pools.remove(ResourceClaim, "uid-a")
    for number in range(3):
        pools.remove(ResourceSlice, f"uid-s{number}")
    assert {name: len(of) for name, of in vars(pools).items() if isinstance(of, dict | Index)} == before


def test_what_a_pod_asks_by_its_claims() -> None:
    pools = _DevicePools(READING)
    pools.upsert(resource_claim("mine", exactly(count=2)))
    pools.upsert(resource_claim("made", exactly()))
    pools.upsert(resource_claim("shared", exactly(), devices=("gpu-0",)))
    manifest = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {"resourceClaims": [{"name": "x", "resourceClaimName": "mine"}, {"name": "y"}, {"name": "z"}]},
        "status": {"resourceClaimStatuses": [{"name": "y", "resourceClaimName": "made"}]},
    }
    pod = msgspec.convert(manifest, objects.Pod)
    assert pools.request_of(pod) == GpuRequest(3, AskedUnit.CLAIM)

    pod.spec.resource_claims = [objects.PodClaim("x", "shared"), objects.PodClaim("y", "unknown")]
    pod.status.resource_claim_statuses = None
    assert pools.request_of(pod) is None


def row_of(ledger: Ledger, node: str) -> tuple[Cluster, int]:
    """A snapshot, and the row of a node in it."""
    cluster = ledger.snapshot(0.0)
    return cluster, cluster.row_of[node]


def test_a_reservation_counts_until_the_devices_are_allocated() -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_device(resource_slice(device("gpu-0"), device("gpu-1")))
    ledger.upsert_node(node_object("n1"))
    ledger.reserve("pod-a", "n1", whole_gpus(1), 0.0)
    cluster, row = row_of(ledger, "n1")
    assert cluster.unit[row] == GpuUnit.CLAIM
    assert (cluster.untracked_units[row], cluster.gpu_idle[row].tolist()) == (1, [True, True])

    ledger.upsert_device(resource_claim("a", devices=("gpu-1",), pods=("pod-a",)))
    cluster, row = row_of(ledger, "n1")
    assert (cluster.untracked_units[row], cluster.gpu_idle[row].tolist()) == (0, [True, False])

    claim = ledger.begin_binding("pod-a", "n1", whole_gpus(1), 0.0)
    ledger.end_binding(claim, ClaimState.BOUND, 0.0)
    ledger.remove_device(ResourceClaim, "uid-a")  # whoever has the devices now, it is not the pod
    cluster, row = row_of(ledger, "n1")
    assert (cluster.untracked_units[row], cluster.gpu_idle[row].tolist()) == (0, [True, True])

    ledger.remove_device(ResourceSlice, "uid-s0")
    cluster, row = row_of(ledger, "n1")
    assert cluster.unit[row] == GpuUnit.NONE


def test_where_the_kubelet_offers_gpus_slices_say_nothing_new() -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node_object("n1", 4))
    ledger.upsert_device(resource_slice(device("gpu-0")))
    cluster, row = row_of(ledger, "n1")
    assert cluster.unit[row] == GpuUnit.WHOLE
    assert cluster.gpu_idle[row].sum() == 4


def test_gpus_that_kerf_allocates_are_none_that_are_asked_by_number() -> None:
    tainted: dict[str, Any] = {"taints": [{"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}]}
    pools = _DevicePools(NodeReading(allocates=True))
    pools.upsert(resource_slice(device("gpu-0", **tainted)))
    pools.upsert(resource_slice(device("gpu-0"), name="s1", node="n2"))
    offers = [pools.offer_of(node) for node in ("n1", "n2")]
    assert [offer and offer.unit for offer in offers] == [GpuUnit.OWNED, GpuUnit.CLAIM]
