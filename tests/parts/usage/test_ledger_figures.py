"""What holders have is what the ledger says is booked, however it was asked for."""

from typing import Any

import pytest

from extender.core.annotations import MEMORY_EACH, SHARE
from extender.explain.overview import Figures
from extender.kube.objects import PodClaim
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE
from tests.nvidia import MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE
from tests.parts.usage.rigs import Rig
from tests.plugins.claims import resource_claim, slice_of


def share(milli: int, mib: int, gpu: int) -> dict[str, str]:
    """Of a pod that asks by annotation, and was given a part of a GPU."""
    return {SHARE: str(milli), ASSIGNED_GPUS: str(gpu), ASSIGNED_SHARE: str(milli), ASSIGNED_MEMORY: str(mib)}


@pytest.mark.parametrize(
    ("node", "pods"),
    [
        pytest.param({}, [{"gpus": 2, "assigned": "0,3"}], id="whole GPUs"),
        pytest.param({}, [{"gpus": 2}, {"gpus": 1, "assigned": "1"}], id="GPUs of unknown index"),
        pytest.param({}, [{"annotations": share(500, 0, 0)}, {"annotations": share(300, 0, 0)}], id="shares"),
        pytest.param(
            {"resource": SHARED_GPU_RESOURCE, "replicas": 4},
            [{"gpus": 3, "resource": SHARED_GPU_RESOURCE}, {"gpus": 1, "resource": SHARED_GPU_RESOURCE}],
            id="time slices",
        ),
    ],
)
def test_the_sum_is_the_ledger_s(node: dict[str, Any], pods: list[dict[str, Any]]) -> None:
    rig = Rig()
    rig.node("n", 4, **node)
    for number, kinds in enumerate(pods):
        rig.pod(f"p{number}", kinds.pop("gpus", 0), "n", **kinds)
    rig.tick()
    rig.tick(1.0)
    booked = float(Figures(rig.ledger.snapshot(rig.clock())).booked.sum())
    assert booked > 0
    assert sum(rig.booked().values()) == pytest.approx(booked, abs=1e-9)


def test_a_share_by_memory_counts_as_its_part_of_the_memory() -> None:
    rig = Rig()
    rig.node("n", 4)
    asked = {SHARE: "100", MEMORY_EACH: "7680Mi"} | share(100, 7680, 0)
    rig.pod("p", 0, "n", annotations=asked)
    rig.tick()
    rig.tick(10.0)
    assert rig.booked() == {"default": 5.0}  # 7680 of 15360 MiB


def test_mig_devices_count_as_sevenths() -> None:
    rig = Rig()
    rig.node("n", 7, resource=f"{MIG_RESOURCE_PREFIX}1g.5gb", product="NVIDIA-A100-SXM4-40GB-MIG-1g.5gb")
    rig.pod("p", 2, "n", resource=f"{MIG_RESOURCE_PREFIX}1g.5gb")
    rig.tick()
    rig.tick(1000.0)
    assert rig.booked("gpu_model") == {"a100-sxm4-40gb": 284.0}  # twice 142 thousandths
    assert rig.sums()["capacity"] == 994_000_000


def test_devices_of_a_claim_count_for_the_pod_that_has_it() -> None:
    rig = Rig()
    rig.node("n", 0)
    rig.ledger.upsert_device(slice_of("n", 4))
    pod = rig.pod("p", 0, "n", "team")
    pod.spec.resource_claims = [PodClaim("gpu")]
    rig.meter.holders.pod_changed(None, pod)
    claim = resource_claim("a", devices=("gpu-1", "gpu-2"), pool="n", pods=("p",))
    claim.metadata.namespace = "team"
    rig.ledger.upsert_device(claim)
    lonely = resource_claim("b", devices=("gpu-3",), pool="n")
    rig.ledger.upsert_device(lonely)
    rig.tick()
    rig.tick(10.0)
    assert {(key.namespace, key.owner): row[0] / 1e6 for key, row in rig.meter.accounts.rows().items()} == {
        ("team", "Pod/p"): 20.0,
        ("default", "ResourceClaim/b"): 10.0,
    }
    assert rig.sums()["capacity"] == 40_000_000
