"""CPU and memory of a pod that is being resized, counted as kube-scheduler does."""

from typing import Any

from extender.ledger.bound_pods import BoundPods
from extender.ledger.ledger import Ledger
from extender.plugins.pod_resources import read_compute, while_resized
from extender.queueing.pods.objects import decode_node, decode_pod

Manifest = dict[str, Any]


def resized(spec: str, granted: str = "", actual: str = "", infeasible: bool = False) -> Manifest:
    """A pod by the CPU of a container."""
    status: Manifest = {"name": "c"}
    if granted:
        status["allocatedResources"] = {"cpu": granted, "memory": "1Gi"}
    if actual:
        status["resources"] = {"requests": {"cpu": actual, "memory": "1Gi"}}
    pending = [{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}] if infeasible else []
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "p"},
        "spec": {
            "nodeName": "n",
            "containers": [
                {"name": "c", "resources": {"requests": {"cpu": spec, "memory": "1Gi"}}},
                {"name": "other", "resources": {"requests": {"cpu": "1"}}},
            ],
        },
        "status": {"phase": "Running", "containerStatuses": [status], "conditions": pending},
    }


def test_the_greatest_of_what_is_wanted_granted_and_in_use_counts() -> None:
    for pod, cpu_milli in (
        (resized("2"), 3000),
        (resized("2", granted="2", actual="6"), 7000),
        (resized("6", granted="2", actual="2"), 7000),
        (resized("6", granted="2", actual="2", infeasible=True), 3000),
        (resized("2", granted="6", actual="6"), 7000),
        (resized("1000m", granted="1", actual="1"), 2000),
        (resized("2", actual="nonsense"), 3000),
    ):
        decoded = decode_pod(pod)
        assert read_compute(while_resized(decoded)) == (cpu_milli, 1024)
        ledger, tenants = Ledger(reservation_ttl_s=30.0), BoundPods()
        status = {"allocatable": {"cpu": "8", "memory": "8Gi"}}
        ledger.upsert_node(decode_node({"metadata": {"name": "n"}, "status": status}))
        ledger.upsert_pod(decoded, 0.0)
        assert ledger.snapshot(0.0).cpu_free_milli.tolist() == [8000 - cpu_milli]
        tenants.upsert_pod(decoded)
        assert read_compute(tenants.on("n")["p"].spec) == (cpu_milli, 1024)


def test_resources_of_the_pod_as_a_whole_count_too() -> None:
    pod = resized("1", granted="1", actual="1")
    pod["spec"]["resources"] = {"requests": {"cpu": "2", "memory": "1Gi"}}
    pod["status"] |= {"allocatedResources": {"cpu": "5"}, "resources": {"requests": {"cpu": "4"}}}
    assert read_compute(while_resized(decode_pod(pod))) == (5000, 1024)
    for steady in (decode_pod(resized("2")), decode_pod(resized("2", granted="2", actual="2"))):
        assert while_resized(steady) is steady.spec
