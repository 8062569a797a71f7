"""The gangs' pods with a node, and their losses to preemption."""

from typing import Any

import pytest

from extender.kube.objects import Pod
from extender.queueing.gangs import GANG_PREEMPTED, GangMembers, Loss
from extender.queueing.pods.objects import decode_pod

SEEN = 1767229200.5  # 01:00:00.5Z of the day
WHY = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


def pod(name: str, *, gang: str = "g", left_s: int | None = None, why: Any = None, **spec: Any) -> Pod:
    """A running pod; with `left_s` it terminates, that many seconds after 01:00:00."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "creationTimestamp": "2026-01-01T01:00:00Z",
    }
    if left_s is not None:
        metadata |= {
            "deletionTimestamp": f"2026-01-01T01:00:{left_s:02}Z",
            "deletionGracePeriodSeconds": left_s or None,
        }
    said = {"annotations": {"kerf.dev/gang": gang, "kerf.dev/gang-size": "2"} if gang else {}}
    return decode_pod({"metadata": metadata | said, "spec": spec, "status": {"conditions": [why] if why else []}})


def marked(name: str, message: str, status: str = "True") -> Pod:
    return pod(name, why={"type": GANG_PREEMPTED, "status": status, "message": message})


def seen(*pods: Pod) -> GangMembers:
    """The members after a watch has reported pods."""
    members = GangMembers(lambda: SEEN)
    for item in pods:
        members.changed(None, item)
    return members


def test_a_gang_s_pods_are_known_as_they_were_told_of_last_and_until_they_are_gone() -> None:
    first, now = pod("a"), pod("a", nodeName="n")
    b, z, single = pod("b"), pod("z", gang="h"), pod("single", gang="")
    odd = decode_pod({"metadata": {"name": "odd", "uid": "odd", "annotations": {"kerf.dev/gang": "g"}}})
    members = seen(first, b, z, single, odd)
    members.changed(first, now)
    assert members.gangs() == {"ns/g": [now, b], "ns/h": [z]}
    assert members.of("ns/g") == [now, b]
    assert [members.gang_of(f"uid-{name}") for name in ("a", "z", "single")] == ["ns/g", "ns/h", ""]
    for item in (now, single, odd):
        members.changed(item, None)
    members.changed(None, None)
    assert members.gangs() == {"ns/g": [b], "ns/h": [z]}
    assert members.gang_of("uid-a") == ""
    assert (dict(members.losses), members.news.is_set()) == ({}, False)


def test_a_pod_that_was_evicted_for_another_is_a_loss_as_of_when_that_was_asked_for() -> None:
    runs = pod("a", nodeName="n")
    goes = pod("a", nodeName="n", priority=7, left_s=30, why=WHY)
    members = seen(runs, pod("b"))
    members.changed(runs, goes)
    [loss] = members.losses.values()
    assert loss == Loss(
        gang="ns/g",
        source="uid-a",
        at=int(SEEN),
        why="a was preempted on n",
        node="n",
        priority=7,
        beside=frozenset({"uid-a", "uid-b"}),
    )
    assert members.news.is_set()


def test_the_members_beside_a_lost_pod_are_known_where_it_was_seen_to_go() -> None:
    going = pod("a", left_s=0, why=WHY)
    for before, after, beside in (
        (pod("a", why=WHY), None, {"uid-b"}),  # without a grace period
        (None, going, set()),  # terminating when first seen
        (pod("a", left_s=5), going, set()),  # already terminating, for another reason
    ):
        members = seen(*([] if before is None else [before]), pod("b"))
        members.changed(before, after)
        expected = Loss("ns/g", "uid-a", int(SEEN), "a was preempted on ", priority=0, beside=frozenset(beside))
        assert list(members.losses.values()) == [expected]


@pytest.mark.parametrize(
    "why", [None, WHY | {"reason": "EvictionByEvictionAPI"}, WHY | {"status": "False"}, WHY | {"type": "Ready"}]
)
def test_a_pod_that_leaves_for_another_reason_or_has_no_gang_is_no_loss(why: Any) -> None:
    for gang, reason in (("g", why), ("", WHY)):
        before, after, sudden = (
            pod("a", gang=gang),
            pod("a", gang=gang, left_s=30, why=reason),
            pod("b", gang=gang, why=reason),
        )
        members = seen(before, sudden)
        members.changed(before, after)
        members.changed(after, None)
        members.changed(sudden, None)
        assert not members.losses


def test_a_loss_is_read_from_the_mark_that_it_leaves_on_others() -> None:
    lost = Loss("ns/g", "uid-a", int(SEEN), "a was preempted on n: x", "n", 3)
    members = seen(marked("b", lost.mark))
    assert lost.mark == "2026-01-01T01:00:00Z: a was preempted on n: x"
    assert list(members.losses.values()) == [Loss("ns/g", lost.mark, lost.at, lost.why)]
    assert not seen(marked("b", lost.mark, "False")).losses
    assert not seen(marked("b", "soon: a was preempted on n")).losses


def test_a_loss_concerns_the_pods_of_its_start_of_the_gang() -> None:
    """Pods created before it, seen beside it, or marked by it."""
    lost = Loss("ns/g", "uid-a", int(SEEN), "a was preempted on n", beside=frozenset({"uid-b"}))
    later = Loss("ns/g", "uid-z", int(SEEN) + 1, "z was preempted on n")
    pods = [pod("b"), pod("c"), marked("d", lost.mark), marked("e", later.mark)]
    assert [lost.concerns(item) for item in pods] == [True, False, True, False]
    assert all(later.concerns(item) for item in pods)


def test_what_is_settled_is_not_lost_again() -> None:
    members = seen(pod("a", left_s=30, why=WHY), pod("b", left_s=30, why=WHY))
    a, b = members.losses.values()
    members.settle(a)
    members.changed(None, pod("a", left_s=30, why=WHY))
    assert list(members.losses.values()) == [b]
    members.settle(a)
    assert list(members.losses.values()) == [b], "also where it was settled already"


def test_no_more_is_remembered_than_has_room_and_the_oldest_is_forgotten_first() -> None:
    def goes(number: int) -> None:
        members.changed(None, pod(f"p-{number}", left_s=30, why=WHY))

    members, room = seen(), 4096
    for number in range(room):
        goes(number)
    first, *others = members.losses.values()
    assert len(others) == room - 1
    goes(room)
    assert list(members.losses.values())[:-1] == others
    for loss in (first, *others):
        members.settle(loss)
    goes(0)
    assert len(members.losses) == 1, "the last one alone is not settled"
    [last] = members.losses.values()
    members.settle(last)
    goes(1)
    assert not members.losses
    goes(0)
    assert list(members.losses.values()) == [first]
