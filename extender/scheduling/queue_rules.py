"""What a pending queue says of pods that kube-scheduler asks about, whether they came by its gate or not."""

from collections.abc import Iterable, Mapping

from extender.core.resources.requests import GpuRequest
from extender.kube.objects import Pod
from extender.scheduling.assignments import PodIdentity


class QueueRules:
    """A queue, as placing pods sees it; this is none, and says nothing against any pod."""

    def place_kept(self, pod: Pod) -> str:
        """The node that a plan keeps from all pods but this one, which was let go for it; its GPUs are reserved there
        from then on; "" for none. kube-scheduler may ask about it before anybody has nominated that node again."""
        return ""

    def over_quota(self, pod: PodIdentity, request: GpuRequest) -> str:
        """Why a pod's namespace may not have so many more GPUs, "" when it may."""
        return ""

    def evicts_nobody(self, uid: str) -> str:
        """Why a pod may evict nobody, "" when it may."""
        return ""

    async def running_gangs(self, uids: Iterable[str]) -> list[Mapping[str, int]]:
        """The gangs of running pods: of each gang how many pods each of its pods needs to go on, by UID."""
        return []

    def kept_from(self, uid: str) -> frozenset[str]:
        """Nodes that a pod has to leave to the first in the queue."""
        return frozenset()

    def will_nominate(self, uid: str) -> bool:
        """Whether the queue nominates a pod when there is room, in its turn."""
        return False

    def notes(self, uid: str) -> dict[str, str]:
        """Annotations to write on a pod with its Binding."""
        return {}
