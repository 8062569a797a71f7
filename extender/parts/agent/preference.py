"""The agent's answer to `GetPreferredAllocation`."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from extender.kube.background import until_set
from extender.parts.agent.choice import (
    CandidatePod,
    HandledPods,
    PreferenceRequest,
    candidate_pods,
    certain,
    choose,
    likeliest,
    promised,
    served,
    spared,
)
from extender.parts.agent.kubelet import KubeletError, Listing, PodResources
from extender.parts.agent.pods import NodePods

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.3
"""Longest wait for the API server to show a pod that the kubelet already lists."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The devices to allocate."""

    devices: list[str]
    """Devices that Kerf chose; may be fewer than requested."""
    rest: list[str]
    """Devices from which the plugin may pick the others."""


@dataclass
class Preference:
    """Finds the pod for which the kubelet requests devices, and the GPUs that Kerf assigned to it."""

    pods: NodePods
    kubelet: PodResources
    uuids: Callable[[], Mapping[int, str]]
    """UUIDs of the node's GPUs by index, {} while unknown."""
    look: Callable[[], Awaitable[object]]
    """Finds them. Raises KubeletError."""
    in_contact: Callable[[], bool]
    """Whether the watch of pods is up to date."""
    settled: set[str] = field(default_factory=set)
    """UIDs of pods that were seen with all their devices."""
    num_steered: int = 0
    num_left: int = 0
    """Answers for pods with assigned GPUs that were left to the plugin."""
    _answered: set[str] = field(default_factory=set)
    _last: str = ""
    _timed_out: set[tuple[str, str]] = field(default_factory=set)
    """Name and, if known, UID of pods for which waiting for the API server timed out."""

    async def answer(self, call: PreferenceRequest) -> Answer:
        """The devices for a call. Never fails."""
        began = time.perf_counter()
        try:
            if not self.uuids():
                await self.look()
            listing = await self.kubelet.listing()
        except KubeletError as error:
            logger.warning("%s: no devices can be chosen: %s", call.resource, error)
            return Answer([], list(call.available))
        self._learn(listing)
        asker = self._find(listing, call)
        if (asker is None or not certain(asker, self._past())) and self.in_contact():
            asker = await self._find_later(listing, call, asker)
        chosen: list[str] = []
        if asker is not None:
            self._last = asker.pod.metadata.uid
            self._answered.add(self._last)
            chosen = choose(asker, call) if asker.assigned else []
        self._log(asker, call, chosen, time.perf_counter() - began)
        if len(chosen) == call.size:
            return Answer(chosen, chosen)
        others = promised(self.pods.values(), listing, asker, self._past(), self.uuids())
        return Answer(chosen, spared(call, chosen, others))

    def _past(self) -> HandledPods:
        return HandledPods(self.settled, self._answered, self._last)

    def _learn(self, listing: Listing) -> None:
        """Update the sets of pods from a listing; drop pods that are gone."""
        self.settle(listing)
        self._answered &= self.pods.keys()
        self._timed_out = {known for known in self._timed_out if known[0] in listing}

    def settle(self, listing: Listing) -> None:
        """Record the pods that have all their devices: the kubelet requests no more for them."""
        self.settled &= self.pods.keys()
        self.settled |= {uid for uid, pod in self.pods.items() if served(pod, listing.get(pod.key, {}))}

    def _find(self, listing: Listing, call: PreferenceRequest) -> CandidatePod | None:
        return likeliest(candidate_pods(self.pods.by_name(), listing, call, self.uuids()), call, self._past())

    async def _find_later(
        self, listing: Listing, call: PreferenceRequest, found: CandidatePod | None
    ) -> CandidatePod | None:
        """Wait for the API server to show all pods that the kubelet lists, as it may be admitting one of these."""
        ends_at = time.monotonic() + _WAIT_S
        while unconfirmed := self._unconfirmed(listing, found) - self._timed_out:
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                self._timed_out |= unconfirmed
                break
            await until_set(self.pods.news, left_s)
            found = self._find(listing, call)
            if found is not None and certain(found, self._past()):
                break
        return found

    def _unconfirmed(self, listing: Listing, found: CandidatePod | None) -> set[tuple[str, str]]:
        """Listed pods that are unknown, or possibly known only as an earlier pod of that name."""
        unknown = {(name, "") for name in listing.keys() - self.pods.by_name().keys()}
        return unknown | ({(found.pod.key, found.pod.metadata.uid)} if found is not None else set())

    def _log(self, asker: CandidatePod | None, call: PreferenceRequest, chosen: list[str], took_s: float) -> None:
        subject = f"{call.resource} of {asker.pod.key if asker else 'an unknown pod'}"
        if asker is None or not asker.assigned:
            logger.info("%s: Kerf has assigned no GPUs, the plugin picks %d", subject, call.size)
        elif len(chosen) == call.size:
            self.num_steered += 1
            logger.info("%s: %s (in %.1f ms)", subject, ",".join(chosen), 1000 * took_s)
        else:
            self.num_left += 1
            logger.warning(
                "%s: of %s only %s are available, the plugin picks %d more",
                subject, ",".join(asker.assigned), ",".join(chosen) or "none", call.size - len(chosen),
            )  # fmt: skip
