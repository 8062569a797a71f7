"""Which pods are left pending for larger ones, until when, and what is said of it."""

from dataclasses import dataclass, field

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
    """Nodes of so many GPUs, while some pods wait; each pod is skipped twice at most, and within a minute."""

    def __init__(self, *waiting: WaitingPod, max_wait_s: float = 60.0, **gpus: int) -> None:
        self.clock = Clock()
        self.ledger = ledger_of(**gpus)
        self.placer = Placer(self.ledger, default_policy="tightest", clock=self.clock, wall_clock=self.clock)
        self.queue = Kept()
        self.waiting = list(waiting)
        wasteful = lambda gpus: gpus.count == 3  # noqa: E731 - as if three were a share that wastes a GPU
        self.skips = Skips(self.placer, lambda: self.waiting, self.clock, max_wait_s, 2, self.queue, wasteful)

    def hold(self, node: str, *gpus: int) -> None:
        self.ledger.reserve(f"holds-{node}", node, whole_gpus(len(gpus), gpus), self.clock())

    def kept(self, uid: str = "small", request: PodRequest | None = None) -> set[str]:
        """Nodes that a pod, by default of one GPU, has to leave to others."""
        request = request or asks(1)
        assert request.gpus is not None
        rows = self.skips.kept_rows(identity(uid), request, request.gpus, self.placer.policy_of(request))
        return {self.placer.snapshot().node_names[row] for row in rows}


LARGE, LARGER = WaitingPod("large", asks(2)), WaitingPod("larger", asks(4))


def test_the_one_node_with_room_for_a_larger_pod_is_kept_for_it() -> None:
    rig = Rig(LARGE, a=2, b=1)
    assert rig.kept() == {"a"}
    rig.waiting.clear()
    assert rig.kept() == set()


def test_a_node_that_has_room_for_both_is_not_kept() -> None:
    assert Rig(LARGE, a=3, b=1).kept() == set()
    rig = Rig(LARGE, a=4, b=1)
    for held, kept in (((0,), set()), ((0, 1), {"a"})):
        rig.hold("a", *held)
        assert rig.kept() == kept


def test_a_larger_pod_with_two_nodes_to_choose_from_keeps_none() -> None:
    rig = Rig(LARGER, a=4, b=1, c=8)
    for held, kept in (((0,), set()), ((0, 1, 2, 3, 4), {"a"})):
        rig.hold("c", *held)
        assert rig.kept() == kept


def test_each_larger_pod_keeps_its_node() -> None:
    rig = Rig(LARGER, WaitingPod("choosy", PodRequest(GpuRequest(2, memory_each_mib=30_000))), a=4, c=1)
    rig.ledger.upsert_node(node_object("b", 2, product="NVIDIA-A100-SXM4-40GB", memory_mib=40_960))
    assert rig.kept() == {"a", "b"}
    rig.waiting.reverse()
    assert rig.kept() == {"a", "b"}


def test_other_pods_keep_nothing_and_do_not_hide_a_larger_one() -> None:
    for other in (
        WaitingPod("small", asks(2)),  # the pod itself
        WaitingPod("low", asks(2, priority=-1)),
        WaitingPod("same", asks(1)),
        WaitingPod("none", PodRequest()),
        WaitingPod("odd", asks(2, policy="no-such-policy")),
        WaitingPod("fits nowhere", asks(9)),
        WaitingPod("shares", PodRequest(GpuRequest(1, milli=300))),
    ):
        rig = Rig(other, a=2, b=1)
        assert rig.kept() == set(), other
        rig.waiting.append(LARGE)
        assert rig.kept() == {"a"}, other


def test_pods_of_no_lower_priority_keep_their_room() -> None:
    for priority, kept in ((4, set()), (5, {"a"}), (6, {"a"})):
        rig = Rig(WaitingPod("large", asks(2, priority=priority)), a=2, b=1)
        assert rig.kept(request=asks(1, priority=5)) == kept


