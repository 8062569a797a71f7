"""What the metrics say of devices, pools and claims."""

import asyncio
from typing import Any

import msgspec

from extender.dra.objects import ResourceClaim, ResourceSlice
from extender.parts.dra.metrics import DeviceFigures, device_metrics
from tests.dra.owned_rig import OWNED
from tests.parts.dra.rigs import ClaimRig


def values(rig: ClaimRig) -> dict[str, float | dict[str, float]]:
    """By name; by the value of the label where there is one."""
    found: dict[str, float | dict[str, float]] = {}
    for family in device_metrics(rig.owned, rig.keeper, DeviceFigures()):
        labelled = {next(iter(sample.labels.values())): sample.value for sample in family.samples if sample.labels}
        found[family.name.removeprefix("kerf_dra_")] = labelled or (family.samples[0].value if family.samples else {})
    return found


def test_devices_and_claims_are_counted_from_the_hold_on() -> None:
    rig = ClaimRig(gpus=2)
    rig.api.add("a")
    rig.tell("a")
    pod = rig.pod("a")
    before = values(rig)
    assert (before["devices"], before["devices_taken"]) == ({"gpu.nvidia.com": 2.0}, {"gpu.nvidia.com": 0.0})
    assert before["pools"] == {"kerf": 1.0, "kube-scheduler": 0.0, "nobody": 0.0}
    assert rig.decide(pod.pod)
    assert values(rig)["devices_taken"] == {"gpu.nvidia.com": 1.0}
    asyncio.run(rig.keeper.allocate(pod.pod))
    assert (values(rig)["claims_allocated"], values(rig)["errors"]) == (1.0, 0.0)
    assert values(rig)["devices_taken"] == {"gpu.nvidia.com": 1.0}


def test_claims_that_cant_be_evaluated_are_counted_by_kind_until_they_are_gone() -> None:
    rig = ClaimRig()
    rig.api.add("odd", {"name": "gpu", "exactly": {"deviceClassName": "none"}})
    rig.tell("odd")
    pod = rig.pod("odd")
    assert values(rig)["claims_unhandled"]["missing class"] == 0  # type: ignore[index]
    try:
        rig.keeper.read(pod.pod)
    except ValueError as error:
        assert "device class none does not exist" in str(error)
    assert values(rig)["claims_unhandled"]["missing class"] == 1  # type: ignore[index]
    rig.ledger.remove_device(ResourceClaim, "u-odd")
    assert values(rig)["claims_unhandled"]["missing class"] == 0  # type: ignore[index]


def test_pools_with_faults_are_counted() -> None:
    rig = ClaimRig()
    assert values(rig)["pool_faults"] == 0
    devices: list[dict[str, Any]] = [{"name": "gpu-0", "taints": [OWNED]}, {"name": "gpu-1"}]
    rig.ledger.upsert_device(slice_of_one_pool(devices, of=1))
    assert (values(rig)["pool_faults"], values(rig)["pools"]["nobody"]) == (1.0, 1.0)  # type: ignore[index]
    rig.ledger.upsert_device(slice_of_one_pool(devices[1:], of=2))
    assert (values(rig)["pool_faults"], values(rig)["pools"]["nobody"]) == (1.0, 1.0)  # type: ignore[index]


def slice_of_one_pool(devices: list[dict[str, Any]], of: int) -> ResourceSlice:
    """A slice of the rig's node, one of so many."""
    pool = {"name": "n", "generation": 1, "resourceSliceCount": of}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": devices}
    return msgspec.convert({"metadata": {"name": "n", "uid": "s-n"}, "spec": spec}, ResourceSlice)
