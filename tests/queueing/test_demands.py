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
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HCA: dict[str, object] = {"rdma/hca": "1"}
Manifest = dict[str, Any]


def node(rig: Rig, name: str, **resources: str) -> None:
    allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": "8"} | resources
    metadata = {"name": name, "uid": name, "labels": {HOSTNAME: name}}
    made = decode_node({"metadata": metadata, "status": {"allocatable": allocatable}})
    rig.ledger.upsert_node(made)
    rig.hub.cache(NODES).upsert(made)


def runs(rig: Rig, name: str, on: str, labels: dict[str, str] | None = None, **spec: Any) -> None:
    metadata = {"name": name, "namespace": "ns", "uid": name, "labels": labels or {}}
    made = decode_pod({"metadata": metadata, "spec": {"nodeName": on, "containers": [{}], **spec}})
    rig.queue.nodes.bound_pod_index.upsert(made)


def lonely(app: str) -> Manifest:
    """The spec of a pod that keeps off those of an app."""
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": {"app": app}}}
    return {"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}


def test_a_pod_whose_resource_no_node_has_waits_and_takes_nobodys_gpus() -> None:
    rig = Rig()
    node(rig, "n")
    rig.pod("careless", 8, limits=HCA)
    rig.pod("modest", 8)
    rig.round()
    assert rig.placed() == ["modest"]
    assert rig.why("careless") == "no node has rdma/hca"
    rig = Rig()
    rig.queue.nodes.bound_pod_index.ignored = frozenset({"rdma/hca"})
    node(rig, "n")
    rig.pod("p", 8, limits=HCA)
    rig.round()
    assert rig.placed() == ["p"], "kube-scheduler does not count it"


def test_pods_on_their_way_and_pods_that_run_take_resources_and_ports() -> None:
    rig = Rig()
    node(rig, "a", **{"rdma/hca": "2"})
    node(rig, "b", **{"rdma/hca": "1"})
    runs(rig, "runs", "a", containers=[{"resources": {"limits": {"rdma/hca": 1}}, "ports": [{"hostPort": 80}]}])
    for name in ("p", "q", "r"):
        rig.pod(name, 1, limits=HCA)
        rig.round()
    assert sorted(rig.node_of(name) for name in ("p", "q", "r")) == ["", "a", "b"]
    assert rig.why("r") == "needs 1 of rdma/hca, no node with room for it has that much free"
    for name in ("with-port", "with-port-too"):
        rig.pod(name, 1, spec={"containers": [{"ports": [{"hostPort": 80}]}]})
    rig.round()
    assert sorted((rig.node_of("with-port"), rig.node_of("with-port-too"))) == ["", "b"]


def test_anti_affinity_of_pods_in_one_round_and_of_pods_that_run() -> None:
    rig = Rig()
    for name in "abc":
        node(rig, name)
    runs(rig, "runs", "a", labels={"app": "y"}, **lonely("x"))
    for name in ("p", "q", "r"):
        rig.pod(name, 1, labels={"app": "x"}, spec=lonely("x"))
    rig.round()
    assert sorted(rig.node_of(name) for name in ("p", "q", "r")) == ["", "b", "c"]
    rig.queue.nodes.bound_pod_index.remove("runs")
    rig.round()
    assert sorted(rig.node_of(name) for name in ("p", "q", "r")) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"affinity": {"podAffinity": {REQUIRED: [{}] * 101}}}, "101 rules"),
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
    with pytest.raises(RequestError, match=what):
        check_bounds(decode_pod({"spec": spec}).spec)


@pytest.mark.slow
def test_thousands_of_different_rules_hold_up_nobody() -> None:
    """The rules are one author's, each about all of its pods; other work goes on during the round."""
    rig = Rig(max_open=5_000)
    for number in range(100):
        node(rig, f"n{number}")
    for number in range(3_000):
        runs(rig, f"r{number}", f"n{number % 100}", labels={"app": str(number)}, **lonely(f"r{number}"))
    for number in range(1_500):
        rig.pod(f"p{number}", 0, labels={"app": str(number), "n": str(number)}, spec=lonely(f"z{number}"))
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
    assert len(rig.placed()) == 1_500
    assert longest < 0.5
