"""Why, asked later: everything about the newest decisions."""

from typing import Any

import pytest

from tests.service.bodies import node, pod
from tests.service.services import Kerf, running


def explained(kerf: Kerf, name: str) -> Any:
    """What /explain says of a pod."""
    answer = kerf.get(f"/explain/pod/default/{name}")
    assert answer.status == 200
    return answer.json()


def test_a_placed_pod_is_explained_with_every_candidate() -> None:
    with running([node("n-0", 2, "t4"), node("n-1", 4), node("cpu-0"), pod("held", 1, node_name="n-1")]) as kerf:
        asking = pod("asking", 1, annotations={"kerf.dev/gpu-memory-each": "10Gi"})
        kerf.filter(asking, ["cpu-0", "n-1", "n-0", "x"])
        why = explained(kerf, "asking")
    assert (why["pod"], why["uid"], why["policy"]) == ("default/asking", "uid-of-asking", "bestfit")
    assert (why["verdict"], why["node"], why["gpus"]) == ("placed", "n-0", [0])
    assert why["request"] == "1 GPU with 10 GiB"
    assert why["decidedAt"].endswith("+00:00")
    assert why["reasons"] == {"needs 1 GPU with 10 GiB, no GPUs here": 1, "node not known to Kerf yet": 1}
    nodes = {line["node"]: line for line in why["nodes"]}
    assert list(nodes) == ["cpu-0", "n-1", "n-0", "x"]
    assert {name: line["reason"] for name, line in nodes.items()} == {
        "cpu-0": "NO_GPUS",
        "n-1": "FITS",
        "n-0": "FITS",
        "x": "UNKNOWN_NODE",
    }
    assert nodes["n-0"]["gpus"] == [
        {
            "index": index,
            "model": "t4",
            "memoryMiB": 15360,
            "free": True,
            "healthy": True,
            "freeMilli": 1000,
            "freeMemoryMiB": 15360,
        }
        for index in range(2)
    ]
    assert nodes["n-0"]["score"] > nodes["n-1"]["score"]
    assert nodes["cpu-0"]["score"] is None
    # Somebody holds one GPU of n-1, of an index that nobody has written down.
    assert (nodes["n-1"]["available"], nodes["n-1"]["untrackedUnits"]) == (3, 1)
    assert "gpus" not in nodes["x"]


def test_a_rejected_pod_is_explained(kerf: Kerf) -> None:
    kerf.filter(pod("asking", 9), ["a100-0", "a100-1", "t4-0"])
    why = explained(kerf, "asking")
    assert (why["verdict"], why["node"], why["gpus"]) == ("rejected", None, [])
    # The commonest reason first.
    assert list(why["reasons"].items()) == [
        ("needs 9 GPUs, best here: 8 installed", 2),
        ("needs 9 GPUs, best here: 2 installed", 1),
    ]
    assert [line["available"] for line in why["nodes"]] == [8, 8, 2]


def test_the_newest_decision_counts_and_shows_the_cluster_of_that_moment(kerf: Kerf) -> None:
    kerf.filter(pod("asking", 9), ["a100-0"])
    kerf.filter(pod("asking", 2), ["t4-0"])
    kerf.filter(pod("other", 2), ["t4-1"])
    why = explained(kerf, "asking")
    assert why["node"] == "t4-0"
    assert [gpu["free"] for gpu in why["nodes"][0]["gpus"]] == [True, True]  # before it was placed there


@pytest.mark.parametrize(
    "path", ["default/nobody", "other/asking", "default/\0", "default/ё"], ids=["name", "namespace", "NUL", "ё"]
)
def test_a_pod_that_nothing_is_known_of(kerf: Kerf, path: str) -> None:
    kerf.filter(pod("asking", 1), ["t4-0"])
    answer = kerf.get(f"/explain/pod/{path}")
    assert (answer.status, answer.json()["detail"]) == (
        404,
        f"no decision about pod {path} is kept; only the newest are",
    )


def test_a_failed_bind_is_explained_too(kerf: Kerf) -> None:
    asking = kerf.create(pod("asking", 4))
    assert "no longer fits" in kerf.bind(asking, "t4-0")
    assert explained(kerf, "asking")["reasons"] == {"needs 4 GPUs, best here: 2 installed": 1}
