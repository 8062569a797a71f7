"""The observer: samples land in the right GPU's place, age there, and never look fresher than they are."""

import asyncio
import json
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.gauges import Gauge
from extender.core.observations import Observations, SampleState
from extender.kube import objects
from extender.ledger.arrays import SampleTimes
from extender.ledger.ledger import Ledger
from extender.telemetry.errors import SourceError
from extender.telemetry.folding import _Directory, _match_first_parts
from extender.telemetry.observer import Finders, Observer, Wanted
from extender.telemetry.series import Host
from extender.telemetry.sources.discovery import Found
from extender.telemetry.sources.source import EXPORTERS, PROMETHEUS, Access, Bounds, PodUsage
from extender.telemetry.status import State
from extender.telemetry.tables import Most
from tests.api.services import Clock
from tests.ledger.builders import until
from tests.telemetry.feeds import FakeFeed

TIMES = SampleTimes(fresh_s=90, forget_s=900, warmup_s=45)


class World:
    """A ledger of some nodes, a source, and the observer between them."""

    def __init__(self, nodes: Mapping[str, int], wanted: Wanted | None = None) -> None:
        self.clock = Clock()
        self.feed = FakeFeed(self.clock)
        self.ledger = Ledger(reservation_ttl_s=30)
        self.prometheus: list[str] = []
        self.passed_over: list[str] = []
        self.exporters: dict[str, str] = {}
        finders = Finders(self.find, self.find_exporters)
        wanted = wanted or Wanted(addresses=("http://prometheus",), times=TIMES)
        self.led_by = ""
        self.observer = Observer(*(wanted, self.feed, finders, self.ledger, self.clock), standby=lambda: self.led_by)
        self.ledger.arrays.observe(wanted.times)
        for name, num_gpus in nodes.items():
            self.add(name, num_gpus)

    async def find(self) -> Found:
        return Found(self.prometheus, self.passed_over, "")

    async def find_exporters(self) -> dict[str, str]:
        return self.exporters

    def add(self, name: str, num_gpus: int, address: str = "") -> None:
        addresses = [objects.NodeAddress("InternalIP", address)] if address else None
        status = objects.NodeStatus({"nvidia.com/gpu": str(num_gpus)}, addresses)
        node = objects.Node(objects.Metadata(name=name), status)
        self.ledger.upsert_node(node)
        self.observer.node_changed(None, node)

    def round(self, **loads: Sequence[float]) -> None:
        """One round, with loads by node or those of before."""
        if loads:
            self.feed.gauges = {name: {Gauge.LOAD: of_node} for name, of_node in loads.items()}
        asyncio.run(self.observer.round())

    @property
    def cluster(self) -> Cluster:
        return self.ledger.snapshot(self.clock.now)

    @property
    def observed(self) -> Observations:
        observed = self.cluster.observed
        assert observed is not None
        return observed

    def loads(self, name: str) -> list[float]:
        return [float(load) for load in self.observed.gauge(Gauge.LOAD)[self.cluster.row_of[name]]]

    def state(self, name: str) -> SampleState:
        return SampleState(int(self.observed.state[self.cluster.row_of[name]]))


def test_samples_land_on_their_gpus() -> None:
    world = World({})
    world.round(a=[0.5, 0.25])  # no node is known yet
    for name in "abc":
        world.add(name, 2)
    world.round(b=[0.25, 0.5], a=[0.75, 1.0])
    assert (world.loads("a"), world.loads("b")) == ([0.75, 1.0], [0.25, 0.5])
    assert np.isnan(world.loads("c")).all()
    assert [world.state(name) for name in "abc"] == [SampleState.FRESH, SampleState.FRESH, SampleState.MISSING]
    assert world.observer.status.state is State.OK


def test_samples_grow_stale_then_missing_and_stale_ones_are_neutral() -> None:
    """G11: every sample carries its age."""
    world = World({"a": 1})
    world.round(a=[0.5])
    version = world.cluster.version
    world.feed.fault = SourceError("gone")
    world.clock.now += TIMES.fresh_s + 1
    world.round()
    assert world.state("a") is SampleState.STALE
    assert np.isnan(world.loads("a")).all()
    assert world.cluster.row_version[0] > version  # remembered scores are worked out again
    assert world.observer.status.state is State.DEGRADED
    assert world.observer.fault() == "gone"
    world.clock.now += TIMES.forget_s
    world.round()
    assert world.state("a") is SampleState.MISSING
    world.feed.fault = None
    world.round(a=[0.25])
    assert world.loads("a") == [0.25]
    assert world.observer.fault() == ""


