"""Whether anything can be decided now, and by which policy; and who is asked about.

Answers of a Kerf that can't see the cluster: how old its view is stands in all that speak of the cluster.

Before the first sync there is nothing to speak of, and such questions get 503.
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
"""Of every answer that speaks of the cluster, while Kerf is blind: how old its view is."""


class Stale(TypedDict, total=False):
    """While Kerf is blind: how old its view of the cluster is, and why it decides nothing."""

    staleSeconds: float | None
    notReady: str


@dataclass(frozen=True, slots=True)
class Blindness:
    """How far Kerf sees the cluster: not at all, as it was some time ago, or as it is."""

    why: str
    """Why nothing is decided by this view, "" for one that is current."""
    age_s: float
    """Of the view; inf where there never was one."""

    def __bool__(self) -> bool:
        return bool(self.why)

    @property
    def unsynced(self) -> bool:
        """Whether nothing of the cluster is known at all."""
        return bool(self.why) and not math.isfinite(self.age_s)

    @property
    def told(self) -> Stale:
        """The keys of an answer, none where the view is current."""
        if not self:
            return {}
        return {"staleSeconds": None if self.unsynced else round(self.age_s, 1), "notReady": self.why}

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of an answer."""
        return {_STALE_HEADER: f"{self.age_s:.1f}"} if self and not self.unsynced else {}

    @property
    def sentence(self) -> str:
        """For people."""
        return f"{blind_for(None if self.unsynced else self.age_s)}: {self.why}"

    def marked(self, body: bytes) -> bytes:
        """A JSON object with the keys before its own; anything else as it is."""
        if not self or not body.startswith(b"{"):
            return body
        head = wire.encode(self.told)[:-1]
        return head + (b"}" if body == b"{}" else b"," + body[1:])


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
