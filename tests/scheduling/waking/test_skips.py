"""Who is left pending for a larger pod, until when, and what is told of it."""

from dataclasses import dataclass, field

import pytest

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.plugins.holdings import whole_gpus
from extender.scheduling.placer import Placer, PodIdentity
from extender.scheduling.queue_rules import QueueRules
from extender.scheduling.skips import _QUEUED_REASON, _REASON, SKIPPED, SKIPPED_COUNT, Skips, WaitingPod
from tests.ledger.builders import Clock, ledger_of, node_object


def asks(gpus: int, priority: int = 0, policy: str = "") -> PodRequest:
    return PodRequest(GpuRequest(gpus), priority=priority, policy=policy)


def identity(uid: str) -> PodIdentity:
    return PodIdentity("default", uid, uid)


@dataclass
class Kept(QueueRules):
    """A queue that keeps some nodes from some pods."""

    nodes: dict[str, frozenset[str]] = field(default_factory=dict)

    def kept_from(self, uid: str) -> frozenset[str]:
        return self.nodes.get(uid, frozenset())


class Rig:
    """Skips on nodes of so many GPUs, while some pods wait; each is skipped twice at most, and within a minute."""

    def __init__(self, *waiting: WaitingPod, max_wait_s: float = 60.0, max_count: int = 2, **gpus: int) -> None:
        self.clock = Clock()
        self.ledger = ledger_of(**gpus)
        self.placer = Placer(self.ledger, default_policy="tightest", clock=self.clock, wall_clock=self.clock)
        self.queue = Kept()
        self.waiting = list(waiting)
        spoils = lambda gpus: gpus.count == 3  # noqa: E731 - as if three were a share that spoils a GPU
        self.skips = Skips(self.placer, lambda: self.waiting, self.clock, max_wait_s, max_count, self.queue, spoils)

    def hold(self, node: str, *gpus: int) -> None:
        self.ledger.reserve(f"holds-{node}", node, whole_gpus(len(gpus), gpus), self.clock())

    def kept(self, uid: str = "small", request: PodRequest | None = None) -> set[str]:
        """Names of the nodes that a pod of one GPU has to leave to others."""
        request = request or asks(1)
        assert request.gpus is not None
        policy = self.placer.policy_of(request)
        rows = self.skips.kept_rows(identity(uid), request, request.gpus, policy)
        names = self.placer.snapshot().node_names
        return {names[row] for row in rows}


LARGE, LARGER = WaitingPod("large", asks(2)), WaitingPod("larger", asks(4))


def test_the_one_node_with_room_for_a_larger_pod_is_kept_for_it() -> None:
    rig = Rig(LARGE, a=2, b=1)
    assert rig.kept() == {"a"}
    rig.waiting.clear()
    assert rig.kept() == set()


def test_a_node_that_has_room_for_both_is_kept_from_nobody() -> None:
    assert Rig(LARGE, a=3, b=1).kept() == set()
    rig = Rig(LARGE, a=4, b=1)
    rig.hold("a", 0)
    assert rig.kept(request=asks(1)) == set()
    rig.hold("a", 0, 1)
    assert rig.kept(request=asks(1)) == {"a"}


def test_a_larger_pod_that_has_a_choice_keeps_nothing_until_it_has_none() -> None:
    rig = Rig(LARGER, a=4, b=1, c=8)
    rig.hold("c", 0)
    assert rig.kept() == set()
    rig.hold("c", 0, 1, 2, 3, 4)
    assert rig.kept() == {"a"}


def test_each_larger_pod_keeps_its_node() -> None:
    rig = Rig(LARGER, WaitingPod("choosy", PodRequest(GpuRequest(2, memory_each_mib=30_000))), a=4, c=1)
    rig.ledger.upsert_node(node_object("b", 2, product="NVIDIA-A100-SXM4-40GB", memory_mib=40_960))
    assert rig.kept() == {"a", "b"}
    rig.waiting.reverse()
    assert rig.kept() == {"a", "b"}


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(WaitingPod("small", asks(2)), id="the pod itself"),
        pytest.param(WaitingPod("low", asks(2, priority=-1)), id="one of a lower priority"),
        pytest.param(WaitingPod("same", asks(1)), id="one that is no larger"),
        pytest.param(WaitingPod("none", PodRequest()), id="one without gpus"),
        pytest.param(WaitingPod("odd", asks(2, policy="no-such-policy")), id="one of a policy that there is not"),
        pytest.param(WaitingPod("huge", asks(9)), id="one that fits nowhere"),
        pytest.param(WaitingPod("shares", PodRequest(GpuRequest(1, milli=300))), id="a share"),
    ],
)
def test_who_has_no_claim_on_room_keeps_nothing_and_hides_nobody(other: WaitingPod) -> None:
    rig = Rig(other, a=2, b=1)
    assert rig.kept() == set()
    rig.waiting.append(LARGE)
    assert rig.kept() == {"a"}


def test_one_of_the_same_priority_keeps_its_room_and_one_of_a_higher_too() -> None:
    assert Rig(WaitingPod("large", asks(2, priority=5)), a=2, b=1).kept(request=asks(1, priority=5)) == {"a"}
    assert Rig(WaitingPod("large", asks(2, priority=6)), a=2, b=1).kept(request=asks(1, priority=5)) == {"a"}
    assert Rig(WaitingPod("large", asks(2, priority=4)), a=2, b=1).kept(request=asks(1, priority=5)) == set()


