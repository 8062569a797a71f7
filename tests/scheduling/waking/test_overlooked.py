"""Pods that kube-scheduler should try and does not ask about are woken."""

import msgspec

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.plugins.holdings import whole_gpus
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.placer import PodIdentity
from extender.scheduling.unbound_pods import UnboundPods
from extender.scheduling.waking import _WOKEN, _Overlooked
from tests.ledger.builders import pod_manifest
from tests.scheduling.waking.rigs import Rig


def unbound(
    name: str, *, namespace: str = "default", version: str = "1", reason: str = "SchedulerError", gate: str = ""
) -> objects.Pod:
    """A pod without a node, of which kube-scheduler has said this."""
    manifest = pod_manifest(name, 1)
    manifest["metadata"] |= {"namespace": namespace, "resourceVersion": version}
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "it says so"}
    manifest["status"]["conditions"] = [condition] if reason else []
    manifest["spec"]["schedulingGates"] = [{"name": gate}] if gate else []
    return decode_pod(manifest)


class Looks:
    """Looks at pods without a node."""

    def __init__(self, *pods: objects.Pod) -> None:
        self.pods = UnboundPods(read_pod_request, lambda: 0.0)
        self.overlooked = _Overlooked(self.pods.all)
        self.asked: set[str] = set()
        self.report(*pods)

    def report(self, *pods: objects.Pod) -> None:
        for pod in pods:
            self.pods.changed(None, pod)

    def at(self, *times: float) -> list[list[str]]:
        """Names of the pods to wake at these times."""
        return [[pod.name for pod, _ in self.overlooked.due(now, self.asked.__contains__)] for now in times]


def test_an_overlooked_pod_is_woken_at_waits_that_double() -> None:
    looks = Looks(unbound("failed"), unbound("new", reason=""))
    woken_at = [now for now, woken in enumerate(looks.at(*range(1000))) if woken]
    assert woken_at == [45, 135, 315, 675]


def test_a_pod_that_is_refused_held_or_asked_about_is_not_overlooked() -> None:
    looks = Looks(unbound("refused", reason="Unschedulable"), unbound("held", gate="a/b"), unbound("asked"))
    looks.asked.add("uid-asked")
    assert looks.at(0, 100) == [[], []]


def test_a_pod_that_changes_is_tried_because_of_that() -> None:
    looks = Looks(unbound("p"))
    assert looks.at(0) == [[]]
    looks.report(unbound("p", version="2"))
    assert looks.at(40, 84, 85) == [[], [], ["p"]]
    looks.report(unbound("p", version="3"))  # by the wake
    assert looks.at(174, 175) == [[], ["p"]]


def test_namespaces_take_turns_and_each_look_has_a_bound() -> None:
    looks = Looks(*(unbound(f"flood-{number}", namespace="flood") for number in range(100)), unbound("other"))
    _, first, second = looks.at(0, 50, 60)
    assert "other" in first
    assert len(first) == len(second) == 20
    assert not set(first) & set(second)


def test_the_waker_changes_the_pod_which_makes_kube_scheduler_try_it() -> None:
    rig = Rig()
    for name in ("lost", "rejected", "placed"):
        rig.transport.inner.apply(pod_manifest(name, 1))
        rig.unbound.changed(None, unbound(name))
    assert rig.woken(100.0) == []
    rig.clock.now += 50.0
    rig.waker.rejected(PodIdentity("default", "rejected", "uid-rejected"), PodRequest(GpuRequest(2)))
    rig.ledger.reserve("uid-placed", "n", whole_gpus(1, (0,)), rig.clock())
    assert rig.woken() == ["lost"]
    assert msgspec.json.decode(rig.transport.calls[0][2])["metadata"]["annotations"] == {_WOKEN: "overlooked 1"}
