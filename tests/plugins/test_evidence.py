"""Whose a node is: by what shows that a plugin works there, not by what one has left behind."""

import json

import msgspec

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
from tests.golden import Golden

READ_AT = "2026-11-28T09:00:00Z"
"""By the node's own clock; that of the tests is another."""
HANDSHAKE, REGISTER = "hami.io/node-handshake", "hami.io/node-nvidia-register"
GPU, VGPU = "nvidia.com/gpu", "nvidia.com/vgpu"
MEMORY, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
EIGHT = tuple(f"GPU-{at}" for at in range(8))


def segments(count: int = 10) -> str:
    """A register of eight GPUs as HAMi up to v2.7 writes it."""
    return "".join(f"{gpu},{count},24576,100,NVIDIA-A10,0,true,{at},hami-core:" for at, gpu in enumerate(EIGHT))


def as_json(*gpus: str, count: int = 10, mode: str = "hami-core") -> str:
    """A register as HAMi since v2.8 writes it, of eight GPUs unless they are named."""
    each = {"count": count, "devmem": 24576, "type": "NVIDIA-A10", "mode": mode, "health": True}
    return json.dumps([{"id": gpu, "index": at, **each} for at, gpu in enumerate(gpus or EIGHT)])


FRESH = "Reported 2026-11-28 08:59:40.434037031 +0000 UTC m=+1104711.777756895"
OLD = "Reported 2024-01-23 04:30:04.434037031 +0000 UTC m=+1104711.777756895"
Resources = int | dict[str, int] | None


def node(
    register: str | None = None,
    handshake: str | None = None,
    allocatable: Resources = None,
    capacity: Resources = None,
    *,
    labels: dict[str, str] | None = None,
    heartbeat: str | None = READ_AT,
) -> objects.Node:
    """A node; a number stands for GPUs, and the capacity is what is allocatable unless it is given."""
    annotations = {REGISTER: register, HANDSHAKE: handshake, "hami.io/mutex.lock": "2024-01-23T04:30:04Z,default,gone"}
    manifest = {
        "metadata": {
            "name": "n",
            "labels": labels or {},
            "annotations": {key: text for key, text in annotations.items() if text is not None},
        },
        "status": {
            "allocatable": _quantities(allocatable),
            "capacity": _quantities(allocatable if capacity is None else capacity),
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}],
        },
    }
    return msgspec.convert(manifest, objects.Node)


def _quantities(resources: Resources) -> dict[str, str]:
    of = {GPU: resources} if isinstance(resources, int) else resources or {}
    return {name: str(number) for name, number in of.items()}


def replicas(number: int) -> dict[str, str]:
    return {"nvidia.com/gpu.replicas": str(number), "nvidia.com/gpu.count": "8"}


def test_hami_serves_its_node() -> None:
    for served in (
        node(segments(), FRESH, 80),
        node(segments(), "Requesting_2026-11-28 08:59:00", 80),
        node(segments(), "Requesting_2026.11.28 22:40:00", 80),  # v2.4, in another time zone
        node(segments(), "Reported 2026-11-28 16:59:40.1 +0800 CST m=+1.5", 80),
        node(segments(), "hello", 80),
        node(segments(), None, 80),
        node(as_json(), None, 80),  # v2.10, its scheduler is gone
        node(as_json(), "Requesting_2024-01-23 04:30:04", 80),  # v2.10: the handshake is not renewed
        node(as_json(), OLD, 80),  # left by v2.7, the plugin is v2.8
        node(as_json(), "Deleted_2026-11-20 04:30:04", 80),  # v2.8: written by the scheduler once
        node(as_json(count=1), None, 8),
        node(as_json(), None, 70, 80),  # a GPU is unhealthy
        node(as_json(), None, 70, {}),  # the same, the capacity is unknown
        node(as_json(mode="mig"), None, 56),  # the numbers count different things
        node(as_json(), None, {GPU: 8, VGPU: 80}),  # beside NVIDIA's plugin, renamed
        node(as_json(), None, 80, labels={"nvidia.com/gpu.replicas": "1"}),  # beside GPU Feature Discovery
    ):
        assert plugin_of(served).name == "hami"
        offer = read_offer(served, NodeReading())
        assert (offer.unit, len(offer.gpus), offer.left_out) == (GpuUnit.PART, 8, LeftOut.NOTHING)


