"""The queue as built from the settings: what each of them sets, and how pods are released."""

import asyncio
import time
from datetime import UTC, datetime
from math import inf
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extender.core.orders import Order
from extender.kube.memory import Manifest, MemoryCluster
from extender.kube.watches import NODES, PODS
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.build import build_queue
from extender.queueing.direct.mode import DirectMode
from extender.queueing.extender_mode import ExtenderMode
from extender.queueing.kept_places import PlaceKeeper
from extender.queueing.options import Options
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.scheduling.build import build_foundation
from extender.scheduling.placer import Placer
from extender.settings.decisions import DecisionSettings
from extender.settings.queue import QueueSettings
from extender.settings.tree import Settings
from tests.queueing.rigs import GATES


def test_every_setting_of_the_queue_and_of_decisions_that_it_goes_by_counts() -> None:
    same: dict[str, Any] = {
        **{"planner": "exact", "order": Order.FIFO, "ageing_s": 2.0, "fair_share": True, "reserve_after_s": 6.0},
        **{"skip_s": 7.0, "patience_s": 8.0, "max_open": 10, "fail_open_s": 11.0, "gang_timeout_s": 12.0},
        "gangs_end_whole": False,
    }
    settings = QueueSettings(enabled=True, quotas={"a": 3.0}, weights={"b": 4.0}, **same)
    decided: dict[str, Any] = {"policy": "spread", "rank_cpu_pods": False}
    expected = Options(quotas=Quotas({"a": 3.0}, {"b": 4.0}), **same, **decided)
    assert Options.of(settings, DecisionSettings(**decided)) == expected
    assert Options.of(QueueSettings(), DecisionSettings()) == Options(policy="auto")


