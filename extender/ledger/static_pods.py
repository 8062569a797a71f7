"""Static pods whose mirror was deleted: their containers run on, so what they hold is kept until a new mirror tells.

A kubelet makes a deleted mirror again at once, and by its next look at its pods at the latest: `syncFrequency`, a
minute unless set. While it is not at work it makes none, and its containers may run on all the same.
"""

from dataclasses import dataclass
from typing import Final

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation that a kubelet gives to the mirror of a static pod."""

_WITHIN_S: Final = 150.0
"""In which a kubelet at work has made a mirror again: the look every minute, and what two lost calls take. A kubelet
that has died is known to be not ready after 50 s of it."""


@dataclass(slots=True)
class _Orphan:
    node: str
    pod: str
    since: float | None = None
    """When it was first seen to be missing while its kubelet was at work."""


class Orphans:
    """What is kept though its mirror is gone. Not thread-safe."""

    def __init__(self) -> None:
        self._mirrors: set[str] = set()
        self._orphans: dict[str, _Orphan] = {}
        self._idle: set[str] = set()  # nodes whose kubelet is not at work

    def note(self, uid: str) -> None:
        """A pod is the mirror of a static one."""
        self._mirrors.add(uid)

    def is_mirror(self, uid: str) -> bool:
        """Whether a pod is the mirror of a static one, and there."""
        return uid in self._mirrors and uid not in self._orphans

    def adopt(self, uid: str, node: str, pod: str) -> bool:
        """A pod is gone. Whether it is kept, as the mirror of a static one."""
        if uid not in self._mirrors:
            return False
        self._orphans.setdefault(uid, _Orphan(node, pod))
        return True

    def of(self, node: str, pod: str) -> list[str]:
        """The mirrors of a pod that were deleted."""
        return [uid for uid, item in self._orphans.items() if (item.node, item.pod) == (node, pod)]

    def set_ready(self, node: str, *, ready: bool) -> None:
        """Whether a node's kubelet is at work."""
        (self._idle.discard if ready else self._idle.add)(node)

    def expired(self, now: float) -> list[str]:
        """Those that no mirror has come back for."""
        found = []
        for uid, orphan in self._orphans.items():
            if orphan.node in self._idle:
                orphan.since = None
            elif orphan.since is None:
                orphan.since = now
            elif orphan.since + _WITHIN_S <= now:
                found.append(uid)
        return found

    def forget(self, uid: str) -> None:
        """A pod holds nothing any more."""
        self._mirrors.discard(uid)
        self._orphans.pop(uid, None)
