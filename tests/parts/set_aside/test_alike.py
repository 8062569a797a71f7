"""Whose failures count: of pods that might as well have come to another node with GPUs."""

from typing import Any, Final

import msgspec
import pytest

from extender.kube import objects
from extender.kube.cache import Cache
from extender.ledger.ledger import Ledger
from extender.parts.set_aside.quarantine import AlikeNodes
from tests.ledger.builders import Clock, node_manifest
from tests.parts.set_aside.rigs import Rig

HOSTNAME: Final = "kubernetes.io/hostname"
HOST: Final = {"key": HOSTNAME, "operator": "In", "values": ["n"]}


def node(name: str, gpus: int = 2, uid: str = "", **labels: str) -> objects.Node:
    manifest = node_manifest(name, gpus, uid=uid or name)
    manifest["metadata"]["labels"] = manifest["metadata"].get("labels", {}) | {HOSTNAME: name} | labels
    return msgspec.convert(manifest, objects.Node)


def alike_of(*nodes: objects.Node) -> AlikeNodes:
    ledger = Ledger(reservation_ttl_s=1.0)
    seen = Cache[objects.Node, objects.Node](lambda item: item)
    for item in nodes:
        ledger.upsert_node(item)
        seen.upsert(item)
    return AlikeNodes(ledger, seen, Clock())


def required(**term: Any) -> dict[str, Any]:
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": terms}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return required(matchExpressions=[{"key": key, "operator": operator, "values": list(values)}])


NODES: Final = (
    node("n", zone="a", pool="x", serial="1"),
    node("m", zone="a", pool="y", serial="2"),
    node("k", zone="b", pool="x", serial="3"),
    node("cpu", 0, zone="a", pool="x", disk="ssd"),
)


@pytest.mark.parametrize(
    ("spec", "metadata", "chosen"),
    [
        pytest.param({}, {}, False, id="anywhere"),
        pytest.param({"nodeSelector": {HOSTNAME: "n"}}, {}, True, id="selector"),
        pytest.param({"nodeSelector": {"pool": "x"}}, {}, False, id="a pool"),
        pytest.param({"nodeSelector": {"pool": "x", "zone": "a"}}, {}, True, id="what no other node with GPUs has"),
        pytest.param({"nodeSelector": {"serial": "1"}}, {}, True, id="a label of its own"),
        pytest.param(required(matchExpressions=[HOST]), {}, True, id="affinity"),
        pytest.param(expression(HOSTNAME, "NotIn", "m", "k"), {}, True, id="not on the others"),
        pytest.param(expression(HOSTNAME, "Exists"), {}, True, id="hostname at all"),
        pytest.param(expression("serial", "Lt", "2"), {}, True, id="by number"),
        pytest.param(expression("zone", "NotIn", "b"), {}, False, id="not in a zone"),
        pytest.param(expression("disk", "DoesNotExist"), {}, False, id="without a label"),
        pytest.param(required(matchFields=[HOST | {"key": "metadata.name"}]), {}, True, id="by field"),
        pytest.param(required(matchFields=[HOST | {"operator": "NotIn"}]), {}, True, id="by field, not"),
        pytest.param({"nodeSelector": {f"l{number}": "" for number in range(21)}}, {}, True, id="by many labels"),
        pytest.param({}, {"ownerReferences": [{"controller": True, "kind": "DaemonSet"}]}, True, id="DaemonSet"),
        pytest.param({}, {"ownerReferences": [{"controller": True, "kind": "Job"}]}, False, id="Job"),
    ],
)
def test_whose_author_has_chosen_the_node(spec: dict[str, Any], metadata: dict[str, Any], chosen: bool) -> None:
    pod = msgspec.convert({"metadata": metadata, "spec": spec}, objects.Pod)
    assert alike_of(*NODES).chosen_by(pod, "n") is chosen


@pytest.mark.parametrize(("operator", "values"), [("In", ["n"]), ("NotIn", ["m", "k"])])
def test_pods_that_name_a_node_in_whatever_way_do_not_set_it_aside(operator: str, values: list[str]) -> None:
    rig = Rig()
    for _ in range(2):
        rig.fail("n", "x", "y", "z", **expression(HOSTNAME, operator, *values))
    rig.round(2)
    assert rig.note() is None


def test_a_node_that_nobody_knows_is_blamed_by_nobody() -> None:
    assert alike_of(*NODES[1:]).chosen_by(objects.Pod(), "n")
    assert not alike_of(*NODES).chosen_by(objects.Pod(), "n")