class Built:
    """A queue on a cluster in memory; the test feeds its caches."""

    def __init__(self, *, lead: bool = True, **queue: Any) -> None:
        self.now = 1000.0
        self.cluster = MemoryCluster()
        sections: Manifest = {"queue": {"enabled": True} | queue, "cluster": {"max_age_s": 77.0}}
        self.settings = Settings.model_validate(sections)
        self.base = build_foundation(self.settings, self.cluster, lambda: self.now)
        if lead:
            self.base.fence.take_over("", lambda: inf, lambda: "")
            self.base.fence.open("epoch")
        clock = self.base.clock
        self.placer = Placer(self.base.ledger, default_policy="tightest", clock=clock, wall_clock=clock)
        self.kept_places: PlaceKeeper | None = None
        made = build_queue(
            self.settings,
            self.base,
            self.placer,
            wastes_gpu=lambda request: request.count == 1,
            why_refused=lambda pod: f"{pod.name} was refused",
            kept_places=lambda: self.kept_places,
            roomless_releaser=lambda: None,
        )
        assert made is not None
        self.queue = made
        for reflector in self.queue.reflectors.values():
            reflector.num_lists = 1

    def node(self, name: str, gpus: int) -> None:
        allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": str(gpus)}
        node = decode_node({"metadata": {"name": name, "uid": name}, "status": {"allocatable": allocatable}})
        self.base.ledger.upsert_node(node)
        self.base.mirror.hub.cache(NODES).upsert(node)

    def pod(self, name: str, gpus: int, created: str, *, gated: bool = True, **labels: str) -> None:
        metadata: Manifest = {"name": name, "namespace": "ns", "uid": name, "creationTimestamp": created}
        spec: Manifest = {"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}
        manifest = {
            "kind": "Pod",
            "metadata": metadata | {"labels": {f"kerf.dev/{key}": value for key, value in labels.items()}},
            "spec": spec | ({"schedulingGates": GATES} if gated else {}),
            "status": {"phase": "Pending"},
        }
        self.cluster.apply(manifest)
        self.base.mirror.hub.cache(PODS).upsert(decode_pod(manifest))

    def events(self) -> list[str]:
        async def written() -> None:
            self.base.events.start()
            await self.base.events.stop()

        asyncio.run(written())
        return [event["reason"] for event in self.cluster.events]


def test_without_a_queue_there_is_none() -> None:
    settings = Settings()
    base = build_foundation(settings, MemoryCluster(), lambda: 0.0)
    placer = Placer(base.ledger, default_policy="tightest", clock=base.clock, wall_clock=base.clock)
    assert (
        build_queue(settings, base, placer, lambda request: False, lambda pod: "", lambda: None, lambda: None) is None
    )


def test_it_goes_by_what_the_other_parts_know_and_are_told() -> None:
    built = Built(order="fifo")
    base, queue = built.base, built.queue
    assert queue.options == Options.of(built.settings.queue, built.settings.decisions)
    assert isinstance(queue.mode, ExtenderMode)
    made_of = queue.mode.transport, queue.mode.placer, queue.mode.resolver
    assert made_of == (built.cluster, built.placer, base.resolver)
    assert (queue.nodes.bound_pod_index is base.mirror.bound_pods.index, queue.claims) == (True, None)
    assert queue.fault() == base.mirror.fault() != ""
    built.node("n", 2)
    built.pod("p", 1, "2026-01-01T00:00:00Z")
    entry = queue.backlog.entries["p"]
    assert (entry.seen, entry.created, queue.place_kept(entry.pod)) == (1000.0, 1767225600.0, "")
    built.kept_places = cast(PlaceKeeper, SimpleNamespace(place_kept=lambda pod: f"kept for {pod.key}"))
    assert queue.place_kept(entry.pod) == "kept for ns/p"
    entry.reserve("m")
    base.ledger.reserve("p", "n", Holding(1), built.now)
    entry.open(built.now)
    built.node("m", 2)
    assert queue.notes("p") == {"kerf.dev/nomination-lost": "1. m: p was refused"}


@pytest.mark.parametrize("lead", [True, False])
def test_gangs_end_by_who_leads_and_what_is_known_of_their_members(lead: bool) -> None:
    built = Built(lead=lead, gang_timeout_s=60.0)
    eviction, preempted = built.queue.gang_eviction, built.queue.preempted_gangs
    for one in (eviction, preempted):
        assert (one.transport, one.clock(), one.standby()) == (built.cluster, 1000.0, built.base.fence.fault())
    assert (eviction.running, eviction.gangs) == (built.queue.members.gangs, preempted.gangs)
    assert (preempted.members, preempted.events) == (built.queue.members, built.base.events)
    assert preempted.gangs is not None


@pytest.mark.parametrize("lead", [True, False])
def test_only_the_leader_emits_an_event_about_a_pod_outside_the_queue(lead: bool) -> None:
    built = Built(lead=lead)
    built.pod("late", 1, "2026-01-01T00:00:00Z", gated=False, queue="enabled")
    assert built.queue.passed.num_passed == 1
    assert built.events() == (["PassedQueue"] if lead else [])


def test_run_times_of_pods_are_measured_by_the_wall_clock() -> None:
    built = Built()
    built.queue.durations.finished(("ns",), 1000.0)
    for name in ("a", "b"):
        started = datetime.fromtimestamp(time.time() - 400.0, UTC).isoformat()
        manifest = {"metadata": {"name": name, "namespace": "ns", "uid": name}, "spec": {"nodeName": "n"}}
        built.base.mirror.hub.cache(PODS).upsert(decode_pod(manifest | {"status": {"startTime": started}}))
    assert built.queue.running.left_s("a") == pytest.approx(600.0, abs=60.0)


def test_without_an_extender_the_mode_is_direct() -> None:
    built = Built(extender=False)
    mode, base = built.queue.mode, built.base
    assert isinstance(mode, DirectMode)
    assert (mode.resolver, mode.fence, mode.events) == (base.resolver, base.fence, base.events)
    runs = decode_pod({"metadata": {"name": "a", "uid": "a"}, "spec": {"nodeName": "n"}})
    base.mirror.hub.cache(PODS).upsert(runs)
    assert mode.pods.get("a") == runs
    assert mode.wall_clock() == pytest.approx(time.time(), abs=60.0)
