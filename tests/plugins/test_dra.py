"""GPUs of dynamic resource allocation."""

from typing import Any

import msgspec

from extender.core.resources.nodes import GpuUnit, NodeReading
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.dra.conditions import read_request
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.dra.published import _read_inventory
from extender.kube import objects
from extender.kube.indexes import Index
from extender.ledger.ledger import Ledger
from extender.plugins.dra import _DevicePools
from tests.ledger.builders import node_object
from tests.nvidia import DRIVER
from tests.plugins.claims import resource_claim
from tests.plugins.goldens import cases

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


def gpus(count: int) -> GpuRequest:
    return GpuRequest(count, AskedUnit.CLAIM)


T4 = "device.attributes['gpu.nvidia.com'].productName == 'Tesla T4'"


def test_selectors_that_can_be_parsed_become_conditions() -> None:
    for name, case in cases("dra", "selectors"):
        request = read_request([resource_claim("a", exactly(case["expression"], count=2))])
        assert request is not None, name
        assert (request.count, request.unit) == (2, AskedUnit.CLAIM)
        assert (request.include.text if request.include else None) == case.get("include"), name
        assert request.uuids == frozenset(case.get("uuids", ())), name
        assert request.memory_each_mib == case.get("memory_each_mib", 0), name
    long = [f"true // {'x' * 9000}", f"true // {'y' * 2000}"]  # more than can be parsed at once
    for selectors, conditional in ((long[:1], True), (long, False)):
        request = read_request([resource_claim("a", exactly(T4, *selectors))])
        assert (request != gpus(1)) is conditional


def test_requests_of_a_pod_are_added_up() -> None:
    alike = read_request([resource_claim("a", exactly(T4, count=2)), resource_claim("b", exactly(T4))])
    assert alike is not None
    assert alike.count == 3
    assert alike.include is not None
    # Different ones: kube-scheduler finds out which GPU satisfies which.
    assert read_request([resource_claim("a", exactly(T4), exactly())]) == gpus(2)
    alternatives = {"name": "gpu", "firstAvailable": [exactly(count=4)["exactly"], exactly(count=1)["exactly"]]}
    assert read_request([resource_claim("a", alternatives)]) == gpus(4), "the first alternative counts"
    for other in (exactly(device_class="nic.example.com"), exactly(adminAccess=True), {"name": "x"}):
        assert read_request([resource_claim("a", other)]) is None


def test_an_inventory_is_in_the_order_of_minor_numbers() -> None:
    tainted = [{"key": "health", "effect": "NoSchedule"}]
    published = [device("gpu-10"), device("gpu-2", taints=tainted), device("gpu-1", memory="40536Mi")]
    offer = _read_inventory([resource_slice(*published)], READING).offer
    assert [(gpu.uuid, gpu.healthy, gpu.memory_mib) for gpu in offer.gpus] == [
        ("GPU-gpu-1", True, 40960),
        ("GPU-gpu-2", False, 15360),
        ("GPU-gpu-10", True, 15360),
    ]
    assert (offer.unit, offer.gpus[0].model.name) == (GpuUnit.CLAIM, "t4")


def test_slices_change_the_offer_of_their_node() -> None:
    pools = _DevicePools(READING)
    assert pools.upsert(resource_slice(device("gpu-0"))) == {"n1"}
    assert pools.upsert(resource_slice(device("gpu-0"), name="x", driver="other")) == set()
    assert pools.upsert(resource_slice(device("gpu-1"), device("gpu-2"), generation=2)) == {"n1"}
    offer = pools.offer_of("n1")
    assert offer is not None
    assert [gpu.uuid for gpu in offer.gpus] == ["GPU-gpu-1", "GPU-gpu-2"]
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
    assert sum(holding.units for holding in held) == 3  # and one that does not exist any more
    assert (pools.serves("pod-a"), pools.serves("pod-b")) == (True, False)
    changed = [pools.remove(ResourceClaim, uid) for uid in ("uid-admin", "uid-mig", "uid-mig-too")]
    assert changed == [set(), {"n1"}, {"n1"}]
    assert [holding.gpus for holding in pools.holdings_on("n1")] == [(1,)]
    assert pools.upsert(resource_claim("a", exactly())) == {"n1"}  # deallocated
    assert (pools.holdings_on("n1"), pools.serves("pod-a")) == ([], False)


def test_nothing_is_kept_of_removed_claims_and_slices() -> None:
    def sizes() -> dict[str, int]:
        return {name: len(of) for name, of in vars(pools).items() if isinstance(of, dict | Index)}

    pools = _DevicePools(READING)
    before = sizes()
    for number in range(3):
        pools.upsert(resource_slice(device("gpu-0"), name=f"s{number}", node=f"n{number}"))
        pools.upsert(resource_claim("a", devices=("gpu-0", "gpu-1"), pods=("pod-a",), pool=f"anything-{number}"))
    pools.remove(ResourceClaim, "uid-a")
    for number in range(3):
        pools.remove(ResourceSlice, f"uid-s{number}")
    assert sizes() == before


def test_what_a_pod_requests_by_its_claims() -> None:
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
    assert pools.request_of(pod) == gpus(3)
    pod.spec.resource_claims = [objects.PodClaim("x", "shared"), objects.PodClaim("y", "unknown")]
    pod.status.resource_claim_statuses = None
    assert pools.request_of(pod) is None


def test_where_the_kubelet_offers_gpus_slices_add_none() -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node_object("n1", 4))
    ledger.upsert_device(resource_slice(device("gpu-0")))
    offer = ledger.rows.offer_of("n1")
    assert (offer.unit, len(offer.gpus)) == (GpuUnit.WHOLE, 4)


def test_gpus_that_kerf_allocates_are_not_requested_by_number() -> None:
    owned: dict[str, Any] = {"taints": [{"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}]}
    pools = _DevicePools(NodeReading(allocates=True))
    pools.upsert(resource_slice(device("gpu-0", **owned)))
    pools.upsert(resource_slice(device("gpu-0"), name="s1", node="n2"))
    offers = [pools.offer_of(node) for node in ("n1", "n2")]
    assert [offer and offer.unit for offer in offers] == [GpuUnit.OWNED, GpuUnit.CLAIM]
