"""What counts against a namespace's quota: all that its pods hold or may get at any time."""

from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube.watches import PODS
from extender.planning.quotas import Quotas
from extender.plugins.holdings import Holding
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from tests.plugins.claims import resource_claim
from tests.queueing.rigs import Rig

OVER = "quota of namespace ns: 2 GPUs"


def rig_of(**quotas: float) -> Rig:
    rig = Rig(quotas=Quotas(quotas))
    rig.node("n", 16)
    return rig


def one_released(**quotas: float) -> Rig:
    """Pod `a` of two GPUs was released."""
    rig = rig_of(**quotas)
    rig.pod("a", 2)
    rig.round()
    assert rig.node_of("a") == "n"
    return rig


def runs(rig: Rig, name: str, gpus: int, namespace: str = "ns") -> None:
    """The watch reports a pod with a node."""
    spec = {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}]}
    metadata = {"name": name, "namespace": namespace, "uid": name}
    rig.hub.cache(PODS).upsert(decode_pod({"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}))


def refusal(rig: Rig, name: str, gpus: int = 1) -> str:
    return rig.queue.over_quota(PodIdentity("ns", name, name), GpuRequest(gpus))


def test_all_that_pods_have_or_may_have_counts() -> None:
    rig = rig_of(ns=20.0, default=20.0)
    runs(rig, "runs", 2)
    runs(rig, "allocated", 1, "default")
    rig.ledger.upsert_device(resource_claim("a", devices=("gpu-0", "gpu-1")))
    for name, gpus in (("more", 1), ("other", 2)):
        rig.pod(name, gpus)
    rig.round()
    assert rig.placed() == ["more", "other"]
    rig.ledger.reserve("more", "n", Holding(3), rig.now)  # it requested memory in total
    rig.pod("waits", 100)
    for name, gpus, held in (("outside", 2, 2), ("outside-more", 1, 3)):
        assert not refusal(rig, name, gpus)
        rig.ledger.reserve(name, "n", Holding(held), rig.now)
    assert rig.queue.use.by_namespace() == {"ns": 2.0 + 3.0 + 2.0 + 2.0 + 3.0, "default": 1.0 + 2.0}


def test_a_pod_counts_once_before_and_after_the_watch_reports_its_node_and_until_it_is_gone() -> None:
    rig = one_released(ns=2.0)
    assert (refusal(rig, "a", gpus=2), refusal(rig, "b")) == ("", OVER)
    by_claims = GpuRequest(2, unit=AskedUnit.CLAIM)  # which a release did not check
    assert rig.queue.over_quota(PodIdentity("ns", "a", "a"), by_claims) == OVER
    rig.bind("a")
    assert rig.queue.use.by_namespace() == {"ns": 2.0}
    assert refusal(rig, "b") == OVER
    runs(rig, "a", 2)
    assert rig.queue.use.by_namespace() == {"ns": 2.0}
    rig.gone("a")
    rig.ledger.remove_pod("a")
    assert refusal(rig, "b") == ""
    unlimited = one_released(other=2.0)
    unlimited.bind("a")
    assert unlimited.queue.use.by_namespace() == {}, "nothing is remembered without a quota"


def test_a_pod_that_has_lost_its_node_is_held_to_its_quota_when_kube_scheduler_finds_another() -> None:
    rig = one_released(ns=2.0)
    rig.remove_node("n")
    rig.refuse("a")
    rig.round()
    rig.node("n", 8)
    runs(rig, "b", 1)
    assert refusal(rig, "a", gpus=2) == OVER


def test_a_quota_of_one_has_room_for_one_and_namespaces_without_a_quota_have_no_limit() -> None:
    rig = rig_of(ns=1.0)
    assert refusal(rig, "a") == ""
    use = rig.queue.use
    assert use.refusal(PodIdentity("free", "b", "b"), GpuRequest(9), known=False) == ""
    unknown = use.refusal(PodIdentity("ns", "c", "c"), GpuRequest(1), known=False)
    assert unknown == "quota of namespace ns: its usage is not known yet"
