"""The ledger by itself, one example of each rule: test_histories.py compares it with a model in any history."""

from extender.core.annotations import POLICY
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest
from extender.kube import objects
from extender.ledger.ledger import AllocationState
from extender.plugins.holdings import whole_gpus
from extender.plugins.kerf import _GIVEN
from extender.plugins.nvidia import hami
from extender.queueing.pods.objects import decode_node
from tests.ledger.builders import TTL_S, ledger_of, node_manifest, node_object, pod_object, taken
from tests.nvidia import MEMORY_LABEL
from tests.plugins.claims import resource_claim
from tests.plugins.rigs import A, hami_node


def test_a_reservation_holds_until_its_ttl_ends() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("u", "n", whole_gpus(2, (0, 1)), 100.0)
    assert taken(ledger, now=100.0 + TTL_S - 0.001) == {0, 1}
    assert taken(ledger, now=100.0 + TTL_S) == set()
    assert ledger.allocation("u") is None


def test_the_ttl_of_a_reservation_that_was_replaced_or_renewed_ends_nothing() -> None:
    ledger = ledger_of(a=2, b=2)
    ledger.reserve("u", "a", whole_gpus(1, (0,)), 0.0)
    ledger.reserve("u", "b", whole_gpus(1, (1,)), 20.0)
    assert (taken(ledger, "a", 20.0), taken(ledger, "b", TTL_S)) == (set(), {1})
    assert [ledger.renew("u", node, 40.0) for node in ("a", "b")] == [False, True]
    assert taken(ledger, "b", 40.0 + TTL_S - 0.1) == {1}
    assert not ledger.renew("u", "b", 40.0 + TTL_S)
    assert taken(ledger, "b", 40.0 + TTL_S) == set()


def test_a_reservation_stands_until_its_node_is_overbooked() -> None:
    ledger = ledger_of(n=2)
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0)
    assert [ledger.is_reserved(uid, node) for uid, node in (("u", "n"), ("u", "m"), ("v", "n"))] == [True, False, False]
    ledger.upsert_pod(pod_object("fits-beside", 1, node="n"), 0.0)
    assert ledger.is_reserved("u", "n")
    ledger.upsert_pod(pod_object("too-many", 1, node="n"), 0.0)
    assert not ledger.is_reserved("u", "n"), "3 units on 2 GPUs"


def test_a_reservation_ends_if_its_node_changes_its_offer_or_its_plugin() -> None:
    nodes = node_object("n", 3), decode_node(hami_node("n", *((f"GPU-{index}", 15360) for index in range(4))))
    for node in nodes:
        ledger = ledger_of(n=4)
        ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0, cpu_milli=3000)
        assert ledger.snapshot(0.0).cpu_free_milli.tolist() == [61000]
        ledger.upsert_node(node)
        assert (ledger.allocation("u"), taken(ledger)) == (None, set())
        assert ledger.snapshot(0.0).cpu_free_milli.tolist() == [64000]


def test_allocations_are_counted_by_state_and_listed_by_node() -> None:
    ledger = ledger_of(n=4)
    ledger.reserve("a", "n", whole_gpus(1, (0,)), 0.0)
    ledger.begin_binding("b", "n", whole_gpus(1, (1,)), 0.0)
    ledger.upsert_pod(pod_object("c", 1, node="n"), 0.0)
    ledger.upsert_pod(pod_object("d", node="n", annotations={hami.ALLOCATED: f"{A},NVIDIA,1,1:;"}), 0.0)
    assert [ledger.num_allocations(state) for state in (AllocationState.RESERVED, AllocationState.BINDING)] == [1, 1]
    assert [claim.uid for claim in ledger.allocations_on("n")] == ["a", "b", "uid-c"], "nothing of HAMi's"
    ledger.upsert_node(decode_node(hami_node("n", (A, 15360))))
    assert [claim.uid for claim in ledger.allocations_on("n")] == ["b", "uid-c", "uid-d"]


