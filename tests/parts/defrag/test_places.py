"""Places that a plan counts on: kept for those who are to have them, without an end, and given to nobody else."""

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

    def claimed(self, uid: str) -> str:
        """The node on which something is held for a pod, "" for none."""
        claim = self.rig.ledger.claim(uid)
        return "" if claim is None else claim.node

    @property
    def closed(self) -> list[str]:
        """The nodes that are kept from everybody."""
        return sorted(self.rig.ledger.rows.closed)


def test_what_a_pod_needs_next_is_reserved_in_its_name_without_an_end_until_it_is_given_back() -> None:
    ground = Ground()
    assert ground.places.hold(ground.pod("v"), "b")
    assert (ground.free("b"), ground.claimed(stand_in_of("v")), ground.claimed("v")) == (1, "b", "a")
    ground.rig.now += 3600.0
    assert ground.free("b") == 1
    ground.places.give_back(["another"])
    assert ground.free("b") == 1
    ground.places.give_back(["v"])
    assert ground.free("b") == 2


def test_what_is_reserved_by_others_under_such_a_name_is_not_given_back() -> None:
    ground = Ground()
    assert ground.places.hold(ground.pod("v"), "b")
    ground.places.give_back(["v"])
    placer = ground.rig.placer
    other = PodIdentity("ns", "v", stand_in_of("v"))
    placer.reserve(placer.place_on(other, GpuRequest(1), placer.policies["tightest"], "b"))
    ground.places.give_back(["v"])
    assert ground.free("b") == 1


@pytest.mark.parametrize(
    ("gpus", "notes", "has_it"),
    [
        (0, {}, True),
        (0, {"kerf.dev/gpu-memory-each": "much"}, False),
        (1, {"kerf.dev/policy": "nonsense"}, False),
    ],
    ids=["without GPUs", "of which nobody knows what it asks", "of a policy that there is not"],
)
def test_a_pod_that_needs_nothing_kept_has_its_place_and_one_that_can_not_be_read_has_none(
    gpus: int, notes: dict[str, str], has_it: bool
) -> None:
    ground = Ground()
    pod = ground.waiting("p", gpus, annotations=notes).pod
    assert ground.places.hold(pod, "b") == has_it
    assert ground.places.hold_for(pod, "b") == has_it
    assert (ground.claimed(stand_in_of("p")), ground.claimed("p"), ground.free("b")) == ("", "", 2)


def test_where_there_is_no_room_now_nothing_is_reserved() -> None:
    ground = Ground()
    ground.runs("full", "b", 2)
    assert not ground.places.hold(ground.pod("v"), "b")
    assert not ground.places.hold(ground.pod("v"), "no-node")
    assert ground.claimed(stand_in_of("v")) == ""


def test_nothing_is_kept_once_all_is_cleared() -> None:
    ground = Ground()
    ground.places.close({"a"})
    assert ground.places.hold(ground.pod("v"), "b")
    assert (ground.free("a"), ground.free("b")) == (0, 1)
    ground.places.clear()
    assert (ground.free("a"), ground.free("b")) == (1, 2)


def test_pods_that_ask_the_same_are_known_by_that() -> None:
    ground = Ground()
    asked = ground.places.asked
    assert asked(ground.pod("unread")) is None
    assert asked(ground.pod("v")) == (GpuRequest(1), 1000, 0)
    assert asked(ground.waiting("same").pod) == asked(ground.pod("v"))
    assert asked(ground.waiting("more", 2).pod) != asked(ground.pod("v"))
    limits = {"nvidia.com/gpu": 1, "cpu": 1, "memory": "1Gi"}
    other = ground.waiting("other", spec={"containers": [{"resources": {"limits": limits}}]}).pod
    assert asked(other) != asked(ground.pod("v"))


def test_a_pod_that_waits_is_let_go_for_the_place_of_what_it_replaces() -> None:
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


def test_what_is_opened_for_a_moment_is_closed_again_whatever_happens() -> None:
    ground = Ground()
    ground.places.close({"a", "b"})
    with pytest.raises(ZeroDivisionError), ground.places.opened({"b", "c"}):
        assert ground.closed == ["a"]
        raise ZeroDivisionError
    assert ground.closed == ["a", "b"]


def test_a_pod_that_was_let_go_holds_what_it_needs_of_the_node_kept_for_it_once() -> None:
    ground = Ground()
    ground.places.close({"b"})
    pod = ground.waiting("p").pod
    assert ground.places.hold_for(pod, "b")
    assert (ground.claimed("p"), ground.closed) == ("b", ["b"])
    assert ground.places.hold_for(pod, "b")
    assert not ground.places.hold_for(pod, "a")  # it is held elsewhere
    assert ground.claimed("p") == "b"
    assert not ground.places.hold_for(ground.waiting("big", 3).pod, "b")
    assert ground.claimed("big") == ""


def test_a_pod_that_came_past_the_queue_takes_the_place_of_what_it_replaces() -> None:
    ground = Ground()
    ground.node("c", 1)
    assert ground.places.hold(ground.pod("v"), "c")
    ground.places.close({"c"})
    pod = ground.waiting("p").pod
    assert not ground.places.hold_for(pod, "c")
    assert ground.places.hand_to(pod, "c", "v")
    assert (ground.claimed("p"), ground.claimed(stand_in_of("v")), ground.free("c")) == ("c", "", 0)
