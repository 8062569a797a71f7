"""Pods without GPUs get the GPU nodes on which they cost least if no other node has room."""

from typing import Any

import pytest

from tests.api import bodies
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, Shared, running

PREFERS: Any = {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}}}
FEW: Any = {"decisions__near_best_nodes": 2}

# GPUs free: four on n-0, three on n-1 and so on; none on n-4 and n-5.
NODES = [node(f"n-{number}", 4) for number in range(6)]
HELD = [pod(f"held-{number}", min(number, 4), node_name=f"n-{number}") for number in range(1, 6)]
NAMES = [f"n-{number}" for number in range(6)]


def others(kerf: Kerf, manifest: Manifest, names: list[str]) -> tuple[list[str], dict[str, int]]:
    """What the second entry leaves, and its scores of all."""
    body = bodies.args(manifest, names)
    left = kerf.post("/others/filter", body).json()["NodeNames"]
    return left, {line["Host"]: line["Score"] for line in kerf.post("/others/prioritize", body).json()}


def asking(cpu: str) -> Manifest:
    manifest = pod("web")
    manifest["spec"]["containers"][0]["resources"] = {"requests": {"cpu": cpu, "memory": "1Gi"}}
    return manifest


@pytest.mark.parametrize("entry", ["/filter", "/others/filter"])
@pytest.mark.parametrize("names", [NAMES, NAMES[::-1], [*NAMES, "unknown"], ["n-5", "n-1", "n-4"]])
def test_the_nodes_that_lose_least_are_left(entry: str, names: list[str], shared: Shared) -> None:
    kerf = shared([*NODES, *HELD], **FEW)
    answer = kerf.post(entry, bodies.args(pod("web"), names)).json()
    assert (answer["NodeNames"], answer["FailedNodes"], answer["Error"]) == (["n-4", "n-5"], {}, "")
    assert kerf.num_reservations == 0


def test_scores_follow_what_is_lost(shared: Shared) -> None:
    kerf = shared([*NODES, *HELD])
    _, scores = others(kerf, pod("web"), NAMES)
    assert scores == {"n-0": 6, "n-1": 7, "n-2": 8, "n-3": 9, "n-4": 10, "n-5": 10}


def test_nodes_without_room_come_last(shared: Shared) -> None:
    """n-4 has 60 of its 64 cores left: it comes last, whatever kube-scheduler thinks."""
    kerf = shared([*NODES, *HELD], **FEW)
    assert others(kerf, asking("61"), NAMES)[0] == ["n-0"]  # the others hold pods
    assert others(kerf, asking("61"), NAMES)[1] == {**dict.fromkeys(NAMES, 0), "n-0": 10}
    assert others(kerf, asking("65"), NAMES)[0] == NAMES  # kube-scheduler may know better: nothing is taken away


@pytest.mark.parametrize(
    ("changed", "flags", "manifest", "names"),
    [
        pytest.param([node("cpu-0")], {}, pod("web"), [*NAMES, "cpu-0"], id="a node without GPUs has room"),
        pytest.param([], {}, pod("web", **PREFERS), NAMES, id="it has preferences of its own"),
        pytest.param([], {}, pod("web"), ["n-0", "n-1"], id="there are few"),
        pytest.param([], {"decisions__rank_cpu_pods": False}, pod("web"), NAMES, id="not wanted"),
        pytest.param([], {"decisions__mode": "scores"}, pod("web"), NAMES, id="scores"),
        pytest.param([], {"decisions__policy": "spread"}, pod("web"), NAMES, id="the policy knows nothing of them"),
    ],
)
def test_all_candidates_stay(
    changed: list[Manifest], flags: Any, manifest: Manifest, names: list[str], shared: Shared
) -> None:
    kerf = shared([*NODES, *HELD, *changed], **FEW, **flags)
    assert others(kerf, manifest, names)[0] == names


def test_nodes_without_gpus_that_are_no_candidates_change_nothing() -> None:
    """Whether many or few: kube-scheduler has found that the pod does not go there."""
    for number in (1, 100):
        with running([*NODES, *HELD, *(node(f"cpu-{i}") for i in range(number))], **FEW) as kerf:
            assert others(kerf, pod("web"), NAMES)[0] == ["n-4", "n-5"]
            assert others(kerf, pod("web"), [*NAMES, f"cpu-{number - 1}"])[0] == [*NAMES, f"cpu-{number - 1}"]


def test_a_stale_replica_keeps_all_candidates() -> None:
    with running([*NODES, *HELD], **FEW) as kerf:
        kerf.stop_mirror()
        kerf.clock.now += 1000
        assert kerf.post("/others/filter", bodies.args(pod("web"), NAMES)).json()["NodeNames"] == NAMES


def test_whole_nodes_are_returned_whole(shared: Shared) -> None:
    kerf = shared([*NODES, *HELD], **FEW)
    answer = kerf.post("/others/filter", bodies.args(pod("web"), None, NODES)).json()
    assert [item["metadata"]["name"] for item in answer["Nodes"]["items"]] == ["n-4", "n-5"]