def test_old_samples_never_look_fresh() -> None:
    world = World({"a": 1, "b": 1})
    world.feed.ages = {"a": 91.0}
    world.round(a=[0.5], b=[0.5])
    assert world.state("a") is SampleState.STALE
    assert np.isnan(world.loads("a")).all()
    assert world.state("b") is SampleState.FRESH
    world.clock.now += 30
    world.feed.ages = {"a": 0.0, "b": 100.0}  # a lagging replica must not take the place of what is newer
    world.round(a=[0.6], b=[0.9])
    assert world.loads("a") == pytest.approx([0.6])
    assert world.loads("b") == [0.5]


def test_missing_ages_and_ages_in_the_future_are_not_trusted() -> None:
    world = World({"a": 1, "b": 1, "c": 1})
    world.feed.ages = {"a": float("nan"), "b": -60.0, "c": -1.0}
    world.round(a=[0.5], b=[0.5], c=[0.5])
    assert world.state("a") is SampleState.MISSING
    assert world.state("b") is SampleState.MISSING
    assert world.state("c") is SampleState.FRESH
    assert "from the future" in world.observer.fault()


def test_a_metric_that_never_comes_back_is_gone() -> None:
    world = World({"a": 1})
    world.feed.gauges = {"a": {Gauge.LOAD: [0.5], Gauge.POWER: [100.0]}}
    world.round()
    world.feed.gauges = {"a": {Gauge.POWER: [100.0]}}
    world.clock.now += 15
    world.round()
    assert np.isnan(world.loads("a")).all()
    assert world.observed.gauge(Gauge.POWER)[0, 0] == 100


def test_a_node_is_found_by_exporter_pod_and_by_address() -> None:
    world = World({"a": 1})
    world.add("b", 1, address="10.0.0.2")
    world.add("c", 1, address="10.0.0.3")
    world.exporters = {"dcgm-exporter-x7z": "a"}
    world.feed.gauges = {"dcgm-exporter-x7z": {Gauge.LOAD: [0.5]}}
    world.round()
    assert world.loads("a") == [0.5]

    world.feed.gauges = {"elsewhere": {Gauge.LOAD: [0.25]}}
    world.feed.instances = {"elsewhere": "10.0.0.3:9400"}
    world.round()
    assert world.loads("c") == [0.25]


def test_a_host_is_found_by_its_names_then_by_its_address() -> None:
    directory = _Directory(node_of_ip={"10.0.0.2": "b", "10.0.0.3": "c"})
    for names, instance, node in (
        (("elsewhere",), "10.0.0.3:9400", "c"),
        (("B",), "10.0.0.3:9400", "b"),
        (("elsewhere", "a"), "10.0.0.3:9400", "a"),
        (("elsewhere",), "10.9.9.9:9400", ""),
    ):
        assert directory.node_of(Host(names, instance), {"a": 0, "b": 1, "c": 2}) == node


def test_hosts_that_are_no_node_are_reported() -> None:
    world = World({"a": 1})
    world.round(a=[0.5], renamed=[0.5, 0.5])
    status = world.observer.status
    assert status.unmatched == ("renamed",)
    assert (status.num_gpus, status.num_gpus_matched) == (3, 1)
    world.add("renamed", 2)
    world.round()
    assert world.loads("renamed") == [0.5, 0.5]
    assert world.observer.status.unmatched == ()


def test_without_a_source_nothing_is_wrong() -> None:
    world = World({"a": 1}, Wanted(times=TIMES))
    world.round()
    assert world.observer.status.state is State.ABSENT
    assert world.observer.fault() == ""
    assert not world.feed.asked
    world.prometheus = ["http://prometheus.monitoring.svc:9090"]
    world.clock.now += 61
    world.round(a=[0.5])
    assert world.feed.asked[0].addresses == ["http://prometheus.monitoring.svc:9090"]
    assert world.loads("a") == [0.5]


def test_a_named_source_is_read_without_an_address_and_nothing_is_looked_for() -> None:
    world = World({"a": 1}, Wanted("a-file", discover=False, times=TIMES))
    world.prometheus = ["http://prometheus.anybody.svc:9090"]
    world.round(a=[0.5])
    assert (world.feed.asked[0].kind, world.feed.asked[0].addresses) == ("a-file", [])
    assert world.loads("a") == [0.5]


