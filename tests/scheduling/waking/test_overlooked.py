"""Pods that kube-scheduler owes a try and does not ask about are made to be tried."""

from dataclasses import dataclass, field

import msgspec

from extender.core.resources.requests import GpuRequest, PodRequest
from extender.kube import objects
from extender.plugins.holdings import whole_gpus
from extender.plugins.pods import read_pod_request
from extender.scheduling.placer import PodIdentity
from extender.scheduling.unbound_pods import UnboundPods
from extender.scheduling.waking import _WOKEN, _Overlooked
from tests.ledger.builders import pod_manifest
from tests.scheduling.waking.rigs import Rig


def unbound(
    name: str, *, namespace: str = "default", version: str = "1", reason: str = "SchedulerError", gate: str = ""
) -> objects.Pod:
    """A pod without a node of which kube-scheduler has said that."""
    manifest = pod_manifest(name, 1)
    manifest["metadata"] |= {"namespace": namespace, "resourceVersion": version}
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": "it says so"}
    manifest["status"]["conditions"] = [condition] if reason else []
    manifest["spec"]["schedulingGates"] = [{"name": gate}] if gate else []
    return msgspec.convert(manifest, objects.Pod)


@dataclass
class Looks:
    """Looks at pods without a node, at the seconds that they are told."""

    pods: UnboundPods = field(default_factory=lambda: UnboundPods(read_pod_request, lambda: 0.0))
    asked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.overlooked = _Overlooked(self.pods.all)

    def at(self, now: float) -> list[str]:
        """Names of those to wake then."""
        return [pod.name for pod, _ in self.overlooked.due(now, self.asked.__contains__)]


def test_a_pod_that_is_owed_a_try_is_woken_at_waits_that_double() -> None:
    looks = Looks()
    looks.pods.changed(None, unbound("failed"))
    looks.pods.changed(None, unbound("new", reason=""))
    woken_at = [now for now in range(1000) if looks.at(now)]
    assert woken_at == [45, 135, 315, 675]


def test_a_pod_that_is_refused_held_or_asked_about_is_not_overlooked() -> None:
    looks = Looks()
    looks.pods.changed(None, unbound("refused", reason="Unschedulable"))
    looks.pods.changed(None, unbound("held", gate="a/b"))
    looks.pods.changed(None, unbound("asked"))
    looks.asked.add("uid-asked")
    assert [looks.at(now) for now in (0, 100)] == [[], []]


def test_a_pod_that_changes_is_tried_by_that() -> None:
    looks = Looks()
    looks.pods.changed(None, unbound("changes"))
    assert looks.at(0) == []
    looks.pods.changed(None, unbound("changes", version="2"))
    assert [looks.at(40), looks.at(84), looks.at(85)] == [[], [], ["changes"]]
    looks.pods.changed(None, unbound("changes", version="3"))  # by the wake
    assert [looks.at(174), looks.at(175)] == [[], ["changes"]]


def test_namespaces_take_turns_and_each_look_has_a_bound() -> None:
    looks = Looks()
    for number in range(100):
        looks.pods.changed(None, unbound(f"flood-{number}", namespace="flood"))
    looks.pods.changed(None, unbound("other"))
    looks.at(0)
    first, second = looks.at(50), looks.at(60)
    assert "other" in first
    assert len(first) == len(second) == 20
    assert not set(first) & set(second)


def test_the_waker_changes_the_pod_by_which_it_is_tried_again() -> None:
    rig = Rig()
    for name in ("lost", "rejected", "placed"):
        rig.transport.inner.apply(pod_manifest(name, 1))
        rig.unbound.changed(None, unbound(name))
    rig.clock.now += 100.0
    assert rig.woken() == []
    rig.clock.now += 50.0
    rig.waker.rejected(PodIdentity("default", "rejected", "uid-rejected"), PodRequest(GpuRequest(2)))
    rig.ledger.reserve("uid-placed", "n", whole_gpus(1, (0,)), rig.clock())
    assert rig.woken() == ["lost"]
    assert msgspec.json.decode(rig.transport.calls[0][2])["metadata"]["annotations"] == {_WOKEN: "overlooked 1"}
