"""What decisions do to the ledger, seen from one pod: since when, on which plugin's terms, and whose word counts."""

import json

import msgspec

from extender.core.annotations import COUNT, POLICY
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.kube import objects
from extender.ledger.ledger import _WITHIN_S, MIRROR, ClaimState, Ledger
from extender.plugins.holdings import Holding, whole_gpus
from extender.plugins.kerf import _GIVEN, ASSIGNED_GPUS, GPUS
from extender.plugins.nvidia import hami
from extender.plugins.pods import read_holdings
from tests.ledger.builders import TTL_S, ledger_of, node_manifest, node_object, pod_object
from tests.plugins.claims import resource_claim
from tests.plugins.rigs import A, B, hami_node, sharing

MIB = 15360


def decoded(manifest: dict[str, object]) -> objects.Node:
    return msgspec.convert(manifest, objects.Node)


def taken(ledger: Ledger, node: str = "n", now: float = 0.0) -> set[int]:
    cluster = ledger.snapshot(now)
    return {index for index, milli in enumerate(cluster.gpu_free_milli[cluster.row_of[node]].tolist()) if not milli}


def told(assigned: str, uid: str = "u", node: str = "n") -> objects.Pod:
    """A pod that says by annotation alone which GPUs it has."""
    count = {COUNT: str(len(assigned.split(",")))} if assigned else {}
    return pod_object("p", uid=uid, node=node, annotations=count, assigned=assigned or None)


def told_node(given: dict[str, list[str]]) -> objects.Node:
    """A node of four GPUs on which somebody has written who was given what."""
    manifest = node_manifest("n", 4)
    gpus = [{"index": index, "uuid": f"GPU-{index}", "memory_mib": MIB} for index in range(4)]
    manifest["metadata"]["annotations"] = {GPUS: json.dumps(gpus), _GIVEN: json.dumps(given)}
    return decoded(manifest)


# From a reservation to a binding.


def test_a_pod_that_is_bound_elsewhere_than_reserved_leaves_the_first_node() -> None:
    ledger = ledger_of(a=2, b=2)
    ledger.reserve("u", "a", whole_gpus(1, (0,)), 0.0)
    claim = ledger.begin_binding("u", "b", whole_gpus(1, (1,)), 10.0)
    assert (taken(ledger, "a"), taken(ledger, "b")) == (set(), {1})
    assert (claim.node, claim.state, claim.since) == ("b", ClaimState.BINDING, 10.0)
    ledger.end_binding(claim, None, 11.0)
    assert (taken(ledger, "a"), taken(ledger, "b")) == (set(), set())


def test_a_pod_that_the_watch_tells_of_on_another_node_is_there() -> None:
    ledger = ledger_of(a=2, b=2)
    claim = ledger.begin_binding("u", "a", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="b", assigned="1"), 1.0)
    ledger.end_binding(claim, ClaimState.BOUND, 2.0)
    assert (taken(ledger, "a"), taken(ledger, "b")) == (set(), {1})


def test_a_reservation_ends_when_its_node_gets_another_plugin() -> None:
    ledger = ledger_of(n=2)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_node(decoded(hami_node("n", (A, MIB), (B, MIB))))
    assert (ledger.claim("u"), taken(ledger)) == (None, set())


# What was read of a pod.


def test_what_was_read_is_held_beside_what_was_sent_and_what_the_watch_told_first() -> None:
    ledger = ledger_of(n=4)
    ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.upsert_pod(told("1"), 1.0)
    read = ledger.hold_as_read(told("2"), 2.0)
    assert read is not None
    assert (read.state, read.since) == (ClaimState.UNDECIDED, 2.0)
    assert taken(ledger) == {0, 1}, "an edit since changes nothing"


def test_a_pod_that_says_nothing_holds_what_was_sent_with_its_binding() -> None:
    ledger = ledger_of(n=4, m=4)
    ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    assert ledger.hold_as_read(told(""), 1.0) is not None
    assert taken(ledger) == {0}
    assert ledger.hold_as_read(told("", node="m"), 2.0) is None, "it was bound elsewhere, and holds nothing there"
    assert (ledger.claim("u"), taken(ledger), taken(ledger, "m")) == (None, set(), set())


def test_a_pod_that_asks_for_nothing_is_held_nothing_for() -> None:
    ledger = ledger_of(n=4)
    assert ledger.hold_as_read(told(""), 1.0) is None
    assert ledger.claim("u") is None


def test_a_pod_read_after_it_has_ended_is_free_at_once() -> None:
    ledger = ledger_of(n=4)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.end_binding(claim, ClaimState.UNDECIDED, 1.0)
    assert ledger.hold_as_read(pod_object("p", 1, uid="u", node="n", phase="Failed"), 2.0) is None
    assert (ledger.claim("u"), taken(ledger)) == (None, set())


# On the nodes of a plugin that shares GPUs, what a pod says is read on its terms.


def hami_pod(mib: int, said: int) -> objects.Pod:
    annotations = {hami.ALLOCATED: f"{A},NVIDIA,{said},0:;"}
    return msgspec.convert(sharing("p", mib, uid="u", node="n", annotations=annotations), objects.Pod)


def hami_ledger() -> Ledger:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(decoded(hami_node("n", (A, MIB), (B, MIB))))
    return ledger


def on_hami(ledger: Ledger, pod: objects.Pod) -> Holding:
    return read_holdings(pod)[0].on(ledger.rows.plugin_on("n"))


def free_mib(ledger: Ledger) -> tuple[list[int], int]:
    """Memory free of each GPU, and GPUs of unknown index that are taken."""
    cluster = ledger.snapshot(0.0)
    return cluster.gpu_free_mib[0].tolist(), int(cluster.untracked_units[0])


