"""Who lives on which node, and what room there is for another."""

from typing import Any

import msgspec
import pytest

from extender.kube import objects
from extender.ledger.tenants import SpecDemands, Tenant, Tenants, _requested_names, asks_resources_alone, repels_pods

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def node(name: str, **allocatable: str) -> objects.Node:
    return msgspec.convert(
        {"metadata": {"name": name}, "status": {"allocatable": {"pods": "110", **allocatable}}}, objects.Node
    )


def pod(uid: str, on: str | None = "n", phase: str = "Running", started: str = "", **spec: Any) -> objects.Pod:
    manifest = {
        "metadata": {"name": uid, "namespace": "default", "uid": uid},
        "spec": {"nodeName": on, **spec},
        "status": {"phase": phase, "startTime": started or None},
    }
    return msgspec.convert(manifest, objects.Pod)


def asking(**requests: str) -> dict[str, Any]:
    """A pod's spec with these requests."""
    return {"containers": [{"resources": {"requests": requests}}]}


def test_pods_are_found_on_their_node_until_they_end() -> None:
    tenants = Tenants()
    for uid, on in (("a", "n"), ("b", "n"), ("c", "m"), ("waiting", None)):
        tenants.upsert_pod(pod(uid, on))
    assert (list(tenants.on("n")), list(tenants.on("m")), list(tenants.on("nowhere"))) == (["a", "b"], ["c"], [])
    tenants.upsert_pod(pod("a", phase="Succeeded"))
    tenants.remove_pod("nobody")
    assert list(tenants.on("n")) == ["b"]
    tenants.upsert_pod(pod("c", "n"))  # the old one's end went unnoticed
    assert (list(tenants.on("n")), list(tenants.on("m"))) == (["b", "c"], [])
    tenants.keep_pods({"c", "other"})
    assert list(tenants.on("n")) == ["c"]


def test_what_an_eviction_of_a_pod_would_cost() -> None:
    tenants = Tenants()
    manifest = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "priority": 7},
        "status": {"phase": "Running", "startTime": "2025-12-31T23:59:00Z"},
    }
    leaving, plain = msgspec.convert(manifest, objects.Pod), pod("plain")
    tenants.upsert_pod(plain)
    tenants.upsert_pod(leaving)
    tenants.upsert_pod(plain)
    assert list(tenants.on("n").items()) == [
        ("plain", Tenant("plain", "default/plain", 0, "", False, plain.spec)),
        ("u", Tenant("u", "team/p", 7, "2025-12-31T23:59:00Z", True, leaving.spec)),
    ], "in the order in which they came"


def test_a_node_that_was_never_told_of_is_forgotten_too() -> None:
    tenants = Tenants()
    tenants.remove_node("n")
    assert not tenants.have_room("n", pod("new", None).spec, ())


@pytest.mark.parametrize(
    ("started", "ran_s"),
    [
        ("2025-12-31T23:59:00Z", 60.0),
        ("2026-01-01T00:59:00+01:00", 60.0),
        ("2026-01-01T00:01:00Z", 0.0),  # clocks differ
        ("", 0.0),
        ("yesterday", 0.0),
    ],
)
def test_time_run(started: str, ran_s: float) -> None:
    tenants = Tenants()
    tenants.upsert_pod(pod("a", started=started))
    assert tenants.on("n")["a"].ran_s(NOW) == ran_s


@pytest.mark.parametrize(
    ("asked", "evicted", "room"),
    [
        pytest.param({"cpu": "2"}, "", True, id="8 - 4 - 2 CPUs are left"),
        pytest.param({"cpu": "2001m"}, "", False, id="a thousandth too much"),
        pytest.param({"cpu": "4"}, "b", True, id="and b's 2"),
        pytest.param({"cpu": "6"}, "a", True, id="and a's 4"),
        pytest.param({"cpu": "8"}, "ab", True, id="and both"),
        pytest.param({"memory": "1Gi"}, "", True, id="nobody asks memory"),
        pytest.param({"memory": "16Gi", "cpu": "1"}, "", False, id="every kind counts"),
        pytest.param({"example.com/fpga": "1"}, "ab", False, id="the node has none of it"),
        pytest.param({"example.com/fpga": "0"}, "", True, id="none asked"),
        pytest.param({}, "", True, id="nothing asked"),
        pytest.param({"cpu": "plenty"}, "ab", False, id="nobody can say"),
    ],
)
def test_room(asked: dict[str, str], evicted: str, room: bool) -> None:
    tenants = Tenants()
    tenants.upsert_node(node("n", cpu="8", memory="8Gi"))
    tenants.upsert_pod(pod("a", **asking(cpu="4")))
    tenants.upsert_pod(pod("b", **asking(cpu="2")))
    assert tenants.have_room("n", pod("new", None, **asking(**asked)).spec, evicted) is room


def test_room_counts_pods_too() -> None:
    tenants = Tenants()
    tenants.upsert_node(node("n", pods="2"))
    tenants.upsert_pod(pod("a"))
    new = pod("new", None).spec
    assert tenants.have_room("n", new, ())
    tenants.upsert_pod(pod("b"))
    assert not tenants.have_room("n", new, ())
    assert tenants.have_room("n", new, {"a"})
    tenants.remove_node("n")
    assert not tenants.have_room("n", new, {"a", "b"})


def test_requests_of_a_pod_as_a_whole_replace_its_containers() -> None:
    tenants = Tenants()
    tenants.upsert_node(node("n", cpu="8"))
    tenants.upsert_pod(pod("a", **asking(cpu="7"), resources={"requests": {"cpu": "1"}}, overhead={"cpu": "1"}))
    assert tenants.have_room("n", pod("new", None, **asking(cpu="6")).spec, ())
    assert not tenants.have_room("n", pod("new", None, **asking(cpu="6100m")).spec, ())


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


@pytest.mark.parametrize(
    ("spec", "alone"),
    [
        ({}, True),
        ({"containers": [{"ports": [{"containerPort": 80}]}]}, True),
        ({"containers": [{"ports": [{"containerPort": 80, "hostPort": 80}]}]}, False),
        ({"initContainers": [{"ports": [{"hostPort": 80}]}]}, False),
        ({"hostNetwork": True}, False),
        ({"hostNetwork": False}, True),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "projected": {"sources": []}}]}, True),
        ({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "ephemeral": {}}]}, False),
        ({"resourceClaims": [{"name": "gpu"}]}, False),
        ({"resourceClaims": []}, True),
        ({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}}, True),
        ({"affinity": {"podAffinity": RULE}}, False),
        ({"affinity": {"podAntiAffinity": RULE}}, False),
        ({"affinity": {"podAffinity": WISH, "podAntiAffinity": WISH}}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "ScheduleAnyway"}]}, True),
        ({"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule"}]}, False),
    ],
)
def test_what_room_is_a_matter_of(spec: dict[str, Any], alone: bool) -> None:
    assert asks_resources_alone(msgspec.convert(spec, SpecDemands)) is alone


def test_who_keeps_others_off() -> None:
    assert repels_pods(pod("a", affinity={"podAntiAffinity": RULE}).spec)
    assert not repels_pods(pod("a", affinity={"podAntiAffinity": WISH, "podAffinity": RULE}).spec)
    assert not repels_pods(pod("a").spec)
