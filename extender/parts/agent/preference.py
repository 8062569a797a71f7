"""The agent's answer to `GetPreferredAllocation`."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from extender.kube.background import until_set
from extender.parts.agent.choice import Asker, Call, Past, askers, certain, choose, likeliest, promised, served, spared
from extender.parts.agent.kubelet import KubeletError, Listing, PodResources
from extender.parts.agent.pods import NodePods

logger = logging.getLogger(__name__)

_WAIT_S: Final = 0.3
"""How long the API server may be later than the kubelet with a pod."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Which devices are to be given."""

    devices: list[str]
    """Fewer than asked for where Kerf has not decided all."""
    rest: list[str]
    """Devices among which somebody else may pick what is missing."""


@dataclass
class Preference:
    """Finds the pod for which the kubelet asks, and what Kerf has assigned to it."""

    pods: NodePods
    kubelet: PodResources
    uuids: Callable[[], Mapping[int, str]]
    """Of the node's GPUs by index, {} while nobody knows them."""
    look: Callable[[], Awaitable[object]]
    """Find them out. Raises KubeletError."""
    in_contact: Callable[[], bool]
    """Whether the API server tells of pods at the moment."""
    settled: set[str] = field(default_factory=set)
    """UIDs of pods that were seen with devices."""
    num_steered: int = 0
    num_left: int = 0
    """Answers that were left to the plugin, of pods that had GPUs assigned."""
    _answered: set[str] = field(default_factory=set)
    _last: str = ""
    _unheard: set[tuple[str, str]] = field(default_factory=set)
    """Pods, by name and UID as far as known, of which news were waited for in vain."""

    async def answer(self, call: Call) -> Answer:
        """What to give for a call. Never fails."""
        began = time.perf_counter()
        try:
            if not self.uuids():
                await self.look()
            listing = await self.kubelet.listing()
        except KubeletError as error:
            logger.warning("devices of %s can't be led to a pod: %s", call.resource, error)
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
        self._tell(asker, call, chosen, time.perf_counter() - began)
        if len(chosen) == call.size:
            return Answer(chosen, chosen)
        others = promised(self.pods.values(), listing, asker, self._past(), self.uuids())
        return Answer(chosen, spared(call, chosen, others))

    def _past(self) -> Past:
        return Past(self.settled, self._answered, self._last)

    def _learn(self, listing: Listing) -> None:
        """Remember who has devices, and forget pods that are gone."""
        self.settle(listing)
        self._answered &= self.pods.keys()
        self._unheard = {known for known in self._unheard if known[0] in listing}

    def settle(self, listing: Listing) -> None:
        """Remember pods that have all that they ask for: the kubelet asks for them no more."""
        self.settled &= self.pods.keys()
        self.settled |= {uid for uid, pod in self.pods.items() if served(pod, listing.get(pod.key, {}))}

    def _find(self, listing: Listing, call: Call) -> Asker | None:
        return likeliest(askers(self.pods.by_name(), listing, call, self.uuids()), call, self._past())

    async def _find_later(self, listing: Listing, call: Call, found: Asker | None) -> Asker | None:
        """Wait until the API server has told of all that the kubelet lists: it may ask for one of those."""
        ends_at = time.monotonic() + _WAIT_S
        while unheard := self._not_heard_of(listing, found) - self._unheard:
            left_s = ends_at - time.monotonic()
            if left_s <= 0:
                self._unheard |= unheard
                break
            await until_set(self.pods.news, left_s)
            found = self._find(listing, call)
            if found is not None and certain(found, self._past()):
                break
        return found

    def _not_heard_of(self, listing: Listing, found: Asker | None) -> set[tuple[str, str]]:
        """Pods that are listed and not known, or known as they were under that name before."""
        unknown = {(name, "") for name in listing.keys() - self.pods.by_name().keys()}
        return unknown | ({(found.pod.key, found.pod.metadata.uid)} if found is not None else set())

    def _tell(self, asker: Asker | None, call: Call, chosen: list[str], took_s: float) -> None:
        whose = f"{call.resource} of {asker.pod.key if asker else 'an unknown pod'}"
        if asker is None or not asker.assigned:
            logger.info("%s: Kerf has assigned no GPUs, the plugin picks %d", whose, call.size)
        elif len(chosen) == call.size:
            self.num_steered += 1
            logger.info("%s: %s (in %.1f ms)", whose, ",".join(chosen), 1000 * took_s)
        else:
            self.num_left += 1
            logger.warning(
                "%s: of %s only %s can be had, the plugin picks %d more",
                whose, ",".join(asker.assigned), ",".join(chosen) or "none", call.size - len(chosen),
            )  # fmt: skip
