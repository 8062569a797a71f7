"""The metrics of devices, pools and claims."""

from typing import Any

import msgspec
import pytest

from extender.dra.asks import UnhandledError
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
    rig.add("a")
    rig.pod("a")
    before = values(rig)
    assert (before["devices"], before["devices_taken"]) == ({"gpu.nvidia.com": 2.0}, {"gpu.nvidia.com": 0.0})
    assert before["pools"] == {"kerf": 1.0, "kube-scheduler": 0.0, "nobody": 0.0}
    assert rig.decide(rig.entries["a"].pod)
    assert values(rig)["devices_taken"] == {"gpu.nvidia.com": 1.0}
    assert rig.allocate()
    found = values(rig)
    assert (found["claims_allocated"], found["errors"], found["devices_taken"]) == (1.0, 0.0, {"gpu.nvidia.com": 1.0})


def test_claims_that_cant_be_evaluated_are_counted_by_kind_until_they_are_gone() -> None:
    rig = ClaimRig()
    rig.add("odd", deviceClassName="none")
    pod = rig.pod("odd").pod
    assert unhandled(rig) == 0
    with pytest.raises(UnhandledError):
        rig.keeper.read(pod)
    assert unhandled(rig) == 1
    rig.ledger.remove_device(ResourceClaim, "u-odd")
    assert unhandled(rig) == 0


def unhandled(rig: ClaimRig) -> float:
    by_kind = values(rig)["claims_unhandled"]
    assert isinstance(by_kind, dict)
    return by_kind["missing class"]


def test_pools_with_faults_are_counted() -> None:
    rig = ClaimRig()
    assert values(rig)["pool_faults"] == 0
    devices: list[dict[str, Any]] = [{"name": "gpu-0", "taints": [OWNED]}, {"name": "gpu-1"}]
    for of_pool, num_slices in ((devices, 1), (devices[1:], 2)):
        pool = {"name": "n", "generation": 1, "resourceSliceCount": num_slices}
        spec = {"driver": "gpu.nvidia.com", "nodeName": "n", "pool": pool, "devices": of_pool}
        manifest = {"metadata": {"name": "n", "uid": "s-n"}, "spec": spec}
        rig.ledger.upsert_device(msgspec.convert(manifest, ResourceSlice))
        assert (values(rig)["pool_faults"], values(rig)["pools"]["nobody"]) == (1.0, 1.0)  # type: ignore[index]
