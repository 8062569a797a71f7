"""Places of a plan: reserved for its pods without expiry, and given to no other pod."""

import asyncio
from typing import Any

import pytest

from extender.core.resources.requests import GpuRequest
from extender.kube.objects import Pod
from extender.parts.defrag.places import Places, stand_in_of
from extender.queueing.pods.entries import Entry
from extender.scheduling.placer import PodIdentity
from tests.parts.defrag.rigs import Defrag


class PlacesCluster(Defrag):
    """Two nodes of two GPUs; pod v runs on the first."""

    def __init__(self) -> None:
        super().__init__()
        rig = self.rig
        self.places = Places(rig.ledger, rig.placer, rig.queue.dispatcher, lambda: rig.now)
        for name in "ab":
            self.node(name, 2)
        self.runs("v", "a")
        self.runs("unread", "a", 0, annotations={"kerf.dev/gpu-memory-each": "much"})

    def pod(self, name: str) -> Pod:
        return self.running[name]

    def waiting(self, name: str, gpus: int = 1, **fields: Any) -> Entry:
        self.waits(name, gpus, **fields)
        return self.rig.queue.backlog.entries[name]

    def hand_over(self, members: list[tuple[Entry, str]], instead_of: list[str]) -> bool:
        """As of `Places`, and the writes that begin by it."""

        async def run() -> bool:
            found = self.places.hand_over(members, instead_of, "defrag x")
            self.within = self.closed
            await self.rig.queue.dispatcher.finish()
            return found

        return asyncio.run(run())

    @property
    def closed(self) -> list[str]:
        return sorted(self.rig.ledger.rows.closed)


def test_a_moved_pods_new_place_is_reserved_until_it_is_given_back() -> None:
    cluster = PlacesCluster()
    assert cluster.places.hold(cluster.pod("v"), "b")
    assert (cluster.free("b"), cluster.claimed(stand_in_of("v")), cluster.claimed("v")) == (1, "b", "a")
    cluster.rig.now += 3600.0
    assert cluster.free("b") == 1
    cluster.places.give_back(["another"])
    assert cluster.free("b") == 1
    cluster.places.give_back(["v"])
    assert cluster.free("b") == 2
    placer = cluster.rig.placer
    other = PodIdentity("ns", "v", stand_in_of("v"))
    placer.reserve(placer.place_on(other, GpuRequest(1), placer.policies["tightest"], "b"))
    cluster.places.give_back(["v"])
    assert cluster.free("b") == 1, "reserved by others"


def test_a_pod_without_gpus_needs_no_reservation_and_an_invalid_one_gets_none() -> None:
    for gpus, notes, has_place in (
        (0, {}, True),
        (0, {"kerf.dev/gpu-memory-each": "much"}, False),
        (1, {"kerf.dev/policy": "nonsense"}, False),
    ):
        cluster = PlacesCluster()
        pod = cluster.waiting("p", gpus, annotations=notes).pod
        assert cluster.places.hold(pod, "b") == cluster.places.hold_for(pod, "b") == has_place
        assert (cluster.claimed(stand_in_of("p")), cluster.claimed("p"), cluster.free("b")) == ("", "", 2)


def test_nothing_is_reserved_without_room() -> None:
    cluster = PlacesCluster()
    cluster.runs("full", "b", 2)
    assert not cluster.places.hold(cluster.pod("v"), "b")
    assert not cluster.places.hold(cluster.pod("v"), "no-node")
    assert cluster.claimed(stand_in_of("v")) == ""


def test_clear_releases_all_reservations_and_opens_all_nodes() -> None:
    cluster = PlacesCluster()
    cluster.places.close({"a"})
    assert cluster.places.hold(cluster.pod("v"), "b")
    assert (cluster.free("a"), cluster.free("b")) == (0, 1)
    cluster.places.clear()
    assert (cluster.free("a"), cluster.free("b")) == (1, 2)


def test_pods_are_compared_by_their_requests() -> None:
    cluster = PlacesCluster()
    asked = cluster.places.request_key
    assert asked(cluster.pod("unread")) is None
    assert asked(cluster.pod("v")) == asked(cluster.waiting("same").pod) == (GpuRequest(1), 1000, 0)
    limits = {"nvidia.com/gpu": 1, "cpu": 1, "memory": "1Gi"}
    other = cluster.waiting("other", spec={"containers": [{"resources": {"limits": limits}}]}).pod
    assert asked(cluster.pod("v")) not in (asked(other), asked(cluster.waiting("more", 2).pod))


def test_waiting_pods_are_released_to_the_places_of_the_pods_that_they_replace() -> None:
    cluster = PlacesCluster()
    cluster.places.close({"a", "b"})
    with cluster.places.opened({"b"}):
        assert cluster.places.hold(cluster.pod("v"), "b")
    small, big = cluster.waiting("small"), cluster.waiting("big", 2)
    assert not cluster.hand_over([(big, "b")], [])
    assert (cluster.within, cluster.claimed("big"), cluster.claimed(stand_in_of("v"))) == (["a", "b"], "", "b")
    assert cluster.hand_over([(small, "b"), (cluster.waiting("second"), "b")], ["v"])
    assert (cluster.node_of("small"), cluster.node_of("second")) == ("b", "b")
    notes = cluster.api.pods["small"]["metadata"]["annotations"]
    assert (notes["kerf.dev/planned-by"], notes["kerf.dev/planned-node"]) == ("defrag x", "b")
    assert (cluster.claimed(stand_in_of("v")), cluster.closed) == ("", ["a", "b"])


def test_opened_nodes_are_closed_again_also_after_an_error() -> None:
    cluster = PlacesCluster()
    cluster.places.close({"a", "b"})
    with pytest.raises(ZeroDivisionError), cluster.places.opened({"b", "c"}):
        assert cluster.closed == ["a"]
        raise ZeroDivisionError
    assert cluster.closed == ["a", "b"]


def test_a_released_pod_gets_one_reservation_on_its_kept_node() -> None:
    cluster = PlacesCluster()
    cluster.places.close({"b"})
    pod = cluster.waiting("p").pod
    for _ in range(2):
        assert cluster.places.hold_for(pod, "b")
        assert (cluster.claimed("p"), cluster.closed) == ("b", ["b"])
    assert not cluster.places.hold_for(pod, "a")  # it is reserved elsewhere
    assert not cluster.places.hold_for(cluster.waiting("big", 3).pod, "b")
    assert (cluster.claimed("p"), cluster.claimed("big")) == ("b", "")


def test_a_pod_outside_the_queue_gets_the_place_of_the_pod_that_it_replaces() -> None:
    cluster = PlacesCluster()
    cluster.node("c", 1)
    assert cluster.places.hold(cluster.pod("v"), "c")
    cluster.places.close({"c"})
    pod = cluster.waiting("p").pod
    assert not cluster.places.hold_for(pod, "c")
    assert cluster.places.hand_to(pod, "c", "v")
    assert (cluster.claimed("p"), cluster.claimed(stand_in_of("v")), cluster.free("c")) == ("c", "", 0)
