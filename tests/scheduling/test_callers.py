"""A kube-scheduler that does not call Kerf is noticed by the pods that wait for it."""

from dataclasses import dataclass, field

from extender.kube import objects
from extender.plugins.pods import read_pod_request
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.callers import _AFTER_S, Callers, UncalledPods
from extender.scheduling.fence import Fence
from extender.scheduling.unbound_pods import UnboundPods
from tests.ledger.builders import Clock, open_fence, pod_manifest

UNCALLED = (
    "0/3 nodes are available: 1 node(s) had untolerated taint {a: b}, 2 Insufficient kerf.dev/gpu. preemption: 0/3"
)


def pod(message: str = "", gate: str = "", scheduler: str = "default-scheduler") -> objects.Pod:
    """Pod "p" without a node, of which its scheduler has said this."""
    manifest = pod_manifest("p", 1)
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    manifest["status"]["conditions"] = [condition] if message else []
    manifest["spec"] |= {"schedulingGates": [{"name": gate}] if gate else [], "schedulerName": scheduler}
    return decode_pod(manifest)


@dataclass
class Rig:
    extender: bool = True
    clock: Clock = field(default_factory=Clock)
    fence: Fence = field(default_factory=open_fence)

    def __post_init__(self) -> None:
        self.callers = Callers(self.clock)
        self.pods = UnboundPods(read_pod_request, self.clock)
        self.unasked = UncalledPods(self.callers, self.pods, self.fence, self.clock, self.clock, extender=self.extender)
        assert self.num_after(0) == 0  # this process was seen to lead

    def told(self, pod: objects.Pod) -> "Rig":
        self.pods.changed(None, pod)
        return self

    def num_after(self, seconds: float) -> int:
        self.clock.now += seconds
        return self.unasked.num_pods()

    def why(self) -> str:
        found = self.pods.get("uid-p")
        assert found is not None
        return self.unasked.why(found)


def test_uncalled_pods_are_counted_after_five_minutes() -> None:
    rig = Rig().told(pod())
    assert (rig.num_after(_AFTER_S - 1), rig.unasked.fault(), rig.why()) == (0, "", "")
    assert rig.num_after(1) == 1
    assert rig.why().endswith("any pod for 5 min")
    assert "with GPUs for 5 min, and a pod that" in rig.unasked.fault()
    rig.callers.note_call(others=False)
    assert (rig.num_after(0), rig.unasked.fault(), rig.why()) == (0, "", "")


def test_an_idle_cluster_and_a_new_pod_in_it_are_no_fault() -> None:
    rig = Rig()
    assert rig.num_after(10 * _AFTER_S) == 0
    rig.told(pod())
    assert [rig.num_after(0), rig.num_after(_AFTER_S)] == [0, 1]


def test_a_pod_counts_from_when_its_gate_was_opened() -> None:
    rig = Rig().told(pod(gate="kerf.dev/queue"))
    assert rig.num_after(2 * _AFTER_S) == 0
    rig.told(pod())
    assert [rig.num_after(_AFTER_S / 2), rig.num_after(_AFTER_S / 2)] == [0, 1]


def test_a_pod_that_no_node_passes_for_kube_scheduler_itself_is_not_late() -> None:
    for message in ("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.", "1 Insufficient cpu"):
        rig = Rig().told(pod(message))
        assert (rig.num_after(2 * _AFTER_S), rig.why()) == (0, "")


def test_a_scheduler_that_counts_the_marker_does_not_call_kerf() -> None:
    """`kubeadm upgrade` has removed the entries: the pod says so at once, and after five minutes an alert."""
    rig = Rig().told(pod(UNCALLED))
    assert rig.why().startswith("its scheduler default-scheduler does not call Kerf")
    assert rig.num_after(_AFTER_S - 1) == 0
    rig.callers.note_call(others=True)  # by the second entry alone
    assert rig.num_after(1) == 1


def test_a_pod_of_another_scheduler_is_not_counted_while_kerf_is_called_about_others() -> None:
    rig = Rig().told(pod(scheduler="nobody"))
    for _ in range(5):
        rig.num_after(_AFTER_S / 2)
        rig.callers.note_call(others=False)
    assert (rig.num_after(0), rig.why()) == (0, "")


def test_without_an_extender_the_scheduler_of_the_pod_is_the_one_that_is_silent() -> None:
    rig = Rig(extender=False).told(pod(UNCALLED))  # it asks by annotation, and is reported elsewhere
    assert (rig.num_after(_AFTER_S), rig.why()) == (0, "")
    rig = Rig(extender=False).told(pod(scheduler="gone"))
    assert rig.num_after(_AFTER_S + 60) == 1
    assert rig.why() == "its scheduler gone has not reported on it for 6 min"
    assert "(kerf pending)" in rig.unasked.fault()


def test_a_standby_counts_nothing_and_a_new_leader_starts_over() -> None:
    rig = Rig().told(pod())
    assert rig.num_after(_AFTER_S) == 1
    rig.fence.shut(lambda: "another leads")
    assert (rig.num_after(0), rig.why()) == (0, "")
    rig.fence.take_over("", lambda: float("inf"), lambda: "")
    assert [rig.num_after(0), rig.num_after(_AFTER_S)] == [0, 1]
