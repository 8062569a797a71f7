"""Whether anything can be decided now, and by which policy; and who is asked about."""

from extender.api import wire
from extender.core.policies.policy import Policy
from extender.core.resources.requests import PodRequest
from extender.kube import objects
from extender.kube.commit import FencedError
from extender.ledger.mirror import Mirror
from extender.plugins.pods import owner_of
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer, PodIdentity


class UnavailableError(Exception):
    """Nothing can be decided now; says why."""


class Readiness:
    """What every verb asks first."""

    def __init__(self, placer: Placer, mirror: Mirror, fence: Fence) -> None:
        self._placer = placer
        self._mirror = mirror
        self._fence = fence

    def policy(self, request: PodRequest) -> Policy:
        """The policy for a pod, if anything can be decided now. Raises RequestError, UnavailableError."""
        policy = self._placer.policy_of(request)
        fault = self.fault()
        if fault:
            raise UnavailableError(f"Kerf can't tell which GPUs are free: {fault}")
        return policy

    def check_leading(self) -> None:
        """Answer only where this process leads. Raises UnavailableError."""
        standby = self._fence.standby()
        if standby:
            raise UnavailableError(f"this replica of Kerf does not decide now: {standby}")

    async def confirm_leading(self) -> None:
        """Answer only where this process certainly led when it was asked. Raises UnavailableError."""
        try:
            await self._fence.confirm_now()
        except FencedError as error:
            raise UnavailableError(str(error)) from error

    def fault(self) -> str:
        """Why no GPUs may be given away now, "" when they may."""
        return self._fence.fault() or self._mirror.fault()


def read_pod(placer: Placer, asked: wire.Asked) -> tuple[PodIdentity, PodRequest]:
    """Who asks, and for what. Raises WireError, RequestError."""
    check_names(asked.pod)
    metadata = asked.pod.metadata
    group = asked.pod.spec.pod_group
    gang = f"{metadata.namespace}/{group}" if group else ""
    pod = PodIdentity(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        owner=owner_of(metadata),
        created=metadata.creation_timestamp,
        gang=gang,
    )
    return pod, placer.read_request(asked.pod)


def check_names(pod: objects.Pod) -> None:
    metadata = pod.metadata
    for key, name in (("Pod.metadata.namespace", metadata.namespace), ("Pod.metadata.name", metadata.name)):
        if name:
            wire.check_name(key, name)
