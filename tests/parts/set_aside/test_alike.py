"""Whose failures count: of pods that might as well have come to another node with GPUs."""

from typing import Any, Final

import msgspec

from extender.kube import objects
from extender.kube.cache import Cache
from extender.ledger.ledger import Ledger
from extender.parts.set_aside.quarantine import AlikeNodes
from tests.ledger.builders import Clock, node_manifest

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


def test_whose_author_has_chosen_the_node() -> None:
    many = {f"l{number}": "" for number in range(21)}
    for spec, chosen in (
        ({}, False),
        ({"nodeSelector": {HOSTNAME: "n"}}, True),
        ({"nodeSelector": {"pool": "x"}}, False),
        ({"nodeSelector": {"pool": "x", "zone": "a"}}, True),  # what no other node with GPUs has
        ({"nodeSelector": {"serial": "1"}}, True),
        ({"nodeSelector": many}, True),
        (required(matchExpressions=[HOST]), True),
        (expression(HOSTNAME, "NotIn", "m", "k"), True),
        (expression(HOSTNAME, "Exists"), True),
        (expression("serial", "Lt", "2"), True),
        (expression("zone", "NotIn", "b"), False),
        (expression("disk", "DoesNotExist"), False),
        (required(matchFields=[HOST | {"key": "metadata.name"}]), True),
        (required(matchFields=[HOST | {"operator": "NotIn"}]), True),
    ):
        pod = msgspec.convert({"metadata": {}, "spec": spec}, objects.Pod)
        assert alike_of(*NODES).chosen_by(pod, "n") is chosen, spec
    for kind in ("DaemonSet", "Job"):
        metadata = {"ownerReferences": [{"controller": True, "kind": kind}]}
        pod = msgspec.convert({"metadata": metadata, "spec": {}}, objects.Pod)
        assert alike_of(*NODES).chosen_by(pod, "n") is (kind == "DaemonSet")


def test_a_node_that_nobody_knows_is_blamed_by_nobody() -> None:
    assert alike_of(*NODES[1:]).chosen_by(objects.Pod(), "n")
    assert not alike_of(*NODES).chosen_by(objects.Pod(), "n")
