"""The inputs of a one-off plan, from files or an API server: the pods that run and wait, and their order."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extender.kube.objects import Node, Pod
from extender.planning.planners.greedy import Greedy
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.sources import Source, SourceError, batch_of, domains_of, node_of, read_cluster, read_files

Manifest = dict[str, Any]


def pod(name: str, cpu: str = "1", *, node: str = "", phase: str = "Pending", **metadata: Any) -> Manifest:
    spec: Manifest = {"containers": [{"resources": {"requests": {"cpu": cpu}}}]} | ({"nodeName": node} if node else {})
    meta = {"name": name, "namespace": "ns", "uid": f"u-{name}"} | metadata
    return {"metadata": meta, "spec": spec, "status": {"phase": phase}}


def node(name: str, cpu: str = "8", pods: str = "110", **labels: str) -> Manifest:
    allocatable = {"cpu": cpu, "memory": "16Gi", "pods": pods}
    return {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": allocatable}}


def source(nodes: list[Manifest], *pods: Manifest) -> Source:
    made = Source(nodes=[decode_node(item) for item in nodes])
    made.add(decode_pod(item) for item in pods)
    return made


def names(items: list[Pod] | list[Node]) -> list[str]:
    return [item.metadata.name for item in items]


def test_pods_run_or_wait_or_are_ignored() -> None:
    found = source(
        [],
        pod("runs", node="n"),
        pod("ended-there", node="n", phase="Succeeded"),
        pod("waits"),
        pod("ended", phase="Failed"),
        pod("goes", deletionTimestamp="2026-01-01T00:00:00Z"),
    )
    assert (names(found.bound), names(found.waiting)) == (["runs", "ended-there"], ["waits"])


FILES = """
kind: PodList
items:
- {metadata: {name: a, namespace: ns, uid: mine}, spec: {priority: 1}}
- {metadata: {name: b}}
---
---
kind: List
items:
- {kind: Node, metadata: {name: n}}
- {kind: Pod, metadata: {name: c}, spec: {nodeName: n}}
- {kind: NodeList, items: [{metadata: {name: m}}]}
---
kind: NodeList
items: null
"""


def test_files_hold_pods_and_nodes_and_lists_of_them(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(FILES)
    (tmp_path / "b.json").write_text('{"kind": "Pod", "metadata": {"name": "d"}}')
    found = read_files([tmp_path / "a.yaml", tmp_path / "b.json"])
    assert names(found.nodes) == ["n", "m"]
    assert [(item.key, item.metadata.uid) for item in found.waiting] == [
        ("ns/a", "mine"),
        ("default/b", "default/b"),
        ("default/d", "default/d"),
    ]
    assert [item.key for item in found.bound] == ["default/c"]
    assert found.manifests == {
        "ns/a": {"kind": "Pod", "metadata": {"name": "a", "namespace": "ns", "uid": "mine"}, "spec": {"priority": 1}},
        "default/b": {"kind": "Pod", "metadata": {"name": "b"}},
        "default/c": {"kind": "Pod", "metadata": {"name": "c"}, "spec": {"nodeName": "n"}},
        "default/d": {"kind": "Pod", "metadata": {"name": "d"}},
    }


FAULTS = """
kind: Pod
metadata: {name: fine}
---
kind: PodList
items: [{metadata: {}}, 3, {metadata: {name: fine-too}}, {spec: {containers: 3}}]
---
- a list
---
{kind: Service}
---
{kind: [Pod]}
---
kind: Pod
metadata: {name: odd, annotations: {com.openfaas.function.spec: "{"}}
---
kind: Node
metadata: 3
"""


def test_all_faults_of_all_files_are_told_with_their_places(tmp_path: Path) -> None:
    faulty, broken, binary = (tmp_path / name for name in ("faulty.yaml", "broken.yaml", "binary.yaml"))
    faulty.write_text(FAULTS)
    broken.write_text("kind: [")
    binary.write_bytes(b"\xff")
    with pytest.raises(SourceError) as raised:
        read_files([faulty, tmp_path / "missing.yaml", broken, binary])
    faults = raised.value.faults
    fault_of = {fault.partition(": ")[0]: fault for fault in faults[3:]}
    assert faults[:3] == [
        f"{faulty}, document 2: item 1: metadata.name: a pod needs a name",
        f"{faulty}, document 2: item 2: expected a Kubernetes object, not int",
        f"{faulty}, document 2: item 4: Expected `array | null`, got `int` - at `$.spec.containers`",
    ]
    places = [*(f"{faulty}, document {number}" for number in range(3, 8)), tmp_path / "missing.yaml", broken, binary]
    assert list(fault_of) == [str(place) for place in places]
    for number, fault in (
        (3, "expected a Kubernetes object, not list"),
        (4, "kind 'Service' can't be planned; write nodes and pods"),
        (5, "kind ['Pod'] can't be planned; write nodes and pods"),
    ):
        assert faults[number] == f"{faulty}, document {number}: {fault}"
    assert str(raised.value) == "\n".join(faults)


def test_an_api_server_lists_nodes_and_pods_and_a_pod_that_can_not_be_read_takes_all_gpus_of_its_node() -> None:
    has_gpus, asks = node("n"), pod("waits")
    has_gpus["status"]["allocatable"]["nvidia.com/gpu"] = "8"
    asks["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": 1}

    class Api:
        async def get(self, path: str, query: object = None) -> bytes:
            items: list[Manifest] = {
                "/api/v1/nodes": [has_gpus, {"metadata": {"name": "odd"}, "status": {"allocatable": 3}}],
                "/api/v1/pods": [asks, pod("runs", node="n"), pod("odd", node="n") | {"status": 3}],
            }[path]
            return msgspec.json.encode({"items": items})

    found = asyncio.run(read_cluster(Api()))  # type: ignore[arg-type]
    assert names(found.nodes) == ["n"]
    assert names(found.waiting) == ["waits"]
    assert names(found.bound) == ["runs", "odd"]
    view, batch, faults = batch_of(found, 0.0)
    assert ([item.key for item in batch], faults) == (["ns/waits"], {})
    assert Greedy().make(view, batch).num_placed == 0
    found.bound = found.bound[:1]
    view, batch, _ = batch_of(found, 0.0)
    assert Greedy().make(view, batch).num_placed == 1


def test_pods_are_planned_by_priority_then_age_then_name() -> None:
    when = {"creationTimestamp": "2026-01-01T00:00:00Z"}
    found = source(
        [node("n")],
        pod("young"),
        pod("b", **when),
        pod("a", **when),
        pod("first", labels={"genius/priority": "5"}, creationTimestamp="2026-01-02T00:00:00Z"),
        pod("odd", annotations={"kerf.dev/gpu-count": "many"}),
        pod("odder", annotations={"kerf.dev/gang": "g"}),
    )
    found.waiting[0].metadata.creation_timestamp = "2026-01-01T00:00:01Z"
    _, batch, faults = batch_of(found, 0.0)
    assert [item.key for item in batch] == ["ns/first", "ns/a", "ns/b", "ns/young"]
    assert set(faults) == {"ns/odd", "ns/odder"}
    assert faults["ns/odd"].startswith('kerf.dev/gpu-count: "many" is not a quantity')


def test_what_runs_is_taken_off_the_nodes_and_so_is_the_reserve() -> None:
    ports: Manifest = {"containers": [{"resources": {"requests": {"cpu": "2"}}, "ports": [{"hostPort": 80}]}]}
    runs, waits = pod("runs", node="n"), pod("waits") | {"spec": ports}
    runs["spec"] |= ports
    found = source([node("n", pods="3")], runs, pod("ended", "2", node="n", phase="Succeeded"), waits)
    view, batch, _ = batch_of(found, 0.25)
    assert view.cpu_free_milli.tolist() == [8000 - 2000 - 2000]
    assert view.memory_free_mib.tolist() == [16384 - 4096]
    assert view.pods_free.tolist() == [2]
    assert str(Greedy().make(view, batch).unassigned[0]).startswith("needs host port 80")


def test_a_plan_says_of_each_pod_its_node_and_the_domain_it_keeps_to() -> None:
    gang = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3", "kerf.dev/gang-topology": "rack"}
    found = source(
        [node("a1", rack="a"), node("b1", rack="b"), node("b2", "1", rack="b")],
        pod("runs", node="b2", annotations=gang),
        pod("second", annotations=gang),
        pod("alone", "7"),
        pod("huge", "9"),
    )
    view, batch, _ = batch_of(found, 0.0)
    assert {item.key: item.beside for item in batch} == {"ns/second": ("b2",), "ns/alone": (), "ns/huge": ()}
    made = Greedy().make(view, batch)
    nodes = node_of(view, made)
    assert nodes["ns/second"] == "b1"
    assert set(nodes) == {"ns/second", "ns/alone"}
    assert domains_of(found, made, nodes) == {"ns/second": {"rack": "b"}, "ns/alone": {}}
