"""Whether decisions can be made now, and by which policy.

While Kerf's view of the cluster is stale, all answers about the cluster carry its age; before the first sync they are
503.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict

from extender.api import wire
from extender.core.policies.policy import Policy
from extender.core.resources.requests import PodRequest
from extender.explain.sentences.blind import blind_for
from extender.kube import objects
from extender.kube.commit import FencedError
from extender.ledger.mirror import Mirror
from extender.plugins.pods import owner_of
from extender.scheduling.fence import Fence
from extender.scheduling.placer import Placer, PodIdentity

_STALE_HEADER: Final = "kerf-stale-seconds"
"""Header with the age of a stale view, in all answers about the cluster."""


class Stale(TypedDict, total=False):
    """Keys of answers while Kerf's view of the cluster is stale: its age, and why Kerf makes no decisions."""

    staleSeconds: float | None
    notReady: str


@dataclass(frozen=True, slots=True)
class Blindness:
    """Whether Kerf's view of the cluster is current, stale or missing; true if stale or missing."""

    why: str
    """Why no decisions are made, "" if the view is current."""
    age_s: float
    """Age of the view in seconds; inf if there never was one."""

    def __bool__(self) -> bool:
        return bool(self.why)

    @property
    def unsynced(self) -> bool:
        """Whether Kerf has never synced."""
        return bool(self.why) and not math.isfinite(self.age_s)

    @property
    def answer_keys(self) -> Stale:
        """The keys to add to an answer, none if the view is current."""
        if not self:
            return {}
        return {"staleSeconds": None if self.unsynced else round(self.age_s, 1), "notReady": self.why}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers to add to an answer."""
        return {_STALE_HEADER: f"{self.age_s:.1f}"} if self and not self.unsynced else {}

    @property
    def sentence(self) -> str:
        """A sentence for users."""
        return f"{blind_for(None if self.unsynced else self.age_s)}: {self.why}"

    def marked(self, body: bytes) -> bytes:
        """A JSON object with the keys inserted first; anything else is unchanged."""
        if not self or not body.startswith(b"{"):
            return body
        head = wire.encode(self.answer_keys)[:-1]
        return head + (b"}" if body == b"{}" else b"," + body[1:])


class UnavailableError(Exception):
    """Nothing can be decided now; says why."""


class Readiness:
    """The checks that each verb makes first."""

    def __init__(self, placer: Placer, mirror: Mirror, fence: Fence) -> None:
        self._placer = placer
        self._mirror = mirror
        self._fence = fence

    def policy(self, request: PodRequest) -> Policy:
        """The policy for a pod, if decisions can be made now. Raises RequestError, UnavailableError."""
        policy = self._placer.policy_of(request)
        fault = self.fault()
        if fault:
            raise UnavailableError(f"Kerf can't tell which GPUs are free: {fault}")
        return policy

    def check_leading(self) -> None:
        """Raise UnavailableError unless this process leads."""
        standby = self._fence.standby()
        if standby:
            raise UnavailableError(f"this replica of Kerf does not decide now: {standby}")

    async def confirm_leading(self) -> None:
        """Raise UnavailableError unless this process certainly led at the time of the call."""
        try:
            await self._fence.confirm_now()
        except FencedError as error:
            raise UnavailableError(str(error)) from error

    def fault(self) -> str:
        """Why no GPUs may be allocated now, "" if they may."""
        return self._fence.fault() or self._mirror.fault()


def read_pod(placer: Placer, call: wire.PodCall) -> tuple[PodIdentity, PodRequest]:
    """The pod and its request. Raises WireError, RequestError."""
    check_names(call.pod)
    metadata = call.pod.metadata
    group = call.pod.spec.pod_group
    gang = f"{metadata.namespace}/{group}" if group else ""
    pod = PodIdentity(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        owner=owner_of(metadata),
        created=metadata.creation_timestamp,
        gang=gang,
    )
    return pod, placer.read_request(call.pod)


def check_names(pod: objects.Pod) -> None:
    """Raise WireError unless a pod's namespace and name are valid or missing."""
    for key, name in (("Pod.metadata.namespace", pod.metadata.namespace), ("Pod.metadata.name", pod.metadata.name)):
        if name:
            wire.check_name(key, name)