def test_a_terminating_pod_holds_its_gpus_in_any_phase() -> None:
    for phase in ("Running", "Pending", "Unknown"):
        ledger = ledger_of(n=2)
        ledger.upsert_pod(pod_object("p", 1, node="n", assigned="0", phase=phase, terminating=True), 0.0)
        assert taken(ledger) == {0}


def test_a_heartbeat_changes_nothing() -> None:
    ledger = ledger_of(n=2)
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 0.0)
    before = ledger.snapshot(0.0)
    ledger.upsert_node(node_object("n", 2))
    ledger.upsert_pod(pod_object("p", 1, node="n", assigned="1"), 5.0)
    assert ledger.snapshot(5.0) is before


def test_each_version_of_a_node_is_warned_of_once() -> None:
    ledger = ledger_of()
    node = node_object("n", 2)
    node.metadata.labels = {MEMORY_LABEL: "lots"}
    assert [len(ledger.upsert_node(node)) for _ in range(2)] == [1, 0]
    node.metadata.annotations = {_GIVEN: "{"}
    assert [len(ledger.upsert_node(node)) for _ in range(2)] == [2, 0]
    ledger.remove_node("n")
    assert len(ledger.upsert_node(node)) == 2, "a node that is back is read again"
    assert ledger.num_unreadable == 3


def test_a_pod_bound_here_and_never_seen_is_gone_if_a_later_list_lacks_it() -> None:
    for list_began, gone in ((6.0, True), (5.0, False), (4.0, False)):
        ledger = ledger_of(n=2)
        ledger.end_binding(ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 3.0), AllocationState.BOUND, 5.0)
        ledger.keep_pods(set(), list_began)
        assert (ledger.allocation("u") is None) is gone


def test_a_pod_asks_by_its_resources_or_else_by_its_claims() -> None:
    def asking(gpus: int = 0, claim: str = "", policy: str = "") -> objects.Pod:
        pod = pod_object("p", gpus, annotations={POLICY: policy})
        pod.spec.resource_claims = [objects.PodClaim("gpu", claim)] if claim else None
        return pod

    ledger = ledger_of()
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 3}}
    ledger.upsert_device(resource_claim("three", request))
    assert ledger.read_request(asking()) == PodRequest()
    assert ledger.read_request(asking(claim="unknown")).gpus is None
    assert ledger.read_request(asking(2, "three")).gpus == GpuRequest(2)
    pod = asking(claim="three", policy=" spread ")
    pod.spec.priority = 7
    pod.spec.containers = [objects.Container(resources=objects.Resources(requests={"cpu": "2", "memory": "1Gi"}))]
    by_claim = PodRequest(GpuRequest(3, AskedUnit.CLAIM), "spread", priority=7, cpu_milli=2000, memory_mib=1024)
    assert ledger.read_request(pod) == by_claim


def test_cpu_and_memory_free_are_what_the_pods_leave() -> None:
    manifest = node_manifest("n", 1)
    manifest["status"]["allocatable"] |= {"cpu": "8", "memory": "32Gi"}
    ledger = ledger_of(decode_node(manifest))

    def free_with(cpu: str, memory: str) -> tuple[int, int]:
        pod = pod_object("p", node="n")
        pod.spec.containers = [objects.Container(resources=objects.Resources(requests={"cpu": cpu, "memory": memory}))]
        ledger.upsert_pod(pod, 0.0)
        cluster = ledger.snapshot(0.0)
        return int(cluster.cpu_free_milli[0]), int(cluster.memory_free_mib[0])

    assert free_with("1500m", "4Gi") == (6500, 28 * 1024)
    assert free_with("9", "40Gi") == (-1000, -8 * 1024)
    ledger.remove_pod("uid-p")
    assert ledger.snapshot(0.0).cpu_free_milli.tolist() == [8000]