def test_a_share_that_was_read_is_held_as_one() -> None:
    ledger = hami_ledger()
    ledger.hold_as_read(hami_pod(4000, 4000), 0.0)
    assert free_mib(ledger) == ([MIB - 4000, MIB], 0)


def test_a_share_that_is_told_as_it_was_sent_is_bound() -> None:
    ledger, pod = hami_ledger(), hami_pod(4000, 4000)
    claim = ledger.begin_binding("u", "n", on_hami(ledger, pod), 0.0)
    ledger.upsert_pod(pod, 1.0)
    assert (claim.state, claim.since, claim.disputed, claim.pod) == (ClaimState.BOUND, 1.0, False, "default/p")
    assert free_mib(ledger) == ([MIB - 4000, MIB], 0)


def test_a_share_of_somebody_elses_binding_is_held_as_one() -> None:
    ledger = hami_ledger()
    claim = ledger.begin_binding("u", "n", on_hami(ledger, hami_pod(2000, 2000)), 0.0)
    ledger.upsert_pod(hami_pod(4000, 4000), 1.0)
    assert (claim.state, claim.disputed) == (ClaimState.BINDING, True)
    ledger.end_binding(claim, None, 2.0)
    assert (claim.state, claim.since) == (ClaimState.BOUND, 2.0)
    assert free_mib(ledger) == ([MIB - 4000, MIB], 0)


# What the kubelet gave, and edits.


def test_what_was_given_before_the_watch_told_of_the_pod_counts_then() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(told_node({"u": ["GPU-3"]}))
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.end_binding(claim, ClaimState.BOUND, 1.0)
    assert taken(ledger) == {0}
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 2.0)
    assert taken(ledger) == {3}


def test_a_correction_that_is_told_again_is_no_edit() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(told_node({"u": ["GPU-3"]}))
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 0.0)
    for now in (1.0, 2.0):
        assert ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="3"), now) == ()
    assert (ledger.mistaken(), ledger.num_edits_ignored) == ([], 0)
    ledger.upsert_node(told_node({}))
    assert taken(ledger) == {3}


def test_every_edit_is_told_once_until_it_is_taken_back() -> None:
    ledger = ledger_of(n=4)
    ignored = ("its assignment was edited after it was bound: ignored",)
    warnings = [ledger.upsert_pod(told(gpus), 0.0) for gpus in ("0", "1", "1", "2", "0", "2", "2")]
    assert warnings == [(), ignored, (), ignored, (), ignored, ()]
    assert ledger.num_edits_ignored == 3
    assert taken(ledger) == {0}


# Nodes that go.


def test_a_static_pod_of_a_node_that_is_gone_is_waited_for_no_longer_than_of_one_at_work() -> None:
    manifest = node_manifest("n", 2)
    manifest["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    ledger = Ledger(reservation_ttl_s=TTL_S)
    ledger.upsert_node(decoded(manifest))
    ledger.upsert_pod(pod_object("static-n", 1, uid="old", node="n", annotations={MIRROR: "hash"}), 0.0)
    ledger.remove_pod("old")
    ledger.snapshot(1000.0)
    assert ledger.claim("old") is not None, "a kubelet that is not at work makes no mirror"
    ledger.remove_node("n")
    ledger.snapshot(2000.0)
    assert ledger.claim("old") is not None
    ledger.snapshot(2000.0 + _WITHIN_S)
    assert ledger.claim("old") is None


# What a pod asks for.


def asking(gpus: int = 0, claim: str = "", policy: str = "") -> objects.Pod:
    pod = pod_object("p", gpus, annotations={POLICY: policy})
    if claim:
        pod.spec.resource_claims = [objects.PodClaim("gpu", claim)]
    return pod


def test_a_pod_asks_by_its_resources_or_else_by_its_claims() -> None:
    ledger = Ledger(reservation_ttl_s=TTL_S)
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 3}}
    ledger.upsert_device(resource_claim("three", request))
    assert ledger.read_request(asking()) == PodRequest()
    assert ledger.read_request(asking(claim="unknown")).gpus is None
    assert ledger.read_request(asking(2)).gpus == GpuRequest(2)
    assert ledger.read_request(asking(2, "three")).gpus == GpuRequest(2)
    pod = asking(claim="three", policy=" spread ")
    pod.spec.priority = 7
    pod.spec.containers = [objects.Container(resources=objects.Resources(requests={"cpu": "2", "memory": "1Gi"}))]
    assert ledger.read_request(pod) == PodRequest(
        GpuRequest(3, AskedUnit.CLAIM), "spread", priority=7, cpu_milli=2000, memory_mib=1024
    )


def test_devices_of_claims_are_counted_by_namespace() -> None:
    ledger = ledger_of(n=1)
    assert ledger.num_claimed() == {}
    ledger.upsert_device(resource_claim("a", devices=("gpu-0", "gpu-1")))
    ledger.upsert_device(resource_claim("b", devices=("gpu-2",)))
    assert ledger.num_claimed() == {"default": 3}


def test_a_heartbeat_of_a_node_in_doubt_is_told_of_once() -> None:
    ledger = ledger_of()
    node = node_object("n", 2)
    node.metadata.annotations = {_GIVEN: "{"}
    assert len(ledger.upsert_node(node)) == 1
    assert ledger.upsert_node(node) == ()
    ledger.remove_node("n")
    assert len(ledger.upsert_node(node)) == 1, "a node that is back is read anew"
    assert ledger.num_unreadable == 2


def test_assignments_of_a_pod_without_a_node_say_nothing() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, uid="u", annotations={ASSIGNED_GPUS: "0"}), 0.0)
    assert (ledger.claim("u"), taken(ledger)) == (None, set())
