"""Whose a node is: by what shows that a plugin is at work there, not by what one has left behind."""

import json
from typing import Any

import msgspec
import pytest

from extender.core.fit.checks import sentence
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import GpuUnit, LeftOut, NodeOffer, NodeReading
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube import objects
from extender.ledger.ledger import Ledger
from extender.plugins.nodes import read_offer
from extender.plugins.registry import left_behind, plugin_of
from tests.core.builders import all_rows, pattern

READ_AT = "2026-11-28T09:00:00Z"
"""By the node's own clock; that of the tests is another."""
HANDSHAKE, REGISTER = "hami.io/node-handshake", "hami.io/node-nvidia-register"


def segments(*gpus: str, count: int = 10, healthy: bool = True) -> str:
    """A register as up to v2.7."""
    return "".join(
        f"{gpu},{count},24576,100,NVIDIA-A10,0,{str(healthy).lower()},{at},hami-core:" for at, gpu in enumerate(gpus)
    )


def as_json(*gpus: str, count: int = 10, mode: str = "hami-core") -> str:
    """A register since v2.8."""
    return json.dumps(
        [
            {
                "id": gpu,
                "index": at,
                "count": count,
                "devmem": 24576,
                "type": "NVIDIA-A10",
                "mode": mode,
                "health": True,
            }
            for at, gpu in enumerate(gpus)
        ]
    )


EIGHT = tuple(f"GPU-{at}" for at in range(8))
FRESH = "Reported 2026-11-28 08:59:40.434037031 +0000 UTC m=+1104711.777756895"
OLD = "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895"


def node(
    register: str | None = None,
    handshake: str | None = None,
    *,
    allocatable: dict[str, str] | None = None,
    capacity: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    heartbeat: str | None = READ_AT,
) -> objects.Node:
    annotations = {REGISTER: register, HANDSHAKE: handshake, "hami.io/mutex.lock": "2024-01-23T04:30:04Z,default,gone"}
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    manifest: dict[str, Any] = {
        "metadata": {
            "name": "n",
            "labels": labels or {},
            "annotations": {key: text for key, text in annotations.items() if text is not None},
        },
        "status": {"allocatable": allocatable or {}, "capacity": capacity or {}, "conditions": conditions},
    }
    return msgspec.convert(manifest, objects.Node)


GPU, VGPU = "nvidia.com/gpu", "nvidia.com/vgpu"


def both(resource: str, number: int) -> dict[str, Any]:
    return {"allocatable": {resource: str(number)}, "capacity": {resource: str(number)}}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(node(segments(*EIGHT), FRESH, **both(GPU, 80)), id="v2.7"),
        pytest.param(node(segments(*EIGHT), "Requesting_2026-11-28 08:59:00", **both(GPU, 80)), id="v2.7, asked"),
        pytest.param(
            node(segments(*EIGHT), "Requesting_2026.11.28 22:40:00", **both(GPU, 80)),
            id="v2.4, asked in another time zone",
        ),
        pytest.param(
            node(segments(*EIGHT), "Reported 2026-11-28 16:59:40.1 +0800 CST m=+1.5", **both(GPU, 80)),
            id="of another zone",
        ),
        pytest.param(node(segments(*EIGHT), "hello", **both(GPU, 80)), id="a handshake that nobody knows"),
        pytest.param(node(segments(*EIGHT), None, **both(GPU, 80)), id="no handshake"),
        pytest.param(node(as_json(*EIGHT), None, **both(GPU, 80)), id="v2.10, its scheduler gone"),
        pytest.param(
            node(as_json(*EIGHT), "Requesting_2024-01-23 04:30:04", **both(GPU, 80)),
            id="v2.10: nobody renews the handshake",
        ),
        pytest.param(node(as_json(*EIGHT), OLD, **both(GPU, 80)), id="left by v2.7, the plugin is of v2.8"),
        pytest.param(
            node(as_json(*EIGHT), "Deleted_2026-11-20 04:30:04", **both(GPU, 80)),
            id="v2.8: written by the scheduler once",
        ),
        pytest.param(node(as_json(*EIGHT, count=1), None, **both(GPU, 8)), id="a GPU for one each"),
        pytest.param(node(as_json(*EIGHT), allocatable={GPU: "70"}, capacity={GPU: "80"}), id="a GPU is sick"),
        pytest.param(node(as_json(*EIGHT), allocatable={GPU: "70"}), id="a GPU is sick, capacity unknown"),
        pytest.param(node(as_json(*EIGHT, mode="mig"), **both(GPU, 56)), id="MIG: the numbers are of two things"),
        pytest.param(
            node(as_json(*EIGHT), allocatable={GPU: "8", VGPU: "80"}, capacity={GPU: "8", VGPU: "80"}),
            id="beside NVIDIA's, under another name",
        ),
        pytest.param(node(as_json(*EIGHT), labels={"nvidia.com/gpu.replicas": "1"}, **both(GPU, 80)), id="beside GFD"),
    ],
)
def test_hami_serves_its_node(found: objects.Node) -> None:
    assert plugin_of(found).name == "hami"
    offer = read_offer(found, NodeReading())
    assert offer.unit is GpuUnit.PART
    assert len(offer.gpus) == 8
    assert offer.left_out is LeftOut.NOTHING


