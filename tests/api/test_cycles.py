"""Kubernetes' own gangs: what filter reserves for members, and which pods that blocks until they are bound."""

from typing import Any

import pytest

from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, running

HALF = {"kerf.dev/gpu-share": "500"}
PAIR = [node("a", 1), node("b", 1)]


def member(name: str, gang: str = "g", gpus: int | None = 1, **options: Any) -> Manifest:
    return pod(name, gpus, schedulingGroup={"podGroupName": gang}, **options)


def share(name: str, gang: str = "") -> Manifest:
    return member(name, gang, None, annotations=HALF) if gang else pod(name, annotations=HALF)


def told(kerf: Kerf, manifest: Manifest, *names: str) -> list[str]:
    """The nodes that filter leaves."""
    chosen: list[str] = kerf.filter(manifest, names)["NodeNames"]
    return chosen


def given_back(kerf: Kerf) -> float:
    return kerf.metric("kerf_gang_reservations_given_back_total")


def test_members_see_each_other() -> None:
    with running(PAIR) as kerf:
        assert told(kerf, member("m0"), "a", "b") == ["a"]
        assert told(kerf, member("m1"), "a", "b") == ["b"]
        assert told(kerf, member("m2"), "a", "b") == []
        assert (kerf.num_reservations, given_back(kerf)) == (2, 0)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(pod("other", 1), id="a pod"),
        pytest.param(member("other", "h"), id="another gang"),
        pytest.param(pod("other", 1) | {"metadata": {**member("m0")["metadata"], "uid": "v"}}, id="one made again"),
    ],
)
def test_reservations_of_a_gang_block_no_other_pod(other: Manifest) -> None:
    with running([node("a", 1)]) as kerf:
        assert told(kerf, member("m0"), "a") == ["a"]
        assert told(kerf, other, "a") == ["a"]
        assert (kerf.num_reservations, given_back(kerf)) == (1, 1)


def test_a_pod_that_fits_beside_a_gang_leaves_it_alone() -> None:
    with running(PAIR) as kerf:
        told(kerf, member("m0"), "a", "b")
        assert told(kerf, pod("other", 1), "a", "b") == ["b"]
        assert (kerf.num_reservations, given_back(kerf)) == (2, 0)


def test_reservations_of_a_pod_without_gang_block_others() -> None:
    with running([node("a", 1)]) as kerf:
        told(kerf, pod("first", 1), "a")
        assert told(kerf, pod("other", 1), "a") == []
        assert told(kerf, member("m0"), "a") == []


def test_asking_about_a_member_again_starts_a_new_cycle() -> None:
    with running(PAIR) as kerf:
        assert told(kerf, member("m0"), "a") == ["a"]
        assert told(kerf, member("m1"), "b") == ["b"]
        assert told(kerf, member("m0"), "b") == ["b"]  # another topology, in which m1 is nowhere yet
        assert told(kerf, member("m1"), "a") == ["a"]
        assert kerf.num_reservations == 2


def test_a_rejected_nominated_node_does_not_start_a_new_cycle() -> None:
    with running(PAIR) as kerf:
        told(kerf, member("m0"), "a", "b")
        assert told(kerf, member("m1"), "a") == []
        assert told(kerf, member("m1"), "a", "b") == ["b"]
        assert kerf.num_reservations == 2


def test_a_member_placed_at_a_retry_does_not_count_as_rejected() -> None:
    with running(PAIR) as kerf:
        told(kerf, pod("first", 1), "b")
        assert told(kerf, share("m0", "g"), "b") == []
        assert told(kerf, share("m0", "g"), "a") == ["a"]
        assert told(kerf, pod("other", annotations={"kerf.dev/gpu-share": "600"}), "a") == []


def test_shares_are_free_once_a_member_was_rejected() -> None:
    # kube-scheduler does not count shares, so its offer says nothing about a gang that may be on its way.
    with running([node("a", 1)]) as kerf:
        assert told(kerf, share("m0", "g"), "a") == ["a"]
        assert told(kerf, share("m1", "g"), "a") == ["a"]
        assert told(kerf, share("other"), "a") == []
        assert told(kerf, share("m2", "g"), "a") == []
        assert told(kerf, share("other"), "a") == ["a"]
        assert (kerf.num_reservations, given_back(kerf)) == (1, 2)


def test_reservations_of_a_quiet_gang_are_released() -> None:
    with running([node("a", 1)]) as kerf:
        told(kerf, share("m0", "g"), "a")
        kerf.clock.now += 1.9
        told(kerf, share("m1", "g"), "a")
        kerf.clock.now += 1.9
        assert kerf.num_reservations == 2
        kerf.clock.now += 0.2
        assert (kerf.num_reservations, given_back(kerf)) == (0, 2)


def test_a_gang_that_is_being_bound_keeps_its_reservations() -> None:
    members = [share("m0", "g"), share("m1", "g")]
    with running([node("a", 1), *members]) as kerf:
        for manifest in members:
            assert told(kerf, manifest, "a") == ["a"]
        assert kerf.bind(members[0], "a") == ""
        kerf.clock.now += 3
        assert told(kerf, share("other"), "a") == []
        assert kerf.bind(members[1], "a") == ""
        assert (kerf.num_reservations, given_back(kerf)) == (0, 0)


def test_a_late_member_starts_a_new_cycle() -> None:
    first = member("m0")
    with running([*PAIR, first]) as kerf:
        told(kerf, first, "a")
        assert kerf.bind(first, "a") == ""
        assert told(kerf, member("m1"), "b") == ["b"]
        assert told(kerf, pod("other", 1), "b") == ["b"]


def test_a_gang_bound_after_all_takes_precedence() -> None:
    first, other = member("m0"), pod("other", 1)
    with running([node("a", 1), first, other]) as kerf:
        assert told(kerf, first, "a") == told(kerf, other, "a") == ["a"]
        assert kerf.bind(first, "a") == ""
        assert "no longer fits" in kerf.bind(other, "a")