def test_what_hami_left_behind_takes_nothing(golden: Golden) -> None:
    lines = list[str]()
    for name, num_gpus, left in (
        ("HAMi#597", 8, node(segments(), OLD, 8)),
        ("replaced a moment ago", 8, node(segments(), FRESH, 8)),
        ("of v2.10", 8, node(as_json(), None, 8)),
        ("capacity unknown", 8, node(as_json(), None, 8, {})),
        ("one unhealthy", 7, node(as_json(), None, 7, {})),
        ("two of eight unhealthy", 6, node(as_json(count=2), None, 6, 8)),
        ("renamed, and gone", 8, node(as_json(), None, {GPU: 8, VGPU: 0})),
        ("one share a GPU", 8, node(segments(count=1), OLD, 8)),
        ("by Kerf's own clock", 8, node(segments(count=1), OLD, 8, heartbeat=None)),
        ("as many slices as shares", 8, node(as_json(), None, 80, labels=replicas(10))),
        ("an empty register", 8, node("", None, 8)),
        ("an empty list", 8, node("[]", FRESH, 8)),
    ):
        owner, offer = plugin_of(left), read_offer(left, NodeReading())
        assert owner.name == "native"
        assert offer.unit is not GpuUnit.PART
        assert (len(offer.gpus), offer.left_out, offer.warnings) == (num_gpus, LeftOut.NOTHING, ())
        (why,) = left_behind(left, owner).values()
        assert REGISTER in why
        lines.append(f"{name}: {why}")
    golden("plugins-left-behind.txt", lines)


def offered(served: objects.Node, request: GpuRequest | None = None) -> tuple[str, NodeOffer, str]:
    """Whose a node is, what it offers, and why a request for a GPU does not fit there."""
    ledger, request = Ledger(reservation_ttl_s=30.0), request or GpuRequest(1)
    ledger.upsert_node(served)
    cluster = ledger.snapshot(0.0)
    checked = fit(cluster, request, all_rows(cluster)[:1])
    told = sentence(Reason(checked.reason[0]), request, int(checked.available[0]))
    return plugin_of(served).name, ledger.rows.offer_of("n"), told


def test_where_nothing_is_offered_it_is_said_why(golden: Golden) -> None:
    lines = list[str]()
    for name, owner, bare in (
        ("HAMi's register, and nothing else", "native", node(as_json())),
        ("HAMi's plugin is down", "hami", node(as_json(), None, 0, 80)),
        ("HAMi says so itself", "hami", node(segments(), "Deleted_2026-11-28 08:59:00", 80)),
        ("80 devices, and a silent plugin", "hami", node(segments(), OLD, 80)),
        ("a register of a later version", "hami", node('[{"id":', None, 80)),
        ("gpushare's count, and nothing else", "native", node(None, None, {MEMORY: 0, COUNT: 7}, {})),
        ("gpushare's plugin is down", "gpushare", node(None, None, {MEMORY: 0, COUNT: 2}, {MEMORY: 30, COUNT: 2})),
        ("NVIDIA's plugin is down", "native", node(None, None, 0, 8)),
        ("no GPUs at all", "native", node()),
    ):
        found, offer, told = offered(bare)
        assert (found, offer.allocatable_units, told != "fits") == (owner, 0, True)
        lines.append(f"{name}: {told}" + "".join(f"; {warning}" for warning in offer.warnings))
    golden("plugins-that-offer-nothing.txt", lines)