@pytest.mark.parametrize(
    ("found", "num_gpus", "told"),
    [
        pytest.param(
            node(segments(*EIGHT), OLD, **both(GPU, 8)), 8, "the kubelet has 8", id="HAMi#597: eight are served"
        ),
        pytest.param(
            node(segments(*EIGHT), FRESH, **both(GPU, 8)), 8, "the kubelet has 8", id="exchanged a moment ago"
        ),
        pytest.param(node(as_json(*EIGHT), None, **both(GPU, 8)), 8, "the kubelet has 8", id="of v2.10"),
        pytest.param(node(as_json(*EIGHT), None, allocatable={GPU: "8"}), 8, "kubelet has 8", id="capacity unknown"),
        pytest.param(node(as_json(*EIGHT), None, allocatable={GPU: "7"}), 7, "kubelet has 7", id="one of them sick"),
        pytest.param(
            node(as_json(*EIGHT, count=2), None, allocatable={GPU: "6"}, capacity={GPU: "8"}),
            6,
            "has 8",
            id="two of eight sick",
        ),
        pytest.param(
            node(as_json(*EIGHT), allocatable={GPU: "8", VGPU: "0"}, capacity={GPU: "8", VGPU: "0"}),
            *(8, "the kubelet has 8"),
            id="renamed, and gone",
        ),
        pytest.param(node(segments(*EIGHT, count=1), OLD, **both(GPU, 8)), 8, "2024-01-23", id="a GPU for one each"),
        pytest.param(
            node(segments(*EIGHT, count=1), OLD, heartbeat=None, **both(GPU, 8)),
            8,
            "2024-01-23",
            id="by Kerf's own clock",
        ),
        pytest.param(
            node(
                as_json(*EIGHT), labels={"nvidia.com/gpu.replicas": "10", "nvidia.com/gpu.count": "8"}, **both(GPU, 80)
            ),
            *(8, "NVIDIA's plugin shares"),
            id="as many slices as shares",
        ),
        pytest.param(node("", None, **both(GPU, 8)), 8, "empty", id="nothing in it"),
        pytest.param(node("[]", FRESH, **both(GPU, 8)), 8, "empty", id="no devices"),
    ],
)
def test_what_hami_left_behind_takes_nothing(found: objects.Node, num_gpus: int, told: str) -> None:
    owner = plugin_of(found)
    offer = read_offer(found, NodeReading())
    assert owner.name == "native"
    assert offer.unit is not GpuUnit.PART
    assert (len(offer.gpus), offer.left_out, offer.warnings) == (num_gpus, LeftOut.NOTHING, ())
    (said,) = left_behind(found, owner).values()
    assert REGISTER in said
    assert told in said


def offered(found: objects.Node) -> tuple[str, NodeOffer, str]:
    """Whose a node is, what it offers, and what a pod is told that asks for a GPU there."""
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(found)
    cluster, request = ledger.snapshot(0.0), GpuRequest(1)
    checked = fit(cluster, request, all_rows(cluster)[:1])
    told = sentence(Reason(checked.reason[0]), request, int(checked.available[0]))
    return plugin_of(found).name, ledger.rows.offer_of("n"), told


GONE = "needs 1 GPU, not available here: annotations of a removed device plugin remain, and no plugin offers GPUs"


