"""Live scores in the running service: herds, unbooked memory, owners, and explanations."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest

from extender.core.gauges import Gauge
from extender.telemetry.errors import SourceError
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Clock, Kerf, running
from tests.controlplane.processes import wait_until
from tests.ledger.builders import until
from tests.telemetry.feeds import FakeFeed

NAMES = [f"n{number:02}" for number in range(50)]


@pytest.fixture
def feed() -> FakeFeed:
    return FakeFeed(Clock())


@pytest.fixture
def kerf(feed: FakeFeed) -> Iterator[Kerf]:
    with running(
        [node(name, 8) for name in NAMES],
        feed=feed,
        telemetry__url="http://prometheus:9090",
        telemetry__interval_s=3600,
        decisions__policy="live",
    ) as service:
        feed.clock = service.clock
        yield service


def observe(kerf: Kerf, feed: FakeFeed, **gauges: Sequence[float]) -> None:
    """One round of telemetry: 8 GPUs a node, idle unless something else is told of one gauge by node name."""
    assert kerf.service.observer is not None
    idle: Mapping[Gauge, Sequence[float]] = {Gauge.LOAD: [0.0] * 8, Gauge.MEMORY_USED: [400.0] * 8}
    feed.gauges = {name: {**idle, Gauge.LOAD: gauges.get(name, [0.0] * 8)} for name in NAMES}
    kerf.run(kerf.service.observer.round())
    kerf.service.observer.on_refresh()


def place(kerf: Kerf, name: str, gpus: int = 1) -> str:
    """Filter: the node that is decided for, "" when there is none."""
    manifest = kerf.create(pod(name, gpus))
    names: list[str] = kerf.filter(manifest, NAMES)["NodeNames"]
    return names[0] if names else ""


@pytest.mark.slow
def test_old_metrics_draw_no_herd(kerf: Kerf, feed: FakeFeed) -> None:
    feed.ages = dict.fromkeys(NAMES, 30.0)
    observe(kerf, feed)
    chosen = Counter(place(kerf, f"train-{number}") for number in range(200))
    assert len(chosen) == 50
    assert max(chosen.values()) - 200 / 50 <= 1


def test_a_busy_node_is_left_alone_until_its_samples_are_stale(kerf: Kerf, feed: FakeFeed) -> None:
    observe(kerf, feed, n00=[1.0] * 8)
    assert place(kerf, "a") == "n01"
    feed.fault = SourceError("no connection")
    kerf.clock.now += 300
    observe(kerf, feed)
    # All are average now, and equal but for the GPU that "a" holds: the first by name.
    assert place(kerf, "b") == "n00"


def test_rejected_for_memory_in_use_and_woken_when_it_frees(feed: FakeFeed) -> None:
    with running(
        [node("n00", 1)],
        feed=feed,
        telemetry__url="http://prometheus:9090",
        telemetry__interval_s=3600,
        decisions__policy="live",
    ) as kerf:
        feed.clock = kerf.clock
        observer = kerf.service.observer
        assert observer is not None
        feed.gauges = {"n00": {Gauge.MEMORY_USED: [50_000.0]}}
        kerf.run(observer.round())
        observer.on_refresh()
        waiting = kerf.create(pod("waiting", 1))
        answer = kerf.filter(waiting, ["n00"])
        reason = "needs 1 GPU, free by bookings but in use by unknown processes, or faulty"
        assert answer["FailedAndUnresolvableNodes"] == {"n00": reason}
        assert kerf.metric("kerf_unmanaged_gpus") == 1
        assert kerf.metric("kerf_unmanaged_mib") == 50_000
        (event,) = wait_until(lambda: about_nodes(kerf), 30, "an event about a node")
        assert event["reason"] == "UnmanagedGPUUse"
        assert event["involvedObject"]["name"] == "n00"
        assert "GPU 0 are in use by unknown processes" in event["message"]
        told = kerf.get("/explain/pod/default/waiting").json()["nodes"][0]["gpus"][0]
        assert told["observed"] == {"memory_used": 50_000.0}
        assert told["unmanagedMiB"] == 50_000

        kerf.clock.now += 60
        for _ in range(2):
            kerf.run(kerf.parts.waker.wake_round())
        assert woken(kerf, waiting) == ""
        feed.gauges = {"n00": {Gauge.MEMORY_USED: [400.0]}}
        kerf.run(observer.round())
        kerf.run(until(lambda: woken(kerf, waiting) == "1"))
        assert kerf.filter(waiting, ["n00"])["NodeNames"] == ["n00"]


def about_nodes(kerf: Kerf) -> list[Manifest]:
    return [event for event in kerf.events() if event["involvedObject"]["kind"] == "Node"]


def woken(kerf: Kerf, manifest: Manifest) -> str:
    """How often a pod was woken, as its annotation has it."""
    metadata = kerf.cluster.pod("default", manifest["metadata"]["name"])["metadata"]
    return str(metadata["annotations"].get("kerf.dev/woken", ""))


def test_samples_of_an_owners_pods_predict_the_load_of_its_next(kerf: Kerf, feed: FakeFeed) -> None:
    """A7: utilisation by pod, kept per owner, feeds the load that is expected."""
    owned = {"ownerReferences": [{"kind": "ReplicaSet", "name": "light-7d9f8", "controller": True}]}
    for number in range(2):
        manifest = pod(f"light-7d9f8-{number}", 1, node_name=NAMES[number])
        manifest["metadata"] |= owned
        kerf.create(manifest)
    for number in range(5):
        feed.pods = {("default", f"light-7d9f8-{index}"): (0.1, 1000.0 + number) for index in range(2)}
        feed.pods["default", "unknown"] = 0.9, 9.0
        observe(kerf, feed)
        kerf.clock.now += 15
    owners = kerf.get("/telemetry").json()["owners"]
    assert owners.keys() == {"default/ReplicaSet/light"}
    light = owners["default/ReplicaSet/light"]
    assert light["load_mean"] == pytest.approx(0.1)
    assert (light["memory_mean_mib"], light["memory_p95_mib"]) == (1002, 1004)
    assert light["num_samples"] == 10

    def expected(manifest: Manifest) -> float:
        kerf.create(manifest)
        (chosen,) = kerf.filter(manifest, NAMES)["NodeNames"]
        gpus = kerf.get(f"/explain/pod/default/{manifest['metadata']['name']}").json()["nodes"]
        assert chosen in [entry["node"] for entry in gpus]
        cluster = kerf.service.placer.snapshot()
        assert cluster.observed is not None
        return float(cluster.observed.expected_load[cluster.row_of[chosen]].max())

    known = pod("light-7d9f8-9", 1)
    known["metadata"] |= owned
    assert expected(known) == pytest.approx(0.1)
    assert expected(pod("stranger", 1)) == pytest.approx(0.7)


def test_the_load_of_a_pod_decided_again_is_expected_once(kerf: Kerf, feed: FakeFeed) -> None:
    observe(kerf, feed)
    first = place(kerf, "a")
    # From the third time on it goes elsewhere, and still is one pod.
    nodes = [kerf.filter(pod("a", 1), NAMES)["NodeNames"][0] for _ in range(5)]
    assert nodes[0] == first
    assert len(set(nodes)) > 1
    cluster = kerf.service.placer.snapshot()
    assert cluster.observed is not None
    assert float(cluster.observed.expected_load.sum()) == pytest.approx(0.7)


def test_the_cost_of_sharing_is_explained(kerf: Kerf, feed: FakeFeed) -> None:
    observe(kerf, feed, **{name: [0.9] * 8 for name in NAMES})
    share = kerf.create(pod("share", annotations={"kerf.dev/gpu-share": "500"}))
    assert kerf.filter(share, NAMES)["NodeNames"]
    told = kerf.get("/explain/pod/default/share").json()
    # 0.7, what is expected of a stranger, on half a GPU, beside 0.9: slowdown 1.25, saving 1 - 1.25 / 2
    assert told["interference"] == {"slowdown": 1.25, "saving": 0.375}
