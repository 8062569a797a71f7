"""Who has which devices of a node, and what is still to be had of it."""

from typing import Any

import msgspec

from extender.core.dra.devices import DeviceId
from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.explain import occupants
from extender.explain.occupants import DeviceViews
from extender.ledger.ledger import Ledger
from tests.ledger.builders import node_object
from tests.nvidia import DRIVER
from tests.plugins.claims import resource_claim, slice_of

OWNED = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}


def slices(*parts: dict[str, Any]) -> list[ResourceSlice]:
    """The slices of node n's pool."""
    pool = {"name": "n", "generation": 1, "resourceSliceCount": len(parts)}
    spec = {"driver": DRIVER, "nodeName": "n", "pool": pool}
    return [
        msgspec.convert({"metadata": {"name": f"n-{at}", "uid": f"s-{at}"}, "spec": spec | part}, ResourceSlice)
        for at, part in enumerate(parts)
    ]


def partitioned() -> list[ResourceSlice]:
    """A GPU with two halves and four quarters, owned by Kerf."""

    def device(name: str, places: range, **attributes: str) -> dict[str, Any]:
        size = len(places)
        counters = {f"slice-{place}": {"value": "1"} for place in places}
        return {
            "name": name,
            "attributes": {key: {"string": value} for key, value in attributes.items()},
            "capacity": {"memory": {"value": f"{10 * size}Gi"}, "multiprocessors": {"value": str(25 * size)}},
            "consumesCounters": [{"counterSet": "set", "counters": counters}],
            "taints": [OWNED],
        }

    mig = {"type": "mig", "parentUUID": "GPU-0"}
    devices = [device("gpu-0", range(4), type="gpu", uuid="GPU-0", productName="A100")]
    devices += [device(f"half-{at}", range(2 * at, 2 * at + 2), **mig, profile="2g") for at in range(2)]
    devices += [device(f"quarter-{at}", range(at, at + 1), **mig, profile="1g") for at in range(4)]
    counters = {f"slice-{place}": {"value": "1"} for place in range(4)}
    return slices({"devices": devices}, {"sharedCounters": [{"name": "set", "counters": counters}]})


def ledger_of(*objects: ResourceSlice | ResourceClaim, allocates: bool = True) -> Ledger:
    """A ledger of node n."""
    ledger = Ledger(reservation_ttl_s=30.0, allocates=allocates)
    ledger.upsert_node(node_object("n"))
    for item in objects:
        ledger.upsert_device(item)
    return ledger


def claim(name: str, device: str, *pods: str) -> ResourceClaim:
    return resource_claim(name, devices=(device,), pool="n", pods=pods)


def test_what_is_free_of_a_gpu_in_partitions_is_told_by_the_largest_that_can_be_had() -> None:
    views = DeviceViews(ledger_of(*partitioned(), claim("a", "quarter-1", "p")))
    pool = {"driver": DRIVER, "pool": "n", "devices": 7, "owner": "kerf", "fault": None}
    assert views.summary("n") == {"owned": 7, "taken": 1, "free": "2g, 1g", "pools": [pool]}
    assert views.by_gpu("n")[0]["freeDevices"] == "2g, 1g"


def test_partitions_book_their_part_of_a_gpu_and_no_more() -> None:
    cluster = ledger_of(*partitioned(), claim("a", "quarter-1"), claim("b", "half-1")).snapshot(0.0)
    row = cluster.row_of["n"]
    # 250 and 500 milli, 10 and 20 GiB of one GPU of 1000 milli and 40 GiB
    assert (cluster.gpu_free_milli[row, 0], cluster.gpu_free_mib[row, 0]) == (250, 10_240)
    assert cluster.untracked_units[row] == 0


def test_a_claim_is_told_with_its_devices_and_the_pods_that_may_use_them() -> None:
    ledger = ledger_of(*partitioned(), claim("a", "half-0", "p", "q"))
    assert DeviceViews(ledger).uses("n") == [
        {
            **{"device": "half-0", "driver": DRIVER, "pool": "n", "gpu": 0, "kind": "2g", "claim": "default/a"},
            **{"pods": ["default/p", "default/q"], "state": "allocated", "admin": False},
        }
    ]
    (holder,) = occupants.users(ledger.device_uses("n"))
    assert (holder["pod"], holder["gpus"], holder["shared"]) == ("default/p", [0], True)
    assert occupants.words([holder], occupants.Unbooked(0, 0, 0)) == "claim default/a of default/p has half-0"


def test_a_claim_that_is_gone_while_its_pod_runs_is_told_so() -> None:
    ledger = ledger_of(*partitioned(), claim("a", "half-0", "p"))
    ledger.remove_device(ResourceClaim, "uid-a")
    (use,) = DeviceViews(ledger).uses("n")
    assert use["state"] == "allocated to a claim that is gone"
    owned = ledger.rows.owned
    assert owned is not None
    assert DeviceId(DRIVER, "n", "half-0") in owned.inventory_on("n").index_of


def test_devices_of_kube_scheduler_are_told_too_where_kerf_allocates_none() -> None:
    views = DeviceViews(ledger_of(slice_of("n", 2), claim("a", "gpu-1", "p"), allocates=False))
    (use,) = views.uses("n")
    assert (use["device"], use["gpu"], use["claim"], use["kind"]) == ("gpu-1", 1, "default/a", None)
    assert (views.summary("n"), views.by_gpu("n")[1]["freeDevices"]) == (None, None)


def test_a_pool_that_is_only_partly_kerfs_is_told_with_its_fault() -> None:
    devices = [{"name": "gpu-0", "taints": [OWNED]}, {"name": "gpu-1"}]
    summary = DeviceViews(ledger_of(*slices({"devices": devices}))).summary("n")
    assert summary is not None
    (pool,) = summary["pools"]
    assert (pool["owner"], pool["fault"]) == ("nobody", "only some of its devices have the taint kerf.dev/owned")
    assert (summary["owned"], summary["free"]) == (0, "")