def test_a_pod_is_skipped_so_often_and_so_long_and_then_no_more() -> None:
    rig = Rig(LARGE, a=2, b=1)
    rig.skips.skip("small")
    for seconds, kept in ((0.0, {"a"}), (59.9, {"a"}), (0.1, set())):
        rig.clock.now += seconds
        assert rig.kept() == kept
    for kept in ({"a"}, {"a"}, set()):
        assert rig.kept("another") == kept
        rig.skips.skip("another")


def test_where_no_pod_may_be_skipped_or_the_pod_is_not_known_nothing_is_kept() -> None:
    off, on = Rig(LARGE, max_wait_s=0.0, a=2, b=1), Rig(LARGE, max_wait_s=1.0, a=2, b=1)
    assert (off.skips.enabled, on.skips.enabled) == (False, True)
    assert (off.kept(), on.kept(), on.kept("")) == (set(), {"a"}, set())


def test_what_the_queue_keeps_is_kept_however_often_a_pod_was_skipped() -> None:
    rig = Rig(LARGE, a=2, b=1, c=1)
    rig.queue.nodes["small"] = frozenset({"b", "gone"})
    assert (rig.kept(), rig.kept("other")) == ({"a", "b"}, {"a"})
    for _ in range(2):
        assert rig.skips.skip("small") == _QUEUED_REASON
    assert rig.kept() == {"b"}


def test_the_reason_and_the_number_of_skips_are_told_until_the_pod_has_its_node() -> None:
    rig = Rig(LARGE, a=2)
    assert (rig.skips.notes("small"), rig.skips.was_skipped("small")) == ({}, False)
    assert rig.skips.skip("small") == rig.skips.skip("other") == _REASON
    assert rig.skips.notes("small") == {SKIPPED: _REASON, SKIPPED_COUNT: "1"}
    rig.queue.nodes["small"] = frozenset({"a"})
    assert rig.skips.skip("small") == _QUEUED_REASON
    assert rig.skips.notes("small") == {SKIPPED: _QUEUED_REASON, SKIPPED_COUNT: "2"}
    assert rig.skips.num_skips == 3
    for uid in ("small", "never-skipped"):
        rig.skips.placed(uid)
    assert (rig.skips.notes("small"), rig.skips.was_skipped("small")) == ({}, False)
    assert rig.skips.was_skipped("other")


def test_a_pod_is_held_back_while_all_that_has_room_for_it_is_kept() -> None:
    rig = Rig(LARGE, a=2, b=1)
    rig.hold("b", 0)
    small = identity("small"), asks(1)
    assert not rig.skips.holds_back(*small), "it was never skipped"
    rig.skips.skip("small")
    assert rig.skips.holds_back(*small)
    assert not rig.skips.holds_back(identity("other"), asks(1))
    assert not rig.skips.holds_back(identity("small"), PodRequest())
    rig.ledger.release("holds-b")
    assert not rig.skips.holds_back(*small), "b has room"
    rig.hold("b", 0)
    rig.waiting.clear()
    assert not rig.skips.holds_back(*small), "a has room"
    rig.hold("a", 0, 1)
    assert not rig.skips.holds_back(*small), "it fits nowhere"


def test_of_very_many_skipped_pods_the_first_is_forgotten() -> None:
    rig = Rig(a=1)
    for number in range(20_001):
        assert rig.skips.was_skipped("uid-0") is (number > 0)
        rig.skips.skip(f"uid-{number}")
    assert [rig.skips.was_skipped(f"uid-{number}") for number in (0, 1, 20_000)] == [False, True, True]


def test_a_pod_that_wastes_a_gpu_leaves_all_room_to_those_that_do_not() -> None:
    rig = Rig(WaitingPod("one", asks(1)), a=4, c=4)
    assert rig.kept(request=asks(3)) == {"a", "c"}
    assert rig.kept(request=asks(2)) == set()
    rig.hold("c", 0, 1, 2, 3)
    assert rig.kept(request=asks(3)) == {"a"}
    rig.waiting[:] = [WaitingPod("as bad", asks(3)), WaitingPod("huge", asks(5))]
    assert rig.kept(request=asks(3)) == set()
    rig.waiting[:] = [WaitingPod("low", asks(1, priority=-1))]
    assert rig.kept(request=asks(3)) == set()
