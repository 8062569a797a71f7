"""Who has which devices of a node, and what is still to be had of it."""

from typing import Any

import msgspec

from extender.core.dra.devices import DeviceId
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.explain import occupants
from extender.explain.occupants import DeviceViews
from extender.ledger.ledger import Ledger
from tests.ledger.builders import node_object
from tests.plugins.claims import resource_claim, slice_of

MIB_OF_GPU = 40_960
OWNED = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}


def partitioned(node: str = "n") -> list[ResourceSlice]:
    """A GPU with two halves and four quarters, owned by Kerf."""

    def device(name: str, places: range, memory: str, compute: int, **attributes: str) -> dict[str, Any]:
        counters = {f"slice-{place}": {"value": "1"} for place in places}
        return {
            "name": name,
            "attributes": {key: {"string": value} for key, value in attributes.items()},
            "capacity": {"memory": {"value": memory}, "multiprocessors": {"value": str(compute)}},
            "consumesCounters": [{"counterSet": "gpu-0-set", "counters": counters}],
            "taints": [OWNED],
        }

    devices = [device("gpu-0", range(4), "40Gi", 100, type="gpu", uuid="GPU-0", productName="A100")]
    half, quarter = {"type": "mig", "parentUUID": "GPU-0", "profile": "2g"}, {"type": "mig", "parentUUID": "GPU-0"}
    devices += [device(f"half-{at}", range(2 * at, 2 * at + 2), "20Gi", 50, **half) for at in range(2)]
    devices += [device(f"quarter-{at}", range(at, at + 1), "10Gi", 25, **quarter, profile="1g") for at in range(4)]
    sets = [{"name": "gpu-0-set", "counters": {f"slice-{place}": {"value": "1"} for place in range(4)}}]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 2}
    spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool}
    return [
        msgspec.convert(
            {"metadata": {"name": f"{node}-{number}", "uid": f"s-{node}-{number}"}, "spec": spec | part}, ResourceSlice
        )
        for number, part in enumerate(({"devices": devices}, {"sharedCounters": sets}))
    ]


def ledger_with(*claims: ResourceClaim) -> Ledger:
    ledger = Ledger(reservation_ttl_s=30.0, allocates=True)
    for item in partitioned():
        ledger.upsert_device(item)
    ledger.upsert_node(node_object("n"))
    for claim in claims:
        ledger.upsert_device(claim)
    return ledger


def test_what_is_free_of_a_gpu_in_partitions_is_told_by_the_largest_that_can_be_had() -> None:
    views = DeviceViews(ledger_with(resource_claim("a", devices=("quarter-1",), pool="n", pods=("p",))))
    summary = views.summary("n")
    assert summary is not None
    assert (summary["owned"], summary["taken"], summary["free"]) == (7, 1, "2g, 1g")
    assert summary["pools"] == [{"driver": "gpu.nvidia.com", "pool": "n", "devices": 7, "owner": "kerf", "fault": None}]
    assert views.by_gpu("n")[0]["freeDevices"] == "2g, 1g"


def test_partitions_book_their_part_of_a_gpu_and_no_more() -> None:
    cluster = ledger_with(
        resource_claim("a", devices=("quarter-1",), pool="n"), resource_claim("b", devices=("half-1",), pool="n")
    ).snapshot(0.0)
    row = cluster.row_of["n"]
    # 250 and 500 milli, 10 and 20 GiB of one GPU of 1000 milli and 40 GiB
    assert cluster.gpu_free_milli[row, 0] == 250
    assert cluster.gpu_free_mib[row, 0] == MIB_OF_GPU - 3 * 10_240
    assert cluster.untracked_units[row] == 0


def test_a_claim_is_told_with_its_devices_and_the_pods_that_may_use_them() -> None:
    ledger = ledger_with(resource_claim("a", devices=("half-0",), pool="n", pods=("p", "q")))
    (use,) = DeviceViews(ledger).uses("n")
    assert use == {
        "device": "half-0",
        "driver": "gpu.nvidia.com",
        "pool": "n",
        "gpu": 0,
        "kind": "2g",
        "claim": "default/a",
        "pods": ["default/p", "default/q"],
        "state": "allocated",
        "admin": False,
    }
    (holder,) = occupants.users(ledger.device_uses("n"))
    assert (holder["pod"], holder["gpus"], holder["shared"]) == ("default/p", [0], True)
    nobody = occupants.Unbooked(0, 0, 0)
    assert occupants.words([holder], nobody) == "claim default/a of default/p has half-0"


def test_devices_of_kube_scheduler_are_told_too_where_kerf_allocates_none() -> None:
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_device(slice_of("n", 2))
    ledger.upsert_node(node_object("n"))
    ledger.upsert_device(resource_claim("a", devices=("gpu-1",), pool="n", pods=("p",)))
    views = DeviceViews(ledger)
    (use,) = views.uses("n")
    assert (use["device"], use["gpu"], use["claim"], use["kind"]) == ("gpu-1", 1, "default/a", None)
    assert views.summary("n") is None
    assert views.by_gpu("n")[1]["freeDevices"] is None


def test_a_pool_that_is_only_partly_kerfs_is_told_with_its_fault() -> None:
    ledger = Ledger(reservation_ttl_s=30.0, allocates=True)
    pool = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "gpu-0", "taints": [OWNED]}, {"name": "gpu-1"}]
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices}
    ledger.upsert_device(msgspec.convert({"metadata": {"name": "n", "uid": "s-n"}, "spec": spec}, ResourceSlice))
    ledger.upsert_node(node_object("n"))
    summary = DeviceViews(ledger).summary("n")
    assert summary is not None
    (pool,) = summary["pools"]
    assert (pool["owner"], pool["fault"]) == ("nobody", "only some of its devices have the taint kerf.dev/owned")
    assert (summary["owned"], summary["free"]) == (0, "")


def test_a_claim_that_is_gone_while_its_pod_runs_is_told_so() -> None:
    ledger = ledger_with(resource_claim("a", devices=("half-0",), pool="n", pods=("p",)))
    ledger.remove_device(ResourceClaim, "uid-a")
    (use,) = DeviceViews(ledger).uses("n")
    assert use["state"] == "allocated to a claim that is gone"
    owned = ledger.rows.owned
    assert owned is not None
    assert DeviceId("gpu.nvidia.com", "n", "half-0") in owned.inventory_on("n").index_of
