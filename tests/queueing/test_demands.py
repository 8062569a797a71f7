"""The queue's rounds count every resource of a node, host ports, pods, and rules about other pods."""

import asyncio
import time
from typing import Any

import pytest

from extender.core.resources.requests import RequestError
from extender.kube.watches import NODES
from extender.queueing.pods.objects import check_bounds, decode_node, decode_pod
from tests.queueing.rigs import Rig

HOSTNAME = "kubernetes.io/hostname"
Manifest = dict[str, Any]


def node(rig: Rig, name: str, **resources: str) -> None:
    allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"} | resources
    metadata = {"name": name, "uid": name, "labels": {HOSTNAME: name}}
    made = decode_node({"metadata": metadata, "status": {"allocatable": allocatable}})
    rig.ledger.upsert_node(made)
    rig.hub.cache(NODES).upsert(made)


def waits(rig: Rig, name: str, gpus: int = 1, labels: dict[str, str] | None = None, **spec: Any) -> None:
    rig.pod(name, gpus)
    manifest = rig.api.pods[name]
    manifest["metadata"]["labels"] = labels or {}
    limits = spec.pop("limits", {})
    ports = spec.pop("ports", [])
    (container,) = manifest["spec"]["containers"]
    container["resources"]["limits"] |= limits
    container["ports"] = ports
    manifest["spec"] |= spec
    rig.told(name)


def runs(rig: Rig, name: str, on: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    metadata = {"name": name, "namespace": "ns", "uid": name, "labels": labels or {}}
    made = decode_pod({"metadata": metadata, "spec": {"nodeName": on, "containers": [{}], **spec}})
    rig.queue.nodes.crowd.upsert(made)


def lonely(app: str) -> Manifest:
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def a_round(rig: Rig) -> None:
    asyncio.run(rig.queue.run_round())


def reason(rig: Rig, name: str) -> str:
    return str(rig.queue.backlog.entries[name].skips.reason)


def test_a_pod_whose_resource_no_node_has_waits_and_takes_nobodys_gpus() -> None:
    rig = Rig()
    node(rig, "n")
    waits(rig, "careless", 8, limits={"rdma/hca": "1"})
    waits(rig, "modest", 8)
    a_round(rig)
    assert (rig.node_of("careless"), rig.node_of("modest")) == ("", "n")
    assert reason(rig, "careless") == "no node has rdma/hca"


def test_a_resource_that_kube_scheduler_does_not_count_is_not_counted() -> None:
    rig = Rig()
    rig.queue.nodes.crowd.ignored = frozenset({"rdma/hca"})
    node(rig, "n")
    waits(rig, "p", 8, limits={"rdma/hca": "1"})
    a_round(rig)
    assert rig.node_of("p") == "n"


def test_pods_on_their_way_and_pods_that_run_take_resources_and_ports() -> None:
    rig = Rig()
    node(rig, "a", **{"rdma/hca": "2"})
    node(rig, "b", **{"rdma/hca": "1"})
    runs(rig, "runs", "a", containers=[{"resources": {"limits": {"rdma/hca": 1}}, "ports": [{"hostPort": 80}]}])
    for name in ("p", "q", "r"):
        waits(rig, name, limits={"rdma/hca": "1"})
        a_round(rig)
    assert sorted(rig.node_of(name) for name in ("p", "q", "r")) == ["", "a", "b"]
    assert reason(rig, "r") == "needs 1 of rdma/hca, no node with room for it has that much free"
    waits(rig, "with-port", ports=[{"hostPort": 80}])
    waits(rig, "with-port-too", ports=[{"hostPort": 80}])
    a_round(rig)
    assert sorted((rig.node_of("with-port"), rig.node_of("with-port-too"))) == ["", "b"]


def test_a_node_at_its_number_of_pods_is_full() -> None:
    rig = Rig()
    node(rig, "n", pods="2")
    runs(rig, "one", "n")
    waits(rig, "p")
    waits(rig, "q")
    a_round(rig)
    assert sorted((rig.node_of("p"), rig.node_of("q"))) == ["", "n"]


def test_anti_affinity_of_pods_in_one_round_and_of_pods_that_run() -> None:
    rig = Rig()
    for name in "abc":
        node(rig, name)
    runs(rig, "runs", "a", labels={"app": "y"}, affinity=lonely("x"))
    for name in ("p", "q", "r"):
        waits(rig, name, labels={"app": "x"}, affinity=lonely("x"))
    a_round(rig)
    assert sorted(rig.node_of(name) for name in ("p", "q", "r")) == ["", "b", "c"]
    rig.queue.nodes.crowd.remove("runs")
    a_round(rig)
    assert sorted(rig.node_of(name) for name in ("p", "q", "r")) == ["a", "b", "c"]


def test_pods_of_another_namespace_are_not_meant() -> None:
    rig = Rig()
    node(rig, "a")
    made = decode_pod(
        {
            "metadata": {"name": "theirs", "namespace": "other", "uid": "theirs", "labels": {"app": "x"}},
            "spec": {"nodeName": "a", "containers": [{}], "affinity": lonely("x")},
        }
    )
    rig.queue.nodes.crowd.upsert(made)
    waits(rig, "p", labels={"app": "x"}, affinity=lonely("x"))
    a_round(rig)
    assert rig.node_of("p") == "a"


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}] * 101}}}, "101 rules"),
        ({"topologySpreadConstraints": [{"labelSelector": {}}] * 101}, "101 rules about other pods"),
        (
            {"topologySpreadConstraints": [{"labelSelector": {"matchLabels": {str(n): "v" for n in range(1_001)}}}]},
            "1,001 conditions on labels of other pods",
        ),
        ({"containers": [{"ports": [{"hostPort": n} for n in range(1, 10_001)]}]}, "10,000 ports are too many"),
        ({"containers": [{"resources": {"limits": {f"a/{n}": 1 for n in range(101)}}}]}, "101 resources"),
    ],
)
def test_who_says_too_much_is_not_read(spec: Manifest, what: str) -> None:
    made = decode_pod({"spec": spec})
    with pytest.raises(RequestError, match=what):
        check_bounds(made.spec)


@pytest.mark.slow
def test_thousands_of_different_rules_hold_up_nobody() -> None:
    """Of one author, each about all that the author runs; others go on, as they do beside any round."""
    rig = Rig(max_open=5_000)
    for number in range(100):
        node(rig, f"n{number}")
    for number in range(3_000):
        runs(rig, f"r{number}", f"n{number % 100}", labels={"app": str(number)}, affinity=lonely(f"r{number}"))
    for number in range(1_500):
        waits(rig, f"p{number}", 0, labels={"app": str(number), "n": str(number)}, affinity=lonely(f"z{number}"))
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    async def both() -> None:
        watching = asyncio.create_task(watch())
        await rig.queue.begin_round()
        watching.cancel()
        await rig.queue.dispatcher.finish()

    asyncio.run(both())
    assert sum(bool(rig.node_of(f"p{number}")) for number in range(1_500)) == 1_500
    assert longest < 0.5
