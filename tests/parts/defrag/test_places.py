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


class Ground(Defrag):
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
    ground = Ground()
    assert ground.places.hold(ground.pod("v"), "b")
    assert (ground.free("b"), ground.claimed(stand_in_of("v")), ground.claimed("v")) == (1, "b", "a")
    ground.rig.now += 3600.0
    assert ground.free("b") == 1
    ground.places.give_back(["another"])
    assert ground.free("b") == 1
    ground.places.give_back(["v"])
    assert ground.free("b") == 2
    placer = ground.rig.placer
    other = PodIdentity("ns", "v", stand_in_of("v"))
    placer.reserve(placer.place_on(other, GpuRequest(1), placer.policies["tightest"], "b"))
    ground.places.give_back(["v"])
    assert ground.free("b") == 1, "reserved by others"


def test_a_pod_without_gpus_needs_no_reservation_and_an_invalid_one_gets_none() -> None:
    for gpus, notes, has_place in (
        (0, {}, True),
        (0, {"kerf.dev/gpu-memory-each": "much"}, False),
        (1, {"kerf.dev/policy": "nonsense"}, False),
    ):
        ground = Ground()
        pod = ground.waiting("p", gpus, annotations=notes).pod
        assert ground.places.hold(pod, "b") == ground.places.hold_for(pod, "b") == has_place
        assert (ground.claimed(stand_in_of("p")), ground.claimed("p"), ground.free("b")) == ("", "", 2)


def test_nothing_is_reserved_without_room() -> None:
    ground = Ground()
    ground.runs("full", "b", 2)
    assert not ground.places.hold(ground.pod("v"), "b")
    assert not ground.places.hold(ground.pod("v"), "no-node")
    assert ground.claimed(stand_in_of("v")) == ""


def test_clear_releases_all_reservations_and_opens_all_nodes() -> None:
    ground = Ground()
    ground.places.close({"a"})
    assert ground.places.hold(ground.pod("v"), "b")
    assert (ground.free("a"), ground.free("b")) == (0, 1)
    ground.places.clear()
    assert (ground.free("a"), ground.free("b")) == (1, 2)


def test_pods_are_compared_by_their_requests() -> None:
    ground = Ground()
    asked = ground.places.request_key
    assert asked(ground.pod("unread")) is None
    assert asked(ground.pod("v")) == asked(ground.waiting("same").pod) == (GpuRequest(1), 1000, 0)
    limits = {"nvidia.com/gpu": 1, "cpu": 1, "memory": "1Gi"}
    other = ground.waiting("other", spec={"containers": [{"resources": {"limits": limits}}]}).pod
    assert asked(ground.pod("v")) not in (asked(other), asked(ground.waiting("more", 2).pod))


def test_waiting_pods_are_released_to_the_places_of_the_pods_that_they_replace() -> None:
    ground = Ground()
    ground.places.close({"a", "b"})
    with ground.places.opened({"b"}):
        assert ground.places.hold(ground.pod("v"), "b")
    small, big = ground.waiting("small"), ground.waiting("big", 2)
    assert not ground.hand_over([(big, "b")], [])
    assert (ground.within, ground.claimed("big"), ground.claimed(stand_in_of("v"))) == (["a", "b"], "", "b")
    assert ground.hand_over([(small, "b"), (ground.waiting("second"), "b")], ["v"])
    assert (ground.node_of("small"), ground.node_of("second")) == ("b", "b")
    notes = ground.api.pods["small"]["metadata"]["annotations"]
    assert (notes["kerf.dev/planned-by"], notes["kerf.dev/planned-node"]) == ("defrag x", "b")
    assert (ground.claimed(stand_in_of("v")), ground.closed) == ("", ["a", "b"])


def test_opened_nodes_are_closed_again_also_after_an_error() -> None:
    ground = Ground()
    ground.places.close({"a", "b"})
    with pytest.raises(ZeroDivisionError), ground.places.opened({"b", "c"}):
        assert ground.closed == ["a"]
        raise ZeroDivisionError
    assert ground.closed == ["a", "b"]


def test_a_released_pod_gets_one_reservation_on_its_kept_node() -> None:
    ground = Ground()
    ground.places.close({"b"})
    pod = ground.waiting("p").pod
    for _ in range(2):
        assert ground.places.hold_for(pod, "b")
        assert (ground.claimed("p"), ground.closed) == ("b", ["b"])
    assert not ground.places.hold_for(pod, "a")  # it is reserved elsewhere
    assert not ground.places.hold_for(ground.waiting("big", 3).pod, "b")
    assert (ground.claimed("p"), ground.claimed("big")) == ("b", "")


def test_a_pod_outside_the_queue_gets_the_place_of_the_pod_that_it_replaces() -> None:
    ground = Ground()
    ground.node("c", 1)
    assert ground.places.hold(ground.pod("v"), "c")
    ground.places.close({"c"})
    pod = ground.waiting("p").pod
    assert not ground.places.hold_for(pod, "c")
    assert ground.places.hand_to(pod, "c", "v")
    assert (ground.claimed("p"), ground.claimed(stand_in_of("v")), ground.free("c")) == ("c", "", 0)
