"""Answers of a Kerf that can't see the cluster: how old its view is stands in all that speak of the cluster.

Before the first sync there is nothing to speak of, and such questions get 503.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict

from extender.api import wire
from extender.explain.sentences.blind import blind_for

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
