"""A meter beside a ledger, a clock that stands still, and who leads as it is told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from extender.core.clusters import Cluster
from extender.core.fragmentation import Mix
from extender.explain.counting import CountsGpuHours
from extender.kube import objects
from extender.kube.leadership import LeadTime
from extender.ledger.arrays import SampleTimes
from extender.ledger.ledger import Ledger
from extender.parts.usage.accounts import MICRO
from extender.parts.usage.meter import Meter, MeterInputs
from extender.parts.usage.settings import UsageSettings
from extender.ranking.demands import gpu_mix, guessed
from tests.api.bodies import pod
from tests.api.services import Kerf
from tests.ledger.builders import TTL_S, Clock, node_object, pod_manifest
from tests.telemetry.feeds import FakeFeed

ALONE = LeadTime("only", float("-inf"), float("inf"))
HOLDERS = ("booked", "used", "measured", "idle")
MODELS = ("capacity", "free", "stranded", "sick")


def default_mix(cluster: Cluster) -> Mix:
    """Pods as they are expected where nobody says what to expect."""
    return gpu_mix(cluster, guessed())


@dataclass
class Rig:
    """A cluster, and the meter of one process."""

    clock: Clock = field(default_factory=Clock)
    ledger: Ledger = field(default_factory=lambda: Ledger(reservation_ttl_s=TTL_S))
    led: LeadTime = ALONE
    standby: str = ""
    fault: str = ""
    wanted: UsageSettings = field(default_factory=UsageSettings)
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        self.ledger.arrays.observe(SampleTimes())
        sight = MeterInputs(
            *(self.ledger, lambda: self.led, lambda: self.standby, lambda: self.fault, default_mix),
            *(self.clock, lambda: 1e9 + self.clock()),
        )
        self.meter = Meter(self.wanted, sight)
        self.meter._began = self.clock()  # noqa: SLF001 - as of `start`, which takes a loop

    def node(
        self, name: str, gpus: int, *, cordoned: bool = False, taints: Sequence[tuple[str, str]] = (), **kinds: Any
    ) -> None:
        """Add or change a node; taints are keys and effects."""
        node = node_object(name, gpus, **kinds)
        node.spec.unschedulable, node.spec.taints = cordoned, [objects.Taint(key, "", does) for key, does in taints]
        self.ledger.upsert_node(node)
        self.meter.holders.node_changed(None, node)

    def pod(self, name: str, gpus: int | str, node: str, namespace: str = "default", **kinds: Any) -> objects.Pod:
        """A pod has a node."""
        owner, labels = kinds.pop("owner", None), kinds.pop("labels", {})
        manifest = pod_manifest(name, gpus, node=node, **kinds)
        manifest["metadata"] |= {"namespace": namespace, "labels": labels}
        if owner is not None:
            kind, _, called = owner.partition("/")
            manifest["metadata"]["ownerReferences"] = [{"kind": kind, "name": called, "controller": True}]
        pod = msgspec.convert(manifest, objects.Pod)
        self.ledger.upsert_pod(pod, self.clock())
        self.meter.holders.pod_changed(None, pod)
        return pod

    def gone(self, name: str) -> None:
        """A pod is gone."""
        self.ledger.remove_pod(f"uid-{name}")

    def loads(self, node: str, *loads: float) -> None:
        """Telemetry tells of a node's GPUs now."""
        observed = self.ledger.arrays.observed
        assert observed is not None
        raw, row = observed.begin(), self.ledger.arrays.row_of[node]
        raw[0, row, : len(loads)] = loads
        sampled_at = observed.current.sampled_at.copy()
        sampled_at[row] = self.clock()
        self.ledger.arrays.touch(observed.commit(raw, sampled_at, self.clock()))

    def tick(self, after_s: float = 0.0) -> None:
        """Some time passes, and the meter looks."""
        self.clock.now += after_s
        asyncio.run(self.meter.tick())

    def passes(self, seconds: float) -> None:
        """The meter looks now and after that time."""
        self.tick()
        self.tick(seconds)

    # What was counted, in GPU-seconds

    def booked(self, by: str = "namespace") -> dict[str, float]:
        """By one of a line's names."""
        found: dict[str, float] = {}
        for key, sums in self.meter.accounts.rows().items():
            name = getattr(key, by)
            found[name] = found.get(name, 0.0) + sums[0] / MICRO
        return found

    def sums(self) -> dict[str, int]:
        """Millionths of GPU-seconds, all lines together."""
        rows = list(self.meter.accounts.rows().values())
        holders = {name: sum(row[at] for row in rows) for at, name in enumerate(HOLDERS)}
        return holders | dict(zip(MODELS, self.meter.accounts.totals(), strict=True))


def passes(kerf: Kerf, seconds: float) -> None:
    """Some time passes, and the meter looks before and after."""
    kerf.run(meter_of(kerf).tick())
    kerf.clock.now += seconds
    kerf.run(meter_of(kerf).tick())


def slept(kerf: Kerf, feed: FakeFeed, seconds: float) -> None:
    """Some time passes in which telemetry is read, and the meter looks before and after."""
    assert kerf.parts.telemetry is not None
    for _ in range(3):
        feed.clock.now = kerf.clock.now
        kerf.run(kerf.parts.telemetry.observer.round())
        passes(kerf, seconds / 2)


def placed(kerf: Kerf, name: str, gpus: int, node: str = "a100-0") -> None:
    """A pod gets its GPUs by kube-scheduler's calls."""
    asked = kerf.create(pod(name, gpus))
    kerf.filter(asked, [node])
    assert kerf.bind(asked, node) == ""


def meter_of(kerf: Kerf) -> Meter:
    """Of a Kerf that counts."""
    meter = kerf.parts.capabilities.get(CountsGpuHours)
    assert isinstance(meter, Meter)
    return meter
