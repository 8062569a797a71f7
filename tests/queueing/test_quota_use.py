"""What counts against a namespace's quota: all that its pods have, or may have at any time."""

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube.watches import PODS
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.plugins.claims import resource_claim
from tests.queueing.rigs import Rig


def runs(rig: Rig, name: str, gpus: int, namespace: str = "ns") -> None:
    """The watch tells of a pod with a node."""
    limits = {"nvidia.com/gpu": gpus}
    spec = {"nodeName": "n", "containers": [{"resources": {"limits": limits}}]}
    metadata = {"name": name, "namespace": namespace, "uid": name}
    rig.hub.cache(PODS).upsert(decode_pod({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}))


def refusal(rig: Rig, name: str, namespace: str = "ns", gpus: int = 1) -> str:
    return rig.queue.over_quota(PodIdentity(namespace, name, name), GpuRequest(gpus))


def test_all_that_pods_have_or_may_have_counts() -> None:
    rig = Rig(quotas=Quotas({"ns": 20.0, "default": 20.0}))
    rig.node("n", 16)
    runs(rig, "runs", 2)
    runs(rig, "allocated", 1, "default")
    rig.ledger.upsert_device(resource_claim("a", devices=("gpu-0", "gpu-1")))
    for name, gpus in (("more", 1), ("other", 2)):
        rig.pod(name, gpus)
    rig.round()
    assert rig.node_of("more") == rig.node_of("other") == "n"
    rig.ledger.reserve("more", "n", Holding(3), rig.now)  # it asked for memory in total
    rig.pod("waits", 100)
    assert not refusal(rig, "past", gpus=2)
    rig.ledger.reserve("past", "n", Holding(2), rig.now)
    assert rig.queue.use.by_namespace() == {"ns": 2.0 + 3.0 + 2.0 + 2.0, "default": 1.0 + 2.0}


def test_a_pod_with_a_node_counts_once_before_and_after_the_watch_tells_of_it_and_until_it_is_gone() -> None:
    rig = Rig(quotas=Quotas({"ns": 2.0}))
    rig.node("n", 8)
    rig.pod("a", 2)
    rig.round()
    rig.bind("a")
    assert rig.queue.use.by_namespace() == {"ns": 2.0}
    assert refusal(rig, "b") == "quota of namespace ns: 2 GPUs"
    runs(rig, "a", 2)
    assert rig.queue.use.by_namespace() == {"ns": 2.0}
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
    rig.ledger.remove_pod("a")
    assert refusal(rig, "b") == ""


def test_a_pod_that_is_gone_before_it_had_its_node_counts_no_more() -> None:
    rig = Rig(quotas=Quotas({"ns": 2.0}))
    rig.node("n", 8)
    rig.pod("a", 2)
    rig.round()
    assert refusal(rig, "b") == "quota of namespace ns: 2 GPUs"
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
    rig.ledger.release("a")
    assert refusal(rig, "b") == ""


def test_a_pod_that_the_queue_let_go_is_counted_by_then_and_one_that_asks_again_once() -> None:
    rig = Rig(quotas=Quotas({"ns": 2.0}))
    rig.node("n", 8)
    rig.pod("a", 2)
    rig.round()
    assert rig.node_of("a") == "n"
    assert refusal(rig, "a", gpus=2) == ""
    by_claims = GpuRequest(2, unit=AskedUnit.CLAIM)
    assert rig.queue.over_quota(PodIdentity("ns", "a", "a"), by_claims) == "quota of namespace ns: 2 GPUs"
    rig.hub.cache(PODS).remove(decode_pod(rig.api.pods["a"]))
    rig.ledger.release("a")
    for _ in range(2):
        assert refusal(rig, "b", gpus=2) == ""
        rig.ledger.reserve("b", "n", Holding(2), rig.now)
    assert refusal(rig, "c") == "quota of namespace ns: 2 GPUs"


def test_a_quota_of_one_has_room_for_one_and_nothing_is_asked_of_namespaces_without_any() -> None:
    rig = Rig(quotas=Quotas({"ns": 1.0}))
    rig.node("n", 8)
    assert refusal(rig, "a") == ""
    use = rig.queue.use
    assert use.refusal(PodIdentity("free", "b", "b"), GpuRequest(9), known=False) == ""
    unknown = use.refusal(PodIdentity("ns", "c", "c"), GpuRequest(1), known=False)
    assert unknown == "quota of namespace ns: its usage is not known yet"


def test_what_a_pod_past_the_queue_holds_counts_if_that_is_more_than_it_asks_for() -> None:
    rig = Rig(quotas=Quotas({"ns": 4.0}))
    rig.node("n", 8)
    assert refusal(rig, "past") == ""
    rig.ledger.reserve("past", "n", Holding(3), rig.now)  # it asked for memory in total
    assert rig.queue.use.by_namespace() == {"ns": 3.0}


def test_who_has_left_the_queue_is_remembered_only_where_there_is_a_quota() -> None:
    for quotas, counted in (({"ns": 4.0}, {"ns": 2.0}), ({"other": 4.0}, {})):
        rig = Rig(quotas=Quotas(quotas))
        rig.node("n", 8)
        rig.pod("a", 2)
        rig.round()
        rig.bind("a")
        assert rig.queue.use.by_namespace() == counted