def test_what_gpushare_left_behind_takes_nothing() -> None:
    """HAMi#1410: its resource stays in the node's status at 0, the number of GPUs as it was, beside NVIDIA's."""
    left = node(None, None, {GPU: 7, MEMORY: 0, COUNT: 7})
    name, offer, told = offered(left)
    assert (name, len(offer.gpus), offer.unit, told) == ("native", 7, GpuUnit.WHOLE, "fits")
    assert len(left_behind(left, plugin_of(left))) == 1
    just_replaced = node(None, None, {GPU: 7, MEMORY: 0, COUNT: 7}, {GPU: 7, MEMORY: 105, COUNT: 7})
    assert offered(just_replaced)[0] == "native"


def test_gpushare_takes_over_from_hami() -> None:
    name, offer, _ = offered(node(as_json("GPU-0", "GPU-1"), OLD, {GPU: 0, MEMORY: 30, COUNT: 2}))
    assert (name, len(offer.gpus), offer.unit) == ("gpushare", 2, GpuUnit.PART)


def bound(annotations: dict[str, str], **limits: str) -> objects.Pod:
    """A pod that runs on the node."""
    named = {f"nvidia.com/{name}": number for name, number in limits.items()}
    manifest = {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": annotations},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": named}}]},
        "status": {"phase": "Running"},
    }
    return msgspec.convert(manifest, objects.Pod)


def test_pods_keep_what_they_have_while_the_plugin_restarts() -> None:
    """When a kubelet restarts, it offers nothing for some seconds."""
    ledger = Ledger(reservation_ttl_s=30.0)
    ledger.upsert_node(node(as_json(), None, 80))
    held = {"hami.io/vgpu-devices-allocated": "GPU-3,NVIDIA,10000,40:;", "hami.io/vgpu-node": "n"}
    ledger.upsert_pod(bound(held, gpu="1", gpumem="10000", gpucores="40"), 0.0)
    before = ledger.snapshot(0.0).gpu_free_mib[0].tolist()
    assert before == [24576, 24576, 24576, 14576, *([24576] * 4)]
    for status in ({GPU: 0}, {}):
        ledger.upsert_node(node(as_json(), None, status))
        cluster = ledger.snapshot(0.0)
        assert not fit(cluster, GpuRequest(1), all_rows(cluster)[:1]).fits[0]
    ledger.upsert_node(node(as_json(), None, 80))
    assert ledger.snapshot(0.0).gpu_free_mib[0].tolist() == before


def test_a_label_that_flips_changes_nothing_of_what_is_held() -> None:
    """k8s-device-plugin#731: the product label comes and goes each minute. Bookings stay; a request for the model waits
    while it is unknown."""
    ledger = Ledger(reservation_ttl_s=30.0)
    known = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2", "nvidia.com/gpu.memory": "15360"}
    unknown = {key: value for key, value in known.items() if key != "nvidia.com/gpu.product"}
    ledger.upsert_node(node(None, None, 2, labels=known))
    ledger.upsert_pod(bound({"kerf.dev/assigned-gpus": "0"}, gpu="1"), 0.0)
    t4 = GpuRequest(1, include=pattern("t4"))
    for labels, reason in ((known, Reason.FITS), (unknown, Reason.MODEL_UNKNOWN), (known, Reason.FITS)):
        ledger.upsert_node(node(None, None, 2, labels=labels))
        cluster = ledger.snapshot(0.0)
        assert cluster.gpu_free_milli[0].tolist()[:2] == [0, 1000]
        assert Reason(fit(cluster, t4, all_rows(cluster)[:1]).reason[0]) is reason


def test_two_vgpus_of_one_card_are_refused() -> None:
    """HAMi#1173: a card in 100 shares is one card."""
    _, _, told = offered(node(as_json("GPU-0", count=100), None, 100), GpuRequest(2, AskedUnit.PART, 1000))
    assert told == "needs 2 GPUs with 1000 MiB, best here: 1 installed"
