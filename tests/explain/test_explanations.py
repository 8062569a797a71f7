"""Why, asked later: everything about the newest decisions."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from extender.core.gauges import Gauge
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Clock, Kerf, Shared, running
from tests.explain.sentences.test_pending_pods import EIGHT, explained, held
from tests.explain.test_waiting_pods import made, told_once
from tests.telemetry.feeds import FakeFeed


def detail(kerf: Kerf, name: str) -> str:
    """Why nothing can be said of a pod."""
    answer = kerf.get(f"/explain/pod/{name}")
    assert answer.status == 404
    return str(answer.json()["detail"])


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
    reasons = {"cpu-0": "NO_GPUS", "n-1": "FITS", "n-0": "FITS", "x": "UNKNOWN_NODE"}
    assert [(name, line["reason"]) for name, line in nodes.items()] == list(reasons.items())
    gpu = {"model": "t4", "memoryMiB": 15360, "free": True, "idle": True, "healthy": True, "freeMilli": 1000}
    gpu |= {"freeMemoryMiB": 15360, "obstacle": None}
    assert nodes["n-0"]["gpus"] == [{"index": index, **gpu} for index in range(2)]
    assert nodes["n-0"]["score"] > nodes["n-1"]["score"]
    assert (nodes["n-0"]["rank"], nodes["n-1"]["rank"], nodes["cpu-0"]["rank"]) == (1, 2, None)
    assert nodes["n-1"]["terms"] == {"freeUnits": 3, "takenUnits": 1, "leftUnits": 2}
    assert nodes["cpu-0"]["score"] is None
    assert not any(node.get("busy") for node in nodes.values())
    assert why["required"] == {"count": 1, "unit": "GPU", "memoryEachMiB": 10240}
    # One GPU of n-1 is held, of an index that nothing says.
    assert (nodes["n-1"]["available"], nodes["n-1"]["untrackedUnits"]) == (3, 1)
    assert "wouldFit" not in why and "gpus" not in nodes["x"]


def test_what_would_make_a_pending_pod_fit(kerf: Kerf) -> None:
    """a100-0 and a100-1 have 8 GPUs of 80 GiB each, one of a100-1 is held here; t4-0 has 2 of 15 GiB."""
    kerf.create(held("holder", "a100-1", "3"))
    kerf.filter(pod("asking", 8, annotations={"kerf.dev/gpu-model": "a100"}), ["a100-1", "t4-0"])
    why = explained(kerf, "asking")
    assert (why["verdict"], why["node"], why["gpus"]) == ("rejected", None, [])
    assert [line["available"] for line in why["nodes"]] == [7, 2]
    room, fewer = why["wouldFit"]
    assert (room["change"], room["text"]) == ("room", "1 more GPU free on node a100-1")
    assert room["holders"] == [{"pod": "default/holder", "units": 1, "gpus": [3], "state": "BOUND", "shared": False}]
    assert room["who"] == "default/holder holds 1 GPU"
    assert (fewer["change"], fewer["text"]) == ("count", "7 GPUs instead of 8")
    assert (fewer["nodes"], fewer["numNodes"]) == (["a100-1"], 1)
    gpus = {line["node"]: [gpu["obstacle"] for gpu in line["gpus"]] for line in why["nodes"]}
    assert gpus == {"a100-1": [None, None, None, "in use", *[None] * 4], "t4-0": ["another model"] * 2}
    assert (why["now"]["nodesThatFit"], why["now"]["held"]) == (0, None)


def test_what_has_changed_since(kerf: Kerf) -> None:
    kerf.filter(pod("placed", 2), ["t4-0", "t4-1", "a100-0"])
    kerf.create(pod("holder", 1, node_name="t4-1"))
    kerf.clock.now += 1
    now = explained(kerf, "placed")["now"]
    assert now["held"] == {"node": "t4-0", "gpus": [0, 1], "state": "RESERVED"}
    # What it holds itself is no change; of t4-1 the index of the held one is unknown.
    assert now["changed"] == [{"node": "t4-1", "freeGPUsThen": 2, "freeGPUsNow": 2}]
    assert now["numChanged"] == 1
    assert (now["bestNode"], now["nodesThatFit"], now["gone"]) == ("a100-0", 1, [])
    kerf.cluster.delete(node("t4-1"))
    kerf.settle()
    assert explained(kerf, "placed")["now"]["gone"] == ["t4-1"]


def test_the_newest_decision_counts_and_shows_the_cluster_of_that_moment(kerf: Kerf) -> None:
    kerf.filter(pod("asking", 9), ["a100-0"])
    kerf.filter(pod("asking", 2), ["t4-0"])
    kerf.filter(pod("other", 2), ["t4-1"])
    why = explained(kerf, "asking")
    assert why["node"] == "t4-0"
    assert [gpu["free"] for gpu in why["nodes"][0]["gpus"]] == [True, True]  # before it was placed there


def test_a_pod_that_nothing_is_known_of(shared: Shared) -> None:
    kerf = shared()
    kerf.filter(pod("asking", 1), ["t4-0"])
    for name in ("default/nobody", "other/asking", "default/\0", "default/ё"):
        assert detail(kerf, name).startswith(f"no recent decision about pod {name}")


def test_a_pending_pod_that_was_never_offered_is_explained_as_of_now(kerf: Kerf) -> None:
    kerf.create(pod("asking", 64))
    before = kerf.num_reservations
    why = explained(kerf, "asking")
    assert (why["offered"], why["verdict"], why["node"]) == (False, "unasked", None)
    assert {line["node"] for line in why["nodes"]} == set(kerf.service.placer.snapshot().row_of)
    assert why["reasons"]["needs 64 GPUs, best here: 2 installed"] == 2
    assert list(why["reasons"].values()) == sorted(why["reasons"].values(), reverse=True)
    assert "count" in {suggestion["change"] for suggestion in why["wouldFit"]}
    kerf.create(pod("small", 1))
    fits = explained(kerf, "small")
    assert (fits["verdict"], fits["node"] is not None, fits["now"]["held"]) == ("unasked", True, None)
    assert fits["wouldFit"] == []
    assert kerf.num_reservations == before
    kerf.filter(pod("small", 1), ["t4-0"])
    placed = explained(kerf, "small")
    assert (placed["offered"], placed["verdict"]) == (True, "placed")


def test_pods_of_which_nothing_can_be_said_say_why(kerf: Kerf) -> None:
    ended = pod("ended", 1, node_name="t4-0") | {"status": {"phase": "Succeeded"}}
    odd = pod("odd", annotations={"kerf.dev/gpu-count": "two"})
    for manifest in (pod("light", node_name="t4-0"), ended, pod("plain"), odd):
        kerf.create(manifest)
    assert detail(kerf, "default/light").endswith("It is on node t4-0, and has no GPUs there")
    assert detail(kerf, "default/ended").endswith("It is on node t4-0, and has ended")
    assert "requests no GPUs" in detail(kerf, "default/plain")
    assert "there is no pod" in detail(kerf, "default/nobody")
    assert "kerf.dev/gpu-count" in explained(kerf, "odd")["sentence"]  # which is pending, and known


def test_a_pod_that_runs_and_was_decided_on_by_nobody_here_is_where_it_is(kerf: Kerf) -> None:
    kerf.create(held("runs", "t4-0", "0,1"))
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
    asking = kerf.create(pod("asking", 2))
    kerf.filter(asking, ["t4-0"])
    assert kerf.bind(asking, "t4-0") == ""
    why = explained(kerf, "asking")
    assert (why["node"], why["gpus"], "askedAgain" in why) == ("t4-0", [0, 1], False)
    kerf.filter(asking, ["a100-0"])
    why = explained(kerf, "asking")
    assert (why["verdict"], why["node"], why["gpus"]) == ("placed", "t4-0", [0, 1])
    assert why["askedAgain"] == {"node": "a100-0", "gpus": [0, 1]}
    stays = "It stays on t4-0, where it is bound; asked again, Kerf would "
    assert why["sentence"] == f"{stays}choose another node: On a100-0, its only candidate."
    kerf.filter(asking, ["cpu-0"])
    why = explained(kerf, "asking")
    assert (why["verdict"], why["node"], why["askedAgain"]["node"]) == ("placed", "t4-0", None)
    assert why["sentence"] == f"{stays}find no node"
    assert "wouldFit" not in why


def test_a_pod_whose_reservation_has_ended_waits_and_is_said_to(kerf: Kerf) -> None:
    def row() -> Any:
        return kerf.get("/pending").json()["pods"][0]

    asking = kerf.create(made("asking", 2, 60) | {"status": {"phase": "Pending"}})
    told_once(kerf, 1)
    kerf.filter(asking, ["t4-0", "a100-0"])
    assert explained(kerf, "asking")["verdict"] == "placed"
    reserved = row()
    assert reserved["sentence"] == "reserved on t4-0, not bound yet"
    assert (reserved["remedy"], reserved["nearest"]) == (None, None)
    kerf.clock.now += 31
    why, waits = explained(kerf, "asking"), row()
    assert (why["verdict"], why["node"], why["now"]["held"], why["wouldFit"]) == ("expired", "t4-0", None, [])
    begins = f"was given t4-0 at {why['decidedAt'][11:19]} UTC but not bound there; needs 2 GPUs; "
    assert why["sentence"].startswith(f"{begins}there is room now on t4-0; ")
    assert waits["sentence"].startswith(f"{begins}there is room now on 5 nodes; ")
    assert [remedy["kind"] for remedy in why["remedies"]] == ["wait"]
    assert waits["remedy"] == why["remedies"][0]
    kerf.create(held("first", "t4-0", "0,1"))
    kerf.create(held("second", "a100-0", EIGHT))
    why = explained(kerf, "asking")
    assert why["sentence"].startswith(begins)
    assert "default/" in why["sentence"], "who holds what would do"
    assert why["wouldFit"][0]["change"] == "room"


def test_a_pod_that_was_bound_ended_or_is_gone_does_not_wait(kerf: Kerf) -> None:
    for name, on in (("runs", "t4-0"), ("ended", "t4-1"), ("gone", "a100-0")):
        manifest = kerf.create(pod(name, 1))
        told_once(kerf, 1)
        kerf.filter(manifest, [on])
        assert name == "gone" or kerf.bind(manifest, on) == ""
    kerf.cluster.apply(kerf.cluster.pod("default", "ended") | {"status": {"phase": "Succeeded"}})
    kerf.cluster.delete(pod("gone", 1))
    kerf.clock.now += 31
    kerf.settle()
    assert [explained(kerf, name)["verdict"] for name in ("runs", "ended", "gone")] == ["placed"] * 3


@contextmanager
def observed(xids: list[float], *pods: Manifest) -> Iterator[Kerf]:
    """A node of four GPUs with samples: much memory of the third is in use; a pod has asked for all of them."""
    feed = FakeFeed(Clock())
    telemetry = {"telemetry__url": "http://prometheus:9090", "telemetry__interval_s": 3600}
    with running([node("n", 4), *pods], feed=feed, decisions__policy="live", **telemetry) as kerf:
        feed.clock = kerf.clock
        feed.gauges = {"n": {Gauge.MEMORY_USED: [400.0, 400.0, 50_000.0, 400.0], Gauge.XID: xids}}
        assert kerf.service.observer is not None
        kerf.run(kerf.service.observer.round())
        kerf.filter(pod("asking", 4), ["n"])
        yield kerf


def test_gpus_that_pods_hold_are_told_apart_from_those_in_use_or_faulty_without_one() -> None:
    with observed([0.0, 0.0, 0.0, 79.0], held("a", "n", "0"), held("b", "n", "1")) as kerf:
        why, detailed = explained(kerf, "asking"), kerf.get("/nodes/n").json()["gpuDetails"]
    room, gpus = why["wouldFit"][0], why["nodes"][0]["gpus"]
    assert room["text"] == "4 more GPUs free on node n"
    assert room["who"] == (
        "default/a holds 1 GPU, default/b holds 1 GPU, 1 GPU is in use by unknown processes, "
        "1 GPU is faulty according to its samples"
    )
    assert (len(room["holders"]), room["usedByNobody"], room["faulty"]) == (2, 1, 1)
    for told in (gpus, detailed):
        assert [gpu["unmanagedMiB"] for gpu in told] == [0, 0, 50_000, 0]
        assert [gpu["faulty"] for gpu in told] == [False, False, False, True]
        assert [gpu["free"] for gpu in told] == [False, False, True, True], "by bookings"
        assert not any(gpu["idle"] for gpu in told)
    assert all(gpu["obstacle"] for gpu in gpus)


def test_memory_in_use_that_pods_on_gpus_of_unknown_index_explain_is_not_nobodys() -> None:
    hidden = pod("hidden", 1, node_name="n")  # bound by somebody else: nothing says which GPU it has
    with observed([0.0] * 4, hidden) as kerf:
        why = explained(kerf, "asking")
    assert [gpu["unmanagedMiB"] for gpu in why["nodes"][0]["gpus"]] == [0, 0, 0, 0]
    assert why["wouldFit"][0]["who"] == "default/hidden holds 1 GPU"
