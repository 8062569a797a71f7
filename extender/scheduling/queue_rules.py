"""The pending queue's rules for pods that kube-scheduler asks about, gated by it or not."""

from collections.abc import Iterable, Mapping

from extender.core.resources.requests import GpuRequest
from extender.kube.objects import Pod
from extender.scheduling.assignments import PodIdentity


class QueueRules:
    """The interface of a queue as scheduling sees it. This base class stands for no queue and forbids nothing."""

    def place_kept(self, pod: Pod) -> str:
        """Return the node that a plan keeps for this released pod alone, "" for none; its GPUs are then reserved there.

        kube-scheduler may ask about the pod before the node is nominated again.
        """
        return ""

    def over_quota(self, pod: PodIdentity, request: GpuRequest) -> str:
        """Return why the pod may not have these GPUs by the queue's rules, "" when it may."""
        return ""

    def preemption_refusal(self, uid: str) -> str:
        """Return why a pod must not preempt others, "" when it may."""
        return ""

    async def running_gangs(self, uids: Iterable[str]) -> list[Mapping[str, int]]:
        """Return for each gang of running pods how many members each of its pods needs to keep running, by UID."""
        return []

    def kept_from(self, uid: str) -> frozenset[str]:
        """Return the nodes that a pod has to leave to the head of the queue."""
        return frozenset()

    def will_nominate(self, uid: str) -> bool:
        """Whether the queue nominates a pod once there is room."""
        return False

    def notes(self, uid: str) -> dict[str, str]:
        """Return annotations to write on a pod with its Binding."""
        return {}