@pytest.mark.parametrize(
    ("found", "owner", "told", "warning"),
    [
        pytest.param(node(as_json(*EIGHT)), "native", GONE, "the kubelet offers none", id="HAMi's, and nothing else"),
        pytest.param(
            node(as_json(*EIGHT), allocatable={GPU: "0"}, capacity={GPU: "80"}),
            *("hami", GONE, "the kubelet offers none"),
            id="HAMi's plugin is down",
        ),
        pytest.param(
            node(segments(*EIGHT), "Deleted_2026-11-28 08:59:00", **both(GPU, 80)),
            *("hami", GONE, "the plugin is gone"),
            id="HAMi says so itself",
        ),
        pytest.param(
            node(segments(*EIGHT), OLD, **both(GPU, 80)),
            *("hami", GONE, "2024-01-23 04:30:04: the plugin is silent"),
            id="eighty devices, of whom nobody tells",
        ),
        pytest.param(
            node('[{"id":', None, **both(GPU, 80)),
            *("hami", "the node's GPU annotations can't be parsed", "until it can be read"),
            id="a register of a later version",
        ),
        pytest.param(
            node(allocatable={"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "7"}),
            *("native", GONE, "gpushare's plugin is gone"),
            id="gpushare's, and nothing else",
        ),
        pytest.param(
            node(
                allocatable={"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "2"},
                capacity={"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"},
            ),
            *("gpushare", GONE, "the kubelet offers none of 30"),
            id="gpushare's plugin is down",
        ),
        pytest.param(
            node(allocatable={GPU: "0"}, capacity={GPU: "8"}),
            *("native", "the kubelet has GPUs but offers none", ""),
            id="NVIDIA's plugin is down",
        ),
        pytest.param(node(), "native", "needs 1 GPU, no GPUs here", "", id="no GPUs at all"),
    ],
)
def test_where_nothing_is_offered_it_is_said_why(found: objects.Node, owner: str, told: str, warning: str) -> None:
    name, offer, said = offered(found)
    assert name == owner
    assert told in said
    assert warning in "".join(offer.warnings)
    assert bool(offer.warnings) is bool(warning)


def test_what_gpushare_left_behind_takes_nothing() -> None:
    """HAMi#1410: its resource stays in the node's status at 0, the number of GPUs as it was, beside NVIDIA's."""
    left = {"aliyun.com/gpu-mem": "0", "aliyun.com/gpu-count": "7"}
    found = node(allocatable={GPU: "7", **left}, capacity={GPU: "7", **left})
    name, offer, said = offered(found)
    assert (name, len(offer.gpus), offer.unit, said) == ("native", 7, GpuUnit.WHOLE, "fits")
    assert tuple(left_behind(found, plugin_of(found)).values()) == (
        "aliyun.com/gpu-mem is 0 but aliyun.com/gpu-count is set: gpushare's plugin is gone",
    )


def test_a_moment_after_the_exchange_gpushares_memory_is_still_installed() -> None:
    status = {"aliyun.com/gpu-count": "7", GPU: "7"}
    found = node(allocatable={**status, "aliyun.com/gpu-mem": "0"}, capacity={**status, "aliyun.com/gpu-mem": "105"})
    assert offered(found)[0] == "native"


def test_gpushare_takes_over_from_hami() -> None:
    served = {"aliyun.com/gpu-mem": "30", "aliyun.com/gpu-count": "2"}
    found = node(as_json("GPU-0", "GPU-1"), OLD, allocatable={GPU: "0", **served}, capacity={GPU: "0", **served})
    name, offer, _ = offered(found)
    assert (name, len(offer.gpus), offer.unit) == ("gpushare", 2, GpuUnit.PART)


def test_the_plugin_comes_back() -> None:
    """As a kubelet that restarts: for some seconds it offers nothing, and pods that run keep what they have."""
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node(as_json(*EIGHT), **both(GPU, 80)))
    held = {"hami.io/vgpu-devices-allocated": "GPU-3,NVIDIA,10000,40:;", "hami.io/vgpu-node": "n"}
    asks = {"limits": {GPU: "1", "nvidia.com/gpumem": "10000", "nvidia.com/gpucores": "40"}}
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": held},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": asks}]},
        "status": {"phase": "Running"},
    }
    ledger.upsert_pod(msgspec.convert(pod, objects.Pod), 0.0)
    before = ledger.snapshot(0.0).gpu_free_mib[0].tolist()
    assert before == [24576, 24576, 24576, 14576, *([24576] * 4)]
    for status in ({GPU: "0"}, {}):
        ledger.upsert_node(node(as_json(*EIGHT), allocatable=status, capacity=status))
        cluster = ledger.snapshot(0.0)
        assert not fit(cluster, GpuRequest(1), all_rows(cluster)[:1]).fits[0]
    ledger.upsert_node(node(as_json(*EIGHT), **both(GPU, 80)))
    assert ledger.snapshot(0.0).gpu_free_mib[0].tolist() == before


def test_a_label_that_flips_changes_nothing_of_what_is_held() -> None:
    """k8s-device-plugin#731: the product label comes and goes each minute. What is booked stays; who asks for the model
    waits while nobody knows it, and has its place when it is known again."""
    ledger = Ledger(reservation_ttl_s=30.0)
    known = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "15360"}
    unknown = {key: value for key, value in known.items() if key != "nvidia.com/gpu.product"}
    ledger.upsert_node(node(labels=known, **both(GPU, 2)))
    pod = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": {"kerf.dev/assigned-gpus": "0"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": {GPU: "1"}}}]},
    }
    ledger.upsert_pod(msgspec.convert(pod, objects.Pod), 0.0)
    t4 = GpuRequest(1, include=pattern("t4"))
    for labels, reason in ((known, Reason.FITS), (unknown, Reason.MODEL_UNKNOWN), (known, Reason.FITS)):
        ledger.upsert_node(node(labels=labels, **both(GPU, 2)))
        cluster = ledger.snapshot(0.0)
        assert cluster.gpu_free_milli[0].tolist()[:2] == [0, 1000]
        assert Reason(fit(cluster, t4, all_rows(cluster)[:1]).reason[0]) is reason


def test_two_vgpus_of_one_card_are_refused_in_words() -> None:
    """HAMi#1173: a card in 100 is one card."""
    found = node(as_json("GPU-0", count=100), **both(GPU, 100))
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(found)
    cluster, request = ledger.snapshot(0.0), GpuRequest(2, AskedUnit.PART, 1000)
    checked = fit(cluster, request, all_rows(cluster)[:1])
    told = sentence(Reason(checked.reason[0]), request, int(checked.available[0]))
    assert told == "needs 2 GPUs with 1000 MiB, best here: 1 installed"