@pytest.mark.parametrize("kind", [PROMETHEUS, EXPORTERS])
def test_an_address_that_was_found_gets_no_secrets(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    paths = "/password", "/token", "/ca", "/cert", "/key"
    secrets = Access("kerf", *paths, True, headers={"X-Key": "secret"}, timeout_s=7)
    world = World({"a": 1}, Wanted(access=secrets, times=TIMES))
    world.prometheus = ["http://prometheus.anybody.svc:9090"]
    for _ in range(3):
        world.round(a=[0.5])
        world.clock.now += 61
    assert world.feed.asked[-1].access == Access(ca_file="/ca", insecure_skip_verify=True, timeout_s=7)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "http://prometheus.anybody.svc:9090" in warning
    assert "set telemetry.url" in world.observer.status.withheld

    world = World({"a": 1}, Wanted(kind, ("http://set",), secrets, times=TIMES))
    world.round(a=[0.5])
    assert world.feed.asked[0].access == secrets
    assert world.observer.status.withheld == ""


def test_a_skewed_clock_is_reported() -> None:
    world = World({"a": 1})
    world.feed.report.skew_s = -40
    world.round(a=[0.5])
    assert "-40 s" in world.observer.fault()
    assert world.loads("a") == [0.5]  # ages are by the source's own clock


def test_a_standby_reads_nothing_and_has_no_process_for_it() -> None:
    async def scenario() -> None:
        world = World({"a": 1}, Wanted(addresses=("http://prometheus",), interval_s=0.01))
        world.feed.gauges = {"a": {Gauge.LOAD: [0.5]}}
        world.observer.start()
        try:
            await until(lambda: world.observer.status.state is State.OK)
            world.led_by = "another"
            await until(lambda: world.observer.status.state is State.STANDBY)
            num_asked = len(world.feed.asked)
            assert world.feed.num_closed == 1
            await asyncio.sleep(0.1)  # ten intervals
            assert len(world.feed.asked) == num_asked
            world.led_by = ""
            await until(lambda: world.observer.status.state is State.OK)
            assert len(world.feed.asked) > num_asked
        finally:
            await world.observer.stop()

    asyncio.run(scenario())


def known_gpus(*uuids: str) -> objects.Node:
    """A node whose GPUs are described with these UUIDs, "" where one is not known."""
    listed = [{"index": index} | ({"uuid": uuid} if uuid else {}) for index, uuid in enumerate(uuids)]
    metadata = objects.Metadata(name="a", annotations={"kerf.dev/gpus": json.dumps(listed)})
    return objects.Node(metadata, objects.NodeStatus({"nvidia.com/gpu": str(len(uuids))}))


def test_a_node_takes_no_sample_of_a_gpu_that_it_does_not_have() -> None:
    cases: list[tuple[tuple[str, str], tuple[str, str], list[float | None]]] = [
        (("B", "A"), ("A", "B"), [0.5, 0.25]),  # by UUID, whatever the index
        (("A", "B"), ("A", "X"), [0.25, None]),
        (("A", ""), ("A", "X"), [0.25, 0.5]),  # X may be the second
        (("A", ""), ("X", "Y"), [None, 0.5]),
        (("A", "B"), ("", ""), [0.25, 0.5]),  # the exporter writes no UUIDs
        (("", ""), ("X", "Y"), [0.25, 0.5]),
    ]
    for known, sampled, loads in cases:
        world = World({})
        world.ledger.upsert_node(known_gpus(*known))
        world.feed.uuids = {("a", index): uuid for index, uuid in enumerate(sampled)}
        world.round(a=[0.25, 0.5])
        assert [None if np.isnan(load) else load for load in world.loads("a")] == loads
        assert len(world.observer.status.doubts) == loads.count(None)
        assert all("has no such GPU" in text for text in world.observer.status.doubts)


def test_a_gpu_of_another_node_of_ours_is_not_taken_by_its_index() -> None:
    world = World({"b": 1})
    world.ledger.upsert_node(known_gpus("A"))
    world.feed.uuids = {("b", 0): "A", ("a", 0): "A"}
    world.round(a=[0.25], b=[0.75])
    assert world.loads("a") == [0.25]
    assert np.isnan(world.loads("b")).all()


def sample_twice(world: World, first: str, second: str, loads: tuple[float, float]) -> None:
    """Two exporters sample GPU 0 of one node, each under its UUID."""
    world.add("a", 1, address="10.0.0.1")
    world.feed.instances = {"x": "10.0.0.1:9400", "y": "10.0.0.1:9401"}
    world.feed.uuids = {("x", 0): first, ("y", 0): second}
    world.round(x=[loads[0]], y=[loads[1]])


def test_two_uuids_of_one_index_are_reported_once_and_neither_is_used(caplog: pytest.LogCaptureFixture) -> None:
    world = World({})
    world.feed.pods = {("team", "p"): (0.9, 100.0)}
    sample_twice(world, "A", "B", (0.1, 0.9))
    assert np.isnan(world.loads("a")).all()
    (doubt,) = world.observer.status.doubts
    assert "node a: GPU 0" in doubt and "telemetry.matchers" in doubt
    world.clock.now += 15
    world.round()
    assert sum(doubt in record.getMessage() for record in caplog.records) == 1
    # One that is gone leaves no doubt.
    world.clock.now += 15
    world.round(x=[0.1], y=[float("nan")])
    assert world.loads("a") == pytest.approx([0.1])
    assert world.observer.status.doubts == ()


def test_samples_are_dropped_once_they_are_in_doubt() -> None:
    world = World({})
    sample_twice(world, "A", "A", (0.1, 0.9))
    assert not np.isnan(world.loads("a")).any()
    world.feed.uuids = {("x", 0): "A", ("y", 0): "B"}
    world.clock.now += 15
    world.round(x=[0.1], y=[0.9])
    assert np.isnan(world.loads("a")).all()


def test_a_pod_with_samples_of_foreign_gpus_is_left_out() -> None:
    world = World({"a": 1})
    passed_on: list[PodUsage] = []
    finders = Finders(world.find, world.find_exporters)
    parts = world.observer.wanted, world.feed, finders, world.ledger, world.clock
    observer = Observer(*parts, on_pods=passed_on.append)
    world.feed.gauges = {"a": {Gauge.LOAD: [0.5]}, "elsewhere": {Gauge.LOAD: [0.9]}}
    usage = 0.9, 100.0
    world.feed.pods = {("team", "ours"): usage, ("team", "theirs"): usage, ("team", "both"): usage}
    world.feed.pod_devices = {("team", "ours"): [0], ("team", "theirs"): [1], ("team", "both"): [0, 1]}
    asyncio.run(observer.round())
    assert passed_on == [{("team", "ours"): usage}]


def test_host_names_that_differ_in_their_domain_alone() -> None:
    for nodes, names, expected in (
        (["n1"], ["N1.Example.com"], ["n1"]),
        (["n1.ec2.internal"], ["n1"], ["n1.ec2.internal"]),
        (["n1.dc1.example.com"], ["n1.dc1"], ["n1.dc1.example.com"]),
        (["n1.dc1"], ["n1.dc2"], [""]),
        (["n1.dc1", "n1.dc2"], ["n1"], [""]),  # ambiguous
        (["n1"], ["n1.dc1", "n1.dc2"], ["", ""]),
        (["n1"], ["n1", "n1.dc2"], ["n1", ""]),  # the exact name goes first
        (["10"], ["10.0.0.1"], [""]),  # an address has no domain
        (["n10"], ["n1.example.com"], [""]),
    ):
        rows = {name: row for row, name in enumerate(nodes)}
        hosts = [Host((name,), "") for name in names]
        found = [rows.get(_Directory().node_of(host, rows), -1) for host in hosts]
        _match_first_parts(hosts, found, rows)
        assert [nodes[row] if row >= 0 else "" for row in found] == expected


def test_series_of_a_discovered_prometheus_are_bounded_by_the_cluster() -> None:
    world = World({"a": 8}, Wanted(times=TIMES))
    world.prometheus = ["http://prometheus.monitoring.svc:9090"]
    world.round(a=[0.5])
    bounds = world.feed.asked[0].bounds
    # 4 * 1 + 2000 nodes and 4 * 8 + 2000 GPUs, up to the next power of two.
    assert (bounds.most, bounds.answer_bytes) == (Most(2048, 2048), 8 * 2**20)
    configured = World({"a": 8})
    configured.round(a=[0.5])
    assert configured.feed.asked[0].bounds == Bounds()


def test_a_prometheus_that_is_passed_over_is_reported_once_with_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    world = World({"a": 1}, Wanted(times=TIMES))
    world.passed_over = ["http://prometheus.team-a.svc:9090"]
    for _ in range(3):
        world.round()
        world.clock.now += 61
    assert world.observer.status.state is State.ABSENT
    assert not world.feed.asked
    (warning,) = [record.getMessage() for record in caplog.records]
    for part in ("http://prometheus.team-a.svc:9090", "telemetry.url", "telemetry.namespaces"):
        assert part in warning
