"""A node whose agent has stopped: answers about its pods, and pods that wait for it, say so."""

from typing import Any

import pytest

from extender.plugins.kerf import REPORT
from extender.scheduling.reporters import AGENT_LABELS
from tests.api.bodies import node, pod
from tests.api.services import Kerf, running

STOPPED = ". The agent of n-0 has stopped: what Kerf knows of its GPUs may be out of date"
READY = [{"type": "Ready", "status": "True"}]


def reported(name: str) -> dict[str, Any]:
    manifest = node(name, 4)
    manifest["metadata"]["annotations"] = {REPORT: "{}"}
    manifest["status"]["conditions"] = READY
    return manifest


def agent(node_name: str) -> dict[str, Any]:
    manifest = pod("kerf-agent-x", node_name=node_name)
    manifest["metadata"]["labels"] = dict([AGENT_LABELS])
    manifest["status"]["conditions"] = READY
    return manifest


def sentences(kerf: Kerf) -> list[str]:
    """Of a pod that runs on the node, of one that waits for it, and of the latter in the list of all that wait."""
    waits = kerf.create(pod("waits", 4))
    assert not kerf.filter(waits, ["n-0"])["NodeNames"]
    told = [kerf.get(f"/explain/pod/default/{name}").json() for name in ("runs", "waits")]
    (listed,) = kerf.get("/pending").json()["pods"]
    return [one["sentence"] for one in (*told, listed)]


@pytest.mark.parametrize("at_work", [False, True])
def test_the_pods_concerned_are_warned(at_work: bool) -> None:
    objects = [reported("n-0"), pod("runs", 2, node_name="n-0")] + ([agent("n-0")] if at_work else [])
    with running(objects) as kerf:
        told = sentences(kerf)
    assert [one.endswith(STOPPED) for one in told] == [not at_work] * 3, told


def test_an_agent_of_another_node_says_nothing_of_this_one() -> None:
    with running([reported("n-0"), pod("runs", 2, node_name="n-0"), node("n-1", 0), agent("n-1")]) as kerf:
        assert all(one.endswith(STOPPED) for one in sentences(kerf))