def test_a_pod_is_skipped_so_often_and_so_long_and_then_no_more() -> None:
    rig = Rig(LARGE, a=2, b=1)
    rig.skips.skip("small")
    assert rig.kept() == {"a"}
    rig.clock.now += 59.9
    assert rig.kept() == {"a"}
    rig.clock.now += 0.1
    assert rig.kept() == set()
    assert rig.kept("another") == {"a"}
    rig.skips.skip("another")
    rig.skips.skip("another")
    assert rig.kept("another") == set()


def test_where_nobody_may_be_skipped_or_the_pod_is_not_known_nothing_is_kept() -> None:
    off, on = Rig(LARGE, max_wait_s=0.0, a=2, b=1), Rig(LARGE, max_wait_s=1.0, a=2, b=1)
    assert (off.skips.enabled, on.skips.enabled) == (False, True)
    assert (off.kept(), on.kept(), on.kept("")) == (set(), {"a"}, set())


def test_what_the_queue_keeps_is_kept_however_often_a_pod_was_skipped() -> None:
    rig = Rig(LARGE, a=2, b=1, c=1)
    rig.queue.nodes["small"] = frozenset({"b", "gone"})
    assert rig.kept() == {"a", "b"}
    assert rig.kept("other") == {"a"}
    for _ in range(2):
        assert rig.skips.skip("small") == _QUEUED_REASON
    assert rig.kept() == {"b"}


def test_the_reason_and_the_number_of_skips_are_told_until_the_pod_has_its_node() -> None:
    rig = Rig(LARGE, a=2)
    assert (rig.skips.notes("small"), rig.skips.was_skipped("small")) == ({}, False)
    assert rig.skips.skip("small") == _REASON
    assert rig.skips.notes("small") == {SKIPPED: _REASON, SKIPPED_COUNT: "1"}
    rig.queue.nodes["small"] = frozenset({"a"})
    assert rig.skips.skip("small") == _QUEUED_REASON
    assert rig.skips.notes("small") == {SKIPPED: _QUEUED_REASON, SKIPPED_COUNT: "2"}
    assert rig.skips.skip("other") == _REASON
    assert rig.skips.num_skips == 3
    rig.skips.placed("small")
    rig.skips.placed("never-skipped")
    assert (rig.skips.notes("small"), rig.skips.was_skipped("small")) == ({}, False)
    assert rig.skips.was_skipped("other")


def test_a_pod_is_held_back_while_all_that_has_room_for_it_is_kept() -> None:
    rig = Rig(LARGE, a=2, b=1)
    rig.hold("b", 0)
    small = identity("small"), asks(1)
    assert not rig.skips.holds_back(*small)  # nobody has skipped it
    rig.skips.skip("small")
    assert rig.skips.holds_back(*small)
    assert not rig.skips.holds_back(identity("other"), asks(1))
    assert not rig.skips.holds_back(identity("small"), PodRequest())
    rig.ledger.release("holds-b")
    assert not rig.skips.holds_back(*small)  # there is room on b
    rig.hold("b", 0)
    rig.waiting.clear()
    assert not rig.skips.holds_back(*small)  # there is room on a, kept for nobody
    rig.hold("a", 0, 1)
    assert not rig.skips.holds_back(*small)  # it is not skipped: it fits nowhere


def test_of_very_many_skipped_pods_the_first_is_forgotten() -> None:
    rig = Rig(a=1)
    for number in range(20_000):
        rig.skips.skip(f"uid-{number}")
    assert rig.skips.was_skipped("uid-0")
    rig.skips.skip("one-more")
    assert not rig.skips.was_skipped("uid-0")
    assert rig.skips.was_skipped("uid-1") and rig.skips.was_skipped("one-more")


def test_who_spoils_a_gpu_leaves_the_room_to_any_that_do_not() -> None:
    rig = Rig(WaitingPod("one", asks(1)), a=4, c=4)
    assert rig.kept(request=asks(3)) == {"a", "c"}
    assert rig.kept(request=asks(2)) == set()
    rig.hold("c", 0, 1, 2, 3)
    assert rig.kept(request=asks(3)) == {"a"}
    rig.waiting[:] = [WaitingPod("as bad", asks(3)), WaitingPod("huge", asks(5))]
    assert rig.kept(request=asks(3)) == set()
    rig.waiting[:] = [WaitingPod("low", asks(1, priority=-1))]
    assert rig.kept(request=asks(3)) == set()


def test_it_does_so_within_the_bounds_of_all_skips() -> None:
    rig = Rig(WaitingPod("one", asks(1)), a=4)
    for _ in range(2):
        assert rig.kept(request=asks(3)) == {"a"}
        rig.skips.skip("small")
    assert rig.kept(request=asks(3)) == set()
    rig = Rig(WaitingPod("one", asks(1)), a=4)
    rig.skips.skip("small")
    rig.clock.now += 61
    assert rig.kept(request=asks(3)) == set()
    off = Rig(WaitingPod("one", asks(1)), max_wait_s=0.0, a=4)
    assert off.kept(request=asks(3)) == set()
