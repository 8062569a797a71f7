"""The bound pods of each node, and whether there is room for another."""

from typing import Any

import msgspec

from extender.kube import objects
from extender.ledger.bound_pods import (
    BoundPod,
    BoundPods,
    SpecDemands,
    _requested_names,
    asks_resources_alone,
    repels_pods,
)
from extender.queueing.pods.objects import decode_node, decode_pod

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def node(name: str, **allocatable: str) -> objects.Node:
    return decode_node({"metadata": {"name": name}, "status": {"allocatable": {"pods": "110", **allocatable}}})


def pod(uid: str, on: str | None = "n", phase: str = "Running", started: str = "", **spec: Any) -> objects.Pod:
    metadata = {"name": uid, "namespace": "default", "uid": uid}
    status = {"phase": phase, "startTime": started or None}
    return decode_pod({"metadata": metadata, "spec": {"nodeName": on, **spec}, "status": status})


def asking(**requests: str) -> dict[str, Any]:
    """A pod's spec with these requests."""
    return {"containers": [{"resources": {"requests": requests}}]}


def test_pods_are_found_on_their_node_until_they_end() -> None:
    bound_pods = BoundPods()
    for uid, on in (("a", "n"), ("b", "n"), ("c", "m"), ("waiting", None)):
        bound_pods.upsert_pod(pod(uid, on))
    assert [list(bound_pods.on(name)) for name in ("n", "m", "nowhere")] == [["a", "b"], ["c"], []]
    bound_pods.upsert_pod(pod("a", phase="Succeeded"))
    bound_pods.remove_pod("unknown")
    assert list(bound_pods.on("n")) == ["b"]
    bound_pods.upsert_pod(pod("c", "n"))  # the watch has missed that it moved
    assert [list(bound_pods.on(name)) for name in ("n", "m")] == [["b", "c"], []]
    bound_pods.keep_pods({"c", "other"})
    assert list(bound_pods.on("n")) == ["c"]


def test_what_an_eviction_of_a_pod_would_cost() -> None:
    bound_pods, plain = BoundPods(), pod("plain")
    manifest = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "priority": 7},
        "status": {"phase": "Running", "startTime": "2025-12-31T23:59:00Z"},
    }
    leaving = decode_pod(manifest)
    for one in (plain, leaving, plain):
        bound_pods.upsert_pod(one)
    assert list(bound_pods.on("n").items()) == [
        ("plain", BoundPod("plain", "default/plain", 0, "", False, plain.spec)),
        ("u", BoundPod("u", "team/p", 7, "2025-12-31T23:59:00Z", True, leaving.spec)),
    ], "in the order in which they came"


def test_time_run() -> None:
    in_a_minute, unknown = "2026-01-01T00:01:00Z", ("", "yesterday")
    for started in ("2025-12-31T23:59:00Z", "2026-01-01T00:59:00+01:00", in_a_minute, *unknown):
        bound_pods = BoundPods()
        bound_pods.upsert_pod(pod("a", started=started))
        assert bound_pods.on("n")["a"].ran_s(NOW) == (0.0 if started in (in_a_minute, *unknown) else 60.0)


def test_room() -> None:
    bound_pods = BoundPods()
    bound_pods.upsert_node(node("n", cpu="8", memory="8Gi"))
    bound_pods.upsert_pod(pod("a", **asking(cpu="4")))
    bound_pods.upsert_pod(pod("b", **asking(cpu="2")))
    for asked, evicted, room in (
        ({"cpu": "2"}, "", True),
        ({"cpu": "2001m"}, "", False),
        ({"cpu": "4"}, "b", True),
        ({"cpu": "6"}, "a", True),
        ({"cpu": "8"}, "ab", True),
        ({"memory": "16Gi", "cpu": "1"}, "", False),
        ({"example.com/fpga": "1"}, "ab", False),
        ({"example.com/fpga": "0"}, "", True),
        ({"cpu": "plenty"}, "ab", False),
    ):
        assert bound_pods.have_room("n", pod("new", None, **asking(**asked)).spec, evicted) is room, asked


def test_room_counts_pods_too() -> None:
    bound_pods, new = BoundPods(), pod("new", None).spec
    bound_pods.upsert_node(node("n", pods="2"))
    bound_pods.upsert_pod(pod("a"))
    assert bound_pods.have_room("n", new, ())
    bound_pods.upsert_pod(pod("b"))
    assert not bound_pods.have_room("n", new, ())
    assert bound_pods.have_room("n", new, {"a"})
    for name in ("n", "never-reported"):
        bound_pods.remove_node(name)
        assert not bound_pods.have_room(name, new, {"a", "b"})


def test_requests_of_a_pod_as_a_whole_replace_its_containers() -> None:
    bound_pods = BoundPods()
    bound_pods.upsert_node(node("n", cpu="8"))
    bound_pods.upsert_pod(pod("a", **asking(cpu="7"), resources={"requests": {"cpu": "1"}}, overhead={"cpu": "1"}))
    assert bound_pods.have_room("n", pod("new", None, **asking(cpu="6")).spec, ())
    assert not bound_pods.have_room("n", pod("new", None, **asking(cpu="6100m")).spec, ())


def test_names_of_all_resources_requested() -> None:
    spec = pod(
        "a",
        containers=[{"resources": {"limits": {"nvidia.com/gpu": "1"}}}, {}],
        initContainers=[{"resources": {"requests": {"memory": "1Gi"}}}],
        resources={"requests": {"cpu": "1"}},
        overhead={"ephemeral-storage": "1Gi"},
    ).spec
    assert _requested_names(spec) == {"nvidia.com/gpu", "memory", "cpu", "ephemeral-storage"}


RULE = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
WISH = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1}]}


def test_which_pods_need_resources_alone() -> None:
    alone: list[dict[str, Any]] = [
        {},
        {"containers": [{"ports": [{"containerPort": 80}]}], "hostNetwork": False, "resourceClaims": []},
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "projected": {"sources": []}}]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
        {"affinity": {"podAffinity": WISH, "podAntiAffinity": WISH}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]},
    ]
    more: list[dict[str, Any]] = [
        {"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]},
        {"initContainers": [{"ports": [{"hostPort": 80}]}]},
        {"hostNetwork": True},
        {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "ephemeral": {}}]},
        {"resourceClaims": [{"name": "gpu"}]},
        {"affinity": {"podAffinity": RULE}},
        {"affinity": {"podAntiAffinity": RULE}},
        {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]},
    ]
    for spec in (*alone, *more):
        assert asks_resources_alone(msgspec.convert(spec, SpecDemands)) is (spec in alone), spec


def test_which_pods_repel_others() -> None:
    assert repels_pods(pod("a", affinity={"podAntiAffinity": RULE}).spec)
    assert not repels_pods(pod("a", affinity={"podAntiAffinity": WISH, "podAffinity": RULE}).spec)
    assert not repels_pods(pod("a").spec)
