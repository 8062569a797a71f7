"""From filter to bind: what is held, and for how long."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from extender.kube.memory import Manifest
from tests.api import bodies
from tests.api.bodies import CLUSTER, node, pod
from tests.api.services import Kerf, Shared, running

TTL_S = 30.0
TWO_NODES = [node("n-0", 2), node("n-1", 2)]


@pytest.fixture
def two_nodes() -> Iterator[Kerf]:
    """Kerf on two nodes of two GPUs."""
    with running(TWO_NODES) as service:
        yield service


@pytest.fixture
def still(shared: Shared) -> Kerf:
    """The same, shared by tests that create no pods."""
    return shared(TWO_NODES)


def chosen(kerf: Kerf, asking: Manifest, names: Sequence[str] = ("n-0", "n-1")) -> list[str]:
    """The nodes that filter leaves."""
    return list(kerf.filter(asking, names)["NodeNames"])


# A burst


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2), (2, 0, 3, 1)], ids=str)
def test_a_burst_fills_nodes_and_never_overcommits_in_any_order_of_binds(
    two_nodes: Kerf, order: tuple[int, ...]
) -> None:
    pods = [two_nodes.create(pod(f"p-{number}", 1)) for number in range(5)]
    nodes = [chosen(two_nodes, asking)[0] for asking in pods[:4]]
    assert nodes == ["n-0", "n-0", "n-1", "n-1"]  # best fit: a node that is begun is filled first
    late = two_nodes.filter(pods[4], ["n-0", "n-1"])
    assert late["NodeNames"] == []
    assert late["FailedNodes"] == dict.fromkeys(["n-0", "n-1"], "needs 1 GPU, best here: 0 free")

    for number in order:
        assert two_nodes.bind(pods[number], nodes[number]) == ""
    assert sorted((nodes[number], two_nodes.gpus_of(pods[number])) for number in range(4)) == [
        ("n-0", "0"),
        ("n-0", "1"),
        ("n-1", "0"),
        ("n-1", "1"),
    ]
    assert two_nodes.num_reservations == 0
    assert chosen(two_nodes, pods[4]) == []


def test_scores_mode_does_not_over_commit_either() -> None:
    with running([node("n-0", 1), node("n-1", 1)], decisions__mode="scores") as kerf:
        first, second, third = (kerf.create(pod(name, 1)) for name in "abc")
        assert chosen(kerf, first) == ["n-0", "n-1"]
        assert kerf.prioritize(first, ["n-0", "n-1"]) == {"n-0": 10, "n-1": 10}
        assert chosen(kerf, second) == ["n-1"]
        assert chosen(kerf, third) == []
        assert kerf.bind(second, "n-1") == ""
        # kube-scheduler breaks ties at random; n-0 was reserved, n-1 is taken by now.
        assert "no longer fits" in kerf.bind(first, "n-1")


def test_a_pod_asked_about_twice_holds_one_reservation(still: Kerf) -> None:
    asking = pod("a", 2)
    for _ in range(2):
        assert chosen(still, asking) == ["n-0"]
    assert still.num_reservations == 1
    assert chosen(still, asking, ["n-1"]) == ["n-1"]
    assert chosen(still, pod("b", 2)) == ["n-0"]


def test_a_pod_that_no_longer_fits_loses_its_reservation(still: Kerf) -> None:
    assert chosen(still, pod("a", 2)) == ["n-0"]
    assert chosen(still, pod("a", 9)) == []
    assert still.num_reservations == 0


def test_a_pod_without_uid_reserves_nothing(still: Kerf) -> None:
    asking = pod("a", 1)
    del asking["metadata"]["uid"]
    assert chosen(still, asking) == ["n-0"]
    assert still.num_reservations == 0


# Time


@pytest.mark.parametrize(
    ("waited_s", "free"), [(0.0, False), (TTL_S - 0.001, False), (TTL_S, True)], ids=["at once", "before", "after"]
)
def test_a_reservation_ends_with_its_ttl(still: Kerf, waited_s: float, free: bool) -> None:
    assert chosen(still, pod("a", 2), ["n-0"]) == ["n-0"]
    still.clock.now += waited_s
    assert chosen(still, pod("b", 2), ["n-0"]) == (["n-0"] if free else [])
    assert still.num_reservations == 1


def test_asking_again_renews_the_ttl(still: Kerf) -> None:
    for _ in range(3):
        assert chosen(still, pod("a", 2), ["n-0"]) == ["n-0"]
        still.clock.now += TTL_S - 1
    assert chosen(still, pod("b", 2), ["n-0"]) == []


@pytest.mark.parametrize(
    ("asked", "gpus", "waited_s", "decided"),
    [
        pytest.param(["n-0"], 1, TTL_S - 1, False, id="what is reserved"),
        pytest.param(["n-0", "n-1"], 1, 0.0, True, id="another node could be better"),
        pytest.param(["n-1"], 1, 0.0, True, id="another node"),
        pytest.param(["n-0"], 2, 0.0, True, id="another request"),
        pytest.param(["n-0"], 1, TTL_S, True, id="after the TTL"),
    ],
)
def test_asking_for_the_reserved_node_alone_makes_no_new_decision(
    still: Kerf, asked: list[str], gpus: int, waited_s: float, decided: bool
) -> None:
    chosen(still, pod("a", 1), ["n-0"])
    before = len(still.service.placer.decided.after(0))
    still.clock.now += waited_s
    assert chosen(still, pod("a", gpus), asked) == asked[:1]
    assert len(still.service.placer.decided.after(0)) - before == decided
    assert still.num_reservations == 1


def test_the_node_reserved_is_not_taken_without_a_look_when_something_else_came_there(two_nodes: Kerf) -> None:
    assert chosen(two_nodes, pod("a", 2), ["n-0"]) == ["n-0"]
    two_nodes.create(pod("b", 2, node_name="n-0"))  # another client bound it
    assert chosen(two_nodes, pod("a", 2), ["n-0"]) == []


@pytest.mark.parametrize(
    ("taken", "error"),
    [
        pytest.param(False, "", id="still free"),
        pytest.param(
            True, "node n-0 no longer fits pod default/a: needs 2 GPUs, best here: 0 free", id="taken meanwhile"
        ),
    ],
)
def test_a_bind_after_the_ttl_is_checked_again(two_nodes: Kerf, taken: bool, error: str) -> None:
    asking = two_nodes.create(pod("a", 2))
    assert chosen(two_nodes, asking) == ["n-0"]
    two_nodes.clock.now += TTL_S
    if taken:
        assert chosen(two_nodes, pod("b", 2), ["n-0"]) == ["n-0"]
    assert two_nodes.bind(asking, "n-0") == error


# Bind


def test_bind_writes_node_and_gpus_at_once_and_emits_an_event(kerf: Kerf) -> None:
    asking = kerf.create(pod(gpus=2))
    kerf.filter(asking, ["t4-0"])
    assert kerf.bind(asking, "t4-0") == ""
    bound = kerf.cluster.pod("default", "train-0")
    assert bound["spec"]["nodeName"] == "t4-0"
    version = kerf.get("/version").json()["version"]
    assert bound["metadata"]["annotations"] == {
        "example.com/note": "16Gi",
        "kerf.dev/assigned-gpus": "0,1",
        "kerf.dev/assigned-model": "t4",
        "kerf.dev/assigned-by": f"kerf/{version} tightest",
        "kerf.dev/explanation": ("placed: 2 GPUs; 1 of 1 nodes had room, this one ranks best by policy tightest"),
    }
    (event,) = kerf.events()
    assert (event["reason"], event["involvedObject"]["uid"]) == ("GPUsAssigned", "uid-of-train-0")
    assert event["message"] == "Assigned GPUs 0,1 (t4) on node t4-0 by policy tightest"


def test_without_events_of_placements_a_pod_is_bound_all_the_same() -> None:
    with running(events__placements=False) as kerf:
        asking = kerf.create(pod(gpus=2))
        kerf.filter(asking, ["t4-0"])
        assert kerf.bind(asking, "t4-0") == ""
        assert kerf.gpus_of(asking) == "0,1"
        assert not kerf.events()


def test_a_pod_without_gpus_is_bound_to_any_node(kerf: Kerf) -> None:
    asking = kerf.create(pod())
    assert kerf.bind(asking, "unknown-to-kerf") == ""
    assert kerf.cluster.pod("default", "train-0")["spec"]["nodeName"] == "unknown-to-kerf"
    assert "kerf.dev/assigned-gpus" not in kerf.cluster.pod("default", "train-0")["metadata"]["annotations"]
    assert kerf.events() == []


def test_bind_asked_twice_says_yes_twice_and_binds_once(two_nodes: Kerf) -> None:
    asking = two_nodes.create(pod("a", 1))
    assert [two_nodes.bind(asking, "n-0") for _ in range(2)] == ["", ""]
    assert two_nodes.bind(asking, "n-1") == "pod default/a is already bound, or being bound, to node n-0"
    assert len(two_nodes.events()) == 1


def test_filter_again_for_a_bound_pod_changes_nothing(two_nodes: Kerf) -> None:
    asking = two_nodes.create(pod("a", 1))
    chosen(two_nodes, asking)
    assert two_nodes.bind(asking, "n-0") == ""
    free = two_nodes.metric("kerf_gpu_units_free")
    chosen(two_nodes, asking)
    two_nodes.prioritize(asking, ["n-0", "n-1"])
    assert (two_nodes.num_reservations, two_nodes.metric("kerf_gpu_units_free")) == (0, free)
    two_nodes.clock.now += TTL_S
    assert two_nodes.metric("kerf_gpu_units_free") == free == 3
    assert two_nodes.gpus_of(asking) == "0"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "deleted"])
def test_gpus_are_free_again_when_a_pod_has_ended(two_nodes: Kerf, phase: str) -> None:
    asking = two_nodes.create(pod("a", 2))
    assert two_nodes.bind(asking, "n-0") == ""
    bound = two_nodes.cluster.pod("default", "a")
    assert chosen(two_nodes, pod("b", 2), ["n-0"]) == []
    if phase == "deleted":
        two_nodes.cluster.delete(bound)
    else:
        two_nodes.cluster.apply({**bound, "status": {"phase": phase}})
    two_nodes.settle()
    assert chosen(two_nodes, pod("b", 2), ["n-0"]) == ["n-0"]


@pytest.mark.parametrize(
    ("change", "name", "error"),
    [
        pytest.param(
            {"uid": "older"},
            "n-0",
            "pod default/a was deleted and created again: UID older is gone",
            id="recreated",
        ),
        pytest.param({"name": "b"}, "n-0", 'pod default/b: 404 NotFound: pods "b" not found', id="no such pod"),
        pytest.param({}, "n-9", "node n-9 is not known to Kerf", id="unknown node"),
        pytest.param(
            {}, "cpu-0", "node cpu-0 no longer fits pod default/a: needs 2 GPUs, no GPUs here", id="no GPUs there"
        ),
    ],
)
def test_a_bind_that_can_not_be_says_why_and_leaves_nothing_reserved(
    change: dict[str, str], name: str, error: str, shared: Shared
) -> None:
    kerf = shared([*TWO_NODES, node("cpu-0"), pod("a", 2)])
    asking = pod("a", 2)
    asking["metadata"].update(change)
    assert kerf.bind(asking, name) == error
    assert kerf.num_reservations == 0
    assert kerf.metric("kerf_gpu_units_free") == 4
    assert kerf.events() == []


def test_a_request_that_can_not_be_understood_is_not_bound(kerf: Kerf) -> None:
    asking = kerf.create(pod(gpus="500m"))
    assert kerf.bind(asking, "t4-0").startswith('pod default/train-0: nvidia.com/gpu: "0.5" is not a whole number')


# Pods of others


@pytest.mark.parametrize(
    ("holder", "free"),
    [
        pytest.param({"gpus": 1, "node_name": "n-0"}, 3, id="running elsewhere"),
        pytest.param({"gpus": 1, "node_name": "n-0", "schedulerName": "other"}, 3, id="of another scheduler"),
        pytest.param({"gpus": 1}, 4, id="pending"),
        pytest.param({"node_name": "n-0"}, 4, id="without GPUs"),
        pytest.param({"gpus": "junk", "node_name": "n-0"}, 3, id="unreadable: in doubt something is held"),
    ],
)
def test_pods_of_every_scheduler_count(holder: dict[str, Any], free: int) -> None:
    with running([*TWO_NODES, pod("other", **holder)]) as kerf:
        assert kerf.metric("kerf_gpu_units_free") == free


def test_the_small_cluster_is_what_the_tests_take_it_for() -> None:
    with running(CLUSTER) as kerf:
        assert kerf.metric("kerf_nodes") == len(bodies.NAMES)
        assert kerf.metric("kerf_gpus") == 8 + 8 + 4 + 2 + 2 + 1
