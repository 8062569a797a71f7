"""Why, asked later: everything about the newest decisions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from extender.core.gauges import Gauge
from extender.page.gpu_cells import Mark
from tests.api.bodies import node, pod
from tests.api.services import Clock, Kerf, Shared, running
from tests.explain.test_waiting_pods import told_once
from tests.telemetry.feeds import FakeFeed


def explained(kerf: Kerf, name: str) -> Any:
    """What /explain says of a pod."""
    answer = kerf.get(f"/explain/pod/default/{name}")
    assert answer.status == 200
    return answer.json()


def test_a_placed_pod_is_explained_with_every_candidate() -> None:
    objects = [node("n-0", 2, "t4"), node("n-1", 4), node("cpu-0"), pod("held", 1, node_name="n-1")]
    with running(objects, telemetry__source="off") as kerf:
        asking = pod("asking", 1, annotations={"kerf.dev/gpu-memory-each": "10Gi"})
        kerf.filter(asking, ["cpu-0", "n-1", "n-0", "x"])
        why = explained(kerf, "asking")
    assert (why["pod"], why["uid"], why["policy"]) == ("default/asking", "uid-of-asking", "tightest")
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
            "idle": True,
            "healthy": True,
            "freeMilli": 1000,
            "freeMemoryMiB": 15360,
            "obstacle": None,
        }
        for index in range(2)
    ]
    assert nodes["n-0"]["score"] > nodes["n-1"]["score"]
    assert (nodes["n-0"]["rank"], nodes["n-1"]["rank"], nodes["cpu-0"]["rank"]) == (1, 2, None)
    assert nodes["n-1"]["terms"] == {"freeUnits": 3, "takenUnits": 1, "leftUnits": 2}
    assert nodes["cpu-0"]["score"] is None
    assert not any(node.get("busy") for node in nodes.values())
    assert why["required"] == {"count": 1, "unit": "GPU", "memoryEachMiB": 10240}
    assert "wouldFit" not in why
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


def test_what_would_make_a_pending_pod_fit(kerf: Kerf) -> None:
    """a100-0 and a100-1 have 8 GPUs of 80 GiB each, one of a100-1 is held here; t4-0 has 2 of 15 GiB."""
    kerf.create(pod("holder", 1, node_name="a100-1", annotations={"kerf.dev/assigned-gpus": "3"}))
    kerf.filter(pod("asking", 8, annotations={"kerf.dev/gpu-model": "a100"}), ["a100-1", "t4-0"])
    why = explained(kerf, "asking")
    room, fewer = why["wouldFit"]
    assert (room["change"], room["text"]) == ("room", "1 more GPU free on node a100-1")
    assert room["holders"] == [{"pod": "default/holder", "units": 1, "gpus": [3], "state": "BOUND", "shared": False}]
    assert room["who"] == "default/holder holds 1 GPU"
    assert (fewer["change"], fewer["text"]) == ("count", "7 GPUs instead of 8")
    assert (fewer["nodes"], fewer["numNodes"]) == (["a100-1"], 1)
    gpus = {line["node"]: [gpu["obstacle"] for gpu in line["gpus"]] for line in why["nodes"]}
    assert gpus == {
        "a100-1": [None, None, None, "in use", None, None, None, None],
        "t4-0": ["another model", "another model"],
    }
    assert (why["now"]["nodesThatFit"], why["now"]["held"]) == (0, None)


def test_what_has_changed_since(kerf: Kerf) -> None:
    kerf.filter(pod("placed", 2), ["t4-0", "t4-1", "a100-0"])
    kerf.create(pod("holder", 1, node_name="t4-1"))
    kerf.clock.now += 1
    now = explained(kerf, "placed")["now"]
    assert now["held"] == {"node": "t4-0", "gpus": [0, 1], "state": "RESERVED"}
    assert {entry["node"]: (entry["freeGPUsThen"], entry["freeGPUsNow"]) for entry in now["changed"]} == {
        "t4-1": (2, 2),  # of an index that nobody knows
    }, "what it holds itself is no change"
    assert now["numChanged"] == 1
    assert (now["bestNode"], now["nodesThatFit"], now["gone"]) == ("a100-0", 1, [])
    kerf.cluster.delete(node("t4-1"))
    kerf.settle()
    assert explained(kerf, "placed")["now"]["gone"] == ["t4-1"]


def test_what_keeps_a_pod_from_each_gpu() -> None:
    objects = [node("small", 1, "t4"), node("shared", shared=4), node("big", 1)]
    with running(objects) as kerf:
        kerf.create(pod("held", 1, node_name="big", annotations={"kerf.dev/assigned-gpus": "0"}))
        kerf.filter(pod("asking", 1, annotations={"kerf.dev/gpu-memory-each": "40Gi"}), ["small", "shared", "big"])
        why = explained(kerf, "asking")
    assert {line["node"]: line["gpus"][0]["obstacle"] for line in why["nodes"]} == {
        "small": "too small: 15 GiB of 40 GiB",
        "shared": "not of the requested kind",
        "big": "in use",
    }


def test_a_pending_pod_that_fits_by_now_needs_no_change(kerf: Kerf) -> None:
    holder = kerf.create(pod("holder", 2, node_name="t4-0", annotations={"kerf.dev/assigned-gpus": "0,1"}))
    kerf.filter(pod("asking", 1), ["t4-0"])
    assert [entry["change"] for entry in explained(kerf, "asking")["wouldFit"]] == ["room"]
    kerf.cluster.delete(holder)
    kerf.settle()
    why = explained(kerf, "asking")
    assert (why["verdict"], why["wouldFit"], why["now"]["bestNode"]) == ("rejected", [], "t4-0")


def test_the_newest_decision_counts_and_shows_the_cluster_of_that_moment(kerf: Kerf) -> None:
    kerf.filter(pod("asking", 9), ["a100-0"])
    kerf.filter(pod("asking", 2), ["t4-0"])
    kerf.filter(pod("other", 2), ["t4-1"])
    why = explained(kerf, "asking")
    assert why["node"] == "t4-0"
    assert [gpu["free"] for gpu in why["nodes"][0]["gpus"]] == [True, True]  # before it was placed there


@pytest.mark.parametrize(
    "path", ["default/nobody", "other/asking", "default/\0", "default/ё"], ids=["name", "namespace", "NUL", "Cyrillic"]
)
def test_a_pod_that_nothing_is_known_of(shared: Shared, path: str) -> None:
    kerf = shared()
    kerf.filter(pod("asking", 1), ["t4-0"])
    answer = kerf.get(f"/explain/pod/{path}")
    assert answer.status == 404
    assert answer.json()["detail"].startswith(f"no recent decision about pod {path}")


def test_a_pending_pod_that_was_never_offered_is_explained_as_of_now(kerf: Kerf) -> None:
    kerf.create(pod("asking", 64))
    before = kerf.num_reservations
    why = explained(kerf, "asking")
    assert (why["offered"], why["verdict"], why["node"]) == (False, "unasked", None)
    assert {line["node"] for line in why["nodes"]} == set(kerf.service.placer.snapshot().row_of)
    assert why["reasons"]["needs 64 GPUs, best here: 2 installed"] == 2
    assert "count" in {suggestion["change"] for suggestion in why["wouldFit"]}
    kerf.create(pod("small", 1))
    fits = explained(kerf, "small")
    assert (fits["verdict"], fits["node"] is not None, fits["now"]["held"]) == ("unasked", True, None)
    assert fits["wouldFit"] == []
    assert kerf.num_reservations == before
    kerf.filter(pod("small", 1), ["t4-0"])
    assert (explained(kerf, "small")["offered"], explained(kerf, "small")["verdict"]) == (True, "placed")


def test_pods_of_which_nothing_can_be_said_say_why(kerf: Kerf) -> None:
    def detail(manifest: Any) -> str:
        kerf.create(manifest)
        answer = kerf.get(f"/explain/pod/default/{manifest['metadata']['name']}")
        assert answer.status == 404
        return str(answer.json()["detail"])

    assert detail(pod("light", node_name="t4-0")).endswith("It is on node t4-0, and has no GPUs there")
    ended = pod("ended", 1, node_name="t4-0") | {"status": {"phase": "Succeeded"}}
    assert detail(ended).endswith("It is on node t4-0, and has ended")
    assert "requests no GPUs" in detail(pod("plain"))
    kerf.create(pod("odd", annotations={"kerf.dev/gpu-count": "two"}))
    assert "kerf.dev/gpu-count" in explained(kerf, "odd")["sentence"]  # which is pending, and known
    assert "there is no pod" in kerf.get("/explain/pod/default/nobody").json()["detail"]


def test_a_pod_that_runs_and_was_decided_on_by_nobody_here_is_where_it_is(kerf: Kerf) -> None:
    kerf.create(pod("runs", 2, node_name="t4-0", annotations={"kerf.dev/assigned-gpus": "0,1"}))
    why = explained(kerf, "runs")
    assert (why["verdict"], why["node"], why["gpus"], why["decidedAt"]) == ("placed", "t4-0", [0, 1], None)
    assert why["sentence"].startswith("no decision about it is kept: ")
    (row,) = kerf.get("/workloads?q=runs").json()["pods"]
    assert why["workload"] == row
    assert (row["gpus"], row["owner"], why["request"]) == (2.0, "Pod/runs", "2 GPUs")
    assert kerf.get("/explain/pod/default/runs?policy=nosuch").status == 400


def test_a_failed_bind_is_explained_too(kerf: Kerf) -> None:
    asking = kerf.create(pod("asking", 4))
    assert "no longer fits" in kerf.bind(asking, "t4-0")
    assert explained(kerf, "asking")["reasons"] == {"needs 4 GPUs, best here: 2 installed": 1}


def test_a_bound_pod_that_is_asked_about_again_is_said_to_be_where_it_runs(kerf: Kerf) -> None:
    asking = kerf.create(pod("asking", 1))
    kerf.filter(asking, ["t4-0"])
    assert kerf.bind(asking, "t4-0") == ""
    kerf.filter(asking, ["a100-0"])
    why = explained(kerf, "asking")
    assert (why["verdict"], why["node"], why["gpus"]) == ("placed", "t4-0", [0])
    assert why["askedAgain"] == {"node": "a100-0", "gpus": [0]}
    kerf.filter(asking, ["cpu-0"])
    why = explained(kerf, "asking")
    assert (why["verdict"], why["node"], why["askedAgain"]["node"]) == ("placed", "t4-0", None)
    assert "wouldFit" not in why


def test_a_bound_pod_of_one_decision_has_the_gpus_that_it_was_given(kerf: Kerf) -> None:
    asking = kerf.create(pod("asking", 2))
    kerf.filter(asking, ["a100-0"])
    assert kerf.bind(asking, "a100-0") == ""
    why = explained(kerf, "asking")
    assert (why["node"], why["gpus"]) == ("a100-0", [0, 1])
    assert "askedAgain" not in why


def test_a_pod_whose_reservation_has_ended_waits_and_is_said_to(kerf: Kerf) -> None:
    asking = kerf.create(pod("asking", 2))
    told_once(kerf, 1)
    kerf.filter(asking, ["t4-0", "a100-0"])
    assert explained(kerf, "asking")["verdict"] == "placed"
    kerf.clock.now += 31
    why = explained(kerf, "asking")
    at = why["decidedAt"][11:19]
    assert (why["verdict"], why["node"], why["now"]["held"], why["wouldFit"]) == ("expired", "t4-0", None, [])
    assert why["sentence"] == (
        f"was given t4-0 at {at} UTC but not bound there; "
        "needs 2 GPUs; there is room now on t4-0; kube-scheduler has not retried it yet"
    )
    assert [remedy["kind"] for remedy in why["remedies"]] == ["wait"]
    kerf.create(pod("first", 2, node_name="t4-0", annotations={"kerf.dev/assigned-gpus": "0,1"}))
    kerf.create(pod("second", 8, node_name="a100-0", annotations={"kerf.dev/assigned-gpus": "0,1,2,3,4,5,6,7"}))
    why = explained(kerf, "asking")
    assert "not bound there; needs 2 GPUs; " in why["sentence"]
    assert "default/" in why["sentence"], "who holds what would do"
    assert why["wouldFit"][0]["change"] == "room"


def test_a_pod_that_was_bound_ended_or_is_gone_does_not_wait(kerf: Kerf) -> None:
    for name in ("runs", "ended", "gone"):
        manifest = kerf.create(pod(name, 1))
        told_once(kerf, 1)
        kerf.filter(manifest, ["t4-0", "t4-1", "a100-0"])
        assert name == "gone" or kerf.bind(manifest, explained(kerf, name)["node"]) == ""
    kerf.cluster.apply(kerf.cluster.pod("default", "ended") | {"status": {"phase": "Succeeded"}})
    kerf.cluster.delete(pod("gone", 1))
    kerf.clock.now += 31
    kerf.settle()
    assert [explained(kerf, name)["verdict"] for name in ("runs", "ended", "gone")] == ["placed"] * 3


USED = {Gauge.MEMORY_USED: [400.0, 400.0, 50_000.0, 400.0]}


@contextmanager
def observed(gauges: Mapping[Gauge, Sequence[float]], *objects: Any, **settings: Any) -> Iterator[Kerf]:
    """A cluster with one node of four GPUs, of which samples tell this."""
    feed = FakeFeed(Clock())
    telemetry = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}
    with running([node("n", 4), *objects], feed=feed, decisions__policy="live", **telemetry, **settings) as kerf:
        feed.clock = kerf.clock
        feed.gauges = {"n": gauges}
        assert kerf.service.observer is not None
        kerf.run(kerf.service.observer.round())
        yield kerf


def test_the_remedy_counts_who_holds_how_many_and_what_nobody_holds() -> None:
    held = [
        pod("a", 1, node_name="n", annotations={"kerf.dev/assigned-gpus": "0"}),
        pod("b", 1, node_name="n", annotations={"kerf.dev/assigned-gpus": "1"}),
    ]
    with observed(USED, *held) as kerf:
        kerf.filter(pod("asking", 4), ["n"])
        room = explained(kerf, "asking")["wouldFit"][0]
    assert room["text"] == "3 more GPUs free on node n"
    assert room["who"] == ("default/a holds 1 GPU, default/b holds 1 GPU, 1 GPU is in use by unknown processes")
    assert (len(room["holders"]), room["usedByNobody"], room["faulty"]) == (2, 1, 0)


def test_memory_in_use_that_pods_on_gpus_of_unknown_index_explain_is_not_nobodys() -> None:
    held = pod("hidden", 1, node_name="n")  # bound by somebody else: nothing says which GPU it has
    with observed(USED, held) as kerf:
        kerf.filter(pod("asking", 4), ["n"])
        why = explained(kerf, "asking")
        (gpu,) = [gpu for gpu in why["nodes"][0]["gpus"] if gpu["index"] == 2]
        on_the_map = kerf.streams.view.nodes(kerf.service.placer.snapshot(), np.array([0]))[0]["gpus"][2]
    assert gpu["unmanagedMiB"] == 0
    assert not on_the_map[2] & Mark.UNMANAGED
    assert why["wouldFit"][0]["who"] == "default/hidden holds 1 GPU"


def test_the_rules_say_what_is_odd_of_a_gpu() -> None:
    for used, xid, unmanaged, bad in (
        (3000.0, 13.0, [0, 0, 3000, 0], [False] * 4),
        (1000.0, 79.0, [0] * 4, [False, True, False, False]),
    ):
        with observed({Gauge.MEMORY_USED: [400.0, 400.0, used, 400.0], Gauge.XID: [0.0, xid, 0.0, 0.0]}) as kerf:
            kerf.filter(pod("asking", 1), ["n"])
            gpus = explained(kerf, "asking")["nodes"][0]["gpus"]
            detailed = kerf.get("/nodes/n").json()["gpuDetails"]
        for told in (gpus, detailed):
            assert [gpu["unmanagedMiB"] for gpu in told] == unmanaged
            assert [gpu["faulty"] for gpu in told] == bad
        odd = [mib > 0 or broken for mib, broken in zip(unmanaged, bad, strict=True)]
        assert [bool(gpu["obstacle"]) for gpu in gpus] == [not gpu["idle"] for gpu in gpus] == odd
        assert [gpu["free"] for gpu in gpus] == [True] * 4, "by bookings"
        assert [not gpu["idle"] for gpu in detailed[1:]] == odd[1:], "the first is reserved by now"
