"""A kube-scheduler that does not ask Kerf is noticed by the pods that wait for it."""

from dataclasses import dataclass, field

import msgspec
import pytest

from extender.kube import objects
from extender.plugins.pods import read_pod_request
from extender.scheduling.callers import _AFTER_S, Callers, Unasked
from extender.scheduling.fence import Fence
from extender.scheduling.unbound_pods import UnboundPods
from tests.ledger.builders import Clock, open_fence, pod_manifest

UNCALLED = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {a: b}, 2 Insufficient kerf.dev/gpu. preemption: 0/3"
)


def pod(name: str, said: str = "", gate: str = "", scheduler: str = "default-scheduler") -> objects.Pod:
    """A pod without a node of which its scheduler has said that."""
    manifest = pod_manifest(name, 1)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
    manifest["status"]["conditions"] = [condition] if said else []
    manifest["spec"] |= {"schedulingGates": [{"name": gate}] if gate else [], "schedulerName": scheduler}
    return msgspec.convert(manifest, objects.Pod)


@dataclass
class Rig:
    """Somebody who looks at pods, and at who asks."""

    extender: bool = True
    clock: Clock = field(default_factory=Clock)
    fence: Fence = field(default_factory=open_fence)

    def __post_init__(self) -> None:
        self.callers = Callers(self.clock)
        self.pods = UnboundPods(read_pod_request, self.clock)
        self.unasked = Unasked(self.callers, self.pods, self.fence, self.clock, self.clock, extender=self.extender)
        assert self.unasked.num_pods() == 0  # the first look

    def wait(self, seconds: float) -> None:
        self.clock.now += seconds

    def why(self, name: str) -> str:
        found = self.pods.get(f"uid-{name}")
        assert found is not None
        return self.unasked.why(found)


def test_pods_that_nobody_asks_about_are_counted_after_five_minutes() -> None:
    rig = Rig()
    rig.pods.changed(None, pod("p"))
    rig.wait(_AFTER_S - 1)
    assert (rig.unasked.num_pods(), rig.unasked.fault(), rig.why("p")) == (0, "", "")
    rig.wait(1)
    assert rig.unasked.num_pods() == 1
    assert rig.why("p") == "kube-scheduler has not asked Kerf about any pod for 5 min"
    said = "has not asked Kerf about a pod with GPUs for 5 min, and a pod that asks for GPUs waits for it"
    assert rig.unasked.fault() == f"{said} (kerf install check)"
    rig.callers.asked(others=False)
    assert (rig.unasked.num_pods(), rig.unasked.fault(), rig.why("p")) == (0, "", "")


def test_an_idle_cluster_and_a_new_pod_in_it_are_no_fault() -> None:
    rig = Rig()
    rig.wait(10 * _AFTER_S)
    assert rig.unasked.num_pods() == 0
    made = pod_manifest("p", 1)
    rig.pods.changed(None, msgspec.convert(made, objects.Pod))
    assert rig.unasked.num_pods() == 0
    rig.wait(_AFTER_S)
    assert rig.unasked.num_pods() == 1


def test_a_pod_counts_from_when_its_gate_was_opened() -> None:
    rig = Rig()
    rig.pods.changed(None, pod("p", gate="kerf.dev/queue"))
    rig.wait(2 * _AFTER_S)
    assert rig.unasked.num_pods() == 0
    rig.pods.changed(None, pod("p"))
    rig.wait(_AFTER_S / 2)
    assert rig.unasked.num_pods() == 0
    rig.wait(_AFTER_S / 2)
    assert rig.unasked.num_pods() == 1


@pytest.mark.parametrize("said", ["0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "1 Insufficient cpu"])
def test_who_is_refused_for_another_reason_waits_for_nobody(said: str) -> None:
    """Where no node passes kube-scheduler's own plugins, it has nothing to ask about."""
    rig = Rig()
    rig.pods.changed(None, pod("p", said))
    rig.wait(2 * _AFTER_S)
    assert (rig.unasked.num_pods(), rig.why("p")) == (0, "")


def test_a_scheduler_that_counts_the_marker_does_not_call_kerf() -> None:
    """`kubeadm upgrade` has taken the entries out: known of the pod at once, and alerted on when nobody asks."""
    rig = Rig()
    rig.pods.changed(None, pod("p", UNCALLED))
    assert rig.why("p") == "its scheduler default-scheduler does not call Kerf: it counts kerf.dev/gpu itself"
    assert rig.unasked.num_pods() == 0
    rig.wait(_AFTER_S - 1)
    rig.callers.asked(others=True)  # by the second entry alone
    rig.wait(1)
    assert rig.unasked.num_pods() == 1


def test_while_others_are_asked_about_one_that_names_no_scheduler_is_no_alert() -> None:
    rig = Rig()
    rig.pods.changed(None, pod("p", scheduler="nobody"))
    for _ in range(5):
        rig.wait(_AFTER_S / 2)
        rig.callers.asked(others=False)
    assert (rig.unasked.num_pods(), rig.why("p")) == (0, "")


def test_without_an_extender_the_scheduler_of_the_pod_is_what_says_nothing() -> None:
    rig = Rig(extender=False)
    rig.pods.changed(None, pod("marked", UNCALLED))  # asks by annotation: placed by nobody, and told why elsewhere
    rig.pods.changed(None, pod("p", scheduler="gone"))
    rig.wait(_AFTER_S + 60)
    assert (rig.unasked.num_pods(), rig.why("marked")) == (1, "")
    assert rig.why("p") == "its scheduler gone has not reported on it for 6 min"
    assert "(kerf pending)" in rig.unasked.fault()


def test_who_does_not_lead_says_nothing_and_begins_anew() -> None:
    rig = Rig()
    rig.pods.changed(None, pod("p"))
    rig.wait(_AFTER_S)
    assert rig.unasked.num_pods() == 1
    rig.fence.shut(lambda: "another leads")
    assert (rig.unasked.num_pods(), rig.why("p")) == (0, "")
    rig.fence.take_over("", lambda: float("inf"), lambda: "")
    assert rig.unasked.num_pods() == 0
    rig.wait(_AFTER_S)
    assert rig.unasked.num_pods() == 1
